//! Markers of broker transactions, which take offsets and are never delivered.

use std::collections::BTreeMap;
use std::time::Duration;

use brokers::kafka::{RECORDS_LOST, Start};
use conformance::consuming::handle;
use harness::plain::kafka::Kafka;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use tests::eventually::when;
use tests::{Backend, Outcome, Stage, eventually};

use super::beginning::remove_records;
use super::member::Group;

const PATIENCE: Duration = Duration::from_secs(120);
const RECORDS: usize = 3;

/// Goal: the group's position passes a marker at the end of a partition. Otherwise the marker's
/// removal looks like a loss of messages, and the partition always has a lag. Oracle: the offset
/// that Kafka keeps for the group; the log, after Kafka has removed everything.
pub(crate) async fn passed(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let mut member = group.join(Start::Earliest).await?;
    transact(&group.topic, true).await?;
    handle(&mut member.subscription, RECORDS).await?;
    let marker = 1;
    committed_up_to(&group, RECORDS + marker).await?;
    // Nothing of an aborted transaction is delivered.
    transact(&group.topic, false).await?;
    let end = 2 * (RECORDS + marker);
    committed_up_to(&group, end).await?;
    transact(&group.topic, true).await?;
    let deliveries = conformance::consuming::receive(&mut member.subscription, RECORDS).await?;
    // All is read, but the second of three is not handled.
    let settled = [&deliveries[0], &deliveries[2]].map(conformance::consuming::done);
    member.subscription.settle(settled.into_iter().collect::<Result<_, _>>()?).await?;
    committed_up_to(&group, end + 1).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    committed_up_to(&group, end + 1).await?;
    let released = vec![message::Settlement::release(deliveries[1].token)];
    member.subscription.settle(released).await?;
    handle(&mut member.subscription, RECORDS - 1).await?;
    member.close().await?;
    committed_up_to(&group, end + RECORDS + marker).await?;
    remove_records(&group.topic).await?;
    let mut member = group.join(Start::Earliest).await?;
    let later = group.publish(1).await?;
    member.handle(&later).await?;
    let told = tests::log::lines_with(&[RECORDS_LOST, &group.topic]);
    assert!(told.is_empty(), "{told:?}");
    member.close().await
}

/// Goal: a member that begins at a marker and gets no delivery passes it. The member before it was
/// killed before it looked for markers. Oracle: the offset that Kafka keeps for the group; the log,
/// after Kafka has removed everything.
pub(crate) async fn passed_without_a_delivery(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let mut first = group.join(Start::Earliest).await?;
    transact(&group.topic, true).await?;
    handle(&mut first.subscription, RECORDS).await?;
    first.close().await?;
    let marker = 1;
    let second_begins = RECORDS + marker;
    committed_up_to(&group, second_begins).await?;
    transact(&group.topic, true).await?;
    commit(&group, second_begins + RECORDS).await?;
    let second = group.join(Start::Earliest).await?;
    committed_up_to(&group, second_begins + RECORDS + marker).await?;
    assert!(second.status().partitions.iter().all(|it| it.read_ago.is_none()), "it got a delivery");
    second.close().await?;
    remove_records(&group.topic).await?;
    let mut third = group.join(Start::Earliest).await?;
    let later = group.publish(1).await?;
    third.handle(&later).await?;
    let told = tests::log::lines_with(&[RECORDS_LOST, &group.topic]);
    assert!(told.is_empty(), "{told:?}");
    third.close().await
}

/// Commits an offset of the first partition for a group without members, as its last member did
/// before it was killed.
async fn commit(group: &Group, offset: usize) -> Outcome {
    let offsets = BTreeMap::from([(0, i64::try_from(offset)?)]);
    Kafka::new(Backend::Kafka.address()?).commit(&group.name, &group.topic, &offsets).await
}

/// Writes a transaction of records to the first partition.
async fn transact(topic: &str, is_committed: bool) -> Outcome {
    let topic = topic.to_owned();
    let written = tokio::task::spawn_blocking(move || -> Outcome {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", Backend::Kafka.address()?)
            .set("transactional.id", &topic)
            .create()?;
        producer.init_transactions(PATIENCE)?;
        producer.begin_transaction()?;
        for _ in 0..RECORDS {
            let record = BaseRecord::<(), str>::to(&topic).partition(0).payload("no envelope");
            producer.send(record).map_err(|(error, _)| error)?;
        }
        producer.flush(PATIENCE)?;
        if is_committed {
            producer.commit_transaction(PATIENCE)?;
        } else {
            producer.abort_transaction(PATIENCE)?;
        }
        Ok(())
    });
    written.await?
}

/// Waits until the group has committed exactly this offset.
async fn committed_up_to(group: &Group, offset: usize) -> Outcome {
    let expected = BTreeMap::from([(0, i64::try_from(offset)?)]);
    let what = format!("offset {offset} is committed");
    let waited = eventually(&what, || async { Ok(when(group.committed().await? == expected)) });
    waited.await
}
