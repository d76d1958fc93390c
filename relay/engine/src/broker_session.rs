//! One session with the broker after another: connect, submit, break, close, wait, connect again.

use std::sync::Arc;
use std::time::Duration;

use message::crash_points::reached;
use message::{
    Backoff, Capabilities, Connector, PublishError, Publisher, Receipt, Receipts, Runtime, Submission,
    Unrouted,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::crash_points;
use crate::telemetry::Telemetry;

/// How long to listen to a broken session for its last receipts. One of them may name the message
/// that broke it.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Maximum receipts received at once.
const RECEIPTS_MAX: usize = 4_096;
/// Batches between the driver and the publisher: enough to keep the publisher from waiting for the
/// driver.
const BATCHES: usize = 4;

/// A report of the session with a broker.
#[derive(Debug)]
pub(crate) enum BrokerEvent {
    /// A session is open.
    Up(Capabilities),
    /// Receipts of the session.
    Receipts(Vec<Receipt>),
    /// The session is over; its outstanding receipts will not arrive.
    Ended,
    /// Connecting failed; the next attempt follows after the pause.
    Refused {
        /// The reason.
        error: PublishError,
        /// Time until the next attempt.
        pause: Duration,
    },
}

struct Session {
    batches: mpsc::Sender<Vec<Submission>>,
    receipts: mpsc::UnboundedReceiver<Receipt>,
    closing: CancellationToken,
    listen_until: Option<Instant>,
    /// Aborts the publisher when the session is dropped.
    _task: AbortOnDropHandle<()>,
}

type Connected = (Box<dyn Publisher>, mpsc::UnboundedReceiver<Receipt>);

enum State {
    Connecting(AbortOnDropHandle<Result<Connected, PublishError>>),
    Waiting(Instant),
    Open(Session),
}

/// Sessions with one broker, one after the other.
pub(crate) struct BrokerSession {
    connector: Arc<dyn Connector>,
    state: State,
    retry: Backoff,
    failures: u32,
    trusted_until: watch::Receiver<Instant>,
    telemetry: Telemetry,
    host: Runtime,
}

impl BrokerSession {
    /// Starts connecting at once.
    pub(crate) fn new(
        connector: Arc<dyn Connector>,
        retry: Backoff,
        trusted_until: watch::Receiver<Instant>,
        telemetry: Telemetry,
        host: Runtime,
    ) -> Self {
        let state = connecting(&connector, &host);
        Self { connector, state, retry, failures: 0, trusted_until, telemetry, host }
    }

    /// Returns room for another batch, if a session is open and has some.
    pub(crate) fn permit(&self) -> Option<mpsc::Permit<'_, Vec<Submission>>> {
        match &self.state {
            State::Open(session) if session.listen_until.is_none() => session.batches.try_reserve().ok(),
            _ => None,
        }
    }

    /// Begins to end the session; its last receipts still arrive, then [`BrokerEvent::Ended`].
    pub(crate) fn close(&mut self) {
        if let State::Open(session) = &mut self.state
            && session.listen_until.is_none()
        {
            session.closing.cancel();
            session.listen_until = Some(Instant::now() + LAST_WORDS);
        }
    }

    /// Returns the reported problem of a session that is open but gets no confirmations, with the
    /// last error of its client, if that is recent.
    pub(crate) fn silence(&self) -> String {
        silent(self.connector.last_error())
    }

    /// Returns the messages that have counted as published since the last call although the broker
    /// routed them nowhere.
    pub(crate) fn take_unrouted(&self) -> Vec<Unrouted> {
        self.connector.take_unrouted()
    }

    /// Returns whether a session is open and not closing.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&self.state, State::Open(session) if session.listen_until.is_none())
    }

    /// Waits for the next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> BrokerEvent {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.state = connecting(&self.connector, &self.host);
                }
                State::Connecting(attempt) => {
                    let outcome = match attempt.await {
                        Ok(outcome) => outcome,
                        Err(panic) => Err(PublishError::session_lost(format!("connecting failed: {panic}"))),
                    };
                    return self.connected(outcome);
                }
                State::Open(session) => {
                    let until = session.listen_until.unwrap_or_else(far_away);
                    let mut receipts = Vec::new();
                    let count = tokio::select! {
                        biased;
                        count = session.receipts.recv_many(&mut receipts, RECEIPTS_MAX) => count,
                        () = tokio::time::sleep_until(until) => 0,
                    };
                    if count > 0 {
                        return BrokerEvent::Receipts(receipts);
                    }
                    self.state = State::Waiting(Instant::now() + self.pause());
                    return BrokerEvent::Ended;
                }
            }
        }
    }

    /// Records that the broker answered for a message, whatever the answer. After the next broken
    /// session the pause is short again.
    pub(crate) fn answered(&mut self) {
        self.failures = 0;
    }

    fn pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let quick = Backoff { first: Duration::from_millis(100), max: self.retry.max.min(OUTAGE_PAUSE_MAX) };
        quick.delay(self.failures, self.host.uniform())
    }

    fn connected(&mut self, outcome: Result<Connected, PublishError>) -> BrokerEvent {
        match outcome {
            Ok((publisher, receipts)) => {
                let profile = publisher.profile();
                let (batches, queue) = mpsc::channel(BATCHES);
                let closing = CancellationToken::new();
                let trusted_until = self.trusted_until.clone();
                let run = run(publisher, queue, closing.clone(), trusted_until, self.telemetry.clone());
                let task = AbortOnDropHandle::new(self.host.spawn(run));
                self.state =
                    State::Open(Session { batches, receipts, closing, listen_until: None, _task: task });
                BrokerEvent::Up(profile)
            }
            Err(error) => {
                let pause = self.pause();
                self.state = State::Waiting(Instant::now() + pause);
                BrokerEvent::Refused { error, pause }
            }
        }
    }
}

