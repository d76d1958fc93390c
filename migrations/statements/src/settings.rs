//! The settings of outboxes and inboxes.

use std::collections::HashMap;
use std::sync::Arc;

use message::token::{DriftWindow, IdGenerator};
use message::{ConsumerName, SizeLimit, Tenant, Topic, VaryingHeaders};

/// The settings of an outbox.
#[derive(Debug, Clone)]
pub(crate) struct OutboxSettings {
    pub(crate) limit: SizeLimit,
    pub(crate) topic_limits: HashMap<Topic, SizeLimit>,
    pub(crate) ids_accepted: DriftWindow,
    pub(crate) varying: VaryingHeaders,
    pub(crate) ids: Arc<dyn IdGenerator>,
}

/// The settings of an inbox.
#[derive(Debug, Clone)]
pub(crate) struct InboxSettings {
    pub(crate) consumer: ConsumerName,
    pub(crate) tenant: Tenant,
    pub(crate) attempts_max: u32,
    pub(crate) retention_days: u16,
}
