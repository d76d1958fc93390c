//! The history that was observed. Its builder fills in the parts that it has observed. A part that
//! is `None` was not observed, and every check that needs it is reported as not checked.
//!
//! | file | what it holds |
//! |---|---|
//! | `producer.rs` | operations of clients, business rows |
//! | `outbox.rs` | the outbox, what is parked beside it |
//! | `broker.rs` | what the broker has, in its order |
//! | `consumer.rs` | inboxes, effects, dead letters |
//! | `lease.rs` | leases with what their holders changed, and what nobody gave back |
//! | `saga.rs` | sagas, what was done for them, and the services' books |

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

/// One pipeline as it was observed: one outbox, the relay that empties it, the broker behind it,
/// and its consumers.
///
/// Where a system runs while it is observed, read what is downstream first: effects, inboxes, the
/// broker, the parked, and the outbox last. What is seen downstream is then seen upstream too,
/// unless it never was there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    /// Whether everything is healed and nothing is on its way any more. What a system owes only in
    /// the end is not checked before.
    pub quiet: bool,
    /// Every transaction of every client, whatever became of it.
    pub operations: Option<Vec<Operation>>,
    /// The committed business rows.
    pub business: Option<Vec<BusinessRow>>,
    /// The outbox.
    pub outbox: Option<Vec<OutboxRow>>,
    /// The messages parked beside the outbox; for a system that parks nothing, an empty list.
    pub parked: Option<Vec<Parked>>,
    /// Messages whose outbox rows retention has removed. `None` when nothing is known of it; then
    /// an absent row is a row that never was.
    pub removed: Option<Vec<Uuid>>,
    /// Messages and rows that a database lost when it went back; empty for one that never did.
    pub forgotten: Forgotten,
    /// The messages at the broker.
    pub topic_read: Option<TopicRead>,
    /// Everybody who applies the messages.
    pub consumers: Vec<Consumer>,
    /// Leases and what was changed under them, in the order in which the database took it.
    pub leases: Option<Vec<LeaseEvent>>,
    /// Things still held when everything was healed; an empty list when somebody looked and found
    /// nothing.
    pub leaks: Option<Vec<Leak>>,
    /// Sagas over services, with what the services did.
    pub sagas: Option<Sagas>,
}

/// The content that must be the same in every copy of a message. Two copies are compared only in
/// the parts that both have recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Content {
    /// The ordering key; the empty text for a message without one, `None` where it was not
    /// recorded.
    pub key: Option<Arc<str>>,
    /// The payload.
    pub payload: Option<Digest>,
    /// The headers that the producer gave, without those that a broker or a relay adds.
    pub headers: Option<Digest>,
    /// A digest over all of it, for places that keep nothing else.
    pub fingerprint: Option<Digest>,
}

impl Content {
    /// A key and a payload.
    #[must_use]
    pub fn of(key: &str, payload: &[u8]) -> Self {
        Self { key: Some(key.into()), payload: Some(Digest::of(payload)), ..Self::default() }
    }

    /// The first part in which two copies are known to differ.
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

    /// The ordering key, for a message that is known to have one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&Arc<str>> {
        self.key.as_ref().filter(|key| !key.is_empty())
    }
}
