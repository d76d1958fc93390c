//! Receiving and settling as a consumer does.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use message::{Committed, Delivery, Message, MessageId, Settlement, Subscription};
use tests::{Backend, Broker, Failure, Outcome, Stage, eventually};

use crate::{relaying, sample, sqs};

/// Deliveries per call.
pub(crate) const BATCH: NonZeroUsize = NonZeroUsize::new(50).expect("not zero");
/// How long one call waits.
pub(crate) const WAIT: Duration = Duration::from_millis(200);
/// Enough keys that every partition and both members of a group get some.
pub(crate) const KEYS: usize = 12;
/// Longer than any test: what is lost must not come back by itself.
const VISIBILITY_LONG_SECS: u32 = 300;
const VISIBILITY_SHORT_SECS: u32 = 2;

/// A topic of the test's own and the group that reads it.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) topic: String,
}

impl Scene {
    pub(crate) async fn open(stage: Stage, broker: Arc<dyn Broker>) -> Result<Self, Failure> {
        let topic = broker.topic_name(&stage, "orders");
        broker.create_topic(&stage, &topic).await?;
        Ok(Self { stage, broker, topic })
    }

    pub(crate) fn is_sqs(&self) -> bool {
        matches!(self.broker.backend(), Backend::Sqs | Backend::SqsFifo)
    }

    /// Publishes; everything is confirmed.
    pub(crate) async fn publish(&self, messages: &[Message]) -> Outcome {
        let sent = relaying::send(self.broker.connector()?.as_ref(), messages).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        Ok(())
    }

    /// A member of the scene's group.
    pub(crate) async fn subscribe(&self) -> Result<Box<dyn Subscription>, Failure> {
        self.member(VISIBILITY_LONG_SECS).await
    }

    /// A member whose unsettled deliveries come again soon although it does not say goodbye.
    pub(crate) async fn subscribe_briefly(&self) -> Result<Box<dyn Subscription>, Failure> {
        self.member(VISIBILITY_SHORT_SECS).await
    }

    async fn member(&self, visibility_secs: u32) -> Result<Box<dyn Subscription>, Failure> {
        if self.is_sqs() {
            return sqs::subscribe(&self.topic, visibility_secs).await;
        }
        self.broker.subscribe(&self.stage.unique("group"), &self.topic).await
    }

    /// Checks that everything so far is settled for good: a new member of the group is given what is published now,
    /// one message of every key, and nothing that was there before.
    pub(crate) async fn assert_nothing_is_left(&self) -> Outcome {
        self.assert_only_these_are_left(&BTreeSet::new()).await
    }

    /// As [`assert_nothing_is_left`](Self::assert_nothing_is_left), but some of these may come again.
    pub(crate) async fn assert_only_these_are_left(&self, tolerated: &BTreeSet<MessageId>) -> Outcome {
        if self.is_sqs() {
            // A queue hides what is unsettled, so it is asked instead.
            eventually("the queue is empty", || async {
                Ok((sqs::left(&self.topic).await? == 0).then_some(()))
            })
            .await?;
        }
        let later = sample::orders(&self.topic, KEYS, 1)?;
        self.publish(&later).await?;
        let mut member = self.subscribe().await?;
        let expected: BTreeSet<MessageId> = later.iter().map(|message| message.id).collect();
        let mut came = BTreeSet::new();
        while !came.is_superset(&expected) {
            came.extend(ids(&handle(&mut member, 1).await?));
        }
        let left: BTreeSet<_> = came.difference(&expected).filter(|id| !tolerated.contains(id)).collect();
        assert_eq!(left, BTreeSet::new(), "settled for good, and came again");
        Ok(member.close().await?)
    }
}

/// The effect is committed.
pub(crate) fn done(delivery: &Delivery) -> Result<Settlement, Failure> {
    Ok(Settlement::done(delivery, Committed::attest(delivery.subject()))?)
}

/// Settles all of them as done.
pub(crate) async fn settle(subscription: &mut Box<dyn Subscription>, deliveries: &[Delivery]) -> Outcome {
    let settlements = deliveries.iter().map(done).collect::<Result<_, _>>()?;
    Ok(subscription.settle(settlements).await?)
}

/// Receives until so many deliveries have come, and settles nothing.
pub(crate) async fn receive(
    subscription: &mut Box<dyn Subscription>,
    count: usize,
) -> Result<Vec<Delivery>, Failure> {
    gather(subscription, count, false).await
}

/// Receives until so many deliveries have come, and settles each as done.
pub(crate) async fn handle(
    subscription: &mut Box<dyn Subscription>,
    count: usize,
) -> Result<Vec<Delivery>, Failure> {
    gather(subscription, count, true).await
}

async fn gather(
    subscription: &mut Box<dyn Subscription>,
    count: usize,
    settling: bool,
) -> Result<Vec<Delivery>, Failure> {
    let mut gathered = Vec::new();
    let gathering = within("the deliveries come", async {
        while gathered.len() < count {
            let deliveries = subscription.receive(BATCH, WAIT).await?;
            if settling {
                settle(subscription, &deliveries).await?;
            }
            gathered.extend(deliveries);
        }
        Ok(())
    });
    match gathering.await {
        Ok(()) => Ok(gathered),
        Err(failure) => Err(format!("{} of {count} deliveries came: {failure}", gathered.len()).into()),
    }
}

/// Gives up after half a minute; only a failing test does.
pub(crate) async fn within<T>(
    what: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let patience = crate::session::PATIENCE;
    tokio::time::timeout(patience, work).await.map_err(|_| format!("not within {patience:?}: {what}"))?
}

/// The ids of those that have one.
pub(crate) fn ids(deliveries: &[Delivery]) -> BTreeSet<MessageId> {
    deliveries.iter().filter_map(Delivery::id).collect()
}
