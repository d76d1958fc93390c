//! The delay that an open transaction of a relay causes for readers of committed records. Another
//! program commits to the same topic after that transaction. The oracle is the time at which a
//! plain reader sees that commit.

use std::time::{Duration, Instant};

use brokers::kafka::{Config, TransactionalConnector};
use message::{
    Connector as _, EventType, Message, OrderingKey, Receipts, Submission, Ticket, Topic, TransactionMark,
    TransactionScope, Transactions as _,
};
use tests::brokers::{committed, remove_kafka_topic};
use tests::workload::Workload;
use tests::{Backend, Dialect, Failure, Outcome, Stage};

use super::program::{LEASE, Relay};
use super::{KEYS, open};

/// Default interval at which brokers abort timed-out transactions:
/// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
const LOOKED_FOR: Duration = Duration::from_secs(10);
/// Allowance for a machine that is busy with other work.
const SLACK: Duration = Duration::from_secs(10);
/// Enough messages that every partition gets some.
const OTHERS: usize = 60;
const PAYLOAD: &[u8] = b"of another program";

/// Goal: a relay is killed with messages in its transaction, and has no successor. It delays
/// readers by at most its lease plus the brokers' interval.
pub(super) async fn killed<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    workload.place_many(KEYS, 20).await?;
    Relay::start_doomed(&stage, &workload, "before_commit", 1)?.ended().await?;
    readers_go_on(&stage, &workload).await
}

/// Goal: the same for a relay that is suspended with its connections open.
pub(super) async fn stopped<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start_doomed(&stage, &workload, "in_commit", 1)?;
    relay.tells("stands still in_commit").await?;
    relay.signal("STOP").await?;
    readers_go_on(&stage, &workload).await?;
    relay.kill().await?;
    Ok(())
}

async fn readers_go_on<DB: Dialect>(stage: &Stage, workload: &Workload<DB>) -> Outcome {
    commit_behind(stage, &workload.topic).await?;
    let begun_at = Instant::now();
    let seen = async || -> Result<usize, Failure> {
        let records = committed::read_now(&Backend::Kafka.address()?, &workload.topic).await?;
        Ok(records.iter().filter(|payload| *payload == PAYLOAD).count())
    };
    assert!(seen().await? < OTHERS, "the relay has left no transaction open");
    while seen().await? < OTHERS {
        let waited = begun_at.elapsed();
        assert!(waited < LEASE + LOOKED_FOR + SLACK, "readers have waited for {waited:?}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    println!("readers waited for {:?}", begun_at.elapsed());
    Ok(())
}

/// Commits to every partition, as another program with transactions of its own.
async fn commit_behind(stage: &Stage, topic: &str) -> Outcome {
    let config = Config::new(Backend::Kafka.address()?.split(','));
    let other = TransactionalConnector::new(config.clone())?;
    let log = stage.unique("other").to_lowercase();
    let scope = TransactionScope { log, relay: String::from("other"), is_new: true, timeout: LEASE * 10 };
    let marks = format!("outbox-marks.{}.{}", scope.log, scope.relay);
    remove_kafka_topic(stage, &config, &marks);
    other.take_over(&scope).await?;
    let (receipts, mut received) = Receipts::channel();
    let mut publisher = other.connect(receipts).await?;
    let submission = |number: usize| -> Result<Submission, Failure> {
        let message = Message::new(Topic::new(topic)?, EventType::new("other")?, PAYLOAD)
            .with_key(OrderingKey::new(format!("other-{number}"))?);
        Ok(Submission { ticket: Ticket(number as u64), message: message.into() })
    };
    publisher.submit((0..OTHERS).map(submission).collect::<Result<_, _>>()?).await;
    for _ in 0..OTHERS {
        received.recv().await.ok_or("the session has ended")?.outcome?;
    }
    Ok(other.commit(other.close(other.session()), TransactionMark { number: 1, content: Vec::new() }).await?)
}
