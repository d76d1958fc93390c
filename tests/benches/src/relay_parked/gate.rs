//! A gate before a broker: it refuses messages until it opens, and reports confirmations of one
//! key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use harness::watched::Watch;
use message::{Fault, FaultScope, Message, PublishError};
use tokio::sync::mpsc;

/// The times of confirmations of messages with the watched key.
pub(super) type Confirmed = mpsc::UnboundedReceiver<Instant>;

pub(super) struct Gate {
    is_open: AtomicBool,
    key: &'static str,
    confirmed: mpsc::UnboundedSender<Instant>,
}

impl Gate {
    /// Makes a gate that reports when messages with `key` are confirmed.
    pub(super) fn new(is_open: bool, key: &'static str) -> (Arc<Self>, Confirmed) {
        let (confirmed, times) = mpsc::unbounded_channel();
        (Arc::new(Self { is_open: is_open.into(), key, confirmed }), times)
    }

    pub(super) fn open(&self) {
        self.is_open.store(true, Relaxed);
    }
}

impl Watch for Gate {
    fn submitted(&self, _: &Message) -> Result<(), PublishError> {
        if self.is_open.load(Relaxed) {
            return Ok(());
        }
        Err(PublishError::new(Fault::Broker, FaultScope::Topic, "the gate is closed"))
    }

    fn answered(&self, message: &Arc<Message>, outcome: &Result<(), PublishError>) {
        if outcome.is_ok() && message.key.as_ref().is_some_and(|key| key.as_str() == self.key) {
            // The receiver may be gone.
            let _ = self.confirmed.send(Instant::now());
        }
    }
}
