//! Faults, each with its cure, and the injector for all of them.
//!
//! | module | contents |
//! |---|---|
//! | `schedule` | a schedule of faults from a seed: by time, or by progress |
//! | `injector` | [`FaultInjector`]: carries out a schedule |
//! | `processes` | [`Kill`], [`Pause`] |
//! | [`tcp`] | faults of the network between two ends |
//! | `cluster` | [`BrokerGone`]: an outage of a broker inside this process |
//!
//! Demo and storm implement [`Reach`], which defines the targets of these faults, and add their own
//! faults.

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
/// [`inject`](Self::inject), waits, and calls [`heal`](Self::heal). It never injects one fault
/// twice without `heal` in between. Different faults overlap.
#[async_trait]
pub trait Fault<S: Sync>: Send {
    /// Returns its name, weight and duration.
    fn kind(&self) -> FaultKind;

    /// Waits until there is a target.
    async fn ready(&mut self, _stage: &S) {}

    /// Makes the fault happen, and returns within seconds. All random numbers come from `rng`.
    ///
    /// # Errors
    /// The fault could not be injected. It is healed, and the run continues.
    async fn inject(&mut self, stage: &S, rng: &mut StdRng) -> Result<Injected, Failure>;

    /// Ends the fault, and returns when it is over. Has no effect without a previous injection, or
    /// when it is repeated.
    ///
    /// # Errors
    /// The fault continues. The injector retries for a while, then ends the run.
    async fn heal(&mut self, _stage: &S) -> Result<(), Failure> {
        Ok(())
    }
}

/// Faults on a stage.
pub type Faults<S> = Vec<Box<dyn Fault<S>>>;

/// The part of a stage that the faults of this module can reach.
pub trait Reach: Sync {
    /// Returns all processes.
    fn processes(&self) -> &Processes;

    /// Returns the names of the processes that may be targets now.
    fn victims(&self) -> Vec<String> {
        self.processes().names()
    }

    /// Returns the wires with their names, always in the same order.
    fn wires(&self) -> Vec<(String, &Proxy)>;

    /// Takes down the broker inside this process, or brings it back.
    ///
    /// # Errors
    /// There is no such broker, or it cannot be switched.
    fn switch_cluster(&self, up: bool) -> Result<(), Failure>;
}

/// The effect of a fault, for the report.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Injected {
    /// The target: a process, a wire, a service.
    pub target: String,
    /// The parameters of the fault; may be empty.
    pub detail: String,
}

impl Injected {
    /// Creates the effect of a fault on `target`.
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

/// Returns a duration in seconds.
#[must_use]
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Returns a duration in milliseconds.
#[must_use]
pub const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
