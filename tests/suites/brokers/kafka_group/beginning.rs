//! Groups that start at the end skip only what was there at their first start.

use brokers::kafka::{RECORDS_LOST, Start};
use harness::plain::kafka::Kafka;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tests::{Backend, Failure, Outcome, Stage};

use super::member::Group;

/// Goal: the first start decides where the group begins, although it handles nothing then. Oracle:
/// the ids that the second start handles.
pub(crate) async fn away(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 3).await?;
    let older = group.publish(1).await?;
    group.join(Start::Latest).await?.close().await?;
    let meanwhile = group.publish(1).await?;
    let mut member = group.join(Start::Latest).await?;
    let handled = member.handle(&meanwhile).await?;
    assert!(handled.is_disjoint(&older), "older messages are skipped");
    member.close().await
}

/// Goal: partitions that are added to the topic are read from their beginning, although they get
/// messages before any member knows of them. Oracle: the ids that the member handles.
pub(crate) async fn added_partitions(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 2).await?;
    let older = group.publish(1).await?;
    let mut member = group.join(Start::Latest).await?;
    member.until("it has both partitions", |now| now.partitions.len() == 2).await?;
    let admin = admin()?;
    let made = admin.create_partitions([&NewPartitions::new(&group.topic, 6)], &AdminOptions::new()).await?;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    group.until_it_has(6).await?;
    let added = group.publish(2).await?;
    let handled = member.handle(&added).await?;
    assert!(handled.is_disjoint(&older), "older messages are skipped");
    member.close().await
}

/// Goal: when a group's offsets are gone because their records were removed, it continues with the
/// oldest records that are left. Oracle: the ids that it handles then.
pub(crate) async fn out_of_range(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 2).await?;
    let mut member = group.join(Start::Latest).await?;
    member.until("it has both partitions", |now| now.partitions.len() == 2).await?;
    let first = group.publish(1).await?;
    member.handle(&first).await?;
    member.close().await?;
    group.publish(1).await?;
    remove_records(&group.topic).await?;
    let left = group.publish(1).await?;
    let mut member = group.join(Start::Latest).await?;
    member.handle(&left).await?;
    let told = tests::log::lines_with(&["ERROR", RECORDS_LOST, &group.topic]);
    assert!(!told.is_empty(), "the loss is told");
    member.close().await
}

/// Goal: a group that has members cannot start at the end of another topic: it reads all of that
/// topic. Oracle: the ids that are handled.
pub(crate) async fn with_members(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let member = group.join(Start::Earliest).await?;
    member.until("it has its partition", |now| now.partitions.len() == 1).await?;
    let other = Group { name: group.name, ..Group::of(&stage, "invoices", 2).await? };
    let older = other.publish(1).await?;
    let mut newcomer = other.join(Start::Latest).await?;
    newcomer.handle(&older).await?;
    newcomer.close().await?;
    member.close().await
}

fn admin() -> Result<AdminClient<DefaultClientContext>, Failure> {
    Ok(ClientConfig::new().set("bootstrap.servers", Backend::Kafka.address()?).create()?)
}

/// Removes all current records.
pub(crate) async fn remove_records(topic: &str) -> Outcome {
    let mut ends = TopicPartitionList::new();
    for (end, partition) in Kafka::new(Backend::Kafka.address()?).ends(topic).await?.into_iter().zip(0..) {
        ends.add_partition_offset(topic, partition, Offset::Offset(end))?;
    }
    admin()?.delete_records(&ends, &AdminOptions::new()).await?;
    Ok(())
}
