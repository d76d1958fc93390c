//! Tables and topics of sagas, and the relay's pipeline that carries their messages.

use brokers::{kafka, rabbitmq, sqs};
use migrations::{Line, Migrator};

use super::{Plot, RETRY_MAX};
use crate::Failure;
use crate::consume::sqs_config;
use crate::pair::BrokerKind;
use crate::sagas::{REPLIES, SHIPPING, Shop, create_bank, create_shop};
use crate::stage::{Broker, Stage};

/// The relay's name for the sagas' outbox.
pub(super) const PIPELINE: &str = "sagas";

/// Creates the tables of the sagas, with an outbox and an inbox, and those of the bank.
pub(super) async fn make_tables<DB: Shop>(
    sagas: &mut DB::Connection,
    bank: &mut DB::Connection,
) -> Result<(), Failure> {
    for line in [Line::Outbox, Line::Inbox, Line::Saga] {
        Migrator::<DB>::new(line).up(sagas).await?;
    }
    create_shop::<DB>(sagas).await?;
    create_bank::<DB>(bank).await
}

/// Returns the topics and their consumers. Faults that break a topic exclude these topics, because
/// sagas wait for a reply as long as necessary.
fn readers(plot: &Plot) -> [(String, &'static str); 2] {
    let topics = plot.saga_topics();
    [(topics.ship, SHIPPING), (topics.replies, REPLIES)]
}

/// Returns the RabbitMQ exchange of the sagas.
pub(super) fn exchange(plot: &Plot) -> String {
    format!("{}-sagas", plot.name)
}

/// Creates topics and queues.
pub(super) async fn make_topics(plot: &Plot, broker: &Broker) -> Result<(), Failure> {
    match plot.pair.broker {
        BrokerKind::Kafka => {
            let admin = kafka::Admin::new(&kafka::Config::new([&broker.address]))?;
            let partitions = plot.pair.broker.partitions();
            let plans = readers(plot).map(|(topic, _)| kafka::TopicPlan::new(&topic, partitions));
            admin.create_topics(&plans).await?;
        }
        BrokerKind::Http => {}
        BrokerKind::MockKafka => {
            let mock = broker.mock()?;
            for (topic, _) in readers(plot) {
                mock.create_topic(&topic, plot.pair.broker.partitions())?;
            }
        }
        BrokerKind::Rabbitmq => {
            let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(&broker.address)).await?;
            let exchange = exchange(plot);
            admin.declare_exchange(&exchange).await?;
            for (topic, reader) in readers(plot) {
                let queue = super::broker::queue(plot, reader);
                admin.declare_queue(&queue, rabbitmq::QueueOptions::default()).await?;
                admin.bind(&queue, &exchange, &topic).await?;
            }
            admin.close().await;
        }
        BrokerKind::Sqs | BrokerKind::SqsFifo => {
            let admin = sqs::Admin::connect(&sqs_config(&broker.address)).await?;
            for (topic, _) in readers(plot) {
                admin.create_queue(&topic).await?;
            }
        }
    }
    Ok(())
}

/// Removes topics and queues.
pub(super) async fn remove_topics(plot: &Plot, stage: &Stage) -> Result<(), Failure> {
    let address = &stage.broker.address;
    match plot.pair.broker {
        BrokerKind::Kafka => {
            let [ship, replies] = readers(plot).map(|(topic, _)| topic);
            let admin = kafka::Admin::new(&kafka::Config::new([address]))?;
            admin.delete_topics(&[&ship, &replies]).await?;
        }
        BrokerKind::MockKafka | BrokerKind::Http => {}
        BrokerKind::Rabbitmq => {
            let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(address)).await?;
            for (_, reader) in readers(plot) {
                admin.delete_queue(&super::broker::queue(plot, reader)).await?;
            }
            admin.delete_exchange(&exchange(plot)).await?;
            admin.close().await;
        }
        BrokerKind::Sqs | BrokerKind::SqsFifo => {
            let admin = sqs::Admin::connect(&sqs_config(address)).await?;
            for (topic, _) in readers(plot) {
                admin.delete_queue(&topic).await?;
            }
        }
    }
    Ok(())
}

/// Returns the engine settings of the sagas' pipeline. Its messages are retried practically
/// forever.
pub(super) fn engine() -> String {
    let (lease, retry) = (super::LEASE.as_secs(), RETRY_MAX.as_secs());
    format!(
        "[pipeline.engine]\nlease_ttl = \"{lease}s\"\nretry_initial = \"50ms\"\nretry_max = \"{retry}s\"\n\
         attempts_max = 100000\nshutdown_grace = \"5s\"\n"
    )
}
