//! Publishing to a real Kafka in transactions. The oracle is a plain `read_committed` consumer.

use std::time::Duration;

use brokers::kafka::{Admin, Config, TopicPlan, TransactionalConnector};
use message::{
    Connector as _, EventType, Fault, Message, OrderingKey, PublishError, Publisher, Receipt, Receipts,
    Submission, Ticket, Topic, TransactionMark, TransactionScope, Transactions as _,
};
use tests::brokers::{committed, remove_kafka_topic};
use tests::{Backend, Failure, Outcome, Stage};
use tokio::sync::mpsc::UnboundedReceiver;

const PATIENCE: Duration = Duration::from_secs(240);

tests::cases! { "transactions/{case}":
    anywhere + kafka {
        readers_see_a_transaction_and_its_mark_only_when_it_is_committed = commit,
        the_next_batch_leaves_before_the_one_before_is_committed = next_batch,
        "a_session_that_was_shut_out_commits_nothing/first" = |stage: Stage| fenced(stage, 0),
        "a_session_that_was_shut_out_commits_nothing/second" = |stage: Stage| fenced(stage, 1),
        the_last_mark_is_found_after_many_and_large_ones = many_marks,
        the_last_mark_is_found_after_a_compaction = compacted,
        a_refused_record_takes_its_transaction_with_it = refused,
        a_mark_that_is_refused_takes_its_messages_with_it = refused_mark,
        a_missing_topic_is_named_and_the_rest_is_not_published = missing_topic,
        marks_that_are_missing_or_not_kept_are_the_operators = marks_topic,
        a_commit_behind_the_timeout_of_its_transaction_fails = timed_out,
    }
}

/// A topic, and the scope of a relay's transactions.
struct Scene {
    config: Config,
    topic: String,
    scope: TransactionScope,
}

/// A publisher's session with its receipts.
struct Session {
    publisher: Box<dyn Publisher>,
    received: UnboundedReceiver<Receipt>,
}

impl Scene {
    async fn open(stage: &Stage) -> Result<Self, Failure> {
        let mut config = tests::brokers::patient_kafka(&Backend::Kafka.address()?);
        // librdkafka refuses to create a client whose socket timeout exceeds its transaction
        // timeout.
        config.properties.insert(String::from("socket.timeout.ms"), "60000".into());
        let topic = stage.unique("orders");
        let plan = TopicPlan::new(&topic, 2).with("max.message.bytes", "20000");
        Admin::new(&config)?.create_topics(&[plan]).await?;
        let scope = TransactionScope {
            log: stage.unique("log").to_lowercase(),
            relay: String::from("orders"),
            is_new: true,
            timeout: Duration::from_secs(10),
        };
        let scene = Self { config, topic, scope };
        remove_kafka_topic(stage, &scene.config, &scene.topic);
        remove_kafka_topic(stage, &scene.config, &scene.marks_topic());
        Ok(scene)
    }

    fn marks_topic(&self) -> String {
        format!("outbox-marks.{}.{}", self.scope.log, self.scope.relay)
    }

    fn connector(&self) -> Result<TransactionalConnector, Failure> {
        Ok(TransactionalConnector::new(self.config.clone())?)
    }

    /// Returns a message whose payload is its number.
    fn message(&self, number: u64) -> Result<Message, Failure> {
        keyed(&self.topic, &format!("k{}", number % 5), number.to_string())
    }

    fn messages(&self, numbers: impl IntoIterator<Item = u64>) -> Result<Vec<Message>, Failure> {
        numbers.into_iter().map(|number| self.message(number)).collect()
    }

    /// Returns the payloads that a reader of committed records sees, sorted.
    async fn read(&self, topic: &str) -> Result<Vec<String>, Failure> {
        let payloads = committed::read(&self.config.bootstrap_servers.join(","), topic).await?;
        let text = |payload: Vec<u8>| String::from_utf8_lossy(&payload).into_owned();
        let mut texts: Vec<_> = payloads.into_iter().map(text).collect();
        texts.sort();
        Ok(texts)
    }
}

