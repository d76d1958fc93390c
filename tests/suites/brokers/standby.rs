//! Hot standbys of a RabbitMQ queue (`x-single-active-consumer`): the order of a key when the
//! active subscription ends.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use ::brokers::rabbitmq::{Config, Connector, Subscriber};
use conformance::consuming::{WAIT, settle, within};
use conformance::{relaying, sample};
use harness::plain::rabbitmq::Rabbitmq;
use inbox::{Consumer, ConsumerName, Inbox, InboxOptions, Shutdown};
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use message::{MessageId, Subscription};
use sqlx::Sqlite;
use tests::{Backend, Database, Failure, Outcome, Stage, brokers, eventually};
use tokio::sync::Semaphore;

use crate::quorum::Holds;

tests::cases! { "standby/{on}/{case}":
    rabbitmq {
        a_graceful_stop_keeps_the_order_of_a_key = stopped,
        a_dropped_session_keeps_the_order_of_a_key = dropped,
        a_standby_reports_a_backlog_of_others_and_does_not_stall = waiting,
    }
}

const MESSAGES: i64 = 40;
/// Fewer than the messages, so that a standby could get later ones.
const PREFETCH: u16 = 15;
/// How long to watch a standby that must get nothing.
const QUIET: Duration = Duration::from_secs(2);

/// A busy queue with messages of one key, and an idle one.
struct Scene {
    config: Config,
    queues: Vec<String>,
    sent: Vec<MessageId>,
}

impl Scene {
    async fn open(stage: &Stage, kind: &'static str) -> Result<Self, Failure> {
        let mut config = brokers::patient_rabbitmq(&Backend::Rabbitmq.address()?);
        config.prefetch = PREFETCH;
        let queues = ["idle", "busy"].map(|name| stage.unique(&format!("{name}-{kind}"))).to_vec();
        for queue in &queues {
            declare(stage, &config, queue, kind).await?;
        }
        let messages = sample::orders(&queues[1], 1, MESSAGES)?;
        let sent = relaying::send(&Connector::new(&config)?, &messages).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        let sent = messages.iter().map(|message| message.id).collect();
        Ok(Self { config, queues, sent })
    }

    fn subscriber(&self) -> Result<Subscriber, Failure> {
        Ok(Subscriber::new(&self.config, self.queues.clone())?)
    }
}

/// Declares a queue that serves one consumer at a time; it is removed with the stage.
async fn declare(stage: &Stage, config: &Config, queue: &str, kind: &'static str) -> Outcome {
    let session = Rabbitmq::new(Backend::Rabbitmq.address()?).open().await?;
    let mut arguments = FieldTable::default();
    arguments.insert(ShortString::try_new("x-queue-type")?, AMQPValue::LongString(kind.into()));
    arguments.insert(ShortString::try_new("x-single-active-consumer")?, AMQPValue::Boolean(true));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    session.channel.queue_declare(ShortString::try_new(queue)?, durable, arguments).await?;
    brokers::remove_rabbitmq_queue(stage, config, queue);
    Ok(())
}

/// Receives exactly this many messages and settles them. Returns their ids in the order of arrival.
async fn handle(member: &mut Box<dyn Subscription>, count: usize) -> Result<Vec<MessageId>, Failure> {
    let handling = async {
        let mut handled = Vec::new();
        while let Some(left) = NonZeroUsize::new(count - handled.len()) {
            let deliveries = member.receive(left, WAIT).await?;
            handled.extend(deliveries.iter().filter_map(message::Delivery::id));
            settle(member, &deliveries).await?;
        }
        Ok(handled)
    };
    within("the messages are handled", handling).await
}

/// Goal: a standby takes over from a consumer that stops under load, without a message that
/// overtakes an earlier one. Oracle: the order in which the messages were sent; the standby gets
/// nothing while the last handler runs.
async fn stopped(stage: Stage) -> Outcome {
    for kind in ["classic", "quorum"] {
        let scene = Scene::open(&stage, kind).await?;
        let database = Database::<Sqlite>::migrated(&stage).await?;
        let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
        let called = Arc::new(Semaphore::new(0));
        let go = Arc::new(Semaphore::new(0));
        let active = Consumer::builder(inbox, ConsumerName::new("billing")?)
            .subscribe(scene.subscriber()?)
            .handler(Holds { called: Arc::clone(&called), go: Arc::clone(&go) })
            .prefetch(NonZeroUsize::new(5).ok_or("zero")?)
            .build()?;
        let shutdown = Shutdown::new();
        let running = tokio::spawn(active.run(shutdown.clone()));
        called.acquire().await?.forget();
        let mut standby = message::Subscriber::subscribe(&scene.subscriber()?).await?;
        shutdown.graceful.cancel();
        let early = standby.receive(NonZeroUsize::MIN, QUIET).await?;
        assert!(early.is_empty(), "{kind}: the standby got {early:?} while a handler ran");
        go.add_permits(1);
        tokio::time::timeout(Duration::from_secs(240), running).await???;
        let rest = &scene.sent[1..];
        assert_eq!(handle(&mut standby, rest.len()).await?, rest, "{kind}");
        standby.close().await?;
    }
    Ok(())
}

/// Goal: a session that is dropped without a stop (an abort, an error) does not cancel its
/// consumers before its messages are back. Oracle: the order in which the messages were sent.
async fn dropped(stage: Stage) -> Outcome {
    for kind in ["classic", "quorum"] {
        let scene = Scene::open(&stage, kind).await?;
        let mut left = scene.sent.as_slice();
        let mut active = message::Subscriber::subscribe(&scene.subscriber()?).await?;
        while left.len() > usize::from(PREFETCH) {
            assert_eq!(handle(&mut active, 1).await?, left[..1], "{kind}");
            left = &left[1..];
            let standby = message::Subscriber::subscribe(&scene.subscriber()?).await?;
            drop(std::mem::replace(&mut active, standby));
        }
        assert_eq!(handle(&mut active, left.len()).await?, left, "{kind}");
        active.close().await?;
    }
    Ok(())
}

/// Goal: a standby reports the backlog of the active consumer, which may be none of this library
/// and stand still. It does not take it for its own, so it does not stall. Oracle: what both report
/// about the queue.
async fn waiting(stage: Stage) -> Outcome {
    for kind in ["classic", "quorum"] {
        let scene = Scene::open(&stage, kind).await?;
        let mut active = message::Subscriber::subscribe(&scene.subscriber()?).await?;
        let held = active.receive(NonZeroUsize::MIN, WAIT).await?;
        let mut standby = message::Subscriber::subscribe(&scene.subscriber()?).await?;
        let busy = |lag: &message::Lag| lag.topic == scene.queues[1] && lag.messages > 0;
        eventually(kind, async || Ok((standby.is_assigned() == Some(false)).then_some(()))).await?;
        assert!(standby.lag().iter().any(busy), "{kind}: {:?}", standby.lag());
        eventually(kind, async || Ok(active.lag().iter().any(|lag| lag.messages > 0).then_some(()))).await?;
        assert_eq!(active.is_assigned(), None, "{kind}");
        drop(held);
        active.close().await?;
        assert_eq!(standby.receive(NonZeroUsize::MIN, WAIT).await?.len(), 1, "{kind}");
        assert_eq!(standby.is_assigned(), None, "{kind}");
        assert!(standby.lag().iter().any(busy), "{kind}: {:?}", standby.lag());
        standby.close().await?;
    }
    Ok(())
}
