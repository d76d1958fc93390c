//! Receives and settles like a consumer.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::unique;
use crate::{Broker, Capabilities, Failure, Outcome, Redelivery, eventually, relaying, sample};
use message::{Committed, Delivery, Message, MessageId, Settlement, Subscription};

/// Maximum number of deliveries in one call.
pub const BATCH: NonZeroUsize = NonZeroUsize::new(50).expect("not zero");
/// Maximum time of one call.
pub const WAIT: Duration = Duration::from_millis(200);
/// Number of keys, high enough that every partition and both members of a group get some.
pub const KEYS: usize = 12;
/// A topic of one case, and the group that reads it.
pub struct Scene {
    /// The broker of the case.
    pub broker: Arc<dyn Broker>,
    /// The abilities of the broker's adapter.
    pub capabilities: Capabilities,
    /// The topic, which exists.
    pub topic: String,
    group: String,
}

impl Scene {
    /// Creates the topic.
    ///
    /// # Errors
    /// The broker does not create it.
    pub async fn open(broker: Arc<dyn Broker>, capabilities: Capabilities) -> Result<Self, Failure> {
        let topic = broker.topic_name("orders");
        broker.create_topic(&topic).await?;
        Ok(Self { broker, capabilities, topic, group: unique("group") })
    }

    /// Publishes messages, and checks that all of them are confirmed.
    ///
    /// # Errors
    /// The publisher breaks its contract.
    ///
    /// # Panics
    /// The broker refuses one of the messages.
    pub async fn publish(&self, messages: &[Message]) -> Outcome {
        let sent = relaying::send(self.broker.connector()?.as_ref(), messages).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        Ok(())
    }

    /// Returns a new member of the scene's group.
    ///
    /// # Errors
    /// The adapter cannot subscribe.
    pub async fn subscribe(&self) -> Result<Box<dyn Subscription>, Failure> {
        self.broker.subscribe(&self.group, &self.topic, Redelivery::Late).await
    }

    /// Returns a member whose unsettled deliveries are redelivered soon, even if it does not leave
    /// the group.
    ///
    /// # Errors
    /// The adapter cannot subscribe.
    pub async fn subscribe_briefly(&self) -> Result<Box<dyn Subscription>, Failure> {
        self.broker.subscribe(&self.group, &self.topic, Redelivery::Soon).await
    }

    /// Checks that everything so far is settled permanently. A new member of the group gets only
    /// messages that are published now, one of every key, and no earlier message.
    ///
    /// # Errors
    /// Publishing, subscribing or settling failed.
    ///
    /// # Panics
    /// An earlier message came again.
    pub async fn assert_nothing_is_left(&self) -> Outcome {
        self.assert_only_these_are_left(&BTreeSet::new()).await
    }

    /// Does the same as [`assert_nothing_is_left`](Self::assert_nothing_is_left), except that these
    /// messages may come again.
    ///
    /// # Errors
    /// Publishing, subscribing or settling failed.
    ///
    /// # Panics
    /// Another message came again.
    pub async fn assert_only_these_are_left(&self, tolerated: &BTreeSet<MessageId>) -> Outcome {
        // A queue may hide unsettled messages, so the broker is also asked for their number.
        eventually("everything is settled", || async {
            Ok(matches!(self.broker.unsettled(&self.topic).await?, None | Some(0)).then_some(()))
        })
        .await?;
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

/// Returns the settlement of a delivery whose effect is committed.
///
/// # Errors
/// Never: the proof belongs to this delivery.
pub fn done(delivery: &Delivery) -> Result<Settlement, Failure> {
    Ok(Settlement::done(delivery, Committed::attest(delivery.subject()))?)
}

/// Settles all deliveries as done. Not cancel-safe.
///
/// # Errors
/// The subscription's error.
pub async fn settle(subscription: &mut Box<dyn Subscription>, deliveries: &[Delivery]) -> Outcome {
    let settlements = deliveries.iter().map(done).collect::<Result<_, _>>()?;
    Ok(subscription.settle(settlements).await?)
}

/// Receives until there are this many deliveries, and settles none.
///
/// # Errors
/// The subscription's error, or too few arrived within half a minute.
pub async fn receive(
    subscription: &mut Box<dyn Subscription>,
    count: usize,
) -> Result<Vec<Delivery>, Failure> {
    gather(subscription, count, false).await
}

/// Receives until there are this many deliveries, and settles each as done.
///
/// # Errors
/// The subscription's error, or too few arrived within half a minute.
pub async fn handle(
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

/// Runs work with a timeout of half a minute, which only a failing case reaches.
///
/// # Errors
/// The timeout is reached, or the work fails.
pub async fn within<T>(what: &str, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let patience = crate::session::PATIENCE;
    tokio::time::timeout(patience, work).await.map_err(|_| format!("not within {patience:?}: {what}"))?
}

/// Returns the ids of all deliveries that have an id.
#[must_use]
pub fn ids(deliveries: &[Delivery]) -> BTreeSet<MessageId> {
    deliveries.iter().filter_map(Delivery::id).collect()
}
