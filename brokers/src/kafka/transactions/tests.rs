//! Tests a session against librdkafka's mock cluster, which has neither committed records nor topic
//! settings: what readers see is tested on a real cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use message::{
    Fault, FaultScope, Message, PublishError, Publisher as _, Receipt, Receipts, Submission, Ticket,
    TransactionMark, TransactionScope,
};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::mpsc::UnboundedReceiver;

use super::leaders::Leaders;
use super::marks::Marks;
use super::opening::{Opening, begin, client};
use super::pace::Pace;
use super::parts;
use super::probe::probe;
use super::publisher::TransactionalPublisher;
use super::session::{EndedByItself, Session, SessionEnd};
use super::worker::Worker;
use crate::kafka::Config;
use crate::kafka::config::Sasl;
use crate::kafka::login::Login;
use crate::kafka::mock::Mock;
use crate::kafka::partitioner::partition_of;
use crate::kafka::suspects::Suspects;
use crate::kafka::tests::damage::{Harm, Network};
use crate::kafka::tests::{self as kafka, keyed};
use crate::oauth::{OAuth, Token, TokenError, TokenProvider};

/// A transaction may take half of this.
const TIMEOUT: Duration = Duration::from_secs(6);
/// The broker that does not answer, and how late its answers are.
const SILENT: u8 = 2;
const LATE: Duration = Duration::from_secs(30);

/// A cluster of two brokers: each leads one of the topics `alive` and `silent`.
struct Cluster {
    mock: Mock,
    suspects: Arc<Suspects>,
    pace: Arc<Pace>,
    config: Config,
    scope: TransactionScope,
}

impl Cluster {
    fn start() -> Self {
        let mock = Mock::start(SILENT).unwrap();
        let (log, relay) = (String::from("a1"), String::from("orders"));
        for id in ["outbox/a1/orders", "outbox/a1/orders/2"] {
            mock.coordinate(id, 1).unwrap();
        }
        for (topic, leader) in [("alive", 1), ("silent", SILENT), ("outbox-marks.a1.orders", 1)] {
            mock.create_topic(topic, 1).unwrap();
            mock.lead(topic, 0, Some(leader)).unwrap();
        }
        let scope = TransactionScope { log, relay, is_new: false, timeout: TIMEOUT };
        let config = Config::new(mock.bootstrap_servers());
        Self { mock, suspects: Arc::default(), pace: Arc::default(), config, scope }
    }

    /// Opens a session that has fenced off the previous one.
    async fn session(&self) -> (Session, TransactionalPublisher, UnboundedReceiver<Receipt>) {
        let asker = Arc::new(());
        let opening = Opening {
            asker: Arc::downgrade(&asker),
            config: self.config.clone(),
            suspects: Arc::clone(&self.suspects),
            pace: Arc::clone(&self.pace),
            singles: self.suspects.take(),
            scope: self.scope.clone(),
        };
        let (session, _) =
            tokio::task::spawn_blocking(|| opening.begin(&Login::default())).await.unwrap().unwrap();
        drop(asker);
        let (receipts, received) = Receipts::channel();
        let publisher = session.publisher(receipts);
        (session, publisher, received)
    }

    /// Publishes this message `count` times, in transactions as large as each session takes.
    /// Returns how many messages each session has published; all sessions but the last one fail.
    async fn drain(&self, message: &Message, count: usize, sessions_max: usize) -> Vec<usize> {
        let (mut left, mut number, mut published) = (count, 0, Vec::new());
        while left > 0 {
            assert!(published.len() < sessions_max, "{left} of {count} are left after {published:?}");
            let (session, mut publisher, mut received) = self.session().await;
            let mut of_session = 0;
            while left > 0 {
                let batch = left.min(publisher.profile().batch_len);
                let outcomes = send(&mut publisher, &mut received, vec![message.clone(); batch]).await;
                if let Some(error) = outcomes.into_iter().find_map(Result::err) {
                    assert_eq!(error.scope(), FaultScope::Session, "{error}");
                    break;
                }
                number += 1;
                if session.commit(session.turn(), mark(number)).await.is_err() {
                    break;
                }
                left -= batch;
                of_session += batch;
            }
            published.push(of_session);
        }
        published
    }
}

