use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use message::{Committed, Delivery, Fault, Settlement, Subscription};

use super::super::mock::{ApiKey, ResponseError};
use super::super::{GroupConfig, Partition, Subscriber};
use super::*;

pub(super) const MANY: NonZeroUsize = NonZeroUsize::new(1_000).unwrap();

/// Subscribes to partition 0 without joining a group.
pub(super) async fn reader(config: &Config) -> Box<dyn Subscription> {
    let mut group = GroupConfig::new("billing", Vec::<String>::new());
    group.partitions.push(Partition { topic: TOPIC.to_owned(), partition: 0 });
    Subscriber::new(config.clone(), group).unwrap().subscribe().await.unwrap()
}

async fn member(config: &Config) -> Box<dyn Subscription> {
    let mut group = GroupConfig::new("billing", [TOPIC]);
    // The mock cluster waits this long in every rebalance, even when all members are back.
    group.session_timeout_ms = 6_000;
    Subscriber::new(config.clone(), group).unwrap().subscribe().await.unwrap()
}

/// Receives the next `count` deliveries.
pub(super) async fn receive(subscription: &mut Box<dyn Subscription>, count: usize) -> Vec<Delivery> {
    let mut received = Vec::new();
    while received.len() < count {
        let max = NonZeroUsize::new(count - received.len()).unwrap();
        let next = subscription.receive(max, LONG).await.unwrap();
        assert!(!next.is_empty(), "{} of {count} within {LONG:?}", received.len());
        received.extend(next);
    }
    received
}

pub(super) fn done(delivery: &Delivery) -> Settlement {
    Settlement::done(delivery, Committed::attest(delivery.subject())).unwrap()
}

pub(super) fn payloads(deliveries: &[Delivery]) -> Vec<String> {
    let text =
        |delivery: &Delivery| String::from_utf8(delivery.message.as_ref().unwrap().payload.to_vec()).unwrap();
    deliveries.iter().map(text).collect()
}

pub(super) fn numbered(range: std::ops::Range<u32>) -> Vec<Message> {
    range.map(|n| keyed(TOPIC, "a", format!("{n}"))).collect()
}

#[tokio::test]
async fn messages_arrive_as_they_were_sent_and_in_order() {
    let (_mock, config) = cluster(1);
    let mut messages = numbered(0..100);
    messages[7].headers.insert("tenant", "acme").unwrap();
    publish(&config, messages.clone()).await;
    let mut subscription = reader(&config).await;
    let received = receive(&mut subscription, 100).await;
    assert_eq!(received[7].origin, "orders[0]@7");
    assert!(received.iter().all(|delivery| !delivery.redelivered));
    for (delivery, message) in received.iter().zip(&messages) {
        assert_eq!(delivery.message.as_ref().unwrap(), message);
    }
}

/// Waits until the group's positions of the first partitions are these.
pub(super) async fn reached(config: &Config, positions: &[i64]) {
    let wanted: Vec<_> = positions.iter().map(|position| Offset::Offset(*position)).collect();
    let partitions = i32::try_from(positions.len()).unwrap();
    let wait = async { while committed(config, TOPIC, partitions).await != wanted {} };
    tokio::time::timeout(LONG, wait).await.expect("committed in time");
}

#[tokio::test]
async fn a_new_session_goes_on_behind_the_contiguous_prefix() {
    let (_mock, config) = cluster(1);
    publish(&config, numbered(0..10)).await;
    let mut subscription = reader(&config).await;
    let received = receive(&mut subscription, 10).await;
    // 0 to 4 and 6 are done; 5 is not.
    let settled = received.iter().enumerate().filter(|(n, _)| *n < 5 || *n == 6);
    subscription.settle(settled.map(|(_, delivery)| done(delivery)).collect()).await.unwrap();
    subscription.close().await.unwrap();
    let mut subscription = reader(&config).await;
    assert_eq!(payloads(&receive(&mut subscription, 5).await), ["5", "6", "7", "8", "9"]);
}