fn keyed(topic: &str, key: &str, payload: String) -> Result<Message, Failure> {
    let message = Message::new(Topic::new(topic)?, EventType::new("order.placed")?, payload);
    Ok(message.with_key(OrderingKey::new(key)?))
}

/// Returns the error of an operation that must not succeed.
fn refusal<T>(outcome: Result<T, PublishError>) -> Result<PublishError, Failure> {
    outcome.err().ok_or_else(|| "it was not refused".into())
}

async fn session(connector: &TransactionalConnector) -> Result<Session, Failure> {
    let (receipts, received) = Receipts::channel();
    Ok(Session { publisher: connector.connect(receipts).await?, received })
}

impl Session {
    /// Submits messages and returns their receipts, in the order of submission.
    async fn submit(&mut self, messages: Vec<Message>) -> Result<Vec<Receipt>, Failure> {
        let count = messages.len();
        let numbered = messages.into_iter().enumerate();
        let batch =
            numbered.map(|(at, message)| Submission { ticket: Ticket(at as u64), message: message.into() });
        self.publisher.submit(batch.collect()).await;
        let mut receipts = Vec::new();
        while receipts.len() < count {
            let next = tokio::time::timeout(PATIENCE, self.received.recv()).await?;
            receipts.push(next.ok_or("the session ended without a receipt")?);
        }
        receipts.sort_by_key(|receipt| receipt.ticket);
        Ok(receipts)
    }

    async fn confirmed(&mut self, messages: Vec<Message>) -> Outcome {
        for receipt in self.submit(messages).await? {
            receipt.outcome?;
        }
        Ok(())
    }
}

fn mark(number: u64, content: impl Into<Vec<u8>>) -> TransactionMark {
    TransactionMark { number, content: content.into() }
}

fn texts(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    let mut texts: Vec<_> = numbers.into_iter().map(|number| number.to_string()).collect();
    texts.sort();
    texts
}

/// Goal: a confirmed message is not visible, a committed one is. Oracle: the plain reader, and the
/// mark that a successor finds.
async fn commit(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let connector = scene.connector()?;
    assert_eq!(connector.take_over(&scene.scope).await?, None);
    let mut session = session(&connector).await?;
    session.confirmed(scene.messages(0..10)?).await?;
    assert_eq!(scene.read(&scene.topic).await?, texts([]), "the transaction is open");
    connector.commit(connector.close(connector.session()), mark(1, "first")).await?;
    assert_eq!(scene.read(&scene.topic).await?, texts(0..10));
    session.confirmed(scene.messages([10])?).await?;
    drop(session);
    // The broker aborts everything left open, and the mark is that of the last commit.
    let successor = scene.connector()?;
    assert_eq!(successor.take_over(&scene.scope).await?, Some(mark(1, "first")));
    assert_eq!(scene.read(&scene.topic).await?, texts(0..10));
    Ok(())
}

/// Goal: while a closed transaction is being committed, the next batch is already with the brokers.
/// It becomes visible when its own transaction is committed, never otherwise. Oracle: the plain
/// reader, and the mark that a successor finds.
async fn next_batch(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let mut session = session(&connector).await?;
    for number in 0..2 {
        session.confirmed(scene.messages(number * 10..number * 10 + 10)?).await?;
        let closed = connector.close(connector.session());
        session.confirmed(scene.messages(number * 10 + 100..number * 10 + 110)?).await?;
        assert_eq!(scene.read(&scene.topic).await?, seen_after(number), "both transactions are open");
        connector.commit(closed, mark(number * 2 + 1, "closed")).await?;
        let first = seen_after(number).into_iter().chain(texts(number * 10..number * 10 + 10));
        assert_eq!(scene.read(&scene.topic).await?, sorted(first), "only the closed one is committed");
        connector.commit(connector.close(connector.session()), mark(number * 2 + 2, "next")).await?;
        assert_eq!(scene.read(&scene.topic).await?, seen_after(number + 1));
    }
    // A batch behind a closed transaction disappears with it when neither is committed.
    session.confirmed(scene.messages([200])?).await?;
    let closed = connector.close(connector.session());
    session.confirmed(scene.messages([201])?).await?;
    let successor = scene.connector()?;
    assert_eq!(successor.take_over(&scene.scope).await?, Some(mark(4, "next")));
    assert!(connector.commit(closed, mark(5, "stale")).await.is_err(), "it was shut out");
    assert_eq!(scene.read(&scene.topic).await?, seen_after(2));
    Ok(())
}

