//! Takes over, connects, commits.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use message::{Fault, FaultScope, PublishError, Receipts, TransactionMark, TransactionScope, Transactions};
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, Producer as _};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::deliveries::Deliveries;
use super::inspect::MARKS;
use super::marks::Marks;
use super::publisher::TransactionalPublisher;
use super::worker::{Command, Worker};
use crate::kafka::config::Config;
use crate::kafka::connector::{operator, producer};
use crate::kafka::fault;
use crate::kafka::suspects::{Singles, Suspects};
use crate::settings::InvalidSetting;

/// How long `init_transactions` may take at least: it waits for the transaction that was left open
/// to end.
const INIT_MIN: Duration = Duration::from_secs(20);
/// How often it is looked whether somebody still waits for it.
const INIT_TURN: Duration = Duration::from_secs(1);
/// Shorter transactions would be aborted by every pause of a broker.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// An operator's property that transactions bound.
const SOCKET_TIMEOUT: &str = "socket.timeout.ms";
/// The brokers' default of `transaction.max.timeout.ms`.
const TIMEOUT_MAX: Duration = Duration::from_secs(900);

/// Connects to a Kafka cluster and publishes in transactions.
///
/// [`Transactions::take_over`] comes first; the sessions that are connected afterwards go on from
/// the mark that it found.
#[derive(Debug)]
pub struct TransactionalConnector {
    config: Config,
    destination: String,
    suspects: Arc<Suspects>,
    sessions: AtomicU64,
    is_superseded: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    scope: Option<TransactionScope>,
    /// The last mark, as far as this process knows.
    mark: Option<TransactionMark>,
    /// The session that took over, until it is connected.
    ready: Option<Session>,
    /// The one that was connected last.
    current: Option<Session>,
}

/// A session's thread; it ends when nobody holds its commands.
#[derive(Debug, Clone)]
pub(super) struct Session {
    commands: Sender<Command>,
    is_single: bool,
    is_over: Arc<AtomicBool>,
}

impl Session {
    pub(super) fn publisher(&self, receipts: Receipts) -> TransactionalPublisher {
        let (commands, is_over) = (self.commands.clone(), Arc::clone(&self.is_over));
        TransactionalPublisher::new(commands, receipts, self.is_single, is_over)
    }

    /// Puts a mark behind what was published and commits both.
    pub(super) async fn commit(&self, mark: TransactionMark) -> Result<(), PublishError> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Commit(mark, answer)).map_err(|_| lost())?;
        answered.await.map_err(|_| lost())?
    }
}

fn lost() -> PublishError {
    PublishError::session_lost("the kafka session ended before its transaction")
}

impl TransactionalConnector {
    /// How long the brokers let a transaction stay open under a lease of this length.
    #[must_use]
    pub fn timeout(lease: Duration) -> Duration {
        lease.clamp(TIMEOUT_MIN, TIMEOUT_MAX)
    }

    /// A connector for this cluster. Connects to nothing yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] as for [`Config::check`].
    pub fn new(config: Config) -> Result<Self, InvalidSetting> {
        config.check()?;
        config.warn();
        let destination = config.destination();
        Ok(Self {
            config,
            destination,
            suspects: Arc::default(),
            sessions: AtomicU64::new(0),
            is_superseded: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session that has shut out the one before, and the last mark.
    async fn open(
        &self,
        scope: &TransactionScope,
    ) -> Result<(Session, Option<TransactionMark>), PublishError> {
        let singles = self.suspects.take();
        let asker = Arc::new(());
        let opening = Opening {
            asker: Arc::downgrade(&asker),
            config: self.config.clone(),
            suspects: Arc::clone(&self.suspects),
            singles,
            scope: scope.clone(),
        };
        let runtime = Handle::current();
        // When this future is dropped, the session opened there is dropped with its result, and one
        // that has shut nobody out yet does not do so any more.
        let opened = spawn_blocking(move || opening.run(&runtime)).await;
        drop(asker);
        opened
            .map_err(|error| PublishError::session_lost("connecting to kafka broke off").with_source(error))?
    }
}

#[async_trait]
impl message::Connector for TransactionalConnector {
    fn destination(&self) -> &str {
        &self.destination
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn message::Publisher>, PublishError> {
        let (scope, known, ready) = {
            let mut state = self.state();
            state.current = None;
            (state.scope.clone(), state.mark.clone(), state.ready.take())
        };
        let Some(scope) = scope else {
            return Err(PublishError::session_lost("nobody has taken over these transactions"));
        };
        let session = match ready.filter(|session| !session.is_over.load(Ordering::Acquire)) {
            Some(session) => session,
            None => {
                let (session, last) = self.open(&scope).await?;
                if last != known {
                    self.is_superseded.store(true, Ordering::Release);
                    let number = |mark: &Option<TransactionMark>| mark.as_ref().map_or(0, |mark| mark.number);
                    return Err(PublishError::session_lost(format!(
                        "kafka holds mark {} where this process has written {}: another one has taken over",
                        number(&last),
                        number(&known)
                    )));
                }
                session
            }
        };
        let publisher = session.publisher(receipts);
        self.sessions.fetch_add(1, Ordering::AcqRel);
        self.state().current = Some(session);
        Ok(Box::new(publisher))
    }
}

#[async_trait]
impl Transactions for TransactionalConnector {
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        {
            let mut state = self.state();
            (state.ready, state.current, state.scope) = (None, None, None);
        }
        let (session, mark) = self.open(scope).await?;
        let mut state = self.state();
        self.is_superseded.store(false, Ordering::Release);
        *state =
            State { scope: Some(scope.clone()), mark: mark.clone(), ready: Some(session), current: None };
        Ok(mark)
    }

    fn session(&self) -> u64 {
        self.sessions.load(Ordering::Acquire)
    }

    async fn commit(&self, session: u64, mark: TransactionMark) -> Result<(), PublishError> {
        let current = self.state().current.clone();
        let current = current.filter(|_| self.session() == session).ok_or_else(lost)?;
        current.commit(mark.clone()).await?;
        let mut state = self.state();
        // From now on the topic has to be there.
        if let Some(scope) = &mut state.scope {
            scope.is_new = false;
        }
        state.mark = Some(mark);
        Ok(())
    }

    fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Acquire)
    }
}

/// Everything that opening a session needs. Blocks.
pub(super) struct Opening {
    /// Gone when nobody waits for the session.
    pub(super) asker: Weak<()>,
    pub(super) config: Config,
    pub(super) suspects: Arc<Suspects>,
    pub(super) singles: Option<Singles>,
    pub(super) scope: TransactionScope,
}

impl Opening {
    fn marks_topic(&self) -> String {
        format!("{MARKS}{}.{}", self.scope.log, self.scope.relay)
    }

