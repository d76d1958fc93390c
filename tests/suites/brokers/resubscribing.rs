//! A RabbitMQ queue with one consumer, which drops its session and subscribes again: the order of a
//! key without `x-single-active-consumer`.

use std::time::Duration;

use ::brokers::rabbitmq::{Admin, Config, Connector, QueueOptions, Subscriber};
use conformance::consuming::{receive, settle};
use conformance::{relaying, sample};
use message::{Delivery, MessageId, Subscription};
use proxy::{Flow, Pass, Proxy};
use tests::{Backend, Failure, Outcome, Stage, brokers, eventually};

tests::cases! { "resubscribing/{on}/{case}":
    rabbitmq {
        a_dropped_session_keeps_the_order_of_a_key = dropped,
        a_dropped_attempt_keeps_the_order_of_a_key = attempted,
    }
}

const MESSAGES: i64 = 20;
/// Fewer than the messages, so that there are later ones.
const PREFETCH: u16 = 5;
/// How long the goodbye of a session is on its way: less than the client waits for its answer.
const GOODBYE: Duration = Duration::from_millis(300);
/// How long an answer takes while an attempt is dropped.
const SLOW: Duration = Duration::from_millis(100);

/// A queue with messages of one key, and a consumer with two ways to the broker.
struct Scene {
    /// The way of the first session.
    first: Proxy,
    /// The configuration of a client with the other way.
    direct: Config,
    queue: String,
    subscriber: Subscriber,
    sent: Vec<MessageId>,
}

impl Scene {
    async fn open(stage: &Stage, is_quorum: bool) -> Result<Self, Failure> {
        let address = Backend::Rabbitmq.address()?;
        let (_, server) = address.rsplit_once('@').ok_or("an address without a user")?;
        let server = server.split('/').next().unwrap_or(server);
        let first = Proxy::start(0, server).await?;
        let mut both =
            brokers::patient_rabbitmq(&address.replace(server, &format!("{},{server}", first.address())));
        both.prefetch = PREFETCH;
        let direct = brokers::patient_rabbitmq(&address);
        let queue = stage.unique(if is_quorum { "quorum" } else { "classic" });
        let options = QueueOptions::default().quorum(is_quorum);
        brokers::create_rabbitmq_queue(stage, &direct, &queue, options).await?;
        let messages = sample::orders(&queue, 1, MESSAGES)?;
        let sent = relaying::send(&Connector::new(&direct)?, &messages).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        let sent = messages.iter().map(|message| message.id).collect();
        Ok(Self { first, direct, subscriber: Subscriber::new(&both, [queue.clone()])?, queue, sent })
    }

    /// Holds everything that the client sends on the first way from now on. New sessions go the
    /// other way.
    fn hold(&self) {
        self.first.change(|conditions| {
            conditions.requests.pass = Pass::Hold;
            conditions.refuse = true;
        });
    }

    /// Subscribes again while the goodbye on the first way is held, and handles all messages from
    /// the `settled`th on.
    async fn subscribe_again(&self, settled: usize) -> Outcome {
        let arriving = async {
            tokio::time::sleep(GOODBYE).await;
            self.first.change(|conditions| conditions.requests = Flow::default());
        };
        let (member, ()) = tokio::join!(self.subscriber.subscribe(), arriving);
        let mut member: Box<dyn Subscription> = member?;
        let mut handled = Vec::new();
        while handled.len() < self.sent.len() - settled {
            let deliveries = receive(&mut member, 1).await?;
            settle(&mut member, &deliveries).await?;
            handled.extend(deliveries.iter().filter_map(Delivery::id));
        }
        assert_eq!(handled, self.sent[settled..]);
        Ok(member.close().await?)
    }
}

/// Goal: a consumer that drops its session, because it lost its database or one of its queues, and
/// subscribes again at once gets its unsettled messages before later ones of their key, although
/// the broker has not heard of the end yet. Oracle: the order in which the messages were sent.
async fn dropped(stage: Stage) -> Outcome {
    for is_quorum in [false, true] {
        let scene = Scene::open(&stage, is_quorum).await?;
        let mut member: Box<dyn Subscription> = scene.subscriber.subscribe().await?;
        let deliveries = receive(&mut member, PREFETCH.into()).await?;
        settle(&mut member, &deliveries[..2]).await?;
        scene.hold();
        drop(member);
        scene.subscribe_again(2).await?;
    }
    Ok(())
}

/// Goal: the same when the attempt to subscribe is dropped after the broker has delivered. Oracle:
/// the broker's count shows the deliveries; the order in which the messages were sent.
async fn attempted(stage: Stage) -> Outcome {
    let scene = Scene::open(&stage, false).await?;
    let admin = Admin::connect(&scene.direct).await?;
    // The broker delivers before its client knows that it consumes.
    scene.first.change(|conditions| conditions.answers.delay = SLOW);
    {
        let delivered = eventually("the broker delivers", async || {
            Ok((i64::from(admin.count(&scene.queue).await?) < MESSAGES).then_some(()))
        });
        let mut delivered = std::pin::pin!(delivered);
        let mut attempt = std::pin::pin!(scene.subscriber.subscribe());
        let member = tokio::select! {
            biased;
            delivered = &mut delivered => { delivered?; None }
            member = &mut attempt => Some(member?),
        };
        if member.is_some() {
            delivered.await?;
        }
        scene.hold();
    }
    admin.close().await;
    scene.subscribe_again(0).await
}
