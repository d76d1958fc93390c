//! The mock cluster: errors, leaders, outages.

use std::sync::Arc;
use std::time::Duration;

use brokers::kafka::mock::Mock;
use harness::faults::{BrokerGone, Fault};
use libtest_mimic::Trial;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use storm::faults::broker::mock::{BROKERS, FetchErrors, LeaderMoves, ProduceErrors, SilentPartition};
use tests::{Backend, Failure, Outcome, Stage, trial};

use crate::scene::{heal, inject, until, with_topic};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Backend::KafkaMock];
    vec![
        trial("mock/produce_requests_fail", needs, produce_requests_fail),
        trial("mock/a_producer_meets_a_fatal_error", needs, a_producer_meets_a_fatal_error),
        trial("mock/offset_commits_fail", needs, offset_commits_fail),
        trial("mock/leaders_move", needs, leaders_move),
        trial("mock/a_partition_is_silent_and_others_go_on", needs, a_partition_is_silent),
        trial("mock/the_brokers_go_and_come_back", needs, the_brokers_go_and_come_back),
    ]
}

const TOPIC: &str = "orders";

fn open(test: &Stage) -> Result<(storm::stage::Stage, String), Failure> {
    let mock = Mock::start(BROKERS)?;
    mock.create_topic(TOPIC, 6)?;
    let address = mock.bootstrap_servers().join(",");
    let mut stage = with_topic(test, &address, TOPIC);
    stage.broker.mock = Some(Arc::new(mock));
    Ok((stage, address))
}

fn producer(address: &str, more: &[(&str, &str)]) -> Result<FutureProducer, Failure> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address);
    for (name, value) in more {
        config.set(*name, *value);
    }
    Ok(config.create()?)
}

async fn send(producer: &FutureProducer) -> Result<(), rdkafka::error::KafkaError> {
    let record = FutureRecord::<(), _>::to(TOPIC).payload("x").partition(0);
    producer.send(record, Duration::ZERO).await.map(drop).map_err(|(error, _)| error)
}

/// Injects the fault with increasing seeds until it has the wanted detail, and heals all others.
async fn inject_until(
    fault: &mut dyn Fault<storm::stage::Stage>,
    stage: &storm::stage::Stage,
    wanted: impl Fn(&str) -> bool,
) -> Outcome {
    for seed in 0..1_000 {
        let injected = inject(fault, stage, seed).await?;
        if wanted(&injected.detail) {
            return Ok(());
        }
        heal(fault, stage).await?;
    }
    Err("it never comes up".into())
}

async fn produce_requests_fail(test: Stage) -> Outcome {
    let (stage, address) = open(&test)?;
    // Without a retry, the first error is the outcome.
    let producer = producer(&address, &[("retries", "0")])?;
    send(&producer).await?;
    let mut fault = ProduceErrors;
    heal(&mut fault, &stage).await?;
    inject_until(&mut fault, &stage, |detail| detail.ends_with("not enough replicas")).await?;
    let error = send(&producer).await.err().ok_or("it did not fail")?;
    assert!(error.to_string().contains("NotEnoughReplicas"), "{error}");
    heal(&mut fault, &stage).await?;
    Ok(send(&producer).await?)
}

async fn a_producer_meets_a_fatal_error(test: Stage) -> Outcome {
    let (stage, address) = open(&test)?;
    let producer =
        producer(&address, &[("enable.idempotence", "true"), ("enable.gapless.guarantee", "true")])?;
    send(&producer).await?;
    let mut fault = ProduceErrors;
    inject_until(&mut fault, &stage, |detail| detail.ends_with("out of order sequence number")).await?;
    let error = send(&producer).await.err().ok_or("it did not fail")?;
    assert!(producer.client().fatal_error().is_some(), "{error}");
    heal(&mut fault, &stage).await
}

async fn offset_commits_fail(test: Stage) -> Outcome {
    let (stage, address) = open(&test)?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &address).set("group.id", "g");
    let consumer: BaseConsumer = config.create()?;
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(TOPIC, 0, Offset::Offset(0))?;
    let consumer = Arc::new(consumer);
    let commit = async || {
        let (consumer, offsets) = (Arc::clone(&consumer), offsets.clone());
        tokio::task::spawn_blocking(move || consumer.commit(&offsets, CommitMode::Sync)).await
    };
    commit().await??;
    let mut fault = FetchErrors::default();
    heal(&mut fault, &stage).await?;
    inject_until(&mut fault, &stage, |detail| detail.ends_with("offset commit: rebalance in progress"))
        .await?;
    let error = commit().await?.err().ok_or("it did not fail")?;
    assert!(error.to_string().contains("RebalanceInProgress"), "{error}");
    heal(&mut fault, &stage).await?;
    Ok(commit().await??)
}

async fn leaders_move(test: Stage) -> Outcome {
    let (stage, address) = open(&test)?;
    let producer = producer(&address, &[])?;
    let leaders = async || -> Result<String, Failure> {
        let producer = producer.clone();
        let metadata = tokio::task::spawn_blocking(move || {
            producer.client().fetch_metadata(Some(TOPIC), Duration::from_secs(10))
        });
        let metadata = metadata.await??;
        let partitions = metadata.topics()[0].partitions().iter();
        let leaders: Vec<String> = partitions.map(|partition| partition.leader().to_string()).collect();
        Ok(format!("led by {}", leaders.join(" ")))
    };
    let before = leaders().await?;
    let mut seen = Vec::new();
    for seed in 0..3 {
        let injected = inject(&mut LeaderMoves, &stage, seed).await?;
        assert_eq!(leaders().await?, injected.detail);
        seen.push(injected.detail);
    }
    assert!(seen.iter().any(|detail| *detail != before), "{before}");
    // The old producer may have the wrong broker permanently: librdkafka 2.12 loses track of a
    // leader that goes and comes back within a millisecond. The first move is still in progress
    // when the second one already looks undone.
    let newcomer = self::producer(&address, &[])?;
    Ok(send(&newcomer).await?)
}

async fn a_partition_is_silent(test: Stage) -> Outcome {
    let (stage, address) = open(&test)?;
    let mut fault = SilentPartition;
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    let producer = producer(&address, &[("message.timeout.ms", "1500")])?;
    assert!(send(&producer).await.is_err(), "partition 0 has no leader");
    let other = FutureRecord::<(), _>::to(TOPIC).payload("x").partition(5);
    producer.send(other, Duration::ZERO).await.map_err(|(error, _)| error)?;
    heal(&mut fault, &stage).await?;
    let newcomer = self::producer(&address, &[])?;
    Ok(send(&newcomer).await?)
}

async fn the_brokers_go_and_come_back(test: Stage) -> Outcome {
    let (stage, address) = open(&test)?;
    let mut fault = BrokerGone;
    heal(&mut fault, &stage).await?;
    // Without a retry, a cut connection is the outcome.
    let retried = producer(&address, &[("retries", "0"), ("reconnect.backoff.max.ms", "100")])?;
    send(&retried).await?;
    inject(&mut fault, &stage, 1).await?;
    let error = send(&retried).await.err().ok_or("it did not fail")?;
    assert!(error.to_string().contains("Transport"), "{error}");
    // A new client cannot send anything either.
    let newcomer = producer(&address, &[("message.timeout.ms", "300"), ("reconnect.backoff.max.ms", "100")])?;
    let error = send(&newcomer).await.err().ok_or("it did not fail")?;
    assert!(error.to_string().contains("MessageTimedOut"), "{error}");
    heal(&mut fault, &stage).await?;
    until("a client gets through", async || Ok(send(&newcomer).await.ok())).await
}
