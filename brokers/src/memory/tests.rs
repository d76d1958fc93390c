use std::num::NonZeroUsize;
use std::time::Duration;

use message::{
    Committed, Connector as _, Delivery, EventType, Fault, FaultScope, MaxInFlightPerKey, Message,
    OrderingKey, Receipt, Receipts, Settlement, Submission, Subscription as _, Ticket, Topic,
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Broker, Loss};

const LONG: Duration = Duration::from_secs(60);
const MANY: NonZeroUsize = NonZeroUsize::new(100).unwrap();

fn topic() -> Topic {
    Topic::new("orders").unwrap()
}

fn keyed(key: &str) -> Message {
    Message::new(topic(), EventType::new("order.placed").unwrap(), "x")
        .with_key(OrderingKey::new(key).unwrap())
}

fn batch(messages: &[Message]) -> Vec<Submission> {
    let numbered = messages.iter().cloned().zip(1..);
    numbered.map(|(message, number)| Submission { ticket: Ticket(number), message: message.into() }).collect()
}

async fn session(
    broker: &Broker,
    max_in_flight_per_key: MaxInFlightPerKey,
) -> (Box<dyn message::Publisher>, UnboundedReceiver<Receipt>) {
    let (receipts, received) = Receipts::channel();
    (broker.connector(max_in_flight_per_key).connect(receipts).await.unwrap(), received)
}

/// A ticket's number and its outcome: `Ok`, or fault and scope.
type Answer = (u64, Result<(), (Fault, FaultScope)>);

/// Returns everything answered so far.
fn answers(received: &mut UnboundedReceiver<Receipt>) -> Vec<Answer> {
    std::iter::from_fn(|| received.try_recv().ok())
        .map(|receipt| (receipt.ticket.0, receipt.outcome.map_err(|error| (error.fault(), error.scope()))))
        .collect()
}

fn done(delivery: &Delivery) -> Settlement {
    Settlement::done(delivery, Committed::attest(delivery.subject())).unwrap()
}

#[tokio::test]
async fn after_a_failure_a_pipelined_session_stores_nothing_more() {
    let broker = Broker::new();
    let messages: Vec<_> = (0..4).map(|_| keyed("a")).collect();
    broker.faults().refuse_id(messages[1].id, Fault::Message, FaultScope::Message);
    let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::Pipelined).await;
    publisher.submit(batch(&messages)).await;
    let lost = Err((Fault::Broker, FaultScope::Session));
    let expected = [(1, Ok(())), (2, Err((Fault::Message, FaultScope::Message))), (3, lost), (4, lost)];
    assert_eq!(answers(&mut received), expected);
    assert_eq!(broker.log(&topic()), messages[..1]);
}

#[tokio::test]
async fn with_one_per_key_only_the_refused_message_fails() {
    let broker = Broker::new();
    let messages: Vec<_> = ["a", "b", "c"].map(keyed).into();
    broker.faults().refuse_id(messages[1].id, Fault::Message, FaultScope::Message);
    let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::One).await;
    publisher.submit(batch(&messages)).await;
    let refused = Err((Fault::Message, FaultScope::Message));
    assert_eq!(answers(&mut received), [(1, Ok(())), (2, refused), (3, Ok(()))]);
}

#[tokio::test]
async fn the_next_messages_are_refused_or_every_second_one_until_it_is_healed() {
    let broker = Broker::new();
    let messages: Vec<_> = ["a", "b", "c"].map(keyed).into();
    let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::One).await;
    let refused = Err((Fault::Message, FaultScope::Message));
    broker.faults().refuse_next(2, Fault::Message, FaultScope::Message);
    publisher.submit(batch(&messages)).await;
    assert_eq!(answers(&mut received), [(1, refused), (2, refused), (3, Ok(()))]);
    let second = NonZeroUsize::new(2).unwrap();
    broker.faults().refuse_every(second, Fault::Operator, FaultScope::Message);
    publisher.submit(batch(&messages)).await;
    let refused = Err((Fault::Operator, FaultScope::Message));
    assert_eq!(answers(&mut received), [(1, Ok(())), (2, refused), (3, Ok(()))]);
    broker.faults().heal();
    publisher.submit(batch(&messages)).await;
    assert_eq!(answers(&mut received), [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
    let stored = [&messages[2], &messages[0], &messages[2], &messages[0], &messages[1], &messages[2]];
    assert_eq!(broker.log(&topic()).iter().collect::<Vec<_>>(), stored);
}

#[tokio::test]
async fn a_lost_confirmation_hides_whether_the_message_was_stored() {
    for (loss, stored) in [(Loss::Confirmation, 1), (Loss::Message, 0)] {
        let broker = Broker::new();
        broker.faults().lose_next(1, loss);
        let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::One).await;
        publisher.submit(batch(&[keyed("a"), keyed("b")])).await;
        let lost = Err((Fault::Broker, FaultScope::Session));
        assert_eq!(answers(&mut received), [(1, lost), (2, lost)]);
        assert_eq!(broker.log(&topic()).len(), stored, "{loss:?}");
    }
}

