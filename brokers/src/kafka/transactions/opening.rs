//! Opens a session: fences off the previous one, and reads the last mark.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use message::{Fault, FaultScope, PublishError, TransactionMark, TransactionScope};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer as _};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::connector::TransactionalConnector;
use super::deliveries::Deliveries;
use super::inspect::marks_topic;
use super::leaders::{self, Leaders, WHY_MAX};
use super::marks::{Marks, last_max};
use super::pace::Pace;
use super::session::{EndedByItself, PRODUCERS, Session, SessionEnd, lost};
use super::worker::{Command, Worker};
use crate::kafka::config::Config;
use crate::kafka::connector::{operator, producer};
use crate::kafka::fault;
use crate::kafka::login::Login;
use crate::kafka::suspects::{Singles, Suspects};

/// Minimum time allowed for `init_transactions`: it waits until a transaction that was left open
/// has ended.
const INIT_MIN: Duration = Duration::from_secs(20);
/// Questions about the topic of the marks that each take at most the time for connecting: its
/// existence, its creation, its settings twice, its ends twice.
const QUESTIONS: u32 = 6;
/// Interval at which to check whether the caller still waits for it.
const INIT_TURN: Duration = Duration::from_secs(1);
/// An operator's property that may not exceed the transactions' timeout.
const SOCKET_TIMEOUT: &str = "socket.timeout.ms";

/// Everything that opening a session needs. Blocks.
pub(super) struct Opening {
    /// Gone when the caller no longer waits for the session.
    pub(super) asker: Weak<()>,
    pub(super) config: Config,
    pub(super) suspects: Arc<Suspects>,
    pub(super) pace: Arc<Pace>,
    pub(super) singles: Option<Singles>,
    pub(super) scope: TransactionScope,
}

/// Returns how long opening a session takes at most.
pub(super) fn open_max(config: &Config) -> Duration {
    let producers = init_max(config).saturating_mul(PRODUCERS as u32).saturating_add(WHY_MAX);
    let marks = config.connect_timeout().saturating_mul(QUESTIONS).saturating_add(last_max(config));
    producers.saturating_add(marks).saturating_add(Login::max(config))
}

/// Returns the maximum time of `init_transactions`.
fn init_max(config: &Config) -> Duration {
    config.connect_timeout().max(INIT_MIN)
}

/// Returns the ids under which the coordinator knows the producers of a relay. The first one was
/// the only one in versions with one producer.
fn transactional_ids(scope: &TransactionScope) -> [String; PRODUCERS] {
    let id = transactional_id(&scope.log, &scope.relay);
    [id.clone(), format!("{id}/2")]
}

/// Returns the common prefix of these ids.
pub(super) fn transactional_id(log: &str, relay: &str) -> String {
    format!("outbox/{log}/{relay}")
}

impl Opening {
    fn marks_topic(&self) -> String {
        marks_topic(&self.scope.log, &self.scope.relay)
    }

    /// Checks the topic of the marks, then opens the session.
    pub(super) fn run(self, runtime: &Handle) -> Result<(Session, Option<TransactionMark>), PublishError> {
        let topic = self.marks_topic();
        let login = Login::of(&self.config, Some(runtime.clone()))?;
        Marks { config: &self.config, topic: &topic, login: &login }.check(self.scope.is_new, runtime)?;
        self.begin(&login)
    }

    pub(super) fn begin(self, login: &Login) -> Result<(Session, Option<TransactionMark>), PublishError> {
        let marks_topic = self.marks_topic();
        let timeout = TransactionalConnector::timeout(self.scope.timeout);
        let producers = self.producers(timeout, login)?;
        // Only after all producers exist: then no fenced producer can add a mark.
        let mark = Marks { config: &self.config, topic: &marks_topic, login }.last()?;
        let end = SessionEnd::default();
        let ended_by_itself = EndedByItself::default();
        let singles = self.singles.map(Arc::new);
        let batch_len = self.pace.batch_len(singles.is_some());
        let start = |producer| -> Result<Sender<Command>, PublishError> {
            let (commands, received) = channel();
            let worker = Worker {
                producer: Some(producer),
                given_up: None,
                patience: timeout / 2,
                config: self.config.clone(),
                marks_topic: marks_topic.clone(),
                suspects: Arc::clone(&self.suspects),
                pace: Arc::clone(&self.pace),
                singles: singles.clone(),
                leaders: Leaders::default(),
                is_open: false,
                end: Arc::clone(&end),
                ended_by_itself: Arc::clone(&ended_by_itself),
                login: login.clone(),
            };
            std::thread::Builder::new()
                .name(String::from("kafka-transactions"))
                .spawn(move || worker.serve(&received))
                .map_err(|error| PublishError::session_lost("no thread for kafka").with_source(error))?;
            Ok(commands)
        };
        let [first, second] = producers;
        let producers = [start(first)?, start(second)?];
        let turn = Arc::new(AtomicUsize::new(0));
        Ok((Session { producers, turn, batch_len, end, ended_by_itself }, mark))
    }

