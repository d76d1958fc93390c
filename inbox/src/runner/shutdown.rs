//! Stopping a consumer.

use std::future::{Future, pending};

use tokio_util::sync::CancellationToken;

/// Two signals: stop gracefully, and stop now. Connect the first one to SIGTERM, and the second one
/// to a second SIGTERM or to the end of the grace period.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Receive nothing more; finish, settle and close.
    pub graceful: CancellationToken,
    /// Stop at once, also while a call to the broker gets no answer. Running transactions end on
    /// their own, nothing more is settled, and unsettled deliveries are repeated.
    pub abort: CancellationToken,
}

impl Shutdown {
    /// Returns a pair of signals that are not given yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// A signal that stops a consumer: any future, whose completion asks for a graceful stop, or a
/// [`Shutdown`], which can also abort.
pub trait StopSignal: Send {
    /// Returns the signals that the consumer obeys, and a future whose completion gives the
    /// graceful one.
    #[doc(hidden)]
    fn split(self) -> (Shutdown, impl Future<Output = ()> + Send);
}

impl<F: Future<Output = ()> + Send> StopSignal for F {
    fn split(self) -> (Shutdown, impl Future<Output = ()> + Send) {
        (Shutdown::new(), self)
    }
}

impl StopSignal for Shutdown {
    fn split(self) -> (Shutdown, impl Future<Output = ()> + Send) {
        (self, pending())
    }
}