#[tokio::test]
async fn a_released_message_comes_again_with_everything_after_it() {
    let (_mock, config) = cluster(1);
    publish(&config, numbered(0..6)).await;
    let mut subscription = reader(&config).await;
    let received = receive(&mut subscription, 4).await;
    subscription.settle(vec![done(&received[0]), Settlement::release(received[2].token)]).await.unwrap();
    let again = receive(&mut subscription, 4).await;
    assert_eq!(payloads(&again), ["2", "3", "4", "5"]);
    assert_eq!(again.iter().map(|d| d.redelivered).collect::<Vec<_>>()[..2], [true, true]);
    // The old token of 3 is stale and ignored; 1 is still good.
    let mut settled: Vec<_> = again.iter().map(done).collect();
    settled.extend([done(&received[3]), done(&received[1])]);
    subscription.settle(settled).await.unwrap();
    subscription.close().await.unwrap();
    publish(&config, numbered(6..7)).await;
    let mut subscription = reader(&config).await;
    assert_eq!(payloads(&receive(&mut subscription, 1).await), ["6"]);
}

#[tokio::test]
async fn receive_returns_at_most_what_was_asked_for_and_is_cancel_safe() {
    let (_mock, config) = cluster(1);
    let mut subscription = reader(&config).await;
    let waiting = tokio::time::timeout(Duration::from_millis(50), subscription.receive(MANY, LONG));
    assert!(waiting.await.is_err(), "nothing is there yet");
    publish(&config, numbered(0..5)).await;
    let first = subscription.receive(NonZeroUsize::MIN, LONG).await.unwrap();
    assert_eq!(payloads(&first), ["0"]);
    assert_eq!(payloads(&receive(&mut subscription, 4).await), ["1", "2", "3", "4"]);
    assert!(subscription.receive(MANY, Duration::ZERO).await.unwrap().is_empty());
}

#[tokio::test]
async fn more_messages_than_fit_ahead_all_arrive_in_order() {
    let (_mock, config) = cluster(1);
    publish(&config, numbered(0..5_000)).await;
    let mut group = GroupConfig::new("billing", Vec::<String>::new());
    group.partitions.push(Partition { topic: TOPIC.to_owned(), partition: 0 });
    group.prefetch_len = 50;
    let mut subscription = Subscriber::new(config, group).unwrap().subscribe().await.unwrap();
    let received = payloads(&receive(&mut subscription, 5_000).await);
    assert!(received.into_iter().eq((0..5_000).map(|n| n.to_string())));
}

#[tokio::test]
async fn a_message_without_identity_is_delivered_as_malformed() {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    let (_mock, config) = cluster(1);
    let producer: BaseProducer = config.client().unwrap().create().unwrap();
    let record: BaseRecord<'_, str, str> = BaseRecord::to(TOPIC).payload("hello").partition(0);
    producer.send(record).unwrap();
    tokio::task::spawn_blocking(move || producer.flush(LONG)).await.unwrap().unwrap();
    let mut subscription = reader(&config).await;
    let received = receive(&mut subscription, 1).await;
    let malformed = received[0].message.as_ref().unwrap_err();
    assert_eq!(&malformed.payload[..], b"hello");
    subscription.settle(vec![done(&received[0])]).await.unwrap();
}

