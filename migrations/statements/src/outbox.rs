//! The outbox: its settings, and its operations.

use std::collections::HashMap;
use std::sync::Arc;

use message::token::{DriftWindow, IdGenerator, ProcessIds};
use message::{IntoMessage, SizeLimit, Topic, VaryingHeaders};

use crate::enqueue::{Enqueue, Enqueued};
use crate::settings::OutboxSettings;
use crate::verify::Verify;

/// The outbox of a database. Cheap to clone.
///
/// ```
/// use statements::{NewMessage, Outbox};
/// let outbox = Outbox::new();
/// let enqueue = outbox.enqueue(NewMessage::new("orders").key("order-7").json(&7));
/// // run(&mut transaction, enqueue) of the driver's file sends it
/// # drop(enqueue);
/// ```
#[derive(Debug, Clone)]
pub struct Outbox {
    settings: Arc<OutboxSettings>,
}

impl Default for Outbox {
    fn default() -> Self {
        let settings = OutboxSettings {
            limit: SizeLimit::PORTABLE,
            topic_limits: HashMap::new(),
            ids_accepted: DriftWindow::DEFAULT,
            varying: VaryingHeaders::default(),
            ids: Arc::new(ProcessIds),
        };
        Self { settings: Arc::new(settings) }
    }
}

impl Outbox {
    /// Makes an outbox with the defaults of the library.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn set(mut self, set: impl FnOnce(&mut OutboxSettings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets the maximum size of a message. Default: [`SizeLimit::PORTABLE`], 1,000,000 bytes.
    #[must_use]
    pub fn limit(self, limit: SizeLimit) -> Self {
        self.set(|settings| settings.limit = limit)
    }

    /// Sets a different maximum size for the messages of one topic.
    #[must_use]
    pub fn topic_limit(self, topic: Topic, limit: SizeLimit) -> Self {
        self.set(|settings| {
            settings.topic_limits.insert(topic, limit);
        })
    }

    /// Sets how old a supplied id may be, and how far ahead of the database's clock. Default:
    /// [`DriftWindow::DEFAULT`], 14 days and 5 minutes, as in the inbox.
    #[must_use]
    pub fn ids_accepted(self, window: DriftWindow) -> Self {
        self.set(|settings| settings.ids_accepted = window)
    }

    /// Names headers that may have other values when a command is repeated under its id. Headers of
    /// tracing and of HTTP requests need no entry.
    #[must_use]
    pub fn varying_headers(self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.set(|settings| names.into_iter().for_each(|name| settings.varying.add(name.as_ref())))
    }

    /// Sets the generator of ids for messages without one. Default: [`ProcessIds`].
    #[must_use]
    pub fn ids(self, ids: impl IdGenerator) -> Self {
        self.set(|settings| settings.ids = Arc::new(ids))
    }

    /// Enqueues a message in the transaction in which the operation runs. It is published if and
    /// only if that transaction commits.
    ///
    /// Every rule of the message is checked before anything is sent. A supplied id is looked up
    /// first, which is a statement more.
    pub fn enqueue(&self, message: impl IntoMessage) -> Enqueue {
        Enqueue::new(Arc::clone(&self.settings), message.into_message())
    }

    /// Checks, right before the commit, that the transaction is alive and still holds a message.
    /// For code that may have ignored an error: PostgreSQL answers the COMMIT of a failed
    /// transaction with a rollback, which some drivers report as success.
    pub fn verify(&self, enqueued: &Enqueued) -> Verify {
        Verify::new(enqueued)
    }
}
