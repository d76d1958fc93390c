//! The observed history. Its builder fills in the observed parts. A part that is `None` was not
//! observed, and every check that needs it is reported as not checked.
//!
//! | file | contents |
//! |---|---|
//! | `producer.rs` | operations of clients, business rows |
//! | `outbox.rs` | the outbox, and its parked messages |
//! | `broker.rs` | the messages at the broker, in its order |
//! | `consumer.rs` | inboxes, effects, dead letters |
//! | `lease.rs` | leases with the writes of their holders, and resources that were not released |
//! | `saga.rs` | sagas, the effects of their steps, and the balances of services |

mod broker;
mod consumer;
mod lease;
mod outbox;
mod producer;
mod saga;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Digest;

pub use broker::{Occurrence, TopicRead};
pub use consumer::{Consumer, DeadLetter, Effect, InboxRow};
pub use lease::{Leak, LeakKind, LeaseEvent};
pub use outbox::{Forgotten, OutboxRow, Parked, ParkedEntry};
pub use producer::{BusinessRow, Enqueued, Operation, Outcome};
pub use saga::{Balance, SagaRun, SagaState, Sagas, StepEffect};

/// The observed history of one pipeline: one outbox, the relay that drains it, the broker behind
/// it, and its consumers.
///
/// If the system runs while it is observed, read downstream parts first: effects, inboxes, the
/// broker, parked messages, and the outbox last. Then everything that is seen downstream is also
/// seen upstream, unless it never existed there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    /// Whether everything is healed and nothing is in flight. Promises about the end are not
    /// checked before that.
    pub quiet: bool,
    /// Every transaction of every client, with any outcome.
    pub operations: Option<Vec<Operation>>,
    /// The committed business rows.
    pub business: Option<Vec<BusinessRow>>,
    /// The outbox.
    pub outbox: Option<Vec<OutboxRow>>,
    /// The parked messages, or an empty list for a system that parks none.
    pub parked: Option<Vec<Parked>>,
    /// Messages whose outbox rows retention has removed, or `None` if they are not known. In that
    /// case an absent row counts as a row that never existed.
    pub removed: Option<Vec<Uuid>>,
    /// Messages and rows that a database lost when it went back to an earlier state, or an empty
    /// value if it never went back.
    pub forgotten: Forgotten,
    /// The messages at the broker.
    pub topic_read: Option<TopicRead>,
    /// The consumers of the messages.
    pub consumers: Vec<Consumer>,
    /// Leases and the writes under them, in the order of the database.
    pub leases: Option<Vec<LeaseEvent>>,
    /// Resources that were still held after everything was healed, or an empty list if a search
    /// found none.
    pub leaks: Option<Vec<Leak>>,
    /// Sagas with the effects of services.
    pub sagas: Option<Sagas>,
}

/// The content that must be the same in every copy of a message. Two copies are compared only in
/// the parts that both have recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Content {
    /// The ordering key: empty for a message without a key, `None` if it was not recorded.
    pub key: Option<Arc<str>>,
    /// The payload.
    pub payload: Option<Digest>,
    /// The headers from the producer, without those that a broker or a relay adds.
    pub headers: Option<Digest>,
    /// A digest over everything, for places that keep only this digest.
    pub fingerprint: Option<Digest>,
}

impl Content {
    /// Returns the content with this key and payload.
    #[must_use]
    pub fn of(key: &str, payload: &[u8]) -> Self {
        Self { key: Some(key.into()), payload: Some(Digest::of(payload)), ..Self::default() }
    }

    /// Returns the first part in which two copies are known to differ.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        fn differ<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            matches!((one, other), (Some(one), Some(other)) if one != other)
        }
        let parts = [
            ("key", differ(&self.key, &other.key)),
            ("payload", differ(&self.payload, &other.payload)),
            ("headers", differ(&self.headers, &other.headers)),
            ("fingerprint", differ(&self.fingerprint, &other.fingerprint)),
        ];
        parts.into_iter().find_map(|(part, differs)| differs.then_some(part))
    }

    /// Returns the ordering key of a message that is known to have one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&Arc<str>> {
        self.key.as_ref().filter(|key| !key.is_empty())
    }
}
