//! A broker under test.

use std::sync::Arc;

use async_trait::async_trait;
use message::{Connector, Subscription};
use uuid::Uuid;

use crate::facts::Order;
use crate::{Failure, Outcome};

/// A broker under test, reached both through the adapter and directly. Every case opens its own
/// broker; several cases run at the same time.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Returns a name for a topic that does not exist yet and that no other case uses. Broker and
    /// adapter must accept the name.
    fn topic_name(&self, prefix: &str) -> String {
        unique(prefix)
    }

    /// Creates a topic. The implementation must remove it after the case.
    ///
    /// # Errors
    /// The broker does not create the topic; the case fails.
    async fn create_topic(&self, topic: &str) -> Outcome;

    /// Returns a connector with the right settings.
    ///
    /// # Errors
    /// The adapter refuses the settings; the case fails.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// Returns a connector to an address without a broker, such as a closed port or a folder that
    /// does not exist. It must fail within a second.
    ///
    /// # Errors
    /// The adapter refuses the settings; the case fails.
    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// Subscribes to one topic as a member of a group. A new group begins with the oldest message.
    ///
    /// # Errors
    /// The adapter cannot subscribe; the case fails.
    async fn subscribe(
        &self,
        group: &str,
        topic: &str,
        redelivery: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure>;

    /// Reads the payloads of all messages of a topic, without the adapter, in order if the broker
    /// keeps it. Waits until there are at least `at_least`. This may consume the messages.
    ///
    /// # Errors
    /// The payloads cannot be read, or too few arrive; the case fails.
    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure>;

    /// Puts a record of a foreign producer into a topic, without the adapter.
    ///
    /// # Errors
    /// The broker does not accept the record; the case fails.
    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome;

    /// Returns the size in bytes of a payload that adapter or broker refuses as too large, at most
    /// twice the limit. Returns `None` if there is no limit ([`Capabilities::limits_size`]).
    fn oversize_bytes(&self) -> Option<usize> {
        None
    }

    /// Returns how many messages of a topic are unsettled, if the broker hides them from new
    /// members for a time and can report their number. Returns `None` if a new member of the group
    /// gets them at once.
    ///
    /// # Errors
    /// The broker does not answer; the case fails.
    async fn unsettled(&self, topic: &str) -> Result<Option<u64>, Failure> {
        let _ = topic;
        Ok(None)
    }
}

/// Abilities of an adapter that go beyond the contract. An adapter may lack an ability for good
/// reason. The cases that need it are then left out, and the documentation of the adapter names the
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The order in which the broker holds the published messages.
    pub order: Order,
    /// Whether the broker tracks each settled message. Otherwise it keeps one position below which
    /// everything is settled. In that case messages that were settled behind an unsettled message
    /// may come again.
    pub settles_singly: bool,
    /// Whether members of one group share the work at the same time.
    pub shares_work: bool,
    /// Whether messages have a maximum size, which [`Broker::oversize_bytes`] exceeds.
    pub limits_size: bool,
    /// Whether messages are written as bytes, from which the adapter reads ids. Only a broker
    /// inside a process has no such form.
    pub has_wire: bool,
}

impl Capabilities {
    /// All capabilities, as a starting point. `Capabilities { shares_work: false,
    /// ..Capabilities::ALL }` leaves one out.
    pub const ALL: Self = Self {
        order: Order::PerKey,
        settles_singly: true,
        shares_work: true,
        limits_size: true,
        has_wire: true,
    };
}

/// The time until a broker with a visibility timeout redelivers the unsettled messages of a lost
/// member. Adapters whose broker detects the end of a session can ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redelivery {
    /// Not within any case, for example in five minutes.
    Late,
    /// Within seconds.
    Soon,
}

/// A record of a producer that does not use the toolkit. It has the CloudEvents attributes
/// `specversion` 1.0, `type` `t`, `datacontenttype` `text/plain`, and the fields below, in the form
/// that the adapter reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The CloudEvents attribute `id`, or `None` to leave it out.
    pub id: Option<String>,
    /// The ordering key, in the broker's own form.
    pub key: String,
    /// A free header, name and value.
    pub header: (String, String),
    /// The payload.
    pub payload: Vec<u8>,
}

/// Returns a unique name: `prefix` and a random suffix of `a-z 0-9 _`.
#[must_use]
pub(crate) fn unique(prefix: &str) -> String {
    // The end of a UUIDv7 is its random part.
    let random = Uuid::now_v7().simple().to_string();
    format!("{prefix}_{}", &random[20..])
}
