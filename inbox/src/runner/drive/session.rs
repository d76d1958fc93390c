//! Follows the session with the broker: keeps its deliveries alive, and forgets them with it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Drive;
use super::broker_call::{CallEnd, answered, ended};
use crate::error_text::error_text;
use crate::runner::broker_session::BrokerSession;
use crate::runner::run_error::RunError;
use crate::runner::status::ConsumerStatus;
use crate::runner::store::Store;

/// Default interval at which a consumer extends the visibility timeout of deliveries in hand. It is
/// shorter if the subscription requires this.
pub(super) const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(10);

impl<S: Store> Drive<S> {
    /// Returns the keep-alive interval for this session's broker. A delivery may have waited for
    /// half of its visibility timeout before it is handed out, so the interval must fit into the
    /// other half.
    pub(super) fn keep_alive_interval(&mut self) -> Result<Duration, RunError> {
        let chosen = self.settings.keep_alive_interval;
        let Some(subscription) = self.broker_session.subscription() else { return Ok(KEEP_ALIVE_DEFAULT) };
        match (chosen, subscription.redelivers_after()) {
            (Some(keep_alive_interval), Some(redelivers_after))
                if keep_alive_interval > redelivers_after / 2 =>
            {
                let origin = subscription.origin().to_owned();
                Err(RunError::KeepAliveTooSeldom { origin, keep_alive_interval, redelivers_after })
            }
            (Some(chosen), _) => Ok(chosen),
            (None, Some(redelivers_after)) => Ok(KEEP_ALIVE_DEFAULT.min(redelivers_after / 3)),
            (None, None) => Ok(KEEP_ALIVE_DEFAULT),
        }
    }

    /// Stops receiving before anything is released: a broker that pushes would deliver it here
    /// again. The deliveries of a session that does not answer come again.
    pub(super) async fn stop_receiving(&mut self) {
        let Self { shutdown, worker, broker_session, .. } = self;
        if !stop_receiving(broker_session, &shutdown.abort, &worker.status).await {
            worker.meter.session_lost();
            self.session_changed();
        }
    }

    /// Tells the broker that the unsettled deliveries are still being worked on.
    pub(super) async fn keep_alive(&mut self) {
        let tokens: Vec<_> = self.unsettled.iter().copied().collect();
        let Self { shutdown, worker, broker_session, .. } = self;
        let Some(subscription) = broker_session.subscription() else { return };
        if tokens.is_empty() {
            return;
        }
        let keeping = answered(&shutdown.abort, &worker.status, subscription.keep_alive(&tokens));
        if let Some(Err(error)) = keeping.await {
            self.lost(&error);
        }
    }

    /// Asks how many messages wait at the broker, for the status and the gauges.
    pub(super) fn ask_lag(&mut self) {
        match self.broker_session.subscription() {
            Some(subscription) => {
                let lag = subscription.lag();
                let waiting = lag.iter().map(|lag| lag.messages).reduce(u64::saturating_add);
                self.worker.status.lags(waiting);
                self.worker.status.assigned(subscription.is_assigned());
                self.lag.set(&lag);
            }
            None => self.lag.clear(),
        }
    }

    /// Ends a session after an error; the next one begins automatically.
    pub(super) fn lost(&mut self, error: &message::SubscriptionError) {
        self.worker.meter.session_lost();
        self.broker_session.lost(error);
        self.session_changed();
    }

    /// Records what the new session reads, or why there is none.
    fn tell_session(&mut self) {
        let Self { worker, broker_session, .. } = self;
        match broker_session.subscription() {
            Some(subscription) => worker.status.connected(subscription.origin()),
            None => worker.status.disconnected(broker_session.error().to_owned()),
        }
    }

    /// Forgets the state of the old session. Running work continues and keeps its lane; waiting
    /// work ends.
    pub(super) fn session_changed(&mut self) {
        self.session += 1;
        self.seen.clear();
        self.worker.status.lags(None);
        self.worker.status.assigned(None);
        self.tell_session();
        self.lag.clear();
        self.give_up.cancel();
        self.give_up = CancellationToken::new();
        self.unsettled.clear();
        drop(self.key_queues.drain());
        self.batchable.clear();
    }
}

/// Stops new deliveries, if there is a session. If the call was cut off, drops the session, because
/// its subscription must not be used again, and returns false.
async fn stop_receiving(
    session: &mut BrokerSession,
    abort: &CancellationToken,
    status: &ConsumerStatus,
) -> bool {
    let Some(subscription) = session.subscription() else { return true };
    match ended(abort, status, subscription.stop_receiving()).await {
        CallEnd::Answered(Err(error)) => {
            let error = error_text(&error);
            tracing::warn!(error, "the broker continues to deliver until the session ends");
        }
        CallEnd::TimedOut(error) => {
            session.lost(&error);
            return false;
        }
        CallEnd::Answered(Ok(())) | CallEnd::Aborted => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::num::NonZeroUsize;

    use async_trait::async_trait;
    use message::{Delivery, DeliveryToken, Runtime, Settlement, Subscription, SubscriptionError};

    use super::*;
    use crate::ids::ConsumerName;
    use crate::runner::broker_session::{Event, SubscriptionFactory};

    /// A subscription whose `stop_receiving` fails, or never returns.
    struct Stopped {
        is_silent: bool,
    }

    #[async_trait]
    impl Subscription for Stopped {
        fn origin(&self) -> &str {
            "queue stopped"
        }

        async fn receive(
            &mut self,
            _: NonZeroUsize,
            _: Duration,
        ) -> Result<Vec<Delivery>, SubscriptionError> {
            pending().await
        }

        async fn settle(&mut self, _: Vec<Settlement>) -> Result<(), SubscriptionError> {
            Ok(())
        }

        async fn keep_alive(&mut self, _: &[DeliveryToken]) -> Result<(), SubscriptionError> {
            Ok(())
        }

        async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
            if self.is_silent {
                pending::<()>().await;
            }
            Err(SubscriptionError::lost("not reached"))
        }

        async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
            Ok(())
        }
    }

    /// Goal: a subscription is not called again after one of its calls was cut off: a stop would
    /// wait for it twice. Oracle: whether it is still there.
    #[tokio::test(start_paused = true)]
    async fn a_subscription_whose_call_was_cut_off_is_dropped() {
        let abort = CancellationToken::new();
        let billing = ConsumerName::new("billing").unwrap();
        let status = ConsumerStatus::new(&billing, &std::sync::Arc::default());
        for is_silent in [true, false] {
            let factory = SubscriptionFactory::new(move || async move {
                Ok(Box::new(Stopped { is_silent }) as Box<dyn Subscription>)
            });
            let mut session = BrokerSession::new(factory, Runtime::default());
            assert!(stop_receiving(&mut session, &abort, &status).await, "there is none yet");
            assert!(matches!(session.next(NonZeroUsize::new(1)).await, Event::Up));
            assert_eq!(stop_receiving(&mut session, &abort, &status).await, !is_silent);
            assert_eq!(session.subscription().is_none(), is_silent);
        }
    }
}
