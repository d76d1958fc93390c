//! Topics of a group that are not what they were: made anew, or not there.

use std::collections::BTreeSet;

use brokers::kafka::{Admin, GroupConfig, Start, Subscriber, TopicPlan};
use message::MessageId;
use tests::{Failure, Outcome, Stage, eventually, eventually::when};

use conformance::consuming::{BATCH, WAIT, ids, settle, within};

use super::member::{Group, Member};

/// Goal: a topic that is deleted and made anew under a running member is read from its first
/// record, although it has more records by then than the member had read of the old one. Oracle:
/// the ids that are handled, over all subscriptions.
pub(crate) async fn made_anew(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let mut member = group.join(Start::Earliest).await?;
    let first = group.publish(1).await?;
    member.handle(&first).await?;
    let admin = Admin::new(&group.config)?;
    admin.delete_topics(&[&group.topic]).await?;
    eventually("the name is free again", || async {
        // It is not, for as long as the deletion lasts.
        let made = admin.create_topics(&[TopicPlan::new(&group.topic, 1)]).await;
        Ok(when(made.is_ok() && admin.topics().await?.contains(&(group.topic.clone(), 1))))
    })
    .await?;
    let second = group.publish(3).await?;
    let handled = again_and_again(member, &second).await?;
    assert!(handled.is_superset(&second));
    Ok(())
}

/// Handles until all of these were, and subscribes anew as often as that takes.
async fn again_and_again(
    member: Member,
    wanted: &BTreeSet<MessageId>,
) -> Result<BTreeSet<MessageId>, Failure> {
    let Member { subscriber, mut subscription } = member;
    let mut handled = BTreeSet::new();
    let all = within("everything is handled", async {
        while !handled.is_superset(wanted) {
            let turn = async {
                let deliveries = subscription.receive(BATCH, WAIT).await?;
                settle(&mut subscription, &deliveries).await?;
                Ok::<_, Failure>(ids(&deliveries))
            };
            match turn.await {
                Ok(ids) => handled.extend(ids),
                Err(_) => subscription = subscriber.subscribe().await?,
            }
        }
        Ok(())
    });
    let outcome = all.await;
    let missing = wanted.difference(&handled).count();
    outcome.map_err(|failure| format!("{failure}; {missing} of {} are missing", wanted.len()))?;
    subscription.close().await?;
    Ok(handled)
}

/// Goal: a topic that does not exist keeps nobody from reading the others of the subscription, is
/// named meanwhile, and is read once it exists. Oracle: the ids that one subscription handles.
pub(crate) async fn missing(stage: Stage) -> Outcome {
    let group = Group::open(&stage, 1).await?;
    let later = stage.unique("later");
    let mut both = GroupConfig::new(&group.name, [&group.topic, &later]);
    both.session_timeout_ms = 6_000;
    let subscriber = Subscriber::new(group.config.clone(), both)?;
    let subscription = subscriber.subscribe().await?;
    let mut member = Member { subscriber, subscription };
    member.handle(&group.publish(1).await?).await?;
    member.until("the missing topic is named", |now| now.unavailable == [later.as_str()]).await?;
    let other = Group { name: group.name.clone(), ..Group::called(&stage, &later, 1).await? };
    member.handle(&other.publish(1).await?).await?;
    member.until("nothing is missing any more", |now| now.unavailable.is_empty()).await?;
    member.close().await
}
