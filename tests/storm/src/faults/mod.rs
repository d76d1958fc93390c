//! Faults, each with its cure.
//!
//! | module | what it holds |
//! |---|---|
//! | [`kill`] | processes that end without warning |
//! | [`pause`] | processes that stand still |
//! | [`clock`] | processes whose wall clock jumps |
//! | [`tcp`] | the wire between two ends |
//! | [`servers`] | servers that go away and come back |
//! | [`pooler`] | a pooler between relays and the database |
//! | [`database`] | other sessions, and the disk |
//! | [`broker`] | what a broker answers |

pub mod broker;
pub mod clock;
pub mod database;
pub mod kill;
pub mod pause;
pub mod pooler;
pub mod servers;
pub mod tcp;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;

use crate::Failure;
use crate::pair::{DatabaseKind, Pair};
use crate::stage::Stage;

/// A fault: it injected, stays for a while, and is healed.
///
/// The storm calls [`inject`](Self::inject), waits for a time out of [`lasts`](Self::lasts), and
/// calls [`heal`](Self::heal); never two injected of one fault without a `heal` between. Different
/// faults overlap.
#[async_trait]
pub trait Fault: Send {
    /// Unique, for plan and report: lower case, words joined by hyphens.
    fn name(&self) -> &'static str;

    /// How often it is chosen in comparison with others.
    fn weight(&self) -> u32 {
        10
    }

    /// Whether it injected also when nobody asks for it by its name.
    fn by_default(&self) -> bool {
        true
    }

    /// How long it stays until it is healed; zero for a fault that needs no healing.
    fn lasts(&self) -> RangeInclusive<Duration> {
        Duration::ZERO..=Duration::ZERO
    }

    /// Makes it happen; returns within seconds. All chance comes from `rng`.
    ///
    /// # Errors
    /// It could not be made to happen; the storm heals it and goes on, and the report tells.
    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure>;

    /// Ends it, and returns when it is over. Without a inject before, and a second time, it does
    /// nothing.
    ///
    /// # Errors
    /// It goes on; the storm tries again a few times, then gives the run up.
    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure>;
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

/// Every fault that makes sense for this pair, and can be had on this machine.
#[must_use]
pub fn catalogue(pair: Pair) -> Vec<Box<dyn Fault>> {
    let mut faults: Vec<Box<dyn Fault>> = vec![Box::new(kill::Kill), Box::new(pause::Pause::default())];
    faults.extend(clock::ClockJump::from_environment().map(|fault| Box::new(fault) as Box<dyn Fault>));
    faults.extend(servers::Server::all(pair).into_iter().map(|fault| Box::new(fault) as Box<dyn Fault>));
    faults.extend(tcp::Tcp::all(pair).into_iter().map(|fault| Box::new(fault) as Box<dyn Fault>));
    faults.extend(database::all(pair.database));
    if pair.database == DatabaseKind::Postgres {
        let poolers = pooler::Pooler::from_environment().into_iter().flatten();
        faults.extend(poolers.map(|fault| Box::new(fault) as Box<dyn Fault>));
    }
    faults.extend(broker::all(pair.broker));
    faults
}

/// The faults that cannot be had on this machine, and why. A report names them; CI requires that
/// there are none.
#[must_use]
pub fn missing() -> Vec<(&'static str, String)> {
    clock::ClockJump::from_environment().err().map(|why| (clock::NAME, why)).into_iter().collect()
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