/// The longest pause between attempts to connect: an outage ends without notice.
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(5);

fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

fn connecting(connector: &Arc<dyn Connector>, host: &Runtime) -> State {
    let connector = Arc::clone(connector);
    State::Connecting(AbortOnDropHandle::new(host.spawn(async move {
        let (sender, receipts) = Receipts::channel();
        // The steps have their own limits; this is for a connector that hangs in spite of them.
        let connect_max = connector.connect_max();
        match tokio::time::timeout(connect_max, connector.connect(sender)).await {
            Ok(publisher) => Ok((publisher?, receipts)),
            Err(_) => Err(PublishError::session_lost(format!(
                "{} did not answer within {connect_max:?}",
                connector.destination()
            ))),
        }
    })))
}

/// Owns the publisher. The lease is checked here, immediately before a message is sent: a process
/// that was suspended past its lease notices before it sends.
async fn run(
    mut publisher: Box<dyn Publisher>,
    mut queue: mpsc::Receiver<Vec<Submission>>,
    closing: CancellationToken,
    trusted_until: watch::Receiver<Instant>,
    telemetry: Telemetry,
) {
    loop {
        let batch = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            batch = queue.recv() => match batch {
                Some(batch) => batch,
                None => break,
            },
            () = publisher.ended() => break,
        };
        if Instant::now() >= *trusted_until.borrow() {
            telemetry.not_publishing(batch.len());
            break;
        }
        reached(crash_points::BEFORE_PUBLISH);
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            () = publisher.submit(batch) => reached(crash_points::AFTER_PUBLISH),
        }
    }
    publisher.close(Duration::ZERO).await;
}

/// A broker that throttles a client answers late and reports nothing, so a quota is named too.
fn silent(error: Option<String>) -> String {
    let told = error.map(|error| format!(": {error}")).unwrap_or_default();
    format!(
        "the broker confirms nothing although messages are in flight{told}; check the broker, its logs, its quotas for \
         this client (Kafka: producer_byte_rate), and the network in between"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use outbox_log::RelayName;

    use super::*;

    fn telemetry() -> Telemetry {
        Telemetry::new(&RelayName::new("orders").unwrap(), "", "", 1)
    }

    /// A broker that refuses each session after 45 seconds.
    struct Distant {
        connect_max: Duration,
    }

    #[async_trait]
    impl Connector for Distant {
        fn destination(&self) -> &str {
            "distant"
        }

        fn connect_max(&self) -> Duration {
            self.connect_max
        }

        async fn connect(&self, _: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
            tokio::time::sleep(Duration::from_secs(45)).await;
            Err(PublishError::session_lost("answered"))
        }
    }

    /// Goal: a broker that is far away gets the time that its settings allow, and one that hangs
    /// does not stop the relay. Oracle: the error.
    #[tokio::test(start_paused = true)]
    async fn opening_a_session_may_take_as_long_as_its_settings_allow() {
        let error = async |seconds| {
            let connector = Arc::new(Distant { connect_max: Duration::from_secs(seconds) });
            let (_trusted, trusted_until) = watch::channel(far_away());
            let mut session = BrokerSession::new(
                connector,
                Backoff::MESSAGES,
                trusted_until,
                telemetry(),
                Runtime::default(),
            );
            match session.next().await {
                BrokerEvent::Refused { error, .. } => error.to_string(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(error(60).await, "answered");
        assert_eq!(error(30).await, "distant did not answer within 30s");
    }

    /// A broker that accepts one session, whose end the test decides.
    struct OneSession {
        ended: CancellationToken,
        sessions: AtomicUsize,
    }

    struct Session {
        ended: CancellationToken,
        _receipts: Receipts,
    }

    #[async_trait]
    impl Connector for OneSession {
        fn destination(&self) -> &str {
            "one session"
        }

        async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
            match self.sessions.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(Box::new(Session { ended: self.ended.clone(), _receipts: receipts })),
                _ => Err(PublishError::session_lost("connection refused")),
            }
        }
    }

    #[async_trait]
    impl Publisher for Session {
        fn profile(&self) -> Capabilities {
            Capabilities { max_in_flight_per_key: message::MaxInFlightPerKey::One, batch_len: 1 }
        }

        async fn submit(&mut self, _: Vec<Submission>) {}

        async fn ended(&mut self) {
            self.ended.cancelled().await;
        }

        async fn close(self: Box<Self>, _: Duration) {}
    }

    /// Goal: a broker that stops while nothing waits is known before the next message waits for it.
    /// Oracle: the events of a session without a message.
    #[tokio::test(start_paused = true)]
    async fn an_idle_session_that_is_over_is_opened_again() {
        let ended = CancellationToken::new();
        let connector = Arc::new(OneSession { ended: ended.clone(), sessions: AtomicUsize::new(0) });
        let retry = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(5) };
        let (_trust, trusted) = watch::channel(far_away());
        let mut session = BrokerSession::new(connector, retry, trusted, telemetry(), Runtime::default());
        assert!(matches!(session.next().await, BrokerEvent::Up(_)));
        assert!(tokio::time::timeout(Duration::from_secs(60), session.next()).await.is_err(), "it is open");
        ended.cancel();
        assert!(matches!(session.next().await, BrokerEvent::Ended));
        assert!(matches!(session.next().await, BrokerEvent::Refused { .. }));
    }

    #[test]
    fn a_silent_broker_is_told_with_what_its_client_knows_and_with_quotas() {
        let told = silent(Some(String::from("rabbitmq blocks publishers")));
        assert!(told.contains("in flight: rabbitmq blocks publishers; check the broker"), "{told}");
        assert!(silent(None).contains("in flight; check the broker, its logs, its quotas"));
    }
}