    /// Checks the topic of the marks first.
    fn run(self, runtime: &Handle) -> Result<(Session, Option<TransactionMark>), PublishError> {
        let topic = self.marks_topic();
        Marks { config: &self.config, topic: &topic }.check(self.scope.is_new, runtime)?;
        self.begin()
    }

    pub(super) fn begin(self) -> Result<(Session, Option<TransactionMark>), PublishError> {
        let marks_topic = self.marks_topic();
        let Self { asker, config, suspects, singles, scope } = self;
        let timeout = TransactionalConnector::timeout(scope.timeout);
        let marks = Marks { config: &config, topic: &marks_topic };
        let timeout_ms = timeout.as_millis().to_string();
        let mut client = producer(&config, singles.is_none()).map_err(operator)?;
        client
            .set("transactional.id", format!("outbox/{}/{}", scope.log, scope.relay))
            .set("transaction.timeout.ms", &timeout_ms)
            .set("message.timeout.ms", &timeout_ms)
            // A record that fails gives the whole transaction up, so no later one can pass it.
            .set("enable.gapless.guarantee", "false");
        // librdkafka makes no client whose requests may outlast its transactions.
        if let Some(given) = client.get(SOCKET_TIMEOUT).and_then(|given| given.parse::<u128>().ok()) {
            client.set(SOCKET_TIMEOUT, given.min(timeout.as_millis()).to_string());
        }
        if singles.is_some() {
            // Records in flight behind a refused one are refused as well, for their numbers.
            client.set("max.in.flight.requests.per.connection", "1");
        }
        let settings = |text: String| PublishError::new(Fault::Operator, FaultScope::Session, text);
        let producer = BaseProducer::from_config_and_context(&client, Deliveries::default())
            .map_err(|error| settings(fault::creation(&error)))?;
        init(&producer, config.connect_timeout().max(INIT_MIN), &asker)?;
        let mark = marks.last()?;
        let (commands, received) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let is_single = singles.is_some();
        let worker = Worker {
            producer: Some(producer),
            given_up: None,
            patience: timeout / 2,
            config: config.clone(),
            marks_topic,
            suspects,
            singles,
            is_over: Arc::clone(&is_over),
            topics: HashSet::new(),
            is_open: false,
            failure: None,
        };
        std::thread::Builder::new()
            .name(String::from("kafka-transactions"))
            .spawn(move || worker.serve(&received))
            .map_err(|error| PublishError::session_lost("no thread for kafka").with_source(error))?;
        Ok((Session { commands, is_single, is_over }, mark))
    }
}

/// Shuts out the producer before, and waits until its last transaction has ended.
fn init(producer: &BaseProducer<Deliveries>, within: Duration, asker: &Weak<()>) -> Result<(), PublishError> {
    let deadline = Instant::now() + within;
    loop {
        if asker.strong_count() == 0 {
            return Err(lost());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match producer.init_transactions(left.min(INIT_TURN)) {
            Ok(()) => return Ok(()),
            Err(KafkaError::Transaction(error)) if error.is_retriable() && !left.is_zero() => {}
            Err(error) => {
                producer.poll(Duration::ZERO);
                let reason = producer.context().complaint().unwrap_or_else(|| error.to_string());
                let code = match &error {
                    KafkaError::Transaction(error) => error.code(),
                    error => error.rdkafka_error_code().unwrap_or(rdkafka::types::RDKafkaErrorCode::Unknown),
                };
                return Err(fault::session(code, &format!("cannot begin transactions: {reason}")));
            }
        }
    }
}
