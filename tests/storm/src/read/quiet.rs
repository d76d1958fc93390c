//! Messages that are still in flight.

use std::collections::HashSet;

use crate::Failure;
use crate::sagas;
use crate::setup::Plot;
use crate::stage::Stage;
use crate::topic_reader;
use harness::stores::Plain;

/// Numbers of messages that are still in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pending {
    /// Messages in the outbox that are not parked.
    pub messages: u64,
    /// Parked messages that are published at their time.
    pub scheduled: u64,
    /// Parked messages that are retried.
    pub retrying: u64,
    /// Parked messages that wait behind a message that is not dead.
    pub held: u64,
    /// Messages without an effect and without a dead letter, over all consumers.
    pub undecided: u64,
    /// Deliveries that wait at the broker. They are counted only if everything else is 0.
    pub waiting: u64,
    /// Sagas that have not ended, and messages between them and the shipping service.
    pub sagas: u64,
}

impl Pending {
    /// Returns whether nothing is in flight.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.scheduled == 0 && self.lag() == 0
    }

    /// Returns the number of messages in flight that a sufficiently fast system would have
    /// processed.
    #[must_use]
    pub fn lag(self) -> u64 {
        self.retrying + self.held + self.undecided + self.waiting + self.sagas
    }
}

impl std::fmt::Display for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { scheduled, retrying, held, undecided, waiting, sagas, .. } = self;
        write!(f, "{scheduled} scheduled, {retrying} retrying, {held} held, {undecided} effects missing")?;
        if *sagas > 0 {
            write!(f, ", {sagas} sagas open or their messages on the way")?;
        }
        if *waiting > 0 { write!(f, ", {waiting} deliveries waiting at the broker") } else { Ok(()) }
    }
}

/// Reads the databases, and also the broker if the databases have nothing in flight.
///
/// # Errors
/// A database or the broker does not answer.
pub async fn pending(plot: &Plot, stage: &Stage) -> Result<Pending, Failure> {
    let mut producers = Plain::open(&stage.database.producers).await?;
    let mut consumers = Plain::open(&stage.database.consumers).await?;
    let [scheduled, retrying, held] = producers.moving(&plot.topics().nowhere).await?;
    let left = producers.left().await?;
    let mut undecided = 0;
    for consumer in plot.consumers() {
        undecided += missing(&left, &consumers.decided(consumer, plot.dead_lettered_by(consumer)).await?);
    }
    let messages = left.len() as u64;
    let sagas = sagas::open(&stage.database).await?;
    let known = Pending { messages, scheduled, retrying, held, undecided, waiting: 0, sagas };
    let waiting = if known.is_quiet() { topic_reader::waiting(plot, stage).await? } else { Vec::new() };
    Ok(Pending { waiting: waiting.iter().map(|place| place.count).sum(), ..known })
}

/// Counts the messages without a decision. The decision about a message that was parked again does
/// not count for another message.
fn missing(left: &HashSet<String>, decided: &HashSet<String>) -> u64 {
    left.difference(decided).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> HashSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn one_lost_and_one_parked_message_do_not_cancel_out() {
        // "c" took effect and was parked again; "b" is lost.
        assert_eq!(missing(&set(&["a", "b"]), &set(&["a", "c"])), 1);
        assert_eq!(missing(&set(&["a"]), &set(&["a", "b", "c"])), 0);
    }

    #[test]
    fn a_scheduled_message_is_no_lag_and_not_quiet_either() {
        let scheduled = Pending { messages: 3, scheduled: 1, ..Pending::default() };
        assert!(scheduled.lag() == 0 && !scheduled.is_quiet());
        for late in [
            Pending { retrying: 1, ..Pending::default() },
            Pending { held: 1, ..Pending::default() },
            Pending { undecided: 1, ..Pending::default() },
            Pending { waiting: 1, ..Pending::default() },
            Pending { sagas: 1, ..Pending::default() },
        ] {
            assert!(late.lag() == 1 && !late.is_quiet(), "{late}");
        }
    }
}
