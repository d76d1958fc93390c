//! RabbitMQ: nacks, returned messages, missing confirms.

use std::sync::Arc;
use std::time::Duration;

use brokers::rabbitmq::{Admin, Config, QueueOptions};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use libtest_mimic::Trial;
use proxy::AmqpProxy;
use storm::faults::broker::rabbitmq::{Full, SilentQueue, Unroutable};
use tests::{Backend, Failure, Outcome, Stage, trial};
use url::Url;

use crate::scene::{heal, inject, with_topic};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Backend::Rabbitmq];
    vec![
        trial("rabbitmq/a_full_queue_refuses_and_drains", needs, a_full_queue_refuses_and_drains),
        trial("rabbitmq/an_unbound_topic_comes_back_and_is_restored", needs, an_unbound_topic_comes_back),
        trial(
            "rabbitmq/a_silent_queue_stores_and_confirms_later",
            needs,
            a_silent_queue_stores_and_confirms_later,
        ),
    ]
}

const TOPIC: &str = "orders";
/// Longer than a confirm takes.
const SILENCE: Duration = Duration::from_secs(1);

/// An exchange, an inner exchange, and a queue.
struct Scene {
    stage: storm::stage::Stage,
    channel: Channel,
    admin: Admin,
    exchange: String,
    queue: String,
    _connection: Connection,
}

impl Scene {
    async fn open(test: &Stage) -> Result<Self, Failure> {
        let address = Backend::Rabbitmq.address()?;
        let (exchange, queue) = (test.unique("storm"), test.unique("queue"));
        let inner = format!("{exchange}-inner");
        let admin = Admin::connect(&Config::new(&address)).await?;
        admin.declare_exchange(&exchange).await?;
        admin.declare_exchange(&inner).await?;
        admin.bind_exchange(&inner, &exchange, TOPIC).await?;
        admin.declare_queue(&queue, QueueOptions::default()).await?;
        admin.bind(&queue, &inner, "#").await?;
        let mut stage = with_topic(test, &address, TOPIC);
        stage.broker.exchange = Some(exchange.clone());
        stage.broker.inner_exchange = Some(inner.clone());
        let connection = Connection::connect(&address, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (queues, exchanges) = (queue.clone(), [exchange.clone(), inner]);
        test.afterwards("exchanges and the queue", async move {
            let admin = Admin::connect(&Config::new(&address)).await?;
            admin.delete_queue(&queues).await?;
            for exchange in &exchanges {
                admin.delete_exchange(exchange).await?;
            }
            admin.close().await;
            Ok(())
        });
        Ok(Self { stage, channel, admin, exchange, queue, _connection: connection })
    }

    async fn publish(&self) -> Result<Confirmation, Failure> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = BasicProperties::default();
        let (exchange, topic) = (self.exchange.as_str().into(), TOPIC.into());
        Ok(self.channel.basic_publish(exchange, topic, options, b"x", properties).await?.await?)
    }
}

async fn a_full_queue_refuses_and_drains(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    let mut fault = Full::default();
    heal(&mut fault, &scene.stage).await?;
    let injected = inject(&mut fault, &scene.stage, 1).await?;
    let mut published = 0;
    while let Confirmation::Ack(None) = scene.publish().await? {
        published += 1;
        assert!(published <= 20, "{injected}");
    }
    assert!(matches!(scene.publish().await?, Confirmation::Nack(_)), "{injected}");
    assert!(scene.admin.count(&scene.queue).await? > published, "a refused message is in the other queue");
    heal(&mut fault, &scene.stage).await?;
    assert!(matches!(scene.publish().await?, Confirmation::Ack(None)));
    Ok(())
}

async fn an_unbound_topic_comes_back(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    assert!(matches!(scene.publish().await?, Confirmation::Ack(None)));
    let mut fault = Unroutable::default();
    heal(&mut fault, &scene.stage).await?;
    inject(&mut fault, &scene.stage, 1).await?;
    assert!(matches!(scene.publish().await?, Confirmation::Ack(Some(_))), "it was not returned");
    heal(&mut fault, &scene.stage).await?;
    assert!(matches!(scene.publish().await?, Confirmation::Ack(None)));
    assert_eq!(scene.admin.count(&scene.queue).await?, 2);
    Ok(())
}

async fn a_silent_queue_stores_and_confirms_later(test: Stage) -> Outcome {
    let mut scene = Scene::open(&test).await?;
    let url = Url::parse(&scene.stage.broker.address)?;
    let server = url.host_str().zip(url.port()).ok_or("RabbitMQ has no host and port")?;
    let confirms = Arc::new(AmqpProxy::start(format!("{}:{}", server.0, server.1), TOPIC).await?);
    let proxied = format!("amqp://guest:guest@{}/%2f", confirms.address());
    scene.stage.broker.confirms = Some(confirms);
    let connection = Connection::connect(&proxied, ConnectionProperties::default()).await?;
    scene.channel = connection.create_channel().await?;
    scene.channel.confirm_select(ConfirmSelectOptions::default()).await?;
    assert!(matches!(scene.publish().await?, Confirmation::Ack(None)));
    let mut fault = SilentQueue;
    heal(&mut fault, &scene.stage).await?;
    inject(&mut fault, &scene.stage, 1).await?;
    let mut publishing = std::pin::pin!(scene.publish());
    let silent = tokio::time::timeout(SILENCE, &mut publishing).await;
    assert!(silent.is_err(), "it was confirmed");
    assert_eq!(scene.admin.count(&scene.queue).await?, 2, "it was not stored");
    heal(&mut fault, &scene.stage).await?;
    assert!(matches!(publishing.await?, Confirmation::Ack(None)));
    Ok(())
}
