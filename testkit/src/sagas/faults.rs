//! The faults of a run, such as a worker that disappears.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use saga::{Hook, crash_points};

/// The maximum number of passes that are tried for a crash point.
pub(super) const PASSES: u32 = 50;

/// A fault in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// No fault.
    None,
    /// A worker disappears at this place, at this pass of it.
    Vanish(&'static str, u32),
    /// Every lease ends at once, so that two workers take turns.
    ShortLeases,
    /// Replies come before the saga begins.
    EarlyReplies,
    /// Replies come twice, and again after the end.
    RepeatedReplies,
}

impl Fault {
    pub(super) fn all(has_replies: bool) -> Vec<Self> {
        let mut all: Vec<_> = crash_points::ALL.into_iter().map(|place| Self::Vanish(place, 1)).collect();
        all.push(Self::ShortLeases);
        if has_replies {
            all.extend([Self::EarlyReplies, Self::RepeatedReplies]);
        }
        all
    }

    pub(super) fn at_pass(self, pass: u32) -> Self {
        match self {
            Self::Vanish(place, _) => Self::Vanish(place, pass),
            other => other,
        }
    }

    pub(super) fn has_passes(self) -> bool {
        matches!(self, Self::Vanish(..))
    }

    /// Returns the hook of the workers, and a flag that shows whether the fault has occurred.
    pub(super) fn hook(self) -> (Hook, Arc<AtomicBool>) {
        let met = Arc::new(AtomicBool::new(!self.has_passes()));
        let (noted, passes) = (Arc::clone(&met), Mutex::new(HashMap::<&'static str, u32>::new()));
        let hook: Hook = Arc::new(move |_, place| {
            let mut passes = passes.lock().unwrap_or_else(PoisonError::into_inner);
            let pass = passes.entry(place).or_default();
            *pass += 1;
            let vanishes = self == Self::Vanish(place, *pass);
            if vanishes {
                noted.store(true, Ordering::SeqCst);
            }
            Box::pin(async move { vanishes })
        });
        (hook, met)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("undisturbed"),
            Self::Vanish(place, pass) => write!(f, "a worker disappeared at pass {pass} of {place}"),
            Self::ShortLeases => f.write_str("leases expired too early"),
            Self::EarlyReplies => f.write_str("replies arrived before the saga began"),
            Self::RepeatedReplies => f.write_str("replies arrived several times"),
        }
    }
}