#[tokio::test]
async fn a_second_member_takes_over_partitions_and_nothing_is_left_out() {
    let (_mock, config) = cluster(4);
    let spread = |range: std::ops::Range<u32>| {
        range.map(|n| keyed(TOPIC, &format!("k{n}"), format!("{n}"))).collect::<Vec<_>>()
    };
    publish(&config, spread(0..100)).await;
    let mut one = member(&config).await;
    let held = receive(&mut one, 100).await;
    // A part of every partition is done.
    let (part, rest): (Vec<_>, Vec<_>) = held.iter().partition(|delivery| delivery.origin.ends_with("@0"));
    assert_eq!(part.len(), 4);
    one.settle(part.into_iter().map(done).collect()).await.unwrap();
    // A commit that arrives during a rebalance is refused.
    reached(&config, &[1; 4]).await;
    // The second member gets partitions that the first one is still working on.
    let mut two = member(&config).await;
    let moved = two.receive(MANY, LONG).await.unwrap();
    assert!(!moved.is_empty());
    assert!(moved.iter().all(|delivery| !delivery.origin.ends_with("@0")), "what was done stays done");
    one.settle(rest.into_iter().map(done).collect()).await.unwrap();
    two.settle(moved.iter().map(done).collect()).await.unwrap();
    publish(&config, spread(100..200)).await;
    let mut seen: BTreeSet<String> = payloads(&held).into_iter().chain(payloads(&moved)).collect();
    let mut sharers = BTreeSet::new();
    while seen.len() < 200 {
        for (name, member) in [("one", &mut one), ("two", &mut two)] {
            let received = member.receive(MANY, Duration::from_millis(20)).await.unwrap();
            member.settle(received.iter().map(done).collect()).await.unwrap();
            if received.iter().any(|delivery| !delivery.redelivered) {
                sharers.insert(name);
            }
            seen.extend(payloads(&received));
        }
    }
    assert_eq!(sharers.len(), 2, "both members work");
    // One leaves: the other gets all further messages.
    Box::new(one).close().await.unwrap();
    publish(&config, spread(200..300)).await;
    while seen.len() < 300 {
        let received = two.receive(MANY, LONG).await.unwrap();
        assert!(!received.is_empty());
        seen.extend(payloads(&received));
    }
}

#[tokio::test]
async fn a_commit_that_fails_is_repeated_although_nothing_more_comes() {
    let (mock, config) = cluster(1);
    publish(&config, numbered(0..3)).await;
    let mut subscription = reader(&config).await;
    let received = receive(&mut subscription, 3).await;
    let refused = ResponseError::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
    mock.request_errors(ApiKey::OffsetCommit, &[refused]).unwrap();
    subscription.settle(received.iter().map(done).collect()).await.unwrap();
    reached(&config, &[3]).await;
}

/// Goal: a member that is stopped while its group assigns partitions causes no redelivery. Oracle:
/// the group's offsets.
#[tokio::test]
async fn the_last_commit_waits_for_a_group_that_assigns_its_partitions() {
    let (mock, config) = cluster(1);
    publish(&config, numbered(0..3)).await;
    let mut subscription = member(&config).await;
    let received = receive(&mut subscription, 3).await;
    let refused = [ResponseError::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 4];
    mock.request_errors(ApiKey::OffsetCommit, &refused).unwrap();
    subscription.settle(received.iter().map(done).collect()).await.unwrap();
    subscription.close().await.unwrap();
    reached(&config, &[3]).await;
}

/// Goal: a record that arrives while its reader stops is left to the next reader. Oracle: the
/// records that it receives. Only the coordinator is slow, so the record arrives before the last
/// commit ends.
#[tokio::test]
async fn a_record_that_arrives_during_the_last_commit_is_not_passed() {
    let mock = Mock::start(2).unwrap();
    mock.create_topic(TOPIC, 1).unwrap();
    mock.lead(TOPIC, 0, Some(1)).unwrap();
    mock.coordinate_group("billing", 2).unwrap();
    let config = Config::new(mock.bootstrap_servers());
    let (mut publisher, mut receipts) = session(&Connector::new(config.clone()).unwrap()).await;
    publisher.submit(batch(0, numbered(0..3))).await;
    assert!(take(&mut receipts, 3).await.iter().all(|receipt| receipt.outcome.is_ok()));
    let mut subscription = member(&config).await;
    let received = receive(&mut subscription, 3).await;
    subscription.settle(received.iter().map(done).collect()).await.unwrap();
    reached(&config, &[3]).await;
    mock.answer_late(2, Duration::from_secs(1)).unwrap();
    let closing = tokio::spawn(subscription.close());
    publisher.submit(batch(3, numbered(3..5))).await;
    assert!(take(&mut receipts, 2).await.iter().all(|receipt| receipt.outcome.is_ok()));
    assert!(!closing.is_finished(), "they came too late");
    closing.await.unwrap().unwrap();
    mock.answer_late(2, Duration::ZERO).unwrap();
    assert_eq!(payloads(&receive(&mut member(&config).await, 2).await), ["3", "4"]);
    publisher.close(LONG).await;
}