/// Returns the payloads of [`next_batch`] after this many rounds.
fn seen_after(rounds: u64) -> Vec<String> {
    sorted(texts(0..rounds * 10).into_iter().chain(texts(100..rounds * 10 + 100)))
}

fn sorted(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<_> = texts.collect();
    texts.sort();
    texts
}

/// Goal: a takeover shuts out the previous session, whichever of its producers has an open
/// transaction, and that session's connector learns that it was superseded.
async fn fenced(stage: Stage, producer: u64) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let earlier = scene.connector()?;
    earlier.take_over(&scene.scope).await?;
    let mut stale = session(&earlier).await?;
    for number in 0..producer {
        stale.confirmed(scene.messages([number])?).await?;
        earlier.commit(earlier.close(earlier.session()), mark(number + 1, "earlier")).await?;
    }
    let last = (producer > 0).then(|| mark(producer, "earlier"));
    stale.confirmed(scene.messages([10])?).await?;
    let later = scene.connector()?;
    assert_eq!(later.take_over(&scene.scope).await?, last);
    let mut fresh = session(&later).await?;
    let next = mark(producer + 1, "next");
    let error = refusal(earlier.commit(earlier.close(earlier.session()), next.clone()).await)?;
    assert_eq!(error.fault(), Fault::Broker, "{error}");
    let lost = stale.submit(scene.messages([11])?).await?;
    assert!(lost[0].outcome.is_err(), "a session is over after a failed commit");
    fresh.confirmed(scene.messages([12])?).await?;
    later.commit(later.close(later.session()), next).await?;
    assert_eq!(scene.read(&scene.topic).await?, texts((0..producer).chain([12])));
    assert!(!earlier.is_superseded());
    let (receipts, _received) = Receipts::channel();
    assert!(earlier.connect(receipts).await.is_err());
    assert!(earlier.is_superseded());
    Ok(())
}

/// Goal: the last mark is found, however many came before it and however large it is.
async fn many_marks(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let _session = session(&connector).await?;
    for number in 1..=300 {
        connector
            .commit(connector.close(connector.session()), mark(number, format!("mark {number}")))
            .await?;
    }
    assert_eq!(scene.connector()?.take_over(&scene.scope).await?, Some(mark(300, "mark 300")));
    let large = mark(301, vec![7; 3 << 20]);
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let _session = session(&connector).await?;
    connector.commit(connector.close(connector.session()), large.clone()).await?;
    assert_eq!(scene.connector()?.take_over(&scene.scope).await?, Some(large));
    Ok(())
}

/// Goal: the last mark is found, whichever of the earlier marks a compaction has removed. Oracle:
/// the plain reader sees fewer marks than were written.
async fn compacted(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let eager = TopicPlan::new(scene.marks_topic(), 1)
        .with("cleanup.policy", "compact")
        .with("segment.ms", "100")
        .with("segment.bytes", "1048576")
        .with("min.cleanable.dirty.ratio", "0.01")
        .with("max.compaction.lag.ms", "500")
        .with("delete.retention.ms", "0");
    Admin::new(&scene.config)?.create_topics(&[eager]).await?;
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let _session = session(&connector).await?;
    let mut number = 0;
    tests::eventually("marks are removed", || {
        number += 1;
        let next = number;
        let (connector, scene) = (&connector, &scene);
        async move {
            connector
                .commit(connector.close(connector.session()), mark(next, format!("mark {next}")))
                .await?;
            tokio::time::sleep(Duration::from_millis(150)).await;
            let left = scene.read(&scene.marks_topic()).await?.len() as u64;
            Ok(tests::eventually::when(left + 20 < next))
        }
    })
    .await?;
    let last = mark(number, format!("mark {number}"));
    assert_eq!(scene.connector()?.take_over(&scene.scope).await?, Some(last));
    Ok(())
}

