//! Several members of one group.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use message::{Fault, MessageId, Subscription};

use crate::consuming::{KEYS, Scene, WAIT, settle, within};
use crate::{Outcome, sample};

/// Maximum deliveries in one call, low enough that some are left for the other member.
const FEW: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");

/// Goal: two members share the work, and each message is handled once when all of it is settled.
/// Oracle: how often each id was handled by either member; a third member gets none of the
/// messages, if the broker could be informed of the end.
///
/// A group that is still assigning its partitions may repeat unsettled deliveries, so counting
/// begins when each member has received something.
pub(crate) async fn two_members(scene: Scene) -> Outcome {
    let mut pair =
        Pair { members: [scene.subscribe().await?, scene.subscribe().await?], handled: Default::default() };
    let mut published = Vec::new();
    within("each member is given something", async {
        while pair.handled.iter().any(BTreeMap::is_empty) {
            let warming = sample::orders(&scene.topic, KEYS, 1)?;
            scene.publish(&warming).await?;
            published.extend(warming);
            pair.work().await?;
        }
        Ok(())
    })
    .await?;
    let counted = sample::orders(&scene.topic, KEYS, 5)?;
    scene.publish(&counted).await?;
    published.extend(counted.iter().cloned());
    within("the two have handled everything", async {
        while published.iter().any(|message| pair.count(message.id) == 0) {
            pair.work().await?;
        }
        Ok(())
    })
    .await?;
    for message in &counted {
        assert_eq!(pair.count(message.id), 1, "{} was handled more than once", message.id);
    }
    let mut is_informed = true;
    for member in pair.members {
        match member.close().await {
            // A busy broker that reassigns the group may not answer in time. Then settled messages
            // may be redelivered.
            Err(error) if error.fault() == Fault::Broker => is_informed = false,
            closed => closed?,
        }
    }
    if is_informed { scene.assert_nothing_is_left().await } else { Ok(()) }
}

/// Two members, with the number of times that each has handled each message.
struct Pair {
    members: [Box<dyn Subscription>; 2],
    handled: [BTreeMap<MessageId, usize>; 2],
}

impl Pair {
    /// Lets both members receive at the same time, and then lets both settle.
    async fn work(&mut self) -> Outcome {
        let [one, two] = &mut self.members;
        let (first, second) = tokio::join!(one.receive(FEW, WAIT), two.receive(FEW, WAIT));
        let deliveries = [first?, second?];
        for ((member, handled), deliveries) in self.members.iter_mut().zip(&mut self.handled).zip(&deliveries)
        {
            settle(member, deliveries).await?;
            for delivery in deliveries {
                *handled.entry(delivery.id().ok_or("malformed")?).or_default() += 1;
            }
        }
        Ok(())
    }

    fn count(&self, id: MessageId) -> usize {
        self.handled.iter().filter_map(|handled| handled.get(&id)).sum()
    }
}
