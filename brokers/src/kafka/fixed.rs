//! Notices that Kafka refuses the commits of a reader of fixed partitions.
//!
//! Such a reader is not a member of its group. The coordinator accepts its commits only while the
//! group has no members. A refusal of an asynchronous commit is only a line in librdkafka's log
//! (2.12.1, `rd_kafka_cgrp_propagate_commit_result`). Unnoticed, the reader would begin at its old
//! position after every restart.

use message::SubscriptionError;
use rdkafka::consumer::{BaseConsumer, CommitMode};

use super::beginning::has_members;
use super::callbacks::Callbacks;
use super::inflow::Inflow;
use super::ledger::Place;
use super::offsets;

/// Commits the positions at which a reader of fixed partitions begins, to learn whether Kafka takes
/// its commits. Blocks until the coordinator has answered.
///
/// # Errors
/// [`SubscriptionError`], the operator's fault, when the group has members.
pub(super) fn claim(
    consumer: &BaseConsumer<Callbacks>,
    inflow: &Inflow,
    begins: &[(Place, i64)],
    group: &str,
) -> Result<(), SubscriptionError> {
    if begins.is_empty() {
        return Ok(());
    }
    match offsets::commit(consumer, inflow, begins, CommitMode::Sync) {
        Err(error) if error.rdkafka_error_code().is_some_and(has_members) => {
            Err(SubscriptionError::operator(refusal(group)).with_source(error))
        }
        Err(error) => {
            tracing::debug!(target: "brokers::kafka", %error, "positions are committed again later");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Returns whether a line of librdkafka's log reports that a commit was refused because the group
/// has members.
pub(super) fn is_refusal(facility: &str, text: &str) -> bool {
    facility == "COMMITFAIL" && text.contains("Unknown member")
}

/// Describes the refusal to the operator.
pub(super) fn refusal(group: &str) -> String {
    format!(
        "kafka group {group:?} has members, so kafka refuses the commits of a reader of fixed partitions: \
         give this reader its own group"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_commit_from_outside_a_group_with_members_is_a_refusal() {
        let line = "Offset commit (manual) failed for 1/1 partition(s) in join-state init: Broker: ";
        assert!(is_refusal("COMMITFAIL", &format!("{line}Unknown member: orders [0]@7")));
        assert!(!is_refusal("COMMITFAIL", &format!("{line}Not coordinator: orders [0]@7")));
        assert!(!is_refusal("HEARTBEAT", "Broker: Unknown member"));
    }
}