#[tokio::test]
async fn held_confirmations_are_released_or_unknown_never_missing() {
    let broker = Broker::new();
    broker.faults().hold_confirms();
    let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::Pipelined).await;
    publisher.submit(batch(&[keyed("a"), keyed("b")])).await;
    assert!(answers(&mut received).is_empty());
    broker.faults().release_confirms();
    assert_eq!(answers(&mut received), [(1, Ok(())), (2, Ok(()))]);
    broker.faults().hold_confirms();
    publisher.submit(vec![Submission { ticket: Ticket(3), message: keyed("c").into() }]).await;
    publisher.close(Duration::ZERO).await;
    assert_eq!(answers(&mut received), [(3, Err((Fault::Broker, FaultScope::Session)))]);
    assert_eq!(broker.log(&topic()).len(), 3);
}

#[tokio::test]
async fn a_second_unconfirmed_message_of_a_key_is_recorded() {
    let broker = Broker::new();
    broker.faults().hold_confirms();
    let (mut publisher, _received) = session(&broker, MaxInFlightPerKey::One).await;
    publisher.submit(batch(&[keyed("a"), keyed("b")])).await;
    assert!(broker.violations().is_empty());
    publisher.submit(vec![Submission { ticket: Ticket(3), message: keyed("a").into() }]).await;
    assert_eq!(broker.violations().len(), 1);
}

#[tokio::test]
async fn unreachable_breaks_sessions_until_it_is_reachable() {
    let broker = Broker::new();
    let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::One).await;
    broker.faults().unreachable();
    publisher.submit(batch(&[keyed("a")])).await;
    assert_eq!(answers(&mut received), [(1, Err((Fault::Broker, FaultScope::Session)))]);
    let (receipts, _keep) = Receipts::channel();
    assert!(broker.connector(MaxInFlightPerKey::One).connect(receipts.clone()).await.is_err());
    assert!(broker.subscribe("g", [topic()]).is_err());
    broker.faults().reachable();
    assert!(broker.connector(MaxInFlightPerKey::One).connect(receipts).await.is_ok());
}

#[tokio::test]
async fn a_strict_broker_names_the_missing_topic() {
    let broker = Broker::with_strict_topics();
    let (mut publisher, mut received) = session(&broker, MaxInFlightPerKey::One).await;
    publisher.submit(batch(&[keyed("a")])).await;
    let error = received.try_recv().unwrap().outcome.unwrap_err();
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Topic));
    assert!(error.to_string().contains("\"orders\""), "{error}");
    broker.create_topic(&topic());
    publisher.submit(batch(&[keyed("a")])).await;
    assert!(received.try_recv().unwrap().outcome.is_ok());
}

