//! Explores a model and returns the findings.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// The findings of an exploration.
#[derive(Debug, Clone, Serialize)]
pub struct Explored {
    /// Number of different states that were reached: all that exist, unless a promise is broken.
    pub states: usize,
    /// The largest distance of a state from an initial one, in steps.
    pub depth: usize,
    /// Duration of the exploration.
    pub took: Duration,
    /// Broken promises, each with the steps to a state that breaks it.
    pub broken: Vec<Broken>,
    /// Properties that should be reachable but are not: the model would prove too little.
    pub unreachable: Vec<&'static str>,
}

/// A promise that a state breaks.
#[derive(Debug, Clone, Serialize)]
pub struct Broken {
    /// The promise.
    pub promise: &'static str,
    /// The shortest path to a state that breaks it.
    pub steps: Vec<String>,
}

impl Explored {
    /// Returns whether every promise holds and the model reaches every state that it should.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.broken.is_empty() && self.unreachable.is_empty()
    }
}

/// Visits every reachable state of a model, breadth first, and stops at the first that breaks a
/// promise. The path there is the shortest, or nearly: every processor runs a thread of the search.
pub fn explore<M>(model: M) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let begun_at = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let checker =
        model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let (mut broken, mut unreachable) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match (&property.expectation, found) {
            (Expectation::Sometimes, None) => unreachable.push(property.name),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => {
                let steps = path.clone().into_actions().iter().map(|step| format!("{step:?}")).collect();
                broken.push(Broken { promise: property.name, steps });
            }
        }
    }
    Explored {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: begun_at.elapsed(),
        broken,
        unreachable,
    }
}
