//! Faults, each with its cure, and the one injector that makes them happen.
//!
//! | module | what it holds |
//! |---|---|
//! | `schedule` | which fault is injected when, from a seed: by time, or by progress |
//! | `injector` | [`FaultInjector`]: carries a schedule out |
//! | `processes` | [`Kill`], [`Pause`] |
//! | [`tcp`] | the wire between two ends |
//! | `cluster` | [`BrokerGone`]: a broker inside this process |
//!
//! Demo and storm say what these faults reach, by [`Reach`], and add faults of their own.

mod cluster;
mod injector;
mod processes;
mod schedule;
pub mod tcp;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use proxy::Proxy;
use rand::rngs::StdRng;

use crate::Failure;
use crate::processes::Processes;

pub use cluster::BrokerGone;
pub use injector::{FaultInjector, Record, Step};
pub use processes::{Kill, Pause};
pub use schedule::{FaultKind, PlannedFault, over_progress, over_time};

/// A fault on a stage `S`: it is injected, stays for a while, and is healed.
///
/// The [injector](FaultInjector) waits until it is [`ready`](Self::ready), calls
/// [`inject`](Self::inject), waits, and calls [`heal`](Self::heal); it never injects one fault twice
/// without a `heal` between. Different faults overlap.
#[async_trait]
pub trait Fault<S: Sync>: Send {
    /// How it is named, chosen and left alone.
    fn kind(&self) -> FaultKind;

    /// Waits until there is something that it can hit.
    async fn ready(&mut self, _stage: &S) {}

    /// Makes it happen; returns within seconds. All chance comes from `rng`.
    ///
    /// # Errors
    /// It could not be made to happen; it is healed, and the run goes on.
    async fn inject(&mut self, stage: &S, rng: &mut StdRng) -> Result<Injected, Failure>;

    /// Ends it, and returns when it is over. Without an injection before, and a second time, it
    /// changes nothing.
    ///
    /// # Errors
    /// It goes on; the injector tries again a few times, then gives the run up.
    async fn heal(&mut self, _stage: &S) -> Result<(), Failure> {
        Ok(())
    }
}

/// Faults on a stage.
pub type Faults<S> = Vec<Box<dyn Fault<S>>>;

/// The part of a stage that the faults of this module reach.
pub trait Reach: Sync {
    /// All processes.
    fn processes(&self) -> &Processes;

    /// The names of the processes that may be hit at this moment.
    fn victims(&self) -> Vec<String> {
        self.processes().names()
    }

    /// The wires with their names, always in the same order.
    fn wires(&self) -> Vec<(String, &Proxy)>;

    /// Takes the broker inside this process away, or brings it back.
    ///
    /// # Errors
    /// There is none, or it does not do what it is told.
    fn switch_cluster(&self, up: bool) -> Result<(), Failure>;
}

/// The effect of a fault, for the report.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Injected {
    /// Whom it hit: a process, a wire, a service.
    pub target: String,
    /// Its parameters; may be empty.
    pub detail: String,
}

impl Injected {
    /// A fault that has hit `target`.
    pub fn new(target: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { target: target.into(), detail: detail.into() }
    }
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target)?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

/// So many seconds.
#[must_use]
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// So many milliseconds.
#[must_use]
pub const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
