//! Faults in the answers of a broker that is up.
//!
//! | module | contents |
//! |---|---|
//! | [`rabbitmq`] | full queues, unroutable messages, missing confirms |
//! | [`kafka`] | topics that accept only small messages |
//! | [`members`] | members that join a group and leave it |
//! | [`mock`] | errors of the mock cluster, leaders that move, silence |
//! | [`http`] | errors, wishes to wait, answers that are lost or never come, slowness |
//! | [`sqs`] | batches that fail partially, errors, throttling, silence |

pub mod http;
pub mod kafka;
pub mod members;
pub mod mock;
pub mod rabbitmq;
pub mod sqs;

use harness::faults::BrokerGone;

use super::{Faults, boxed};
use crate::pair::BrokerKind;
use crate::stage::Stage;

/// Returns the faults of this kind of broker.
#[must_use]
pub fn all(kind: BrokerKind) -> Faults<Stage> {
    match kind {
        BrokerKind::Kafka => {
            vec![Box::new(kafka::Oversize::default()), Box::new(members::GroupRebalances::default())]
        }
        BrokerKind::Rabbitmq => vec![
            Box::new(rabbitmq::Full::default()),
            Box::new(rabbitmq::Unroutable::default()),
            Box::new(rabbitmq::SilentQueue),
        ],
        BrokerKind::Sqs | BrokerKind::SqsFifo => boxed(sqs::SqsErrors::all()).collect(),
        BrokerKind::Http => boxed(http::HttpErrors::all()).collect(),
        BrokerKind::MockKafka => vec![
            Box::new(mock::ProduceErrors),
            Box::new(mock::FetchErrors::default()),
            Box::new(mock::LeaderMoves),
            Box::new(BrokerGone),
            Box::new(mock::SilentPartition),
        ],
    }
}
