//! A broker under test.

use std::sync::Arc;

use async_trait::async_trait;
use message::{Connector, Subscription};
use uuid::Uuid;

use crate::facts::Order;
use crate::{Failure, Outcome};

/// A broker under test, seen through the adapter and past it. Every case opens one of its own;
/// several cases run at the same time.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Returns a name for a topic that does not exist yet and that no other case uses. Broker and
    /// adapter accept it.
    fn topic_name(&self, prefix: &str) -> String {
        unique(prefix)
    }

    /// Makes a topic. Removing it after the case is up to the implementation.
    ///
    /// # Errors
    /// The broker does not make it; the case fails.
    async fn create_topic(&self, topic: &str) -> Outcome;

    /// Returns a connector with the right settings.
    ///
    /// # Errors
    /// The adapter refuses the settings; the case fails.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// Returns a connector to an address where no broker is: a port that is closed, a folder that
    /// does not exist. It gives up within a second.
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

    /// Reads the payloads of everything that a topic holds without the adapter, in order where the
    /// broker has one; waits until there are at least `at_least`. They may be consumed by this.
    ///
    /// # Errors
    /// They cannot be read, or too few come; the case fails.
    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure>;

    /// Puts a record of a foreign producer into a topic without the adapter.
    ///
    /// # Errors
    /// The broker does not take it; the case fails.
    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome;

    /// Returns the size in bytes of a payload that adapter or broker refuse because of its size, at
    /// most twice the limit; none without a limit ([`Capabilities::limits_size`]).
    fn oversize_bytes(&self) -> Option<usize> {
        None
    }

    /// Returns how many messages of a topic are not settled, where the broker hides them for a time
    /// from new members and can be asked. None where a new member of the group is given them at
    /// once.
    ///
    /// # Errors
    /// The broker does not answer; the case fails.
    async fn unsettled(&self, topic: &str) -> Result<Option<u64>, Failure> {
        let _ = topic;
        Ok(None)
    }
}

/// Abilities of an adapter beyond the contract, or left out with good reason. A case that needs a
/// missing one is left out; the documentation of the adapter names the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The order in which the broker holds what was published.
    pub order: Order,
    /// The broker knows each settled message. Otherwise it knows a place up to which everything is
    /// settled, and what is settled behind an unsettled message may come again.
    pub settles_singly: bool,
    /// Members of one group share the work at the same time.
    pub shares_work: bool,
    /// Messages have a limit, which [`Broker::oversize_bytes`] exceeds.
    pub limits_size: bool,
    /// Messages are written as bytes, from which the adapter reads ids. Only a broker inside a
    /// process has no such form.
    pub has_wire: bool,
}

impl Capabilities {
    /// Everything: what to begin with. `Capabilities { shares_work: false, ..Capabilities::ALL }`
    /// leaves one out.
    pub const ALL: Self = Self {
        order: Order::PerKey,
        settles_singly: true,
        shares_work: true,
        limits_size: true,
        has_wire: true,
    };
}

/// When a broker with a visibility timeout delivers again what a lost member had unsettled.
/// Adapters whose broker notices the end of a session do not need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redelivery {
    /// Not within any case: in five minutes, say.
    Late,
    /// Within seconds.
    Soon,
}

/// A record that a producer without the toolkit has written: CloudEvents attributes `specversion`
/// 1.0, `type` `t`, `datacontenttype` `text/plain`, and what is said here, in the form that the
/// adapter reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The CloudEvents attribute `id`; none leaves it out.
    pub id: Option<String>,
    /// The ordering key, in the broker's own way.
    pub key: String,
    /// A free header, name and value.
    pub header: (String, String),
    /// The payload.
    pub payload: Vec<u8>,
}

/// A name that nobody else has: `prefix` and a random suffix, of `a-z 0-9 _`.
#[must_use]
pub fn unique(prefix: &str) -> String {
    // The end of a UUIDv7 is its random part.
    let random = Uuid::now_v7().simple().to_string();
    format!("{prefix}_{}", &random[20..])
}