/// Goal: no reader sees any message of a transaction with a record that the broker refuses. The
/// record is identified when it is sent alone, and the rest is published.
async fn refused(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let mut messages = scene.messages(0..6)?;
    let poison = keyed(&scene.topic, "k3", "x".repeat(50_000))?;
    messages[3] = poison.clone();
    let mut batches = session(&connector).await?;
    for receipt in batches.submit(messages).await? {
        assert_eq!(refusal(receipt.outcome)?.fault(), Fault::Broker, "nobody is blamed");
    }
    drop(batches);
    assert_eq!(scene.read(&scene.topic).await?, texts([]));
    let mut alone = session(&connector).await?;
    let mut receipts = alone.submit(vec![poison]).await?;
    let culprit = refusal(receipts.remove(0).outcome)?;
    assert_eq!(culprit.fault(), Fault::Message, "{culprit}");
    drop(alone);
    let mut rest = session(&connector).await?;
    rest.confirmed(scene.messages(0..3)?).await?;
    connector.commit(connector.close(connector.session()), mark(1, "rest")).await?;
    assert_eq!(scene.read(&scene.topic).await?, texts(0..3));
    Ok(())
}

/// Goal: no reader sees messages whose mark the brokers refuse. Oracle: the plain reader, and the
/// mark that a successor finds.
async fn refused_mark(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let narrow = TopicPlan::new(scene.marks_topic(), 1).with("cleanup.policy", "compact");
    Admin::new(&scene.config)?.create_topics(&[narrow.with("max.message.bytes", "2000")]).await?;
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let mut session = session(&connector).await?;
    session.confirmed(scene.messages(0..3)?).await?;
    let large = mark(1, vec![7; 20_000]);
    refusal(connector.commit(connector.close(connector.session()), large).await)?;
    assert_eq!(scene.read(&scene.topic).await?, texts([]));
    let successor = scene.connector()?;
    assert_eq!(successor.take_over(&scene.scope).await?, None);
    Ok(())
}

/// Goal: a missing topic is the operator's fault, and no message of its transaction is seen.
async fn missing_topic(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let mut session = session(&connector).await?;
    let missing = keyed("no-such-topic", "k", String::from("2"))?;
    let receipts = session.submit(vec![scene.message(1)?, missing]).await?;
    let faults = receipts.into_iter().map(|receipt| Ok(refusal(receipt.outcome)?.fault()));
    let faults = faults.collect::<Result<Vec<_>, Failure>>()?;
    assert_eq!(faults, [Fault::Broker, Fault::Operator]);
    assert_eq!(scene.read(&scene.topic).await?, texts([]));
    Ok(())
}

/// Goal: if the marks were removed, or retention would remove them, the relay stops and reports the
/// reason.
async fn marks_topic(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage).await?;
    let known = TransactionScope { is_new: false, ..scene.scope.clone() };
    let error = refusal(scene.connector()?.take_over(&known).await)?;
    assert_eq!(error.fault(), Fault::Operator);
    assert!(error.to_string().contains("is missing"), "{error}");
    let admin = Admin::new(&scene.config)?;
    admin.create_topics(&[TopicPlan::new(scene.marks_topic(), 1)]).await?;
    tests::eventually("the policy is seen", || async {
        let error = refusal(scene.connector()?.take_over(&known).await)?;
        Ok(tests::eventually::when(
            error.fault() == Fault::Operator && error.to_string().contains("cleanup.policy=delete"),
        ))
    })
    .await
}

/// Goal: a relay that is suspended for longer than its transaction may last commits nothing, and
/// readers are delayed no longer than that. Oracle: the plain reader.
async fn timed_out(stage: Stage) -> Outcome {
    let mut scene = Scene::open(&stage).await?;
    scene.scope.timeout = Duration::from_secs(1);
    let connector = scene.connector()?;
    connector.take_over(&scene.scope).await?;
    let mut session = session(&connector).await?;
    session.confirmed(scene.messages([1])?).await?;
    // By default the coordinator checks for timed-out transactions every ten seconds.
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert!(connector.commit(connector.close(connector.session()), mark(1, "late")).await.is_err());
    assert_eq!(scene.read(&scene.topic).await?, texts([]));
    assert_eq!(scene.connector()?.take_over(&scene.scope).await?, None);
    Ok(())
}
