//! An outage of the whole mock cluster: every request is answered with a closed connection.
//!
//! The mock's own "broker down" is not used. It closes the broker's socket and binds the port
//! again, and *aborts the process* when another socket has got the port in between (librdkafka
//! 2.12.1, `Failed to-create mock broker listener`). Any connection of this machine can get it. So
//! the cluster keeps its sockets here: to a client, an outage is a server that accepts connections
//! and drops them at the first request.

use std::time::Duration;

use rdkafka::types::RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT as CUT;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr};

/// Queues of the errors that a cluster answers with, one error for each request of a kind.
pub(super) trait ErrorQueues {
    /// Appends errors for this kind of request.
    fn push(&self, api: Api, errors: &[RDKafkaRespErr]);
    /// Drops all errors for this kind of request.
    fn clear(&self, api: Api);
}

/// Every client request that the mock can answer with an error. Metadata is the one that it cannot:
/// a connection that asks for nothing else stays open, and no messages pass through it.
const CUTTABLE: [Api; 17] = [
    // The first request of each connection: no new connection succeeds.
    Api::ApiVersion,
    Api::Produce,
    Api::InitProducerId,
    Api::AddPartitionsToTxn,
    Api::AddOffsetsToTxn,
    Api::TxnOffsetCommit,
    Api::EndTxn,
    Api::Fetch,
    Api::ListOffsets,
    Api::OffsetForLeaderEpoch,
    Api::OffsetFetch,
    Api::OffsetCommit,
    Api::FindCoordinator,
    Api::JoinGroup,
    Api::SyncGroup,
    Api::Heartbeat,
    Api::LeaveGroup,
];

/// Queued errors for each kind of request: far more than reconnecting clients use up in one
/// [`RENEW_EVERY`].
const STOCK: usize = 10_000;
/// Interval at which the queues are refilled during an outage.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(1);

/// Whether the cluster is down.
#[derive(Debug, Default)]
pub(super) struct Outage {
    lasts: bool,
}

impl Outage {
    /// Begins an outage, or refills the queues of the current one.
    pub(super) fn begin(&mut self, queues: &impl ErrorQueues) {
        self.lasts = true;
        CUTTABLE.iter().for_each(|api| refill(queues, *api));
    }

    /// Ends the outage. Other errors in the queues are dropped as well.
    pub(super) fn end(&mut self, queues: &impl ErrorQueues) {
        if std::mem::take(&mut self.lasts) {
            CUTTABLE.iter().for_each(|api| queues.clear(*api));
        }
    }

    /// Returns whether the outage lasts.
    pub(super) fn lasts(&self) -> bool {
        self.lasts
    }

    /// Drops the errors queued for one kind of request; an outage continues.
    pub(super) fn forget(&self, queues: &impl ErrorQueues, api: Api) {
        if self.lasts && CUTTABLE.contains(&api) {
            refill(queues, api);
        } else {
            queues.clear(api);
        }
    }
}

fn refill(queues: &impl ErrorQueues, api: Api) {
    queues.clear(api);
    queues.push(api, &[CUT; STOCK]);
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::*;

    #[derive(Default)]
    struct Queues(RefCell<HashMap<i32, Vec<RDKafkaRespErr>>>);

    impl ErrorQueues for Queues {
        fn push(&self, api: Api, errors: &[RDKafkaRespErr]) {
            self.0.borrow_mut().entry(api as i32).or_default().extend(errors);
        }

        fn clear(&self, api: Api) {
            self.0.borrow_mut().remove(&(api as i32));
        }
    }

    impl Queues {
        fn len(&self, api: Api) -> usize {
            self.0.borrow().get(&(api as i32)).map_or(0, Vec::len)
        }
    }

    #[test]
    fn an_outage_is_renewed_survives_healed_faults_and_leaves_nothing_behind() {
        let (queues, mut outage) = (Queues::default(), Outage::default());
        for _ in 0..3 {
            outage.begin(&queues);
        }
        assert_eq!(queues.len(Api::Produce), STOCK);
        queues.push(Api::Produce, &[CUT]);
        outage.forget(&queues, Api::Produce);
        assert_eq!(queues.len(Api::Produce), STOCK);
        outage.end(&queues);
        assert!(!outage.lasts() && CUTTABLE.iter().all(|api| queues.len(*api) == 0));
        queues.push(Api::Fetch, &[CUT]);
        outage.end(&queues);
        assert_eq!(queues.len(Api::Fetch), 1, "errors of others stay when there was no outage");
        outage.forget(&queues, Api::Fetch);
        assert_eq!(queues.len(Api::Fetch), 0);
    }
}
