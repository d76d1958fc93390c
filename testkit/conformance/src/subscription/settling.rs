//! Messages that are redelivered, and messages that are not.

use std::collections::BTreeSet;

use message::{Delivery, MessageId, Settlement};

use crate::consuming::{KEYS, Scene, handle, ids, receive, settle};
use crate::{Outcome, sample};

/// Goal: every message arrives once, and a new member of the group does not get settled messages.
/// Oracle: the ids that were sent; messages sent later, which alone reach the new member.
pub(crate) async fn settled(scene: Scene) -> Outcome {
    let sent = sample::orders(&scene.topic, KEYS, 3)?;
    scene.publish(&sent).await?;
    let mut member = scene.subscribe().await?;
    let deliveries = handle(&mut member, sent.len()).await?;
    assert_eq!(deliveries.len(), sent.len(), "some came twice");
    assert_eq!(ids(&deliveries), sent.iter().map(|message| message.id).collect());
    member.close().await?;
    scene.assert_nothing_is_left().await
}

/// Goal: the unsettled messages of a lost member are delivered to the next member, although later
/// messages were settled. With a broker that tracks single messages, settled messages do not come
/// again. Oracle: the ids of the unsettled messages.
pub(crate) async fn unsettled(scene: Scene) -> Outcome {
    // Each message has its own key, because SQS FIFO delivers no second message of a key while the
    // first is unsettled.
    let sent = sample::orders(&scene.topic, 3 * KEYS, 1)?;
    scene.publish(&sent).await?;
    let mut lost = scene.subscribe_briefly().await?;
    let mut deliveries = receive(&mut lost, sent.len()).await?;
    let mut kept = Vec::new();
    // Every third message stays unsettled, including the first, so that later messages of every
    // partition are settled.
    for at in (0..deliveries.len()).step_by(3).rev() {
        kept.push(deliveries.remove(at));
    }
    settle(&mut lost, &deliveries).await?;
    drop(lost);
    let owed = ids(&kept);
    let mut next = scene.subscribe().await?;
    let mut came: Vec<Delivery> = Vec::new();
    while !ids(&came).is_superset(&owed) {
        came.extend(handle(&mut next, 1).await?);
    }
    let again: BTreeSet<MessageId> = ids(&came).difference(&owed).copied().collect();
    next.close().await?;
    if scene.capabilities.settles_singly {
        assert_eq!(again, BTreeSet::new(), "settled, and came again");
        return scene.assert_nothing_is_left().await;
    }
    // If the broker keeps one position for many messages, such as an offset, messages that are
    // settled behind an unsettled message come again, now or to the next member. The inbox
    // recognises them.
    scene.assert_only_these_are_left(&ids(&deliveries)).await
}

/// Goal: a released delivery is delivered again, marked as redelivered, and can then be settled.
/// Oracle: the same ids a second time.
pub(crate) async fn released(scene: Scene) -> Outcome {
    let sent = sample::orders(&scene.topic, KEYS, 1)?;
    scene.publish(&sent).await?;
    let mut member = scene.subscribe().await?;
    let first = receive(&mut member, sent.len()).await?;
    member.settle(first.iter().map(|delivery| Settlement::release(delivery.token)).collect()).await?;
    let again = handle(&mut member, sent.len()).await?;
    assert_eq!(ids(&again), ids(&first));
    assert!(again.iter().all(|delivery| delivery.redelivered), "not marked as redelivered: {again:?}");
    member.close().await?;
    scene.assert_nothing_is_left().await
}

/// Goal: a token of a closed subscription settles nothing in the next subscription. Oracle: the
/// message is delivered to a third subscription.
pub(crate) async fn stale_token(scene: Scene) -> Outcome {
    scene.publish(&[sample::order(&scene.topic, "a", 1)?]).await?;
    let mut first = scene.subscribe().await?;
    let stale = receive(&mut first, 1).await?;
    first.close().await?;
    let mut second = scene.subscribe().await?;
    let current = receive(&mut second, 1).await?;
    assert_eq!(ids(&current), ids(&stale));
    settle(&mut second, &stale).await?;
    second.close().await?;
    let mut third = scene.subscribe().await?;
    assert_eq!(ids(&handle(&mut third, 1).await?), ids(&stale));
    third.close().await?;
    scene.assert_nothing_is_left().await
}
