//! Parts of benchmarks: databases, counters, relays inside and outside this process, percentiles.

mod counters;
mod database;
mod percentiles;
mod pin;
mod process;
mod published;
mod reach;
mod recording;
mod relay;

pub(crate) use counters::Wal;
pub(crate) use database::{Database, Shape};
pub(crate) use percentiles::Percentiles;
pub(crate) use pin::Pin;
pub(crate) use process::RelayProcess;
pub(crate) use published::Published;
pub(crate) use reach::reach;
pub(crate) use recording::Recording;
pub(crate) use relay::{PATIENCE, RELAY, drain, drain_in_steps, log, pipeline};

use crate::Failure;

/// Returns the value of a variable, such as the address of a service.
pub(crate) fn variable(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| {
        format!("{name} is not set; run `cargo xtask bench`, which starts the services and sets it").into()
    })
}

/// Returns the order of two things in a round. Each is first every other round: a disturbance of
/// the machine affects both.
pub(crate) fn turns(round: usize) -> [bool; 2] {
    if round.is_multiple_of(2) { [false, true] } else { [true, false] }
}