/// Publishes one message to each of these topics together, and returns their outcomes.
async fn publish(
    publisher: &mut TransactionalPublisher,
    received: &mut UnboundedReceiver<Receipt>,
    topics: &[&str],
) -> Vec<Result<(), PublishError>> {
    send(publisher, received, topics.iter().map(|topic| keyed(topic, "k", "1")).collect()).await
}

/// Publishes these messages together, and returns their outcomes.
async fn send(
    publisher: &mut TransactionalPublisher,
    received: &mut UnboundedReceiver<Receipt>,
    messages: Vec<Message>,
) -> Vec<Result<(), PublishError>> {
    let count = messages.len();
    let submission =
        |(number, message): (u64, Message)| Submission { ticket: Ticket(number), message: message.into() };
    publisher.submit((0..).zip(messages).map(submission).collect()).await;
    let mut receipts = Vec::new();
    while receipts.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(60), received.recv()).await;
        receipts.push(next.expect("a receipt in time").expect("an open channel"));
    }
    receipts.sort_by_key(|receipt| receipt.ticket);
    receipts.into_iter().map(|receipt| receipt.outcome).collect()
}

fn mark(number: u64) -> TransactionMark {
    TransactionMark { number, content: format!("mark {number}").into_bytes() }
}

/// Goal: a topic that does not answer costs the others the patience of one transaction, and is the
/// only one that is blamed, so that the engine separates it. Oracle: the receipts: a message whose
/// transaction lasts longer than the patience is not confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_answer_is_blamed_and_the_rest_leaves() {
    let cluster = Cluster::start();
    let (session, mut publisher, mut received) = cluster.session().await;
    // Each producer has a turn, so that both know the leaders of the topics.
    for number in [1, 2] {
        let outcomes = publish(&mut publisher, &mut received, &["alive", "silent"]).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        session.commit(session.turn(), mark(number)).await.unwrap();
    }

    cluster.mock.answer_late(SILENT, LATE).unwrap();
    let begun = Instant::now();
    let outcomes = publish(&mut publisher, &mut received, &["alive", "silent", "alive"]).await;
    let took = begun.elapsed();
    assert!(took >= TIMEOUT / 2, "answered after {took:?}");
    let errors: Vec<_> = outcomes.into_iter().map(Result::unwrap_err).collect();
    let blamed: Vec<_> = errors.iter().map(|error| (error.fault(), error.scope())).collect();
    let lost = (Fault::Broker, FaultScope::Session);
    assert_eq!(blamed, [lost, (Fault::Broker, FaultScope::Topic), lost], "{errors:?}");
    assert!(errors[1].to_string().contains("\"silent\""), "{}", errors[1]);
    session.commit(session.turn(), mark(3)).await.unwrap_err();
    drop((session, publisher));

    let (session, mut publisher, mut received) = cluster.session().await;
    let outcomes = publish(&mut publisher, &mut received, &["alive", "alive"]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    session.commit(session.turn(), mark(3)).await.unwrap();
}

/// Goal: a partition without a leader is not added to a transaction, which could not end before it
/// has one again. Oracle: the receipts, and the time: a transaction with that partition would last
/// as long as its patience. A partition of the topic that has a leader still takes messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_a_leader_is_named_before_the_transaction_begins() {
    let cluster = Cluster::start();
    cluster.mock.create_topic("half", 2).unwrap();
    let of_key = u16::try_from(partition_of(b"k", 2)).unwrap();
    cluster.mock.lead("half", of_key, None).unwrap();
    let (session, mut publisher, mut received) = cluster.session().await;
    let begun = Instant::now();
    let outcomes = publish(&mut publisher, &mut received, &["alive", "half"]).await;
    let took = begun.elapsed();
    assert!(took < TIMEOUT, "answered after {took:?}");
    let errors: Vec<_> = outcomes.into_iter().map(Result::unwrap_err).collect();
    let blamed: Vec<_> = errors.iter().map(|error| (error.fault(), error.scope())).collect();
    assert_eq!(
        blamed,
        [(Fault::Broker, FaultScope::Session), (Fault::Broker, FaultScope::Topic)],
        "{errors:?}"
    );
    assert!(
        errors[1].to_string().contains(&format!("partition {of_key} of kafka topic \"half\"")),
        "{}",
        errors[1]
    );
    drop((session, publisher));

    cluster.mock.lead("half", of_key, Some(1)).unwrap();
    cluster.mock.lead("half", 1 - of_key, None).unwrap();
    let (session, mut publisher, mut received) = cluster.session().await;
    let outcomes = publish(&mut publisher, &mut received, &["alive", "half"]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    session.commit(session.turn(), mark(1)).await.unwrap();
}

