//! A consumer that is ready to run.

use super::inbox_store::InboxStore;
use super::parts::Runner;
use super::run_error::RunError;
use super::shutdown::StopSignal;
use super::status::ConsumerStatus;
use crate::dialect::Dialect;

/// A consumer that is ready to run.
#[derive(Debug)]
pub struct Consumer<DB: Dialect>(pub(super) Runner<InboxStore<DB>>);

impl<DB: Dialect> Consumer<DB> {
    /// Returns the consumer's status, for health probes: ask it while the consumer runs.
    #[must_use]
    pub fn status(&self) -> ConsumerStatus {
        self.0.status()
    }

    /// Runs until it is stopped: gracefully when any future completes, or by a
    /// [`Shutdown`](super::Shutdown). It waits out outages of the database and the broker
    /// indefinitely.
    ///
    /// # Errors
    /// [`RunError`] when it was aborted. Dropping the future is an abort.
    pub async fn run(self, shutdown: impl StopSignal) -> Result<(), RunError> {
        let (shutdown, signal) = shutdown.split();
        let graceful = shutdown.graceful.clone();
        self.0.watch();
        let running = self.0.run(shutdown);
        tokio::pin!(running);
        tokio::select! {
            biased;
            result = &mut running => return result,
            () = signal => graceful.cancel(),
        }
        running.await
    }
}
