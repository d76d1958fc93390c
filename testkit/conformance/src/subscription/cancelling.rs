//! Calls of `receive` that are dropped.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use message::{Delivery, Subscription, SubscriptionError};

use crate::consuming::{KEYS, Scene, handle, settle};
use crate::{Failure, Outcome, sample};

/// Maximum number of `receive` calls that are dropped or time out.
const CALLS: u64 = 400;
const FEW: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");
const LONG: Duration = Duration::from_secs(30);

/// Goal: dropping `receive` at any point loses nothing and repeats nothing. Oracle: every id
/// arrives exactly once, and none is marked as redelivered, because SQS would repeat a lost message
/// later.
pub(crate) async fn dropped_receive(scene: Scene) -> Outcome {
    let sent = sample::orders(&scene.topic, KEYS, 5)?;
    scene.publish(&sent).await?;
    let mut member = scene.subscribe().await?;
    let mut came: Vec<Delivery> = Vec::new();
    for call in 0..CALLS {
        let Some(received) = give_up(&mut member, call).await else { continue };
        let deliveries = received?;
        settle(&mut member, &deliveries).await?;
        came.extend(deliveries);
        if came.len() >= sent.len() {
            break;
        }
    }
    if came.len() < sent.len() {
        came.extend(handle(&mut member, sent.len() - came.len()).await?);
    }
    member.close().await?;
    assert_once(&came, sent.iter().map(|message| message.id).collect())?;
    scene.assert_nothing_is_left().await
}

/// Calls `receive` and drops it. Every second call is dropped after its first poll, the others a
/// little later.
async fn give_up(
    member: &mut Box<dyn Subscription>,
    call: u64,
) -> Option<Result<Vec<Delivery>, SubscriptionError>> {
    let mut receiving = pin!(member.receive(FEW, LONG));
    if call.is_multiple_of(2) {
        return match futures_util::poll!(&mut receiving) {
            Poll::Ready(received) => Some(received),
            Poll::Pending => None,
        };
    }
    tokio::time::timeout(Duration::from_micros(call % 40 * 50), receiving).await.ok()
}

fn assert_once(came: &[Delivery], expected: BTreeSet<message::MessageId>) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for delivery in came {
        let id = delivery.id().ok_or("malformed")?;
        assert!(seen.insert(id), "{id} came twice");
        assert!(!delivery.redelivered, "{id} was lost, and comes again: {delivery:?}");
    }
    assert_eq!(seen, expected);
    Ok(())
}