/// Goal: an operator learns why no session opens while Kafka cannot end the last transaction.
/// Oracle: the error names the transactional id, and the partition that has no leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_does_not_end_is_named_with_the_partitions_without_a_leader() {
    let cluster = Cluster::start();
    cluster.mock.lead("silent", 0, None).unwrap();
    let busy = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS; 1_000];
    cluster.mock.request_errors(RDKafkaApiKey::InitProducerId, &busy).unwrap();
    let settings = client(&cluster.config, TIMEOUT, true).unwrap();
    let beginning = move || {
        let asker = Arc::new(());
        begin(
            &settings,
            &Login::default(),
            String::from("outbox/a1/orders"),
            Duration::from_secs(3),
            &Arc::downgrade(&asker),
        )
    };
    let error = tokio::task::spawn_blocking(beginning).await.unwrap().err().unwrap();
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    let text = error.to_string();
    for part in ["last transaction of \"outbox/a1/orders\"", "without a leader now: silent [0])"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Goal: `relay doctor` reports whether the relay's user may begin transactions, and fences off no
/// relay by asking. Oracle: the session that existed before still commits.
#[tokio::test(flavor = "multi_thread")]
async fn the_right_to_begin_transactions_is_probed_beside_the_relay() {
    let cluster = Cluster::start();
    cluster.mock.coordinate("outbox/a1/orders/doctor", 1).unwrap();
    let (session, mut publisher, mut received) = cluster.session().await;
    let config = Config::new(cluster.mock.bootstrap_servers());
    assert_eq!(probe(&config, "a1", "orders").await.unwrap(), "outbox/a1/orders/doctor");
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    cluster.mock.request_errors(RDKafkaApiKey::InitProducerId, &[denied]).unwrap();
    let error = probe(&config, "a1", "orders").await.unwrap_err();
    assert_eq!(error.fault, Fault::Operator, "{error}");
    assert!(error.reason.contains("begin with outbox/"), "{error}");
    let outcomes = publish(&mut publisher, &mut received, &["alive"]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    session.commit(session.turn(), mark(1)).await.unwrap();
}

/// Goal: suspects that go one by one over a slow network are delivered, in transactions as small as
/// necessary, and no topic is blamed for it. Oracle: the receipts.
#[tokio::test(flavor = "multi_thread")]
async fn suspects_leave_also_where_each_takes_its_time() {
    const SUSPECTS: usize = 60;
    let mut cluster = Cluster::start();
    // The patience is 500 ms.
    cluster.scope.timeout = Duration::from_secs(1);
    cluster.suspects.raise(SUSPECTS);
    cluster.mock.answer_late(1, Duration::from_millis(15)).unwrap();
    cluster.drain(&keyed("alive", "k", "1"), SUSPECTS, 20).await;
    assert!(cluster.suspects.take().is_none());
}

/// Goal: a batch that is larger than the client's queue, and that the cluster does not accept in
/// time, gets smaller. Otherwise each session would begin with the same batch and publish nothing.
/// Oracle: the messages that each session has published.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_does_not_fit_into_the_queue_shrinks_until_it_leaves_in_time() {
    const MESSAGES: usize = 150;
    let mut cluster = Cluster::start();
    // The patience is one second. In this time about 50 messages arrive: one in each of the five
    // requests that may be in flight.
    cluster.scope.timeout = Duration::from_secs(2);
    cluster.mock.answer_late(1, Duration::from_millis(100)).unwrap();
    cluster.config = cluster.config.clone().message_bytes_max(100_000).queue_bytes_max(1 << 20);
    let published = cluster.drain(&keyed("alive", "k", vec![0; 90_000]), MESSAGES, 8).await;
    assert_eq!(published[0], 0, "the first batch is larger than what arrives in time: {published:?}");
    assert!(cluster.pace.batch_len(false) < MESSAGES);
}

/// Goal: a relay does not take an earlier mark for the last one because it cannot read the last
/// one: it would publish a committed transaction again. Oracle: the mark that is found.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_cannot_be_read_is_an_error() {
    const TOPIC: &str = "outbox-marks.a1.orders";
    let mock = Mock::start(1).unwrap();
    mock.create_topic(TOPIC, 1).unwrap();
    for number in [1, 2] {
        let part = parts::cut(&mark(number)).unwrap().remove(0);
        kafka::publish(&Config::new(mock.bootstrap_servers()), vec![keyed(TOPIC, "0", part)]).await;
    }
    let network = Network::to(&mock);
    let last = || {
        let config = network.config();
        let login = Login::default();
        tokio::task::spawn_blocking(move || Marks { config: &config, topic: TOPIC, login: &login }.last())
    };
    assert_eq!(last().await.unwrap().unwrap(), Some(mark(2)));
    network.damage(1, Harm::Format);
    let error = last().await.unwrap().unwrap_err();
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    assert!(error.to_string().contains(TOPIC), "{error}");
}

