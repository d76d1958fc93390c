//! Kafka: topics that accept only small messages, and members that come and go.

use std::time::Duration;

use brokers::kafka::{Admin, Config, TopicPlan};
use libtest_mimic::Trial;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord};
use storm::faults::broker::kafka::Oversize;
use storm::faults::broker::members::GroupRebalances;
use tests::{Backend, Outcome, Stage, trial};

use crate::scene::{heal, inject, until, with_topic};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Backend::Kafka];
    vec![
        trial("kafka/a_topic_refuses_what_it_took_before", needs, a_topic_refuses),
        trial("kafka/a_member_joins_a_group_and_leaves_it", needs, a_member_joins_and_leaves),
    ]
}

async fn a_topic_refuses(test: Stage) -> Outcome {
    let address = Backend::Kafka.address()?;
    let topic = test.unique("oversize");
    let admin = Admin::new(&Config::new([&address]))?;
    admin.create_topics(&[TopicPlan::new(&topic, 1)]).await?;
    let removed = topic.clone();
    test.afterwards("the topic", async move { Ok(admin.delete_topics(&[&removed]).await?) });
    let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", &address).create()?;
    let payload = "x".repeat(2_000);
    let send = async || {
        let record = FutureRecord::<(), _>::to(&topic).payload(&payload);
        producer.send(record, Duration::ZERO).await.map(drop).map_err(|(error, _)| error)
    };
    send().await?;
    let stage = with_topic(&test, &address, &topic);
    let mut fault = Oversize::default();
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    // Brokers apply new settings with a short delay.
    let refusal = KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge);
    until("it is refused", async || Ok((send().await == Err(refusal.clone())).then_some(()))).await?;
    heal(&mut fault, &stage).await?;
    until("it is taken again", async || Ok(send().await.ok())).await
}

async fn a_member_joins_and_leaves(test: Stage) -> Outcome {
    let address = Backend::Kafka.address()?;
    let topic = test.unique("members");
    let admin = Admin::new(&Config::new([&address]))?;
    admin.create_topics(&[TopicPlan::new(&topic, 2)]).await?;
    let removed = topic.clone();
    test.afterwards("the topic", async move { Ok(admin.delete_topics(&[&removed]).await?) });
    let mut stage = with_topic(&test, &address, &topic);
    stage.broker.groups = vec![topic.clone()];
    let mut fault = GroupRebalances::default();
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    until("it has had partitions twice", async || Ok((fault.joined() >= 2).then_some(()))).await?;
    heal(&mut fault, &stage).await?;
    assert_eq!(fault.joined(), 0);
    Ok(())
}