    /// Returns the producers, after fencing off those of the previous session.
    fn producers(
        &self,
        timeout: Duration,
        login: &Login,
    ) -> Result<[BaseProducer<Deliveries>; PRODUCERS], PublishError> {
        let client = client(&self.config, timeout, self.singles.is_none())?;
        let within = init_max(&self.config);
        let begin = |id: String| begin(&client, login, id, within, &self.asker);
        let [first, second] = transactional_ids(&self.scope);
        // In the order of their turns. Of two processes that open sessions at the same time, the
        // one that fenced off the first producer last has the first commit; the other has none.
        Ok([begin(first)?, begin(second)?])
    }
}

/// Runs blocking work on a separate thread. The weak pointer given to it is dead once the caller no
/// longer waits for the result, which is then dropped.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce(Weak<()>) -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    let asker = Arc::new(());
    let asked = Arc::downgrade(&asker);
    let done = spawn_blocking(move || work(asked)).await;
    drop(asker);
    done.map_err(|error| {
        PublishError::session_lost("connecting to kafka was interrupted").with_source(error)
    })?
}

/// Returns the settings of producers whose transactions stay open for at most `timeout`.
pub(super) fn client(
    config: &Config,
    timeout: Duration,
    in_batches: bool,
) -> Result<ClientConfig, PublishError> {
    let timeout_ms = timeout.as_millis().to_string();
    let mut client = producer(config, in_batches).map_err(operator)?;
    client
        .set("transaction.timeout.ms", &timeout_ms)
        .set("message.timeout.ms", &timeout_ms)
        // A record that fails aborts the whole transaction, so no later one can pass it.
        .set("enable.gapless.guarantee", "false");
    // librdkafka creates no client whose requests may outlast its transactions.
    if let Some(given) = client.get(SOCKET_TIMEOUT).and_then(|given| given.parse::<u128>().ok()) {
        client.set(SOCKET_TIMEOUT, given.min(timeout.as_millis()).to_string());
    }
    if !in_batches {
        // Records in flight behind a refused one are also refused, because of their sequence
        // numbers.
        client.set("max.in.flight.requests.per.connection", "1");
    }
    Ok(client)
}

/// Creates a producer with this id and fences off its predecessor. Stops when the caller no longer
/// waits.
pub(super) fn begin(
    client: &ClientConfig,
    login: &Login,
    id: String,
    within: Duration,
    asker: &Weak<()>,
) -> Result<BaseProducer<Deliveries>, PublishError> {
    let mut client = client.clone();
    client.set("transactional.id", &id);
    let settings = |text: String| PublishError::new(Fault::Operator, FaultScope::Session, text);
    let producer = BaseProducer::from_config_and_context(&client, Deliveries::default())
        .map_err(|error| settings(fault::creation(&error)))?;
    login.give(producer.client())?;
    init(&producer, &id, within, asker).map(|()| producer)
}

/// Fences off the previous producer, and waits until its last transaction has ended.
fn init(
    producer: &BaseProducer<Deliveries>,
    id: &str,
    within: Duration,
    asker: &Weak<()>,
) -> Result<(), PublishError> {
    let deadline = Instant::now() + within;
    let mut is_ending = false;
    loop {
        if asker.strong_count() == 0 {
            return Err(lost());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Err(error) = producer.init_transactions(left.min(INIT_TURN)) else { return Ok(()) };
        let code = match &error {
            KafkaError::Transaction(error) => error.code(),
            error => error.rdkafka_error_code().unwrap_or(Code::Unknown),
        };
        let is_retriable = matches!(&error, KafkaError::Transaction(error) if error.is_retriable());
        // Without an answer in this turn, the last one still holds.
        is_ending = code == Code::ConcurrentTransactions || is_ending && code == Code::OperationTimedOut;
        if is_retriable && !left.is_zero() {
            continue;
        }
        if is_retriable && is_ending {
            return Err(not_ended(producer, id, within));
        }
        producer.poll(Duration::ZERO);
        let reason = producer.context().complaint().unwrap_or_else(|| error.to_string());
        return Err(fault::session(code, &format!("cannot begin transactions: {reason}")));
    }
}

/// Returns the error of a producer whose predecessor's last transaction does not end. The
/// coordinator writes the end to every partition of the transaction, and waits for those that
/// cannot store it.
fn not_ended(producer: &BaseProducer<Deliveries>, id: &str, within: Duration) -> PublishError {
    let leaderless = leaders::leaderless(producer.client());
    let now = if leaderless.is_empty() {
        String::from("every partition has a leader now")
    } else {
        format!("without a leader now: {}", leaderless.join(", "))
    };
    PublishError::session_lost(format!(
        "kafka has not ended the last transaction of {id:?} within {within:?}: a partition of it has no leader, or \
         fewer in-sync replicas than min.insync.replicas ({now}); bring them back, or delete the topic, see \
         docs/kafka-exactly-once.md"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_may_take_the_sum_of_its_steps() {
        let config = |millis| Config::new(["127.0.0.1:1"]).connect_timeout_ms(millis);
        assert_eq!(open_max(&config(5_000)), Duration::from_secs(2 * 20 + 2 + 6 * 5 + 10));
        assert_eq!(open_max(&config(600_000)), Duration::from_secs(2 * 600 + 2 + 6 * 600 + 600));
    }
}
