//! Groups that begin at the end of a topic while the cluster is slow, incomplete, or without it.

use std::num::NonZeroUsize;

use rdkafka::Offset;

use super::super::{GroupConfig, Start, Subscriber};
use super::*;

fn latest(config: &Config, topic: &str) -> Subscriber {
    let mut group = GroupConfig::new("billing", [topic]);
    group.start = Start::Latest;
    // The mock cluster waits this long in every rebalance.
    group.session_timeout_ms = 6_000;
    Subscriber::new(config.clone(), group).unwrap()
}

#[tokio::test]
async fn many_partitions_of_a_slow_broker_begin_at_their_ends_in_time() {
    let (mock, mut config) = cluster(40);
    mock.answer_late(1, Duration::from_millis(100)).unwrap();
    // One answer after the other would take 4 s.
    config.connect_timeout_ms = 3_500;
    let subscription = latest(&config, TOPIC).subscribe().await.unwrap();
    assert_eq!(committed(&config, TOPIC, 40).await, [Offset::Offset(0); 40]);
    drop(subscription);
}

#[tokio::test]
async fn a_partition_without_a_leader_keeps_no_other_from_beginning_at_its_end() {
    let (mock, mut config) = cluster(3);
    publish(&config, (0..30).map(|n| keyed(TOPIC, &format!("k{n}"), "x")).collect()).await;
    mock.lead(TOPIC, 1, None).unwrap();
    // It waits this long for the leader.
    config.connect_timeout_ms = 5_000;
    let subscription = latest(&config, TOPIC).subscribe().await.unwrap();
    let offsets = committed(&config, TOPIC, 3).await;
    let has_end = |offset: &Offset| matches!(offset, Offset::Offset(end) if *end > 0);
    assert!(has_end(&offsets[0]) && offsets[1] == Offset::Invalid && has_end(&offsets[2]), "{offsets:?}");
    drop(subscription);
}

#[tokio::test]
async fn what_comes_into_a_topic_that_was_missing_at_the_first_start_is_read() {
    let (mock, config) = cluster(1);
    let subscriber = latest(&config, "later");
    // The cluster may report the missing topic before this returns, or after it.
    drop(subscriber.subscribe().await);
    mock.create_topic("later", 1).unwrap();
    publish(&config, vec![keyed("later", "k", "first")]).await;
    let mut subscription = subscriber.subscribe().await.unwrap();
    let received = subscription.receive(NonZeroUsize::MIN, LONG).await.unwrap();
    assert_eq!(received.len(), 1);
    // Nothing is settled, and another process begins: the group already has its position.
    subscription.close().await.unwrap();
    assert_eq!(committed(&config, "later", 1).await, [Offset::Offset(0)]);
}
