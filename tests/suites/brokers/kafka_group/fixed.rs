//! Readers of fixed partitions, whose group must have no members.

use brokers::kafka::{GroupConfig, Partition, Start, Subscriber};
use conformance::consuming::{BATCH, WAIT, settle, within};
use message::{Fault, Subscription, SubscriptionError};
use tests::{Failure, Outcome, Stage};

use super::member::{Group, Member};

/// Goal: a reader whose commits Kafka refuses, because its group has members, says so. Oracle: the
/// operator's fault, with the group's name: at the first message when the group has no offset yet,
/// when a member joins while the reader reads, and at once when the group has an offset.
pub(crate) async fn with_members(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let read = Group { name: group.name.clone(), ..Group::of(&stage, "invoices", 1).await? };
    read.publish(1).await?;
    let member = joined(&group).await?;
    let mut reader = subscribe(&read).await?;
    refused(&group, until_over(&mut reader).await?);
    drop(reader);
    member.close().await?;

    let mut reader = subscribe_again(&read).await?;
    let member = joined(&group).await?;
    read.publish(1).await?;
    refused(&group, until_over(&mut reader).await?);
    drop(reader);

    let error = subscribe(&read).await.err().ok_or("the group has members, and nothing was refused")?;
    refused(&group, error);
    member.close().await
}

async fn joined(group: &Group) -> Result<Member, Failure> {
    let member = group.join(Start::Earliest).await?;
    member.until("it has its partition", |now| now.partitions.len() == 1).await?;
    Ok(member)
}

fn refused(group: &Group, error: SubscriptionError) {
    let text = error.to_string();
    assert_eq!(error.fault(), Fault::Operator, "{text}");
    assert!(text.contains(&group.name) && text.contains("has members"), "{text}");
}

/// Reads the only partition of a topic.
async fn subscribe(group: &Group) -> Result<Box<dyn Subscription>, SubscriptionError> {
    let mut fixed = GroupConfig::new(&group.name, Vec::<String>::new());
    fixed.partitions.push(Partition { topic: group.topic.clone(), partition: 0 });
    let subscriber = Subscriber::new(group.config.clone(), fixed);
    subscriber.map_err(|error| SubscriptionError::lost(error.to_string()))?.subscribe().await
}

/// Subscribes and commits, once the group has no members any more. The coordinator notices that a
/// moment after they have left.
async fn subscribe_again(group: &Group) -> Result<Box<dyn Subscription>, Failure> {
    let subscribed = within("the group is empty", async {
        let mut reader = subscribe(group).await?;
        while group.committed().await?.is_empty() {
            match reader.receive(BATCH, WAIT).await {
                Ok(deliveries) => drop(settle(&mut reader, &deliveries).await),
                Err(_) => reader = subscribe(group).await?,
            }
        }
        Ok(reader)
    });
    subscribed.await
}

/// Receives and settles until the subscription fails.
async fn until_over(reader: &mut Box<dyn Subscription>) -> Result<SubscriptionError, Failure> {
    let failing = within("the subscription is over", async {
        loop {
            match reader.receive(BATCH, WAIT).await {
                // A failed subscription refuses settlements with the same error.
                Ok(deliveries) => drop(settle(reader, &deliveries).await),
                Err(error) => return Ok(error),
            }
        }
    });
    failing.await
}