#[tokio::test]
async fn a_group_delivers_again_what_was_released_and_keeps_keys_apart() {
    let broker = Broker::new();
    for key in ["a", "a", "b"] {
        broker.put(&topic(), Ok(keyed(key)));
    }
    let mut one = broker.subscribe("g", [topic()]).unwrap();
    let mut two = broker.subscribe("g", [topic()]).unwrap();
    let first = one.receive(NonZeroUsize::MIN, LONG).await.unwrap();
    assert_eq!(first[0].origin, "orders@0");
    // The second "a" waits while another member holds the first.
    let other = two.receive(MANY, LONG).await.unwrap();
    assert_eq!(other.iter().map(|d| d.origin.as_str()).collect::<Vec<_>>(), ["orders@2"]);
    one.settle(vec![Settlement::release(first[0].token)]).await.unwrap();
    let again = two.receive(MANY, LONG).await.unwrap();
    let seen: Vec<_> = again.iter().map(|d| (d.origin.as_str(), d.redelivered)).collect();
    assert_eq!(seen, [("orders@0", true), ("orders@1", false)]);
    two.settle(again.iter().chain(&other).map(done).collect()).await.unwrap();
    assert!(one.receive(MANY, Duration::ZERO).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_broken_subscription_gives_back_and_duplicates_come_in_pairs() {
    let broker = Broker::new();
    broker.put(&topic(), Ok(keyed("a")));
    let mut one = broker.subscribe("g", [topic()]).unwrap();
    assert_eq!(one.receive(MANY, LONG).await.unwrap().len(), 1);
    broker.faults().break_subscriptions();
    assert_eq!(one.receive(MANY, LONG).await.unwrap_err().fault(), Fault::Broker);
    broker.faults().duplicate_next(1);
    let mut two = broker.subscribe("g", [topic()]).unwrap();
    let pair = two.receive(MANY, LONG).await.unwrap();
    assert_eq!(pair.len(), 2);
    assert_eq!(pair[0].id(), pair[1].id());
    assert_ne!(pair[0].token, pair[1].token);
}

#[tokio::test]
async fn a_lost_settlement_breaks_the_session_and_delivers_again() {
    let broker = Broker::new();
    broker.put(&topic(), Ok(keyed("a")));
    let mut one = broker.subscribe("g", [topic()]).unwrap();
    let first = one.receive(MANY, LONG).await.unwrap();
    broker.faults().lose_settlements(1);
    assert!(one.settle(vec![done(&first[0])]).await.is_err());
    let mut two = broker.subscribe("g", [topic()]).unwrap();
    let again = two.receive(MANY, LONG).await.unwrap();
    assert!(again[0].redelivered && !broker.is_drained());
    two.settle(vec![done(&again[0])]).await.unwrap();
    broker.drained().await;
}

#[tokio::test]
async fn a_replay_delivers_everything_again_to_every_group() {
    let broker = Broker::new();
    for key in ["a", "b"] {
        broker.put(&topic(), Ok(keyed(key)));
    }
    let mut one = broker.subscribe("one", [topic()]).unwrap();
    let mut two = broker.subscribe("two", [topic()]).unwrap();
    for subscription in [&mut one, &mut two] {
        let all = subscription.receive(MANY, LONG).await.unwrap();
        subscription.settle(all.iter().map(done).collect()).await.unwrap();
    }
    assert!(broker.is_drained());
    broker.replay(&topic());
    assert!(!broker.is_drained());
    for subscription in [&mut one, &mut two] {
        let again = subscription.receive(MANY, LONG).await.unwrap();
        assert_eq!(again.len(), 2);
        assert!(again.iter().all(|delivery| delivery.redelivered));
    }
}

#[tokio::test]
async fn shuffled_deliveries_are_all_there_in_an_order_that_the_seed_decides() {
    let mut orders = Vec::new();
    for seed in [7, 7, 8] {
        let broker = Broker::new();
        (0..20).for_each(|_| broker.put(&topic(), Ok(keyed("a"))));
        broker.faults().shuffle_deliveries(seed);
        let mut subscription = broker.subscribe("g", [topic()]).unwrap();
        let received = subscription.receive(MANY, LONG).await.unwrap();
        orders.push(received.into_iter().map(|delivery| delivery.origin).collect::<Vec<_>>());
    }
    assert_eq!(orders[0], orders[1]);
    assert_ne!(orders[0], orders[2]);
    assert!(!orders[0].is_sorted() && orders[0].len() == 20);
}

#[tokio::test]
async fn receive_wakes_up_when_something_is_stored() {
    let broker = Broker::new();
    let mut subscription = broker.subscribe("g", [topic()]).unwrap();
    let waiting = tokio::spawn(async move { subscription.receive(MANY, LONG).await.unwrap().len() });
    broker.put(&topic(), Ok(keyed("a")));
    broker.stored(&topic(), 1).await;
    assert_eq!(waiting.await.unwrap(), 1);
}