/// Gives one token, which is valid for three seconds.
#[derive(Debug, Default)]
struct Revoked(AtomicUsize);

#[async_trait]
impl TokenProvider for Revoked {
    async fn token(&self) -> Result<Token, TokenError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Token::new(String::from("s3cret"), SystemTime::now() + Duration::from_secs(3)),
            _ => Err(TokenError::refused("the client was revoked")),
        }
    }
}

/// Goal: an idle session that has lost its login reports it at once, and not with the next message,
/// which may be hours away. Oracle: the end of the publisher, and the reason.
#[tokio::test]
async fn an_idle_session_says_that_it_has_ended() {
    let cluster = Cluster::start();
    let oauth = OAuth::provider(Arc::new(Revoked::default())).timeout_ms(1_000);
    let tokens = Config::new(["127.0.0.1:1"]).sasl(Sasl::oauth(oauth));
    let runtime = tokio::runtime::Handle::current();
    let settings = client(&cluster.config, TIMEOUT, true).unwrap();
    let (producer, login) = tokio::task::spawn_blocking(move || {
        let asker = Arc::new(());
        let id = String::from("outbox/a1/orders");
        let within = Duration::from_secs(20);
        let producer = begin(&settings, &Login::default(), id, within, &Arc::downgrade(&asker));
        (producer.unwrap(), Login::of(&tokens, Some(runtime)).unwrap())
    })
    .await
    .unwrap();
    let (commands, received) = channel();
    let end = SessionEnd::default();
    let ended_by_itself = EndedByItself::default();
    let worker = Worker {
        producer: Some(producer),
        given_up: None,
        config: cluster.config.clone(),
        marks_topic: String::from("outbox-marks.a1.orders"),
        patience: TIMEOUT / 2,
        suspects: Arc::clone(&cluster.suspects),
        pace: Arc::clone(&cluster.pace),
        singles: None,
        leaders: Leaders::default(),
        is_open: false,
        end: Arc::clone(&end),
        ended_by_itself: Arc::clone(&ended_by_itself),
        login,
    };
    let serving = std::thread::spawn(move || worker.serve(&received));
    let producers = [commands.clone(), commands];
    let session =
        Session { producers, turn: Arc::default(), batch_len: 1, end: Arc::clone(&end), ended_by_itself };
    let mut publisher = session.publisher(Receipts::channel().0);
    drop(session);
    tokio::time::timeout(Duration::from_secs(60), publisher.ended()).await.expect("it says so");
    let (fault, reason) = end.get().unwrap();
    assert!(*fault == Fault::Operator && reason.contains("the client was revoked"), "{fault:?} {reason}");
    drop(publisher);
    serving.join().unwrap();
}
