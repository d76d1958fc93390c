//! Explores a model and says what was found.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// The findings of an exploration.
#[derive(Debug, Clone, Serialize)]
pub struct Explored {
    /// Different states that were reached: all there are, unless a promise is broken.
    pub states: usize,
    /// The longest shortest way to a state, in steps.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Promises that a state breaks, each with the steps that lead there.
    pub broken: Vec<Broken>,
    /// Properties that should be reachable and are not: the model would prove too little.
    pub unreachable: Vec<&'static str>,
}

/// A promise that a state breaks.
#[derive(Debug, Clone, Serialize)]
pub struct Broken {
    /// The promise.
    pub promise: &'static str,
    /// The shortest way to a state that breaks it.
    pub steps: Vec<String>,
}

impl Explored {
    /// Whether every promise holds and the model reaches what it should.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.broken.is_empty() && self.unreachable.is_empty()
    }
}

/// Visits every reachable state of a model, breadth first, and stops at the first that breaks a
/// promise: the way there is the shortest, or nearly, because as many threads search as there are
/// processors.
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
