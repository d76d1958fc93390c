//! The signals that `relay run` listens to.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::exit::Exit;
use super::failure::Failure;

/// A signal within this time after the first one is the same one: `timeout` and some shells send it
/// to the process and to its group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Maximum number of signals that wait to be read. More of them say nothing new.
const WAITING_MAX: usize = 16;

/// The signals that the relay listens to.
pub(super) struct Signals {
    pub(super) stop: StopSignals,
    /// SIGHUP.
    pub(super) reload: Signal,
    _listening: AbortOnDropHandle<()>,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::new(Exit::Broken, format_args!("cannot receive signals: {error}")))
        };
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let reload = listen(SignalKind::hangup())?;
        let (arrived, stop) = mpsc::channel(WAITING_MAX);
        // A task notes when a signal arrives, which may be long before it is read.
        let listening = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                _ = arrived.try_send(Instant::now());
            }
        });
        Ok(Self { stop: StopSignals::new(stop), reload, _listening: AbortOnDropHandle::new(listening) })
    }
}

/// A request to stop the relay.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StopSignal {
    /// The first one: what was begun is settled.
    First,
    /// A later one that is not a copy of the first: the process ends immediately.
    Second,
}

/// The signals that stop the relay, without copies of the first one.
pub(super) struct StopSignals {
    arrived: mpsc::Receiver<Instant>,
    first_at: Option<Instant>,
}

impl StopSignals {
    fn new(arrived: mpsc::Receiver<Instant>) -> Self {
        Self { arrived, first_at: None }
    }

    /// Waits for the next signal. Cancel-safe.
    pub(super) async fn next(&mut self) -> StopSignal {
        while let Some(at) = self.arrived.recv().await {
            match self.first_at {
                None => {
                    self.first_at = Some(at);
                    return StopSignal::First;
                }
                Some(first_at) if at.duration_since(first_at) < SAME_SIGNAL => {}
                Some(_) => return StopSignal::Second,
            }
        }
        std::future::pending().await
    }

    /// Carries out the last work of a process. A second signal drops it, the first one does not.
    /// Returns whether it was carried out.
    pub(super) async fn let_end(&mut self, work: impl Future<Output = ()>) -> bool {
        let second = async { while self.next().await == StopSignal::First {} };
        tokio::select! {
            biased;
            () = work => true,
            () = second => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the copy of a signal cuts nothing short, even when it is read late. Oracle: work that
    /// ends after the copy is carried out; a second signal drops other work, as does a first one
    /// followed by a second one.
    #[tokio::test(start_paused = true)]
    async fn the_last_work_is_dropped_by_a_second_signal_and_not_by_a_copy_of_the_first() {
        let (arrived, signals) = mpsc::channel(WAITING_MAX);
        let mut signals = StopSignals::new(signals);
        let send = || arrived.try_send(Instant::now()).unwrap();
        send();
        assert_eq!(signals.next().await, StopSignal::First);
        tokio::time::advance(SAME_SIGNAL / 2).await;
        send();
        tokio::time::advance(SAME_SIGNAL * 10).await;
        assert!(signals.let_end(tokio::time::sleep(SAME_SIGNAL)).await, "a copy is no second signal");
        send();
        assert!(!signals.let_end(std::future::pending()).await);

        let (arrived, signals) = mpsc::channel(WAITING_MAX);
        let mut signals = StopSignals::new(signals);
        arrived.try_send(Instant::now()).unwrap();
        let mut work = Box::pin(signals.let_end(std::future::pending()));
        assert!(tokio::time::timeout(SAME_SIGNAL, &mut work).await.is_err(), "the first one waits");
        arrived.try_send(Instant::now()).unwrap();
        assert!(!work.await);
    }
}
