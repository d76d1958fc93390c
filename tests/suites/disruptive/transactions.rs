//! Kafka stops in the middle of transactions. The oracle is a plain reader of committed records.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use brokers::kafka::{Config as KafkaConfig, TransactionalConnector};
use message::{
    Connector as _, EventType, Message, Receipts, Submission, Ticket, Topic, TransactionMark,
    TransactionScope, Transactions as _,
};
use sqlx::Postgres;
use tests::brokers::{committed, remove_kafka_topic};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Broker, Failure, Outcome, RelayProcess, Stage, eventually, services};

use super::place_many_patiently;

/// Goal: a broker crashes while a relay publishes in transactions, together with the coordinator
/// and the leader of the marks. Nothing is lost, and no message is seen twice.
pub(super) async fn a_broker_that_crashes_shows_each_message_once(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let section = workload.broker.relay_section().ok_or("kafka is a process of its own")?;
    let section = format!("{section}transactional = true\n");
    let config = Config::with_section(&stage, "orders", &workload.database.relay_url()?, &section, "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let (placed, topic) = (3 * 50, workload.topic.clone());
    place_many_patiently(&workload, 50).await?;
    eventually("some are seen", || async { Ok((!seen(&topic).await?.is_empty()).then_some(())) }).await?;
    services::stop(&stage, Backend::Kafka).await?;
    place_many_patiently(&workload, 50).await?;
    services::start(Backend::Kafka).await?;
    place_many_patiently(&workload, 50).await?;
    let all = eventually("all are seen", || async {
        let seen = seen(&topic).await?;
        Ok((seen.len() >= placed).then_some(seen))
    })
    .await?;
    assert_eq!(all.len(), placed, "nothing is seen twice");
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), placed, "nothing is lost");
    relay.stop().await
}

/// Returns the payloads that a reader of committed records sees.
async fn seen(topic: &str) -> Result<Vec<Vec<u8>>, Failure> {
    committed::read(&Backend::Kafka.address()?, topic).await
}

/// Goal: the outcome of an unanswered commit is unknown, so its session commits nothing more.
/// Oracle: the mark that a successor finds.
pub(super) async fn a_commit_that_nobody_answers_ends_its_session(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let topic = broker.topic_name("unanswered");
    broker.create_topic(&topic).await?;
    let config = KafkaConfig::new(Backend::Kafka.address()?.split(','));
    let scope = TransactionScope {
        log: stage.unique("log").to_lowercase(),
        relay: String::from("orders"),
        is_new: true,
        timeout: Duration::from_secs(8),
    };
    remove_kafka_topic(&stage, &config, &format!("outbox-marks.{}.{}", scope.log, scope.relay));
    let connector = TransactionalConnector::new(config.clone())?;
    connector.take_over(&scope).await?;
    let (receipts, mut received) = Receipts::channel();
    let mut publisher = connector.connect(receipts).await?;
    let mut submit = async |payload: &'static str| {
        let message = Message::new(Topic::new(topic.as_str())?, EventType::new("order.placed")?, payload);
        publisher.submit(vec![Submission { ticket: Ticket(1), message: message.into() }]).await;
        let receipt = received.recv().await.ok_or("the session has ended")?;
        Ok::<_, Failure>(receipt.outcome)
    };
    submit("first").await??;
    services::stop(&stage, Backend::Kafka).await?;
    let mark = |number| TransactionMark { number, content: Vec::from("unanswered") };
    let unknown = connector.commit(connector.close(connector.session()), mark(1)).await;
    let unknown = unknown.err().ok_or("nobody was there to commit")?.to_string();
    // From now on the connector answers every call with the failure of this transaction.
    let refused = submit("second").await?.err().ok_or("the session takes nothing more")?;
    assert!(refused.to_string().contains(&unknown), "{refused} is not {unknown}");
    services::start(Backend::Kafka).await?;
    assert!(submit("third").await?.is_err(), "nor when Kafka is back");
    assert!(
        connector.commit(connector.close(connector.session()), mark(2)).await.is_err(),
        "nor does it commit"
    );
    let successor = TransactionalConnector::new(config)?;
    let last = successor.take_over(&scope).await?;
    assert!(last.is_none_or(|last| last.number == 1), "only the unknown commit may have happened");
    Ok(())
}
