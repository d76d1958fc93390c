//! The mock cluster: errors instead of answers, leaders that move, silence.

use std::time::Duration;

use async_trait::async_trait;
use brokers::kafka::mock::{ApiKey, ResponseError};
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rdkafka::types::RDKafkaRespErr::{
    RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED as NOT_AUTHORIZED,
    RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE as NO_COORDINATOR,
    RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH as INVALID_EPOCH,
    RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR as STORAGE, RD_KAFKA_RESP_ERR_NOT_COORDINATOR as NOT_COORDINATOR,
    RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as NOT_ENOUGH_REPLICAS,
    RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND as NOT_ENOUGH_AFTER_APPEND,
    RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION as NOT_LEADER,
    RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER as OUT_OF_ORDER,
    RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS as REBALANCE, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as TIMED_OUT,
    RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID as UNKNOWN_MEMBER,
    RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID as UNKNOWN_PRODUCER,
};

use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// Number of brokers in the mock cluster: more than one, so that leaders can move.
pub const BROKERS: u8 = 3;
/// Maximum number of partitions of a topic that the fault tries.
const PARTITIONS_MAX: u16 = 64;

/// Errors in answer to produce requests. Some are transient, some are fatal to an idempotent
/// producer.
const PRODUCE: [(&str, ResponseError); 9] = [
    ("not leader", NOT_LEADER),
    ("timed out", TIMED_OUT),
    ("not enough replicas", NOT_ENOUGH_REPLICAS),
    ("not enough replicas after append", NOT_ENOUGH_AFTER_APPEND),
    ("storage error", STORAGE),
    ("out of order sequence number", OUT_OF_ORDER),
    ("unknown producer id", UNKNOWN_PRODUCER),
    ("invalid producer epoch", INVALID_EPOCH),
    ("not authorized for the cluster", NOT_AUTHORIZED),
];

/// A fault that makes produce requests fail, some of them fatally for their producer.
#[derive(Debug)]
pub struct ProduceErrors;

#[async_trait]
impl Fault<Stage> for ProduceErrors {
    fn kind(&self) -> FaultKind {
        FaultKind::new("produce-errors").weight(20).lasts(seconds(1)..=seconds(4))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (name, error) = *PRODUCE.choose(rng).ok_or("no error")?;
        let count = rng.random_range(1..=4);
        stage.broker.mock()?.request_errors(ApiKey::Produce, &vec![error; count])?;
        Ok(Injected::new("produce", format!("{count} × {name}")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        Ok(stage.broker.mock()?.forget_errors(ApiKey::Produce)?)
    }
}

/// Errors in answer to consumers' requests.
const CONSUME: [(&str, ApiKey, ResponseError); 6] = [
    ("fetch: not leader", ApiKey::Fetch, NOT_LEADER),
    ("fetch: storage error", ApiKey::Fetch, STORAGE),
    ("offset commit: not coordinator", ApiKey::OffsetCommit, NOT_COORDINATOR),
    ("offset commit: rebalance in progress", ApiKey::OffsetCommit, REBALANCE),
    ("heartbeat: unknown member", ApiKey::Heartbeat, UNKNOWN_MEMBER),
    ("find coordinator: none available", ApiKey::FindCoordinator, NO_COORDINATOR),
];

/// A fault that makes consumers' requests fail.
#[derive(Debug, Default)]
pub struct FetchErrors {
    ordered: Option<ApiKey>,
}

#[async_trait]
impl Fault<Stage> for FetchErrors {
    fn kind(&self) -> FaultKind {
        FaultKind::new("consume-errors").lasts(seconds(1)..=seconds(4))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (name, api, error) = *CONSUME.choose(rng).ok_or("no error")?;
        let count = rng.random_range(1..=4);
        stage.broker.mock()?.request_errors(api, &vec![error; count])?;
        self.ordered = Some(api);
        Ok(Injected::new("consumers", format!("{count} × {name}")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if let Some(api) = self.ordered.take() {
            stage.broker.mock()?.forget_errors(api)?;
        }
        Ok(())
    }
}

/// A fault that moves the leaders of a topic's partitions to other brokers.
#[derive(Debug)]
pub struct LeaderMoves;

#[async_trait]
impl Fault<Stage> for LeaderMoves {
    fn kind(&self) -> FaultKind {
        FaultKind::new("leader-moves")
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let topic = &stage.broker.topics.choose(rng).ok_or("there is no topic")?.name;
        let mock = stage.broker.mock()?;
        let mut moved = Vec::new();
        for partition in 0..PARTITIONS_MAX {
            let leader = rng.random_range(1..=BROKERS);
            // The topic ends at the first partition that does not exist.
            if mock.lead(topic, partition, Some(leader)).is_err() {
                break;
            }
            moved.push(leader.to_string());
        }
        if moved.is_empty() {
            return Err(format!("no partition of {topic} could be moved").into());
        }
        Ok(Injected::new(topic, format!("led by {}", moved.join(" "))))
    }
}

/// A fault that makes one broker answer late. The broker leads one or two partitions. Requests for
/// these get no answer, and the other partitions continue. To clients a partition without a leader
/// would look the same, but the mock cluster's program ends when a record for such a partition
/// arrives (librdkafka 2.12).
#[derive(Debug)]
pub struct SilentPartition;

/// Delay of answers. They arrive after the end of the fault.
const SILENCE: Duration = Duration::from_secs(20);

#[async_trait]
impl Fault<Stage> for SilentPartition {
    fn kind(&self) -> FaultKind {
        FaultKind::new("silent-partition").lasts(seconds(4)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let topic = &stage.broker.topics.choose(rng).ok_or("there is no topic")?.name;
        let mock = stage.broker.mock()?;
        let silent = rng.random_range(1..=2);
        for partition in 0..PARTITIONS_MAX {
            let leader = if partition < silent { BROKERS } else { rng.random_range(1..BROKERS) };
            // The topic ends at the first partition that does not exist.
            if mock.lead(topic, partition, Some(leader)).is_err() {
                break;
            }
        }
        mock.answer_late(BROKERS, SILENCE)?;
        Ok(Injected::new(topic, format!("{silent} partitions do not answer")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        Ok(stage.broker.mock()?.answer_late(BROKERS, Duration::ZERO)?)
    }
}
