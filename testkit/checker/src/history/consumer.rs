//! The consumer side: inboxes, effects and dead letters.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;

/// A consumer that applies messages under one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Consumer {
    /// The name of the consumer in the inbox.
    pub name: Arc<str>,
    /// The topics that the consumer applies, or `None` for all topics.
    pub topics: Option<Vec<Arc<str>>>,
    /// Whether its effects are expected in the causal order of each key.
    pub ordered: bool,
    /// Its inbox.
    pub inbox: Option<Vec<InboxRow>>,
    /// Inbox rows that retention has removed.
    pub expired: Option<Vec<InboxRow>>,
    /// Its effects, in the order of their commits.
    pub effects: Option<Vec<Effect>>,
    /// Its open dead letters.
    pub dead_letters: Option<Vec<DeadLetter>>,
}

/// A message that an inbox remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InboxRow {
    /// The message id.
    pub id: Uuid,
    /// The scope, such as a tenant, or an empty string.
    pub scope: Arc<str>,
    /// The parts of the message's content that the row has.
    pub content: Content,
}

/// One effect of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Effect {
    /// The message that caused the effect.
    pub id: Uuid,
    /// The scope of the effect, or an empty string.
    pub scope: Arc<str>,
    /// The message as it arrived.
    pub content: Content,
}

/// A dead letter of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetter {
    /// The message id, or `None` if the message had no readable id.
    pub id: Option<Uuid>,
    /// The scope, or an empty string.
    pub scope: Arc<str>,
}
