//! Topics, exchanges, queues.

use std::sync::Arc;

use brokers::kafka::mock::Mock;
use brokers::{kafka, rabbitmq, sqs};
use proxy::AmqpProxy;

use super::addresses::host_and_port;
use super::{Plot, Servers};
use crate::Failure;
use crate::consume::sqs_config;
use crate::faults::broker::mock::BROKERS;
use crate::faults::broker::{http, sqs::Gateway};
use crate::journal::Journal;
use crate::pair::BrokerKind;
use crate::stage::{Broker, Topic};

/// Creates the topics, exchanges and queues to which messages are published, except the topic that
/// leads nowhere.
pub(super) async fn make(plot: &Plot, servers: &Servers) -> Result<Broker, Failure> {
    let topic = plot.topics().main;
    let broker = |address: String, queues: Vec<String>| Broker {
        address,
        topics: vec![Topic { name: topic.clone(), queues }],
        groups: plot.consumers().map(|consumer| plot.group(consumer)).into(),
        exchange: None,
        inner_exchange: None,
        gateway: None,
        endpoint: None,
        confirms: None,
        topic_reader: None,
        mock: None,
    };
    match plot.pair.broker {
        BrokerKind::Kafka => {
            let address = servers.kafka()?.to_owned();
            let admin = kafka::Admin::new(&kafka::Config::new([&address]))?;
            admin.create_topics(&[kafka::TopicPlan::new(&topic, plot.pair.broker.partitions())]).await?;
            Ok(broker(address, Vec::new()))
        }
        BrokerKind::MockKafka => {
            let mock = Mock::start(BROKERS)?;
            mock.create_topic(&topic, plot.pair.broker.partitions())?;
            let address = mock.bootstrap_servers().join(",");
            Ok(Broker { mock: Some(Arc::new(mock)), ..broker(address, Vec::new()) })
        }
        BrokerKind::Rabbitmq => {
            let address = servers.rabbitmq()?.to_string();
            let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(&address)).await?;
            let inner = inner_exchange(plot);
            admin.declare_exchange(&plot.name).await?;
            admin.declare_exchange(&inner).await?;
            admin.bind_exchange(&inner, &plot.name, &topic).await?;
            let topic_reader = format!("{}-topic_reader", plot.name);
            let queues: Vec<String> = plot.consumers().map(|consumer| queue(plot, consumer)).into();
            for queue in queues.iter().chain([&topic_reader]) {
                admin.declare_queue(queue, rabbitmq::QueueOptions::default()).await?;
                admin.bind(queue, &inner, &topic).await?;
            }
            admin.close().await;
            let confirms = AmqpProxy::start(host_and_port(servers.rabbitmq()?)?, topic.as_str()).await?;
            Ok(Broker {
                exchange: Some(plot.name.clone()),
                inner_exchange: Some(inner),
                confirms: Some(Arc::new(confirms)),
                topic_reader: Some(topic_reader),
                ..broker(address, queues)
            })
        }
        BrokerKind::Sqs | BrokerKind::SqsFifo => {
            let address = servers.sqs()?.as_str().trim_end_matches('/').to_owned();
            sqs::Admin::connect(&sqs_config(&address)).await?.create_queue(&topic).await?;
            let gateway = Gateway::start(host_and_port(servers.sqs()?)?).await?;
            gateway.write_to(Journal::open(&plot.file("gateway.journal"))?);
            Ok(Broker { gateway: Some(Arc::new(gateway)), ..broker(address, vec![topic.clone()]) })
        }
        BrokerKind::Http => {
            let gateway = http::Gateway::start().await?;
            let address = format!("http://{}", gateway.address());
            Ok(Broker { endpoint: Some(Arc::new(gateway)), ..broker(address, Vec::new()) })
        }
    }
}

/// Returns the exchange to which RabbitMQ's queues are bound.
fn inner_exchange(plot: &Plot) -> String {
    format!("{}-inner", plot.name)
}

/// Returns the name of a consumer's RabbitMQ queue.
pub(super) fn queue(plot: &Plot, consumer: &str) -> String {
    format!("{}-{consumer}", plot.name)
}

/// Removes everything that [`make`] created.
pub(super) async fn remove(plot: &Plot, stage: &crate::stage::Stage) -> Result<(), Failure> {
    let broker = &stage.broker;
    match plot.pair.broker {
        BrokerKind::Kafka => {
            let admin = kafka::Admin::new(&kafka::Config::new([&broker.address]))?;
            admin.delete_topics(&[&plot.topics().main]).await?;
        }
        BrokerKind::MockKafka | BrokerKind::Http => {}
        BrokerKind::Rabbitmq => {
            let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(&broker.address)).await?;
            for queue in broker.topics.iter().flat_map(|topic| &topic.queues).chain(&broker.topic_reader) {
                admin.delete_queue(queue).await?;
            }
            admin.delete_exchange(&plot.name).await?;
            admin.delete_exchange(&inner_exchange(plot)).await?;
            admin.close().await;
        }
        BrokerKind::Sqs | BrokerKind::SqsFifo => {
            let admin = sqs::Admin::connect(&sqs_config(&broker.address)).await?;
            admin.delete_queue(&plot.topics().main).await?;
        }
    }
    Ok(())
}