#[tokio::test]
async fn a_last_commit_that_is_refused_for_good_is_an_error() {
    let (mock, config) = cluster(1);
    publish(&config, numbered(0..3)).await;
    let mut subscription = member(&config).await;
    let received = receive(&mut subscription, 3).await;
    let refused = [ResponseError::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 4];
    mock.request_errors(ApiKey::OffsetCommit, &refused).unwrap();
    subscription.settle(received.iter().map(done).collect()).await.unwrap();
    let error = subscription.close().await.unwrap_err();
    assert!(error.to_string().contains("offsets not committed"), "{error}");
}

/// Goal: no subscription keeps a partition that it does not read. Oracle: the records that it
/// returns, and those that the next one reads.
async fn refused<F: Future<Output = Box<dyn Subscription>>>(
    offset_fetch: ResponseError,
    subscribe: impl Fn(Config) -> F,
) {
    let (mock, config) = cluster(1);
    publish(&config, numbered(0..1)).await;
    // The subscription itself sends the first request, librdkafka the second.
    let answered = ResponseError::RD_KAFKA_RESP_ERR_NO_ERROR;
    mock.request_errors(ApiKey::OffsetFetch, &[answered, offset_fetch]).unwrap();
    let error = subscribe(config.clone()).await.receive(MANY, LONG).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Broker);
    assert!(error.to_string().contains("orders[0] is assigned but not read"), "{error}");
    assert_eq!(payloads(&receive(&mut subscribe(config).await, 1).await), ["0"]);
}

#[tokio::test]
async fn a_member_that_is_not_told_its_offset_subscribes_anew() {
    let moved = ResponseError::RD_KAFKA_RESP_ERR_NOT_COORDINATOR;
    refused(moved, |config| async move { member(&config).await }).await;
}

#[tokio::test]
async fn a_reader_that_is_not_told_its_offset_subscribes_anew() {
    let unavailable = ResponseError::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE;
    refused(unavailable, |config| async move { reader(&config).await }).await;
}

#[tokio::test]
async fn an_unknown_topic_and_an_unreachable_cluster_are_told_apart() {
    let (mock, mut config) = cluster(1);
    let group = GroupConfig::new("billing", ["no-such-topic"]);
    let subscriber = Subscriber::new(config.clone(), group.clone()).unwrap();
    let mut subscription = subscriber.subscribe().await.unwrap();
    let error = subscription.receive(MANY, LONG).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Operator);
    assert!(error.to_string().contains("no such topic"), "{error}");
    mock.down().unwrap();
    config.connect_timeout_ms = 300;
    let error = Subscriber::new(config, group).unwrap().subscribe().await.err().unwrap();
    assert_eq!(error.fault(), Fault::Broker);
    assert!(error.to_string().contains("not reachable within 300 ms"), "{error}");
}

#[tokio::test]
async fn nothing_behind_a_refused_message_is_stored() {
    let (mock, config) = cluster(1);
    let connector = Connector::new(config.clone()).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    // The very first batch is refused while more of its key is waiting.
    mock.request_errors(ApiKey::Produce, &[ResponseError::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]).unwrap();
    publisher.submit(batch(0, numbered(0..1_000))).await;
    assert!(take(&mut received, 1_000).await.iter().all(|receipt| receipt.outcome.is_err()));
    publisher.close(LONG).await;
    publish(&config, numbered(5_000..5_001)).await;
    let mut subscription = reader(&config).await;
    assert_eq!(payloads(&receive(&mut subscription, 1).await), ["5000"]);
}
