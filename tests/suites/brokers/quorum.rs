//! Deliveries that a RabbitMQ quorum queue counts. It drops or dead-letters a message that was
//! delivered too often.

use std::sync::Arc;
use std::time::Duration;

use ::brokers::rabbitmq::{Config, QueueOptions, Subscriber};
use async_trait::async_trait;
use harness::plain::rabbitmq::Rabbitmq;
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Shutdown, Tx};
use lapin::options::BasicGetOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use message::{Message, Settlement};
use sqlx::Sqlite;
use tests::brokers::create_rabbitmq_queue;
use tests::{Backend, Broker, Database, Failure, Outcome, Stage, brokers, eventually};
use tokio::sync::Semaphore;

use conformance::consuming::receive;
use conformance::{relaying, sample};

tests::cases! { "quorum/{on}/{case}":
    rabbitmq {
        a_delivery_is_counted_once_however_it_goes_back = once,
        a_graceful_stop_counts_no_delivery_twice = stopped,
    }
}

/// A quorum queue for one test, with messages of one key.
struct Scene {
    broker: Arc<dyn Broker>,
    url: String,
    queue: String,
}

impl Scene {
    async fn open(stage: &Stage, name: &str, messages: i64) -> Result<Self, Failure> {
        let broker = brokers::open(stage, Backend::Rabbitmq).await?;
        let url = std::env::var("OUTBOX_RABBITMQ_URL")?;
        let queue = broker.topic_name(name);
        let options = QueueOptions::default().quorum(true);
        create_rabbitmq_queue(stage, &Config::new(&url), &queue, options).await?;
        let sent =
            relaying::send(broker.connector()?.as_ref(), &sample::orders(&queue, 1, messages)?).await?;
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        Ok(Self { broker, url, queue })
    }

    /// Returns how often each waiting message was delivered before, as its next delivery reports.
    /// It leaves the messages unsettled, which counts as a delivery, so it may be called only once.
    async fn delivered(&self, messages: usize) -> Result<Vec<i64>, Failure> {
        let session = Rabbitmq::new(&self.url).open().await?;
        let channel = &session.channel;
        let counts = &tokio::sync::Mutex::new(Vec::new());
        // The broker notices the end of a session a little later.
        let all = eventually("the messages are back", || async move {
            let (mut counts, queue) = (counts.lock().await, ShortString::try_new(&*self.queue)?);
            while let Some(got) = channel.basic_get(queue.clone(), BasicGetOptions::default()).await? {
                let headers = got.delivery.properties.headers().as_ref().map(FieldTable::inner);
                counts.push(match headers.and_then(|headers| headers.get("x-delivery-count")) {
                    Some(AMQPValue::LongLongInt(count)) => *count,
                    None => 0,
                    Some(other) => return Err(format!("{other:?}").into()),
                });
            }
            Ok((counts.len() >= messages).then(|| counts.clone()))
        });
        all.await
    }
}

/// Goal: find out which ends of a delivery are counted. Oracle: the broker's own count, after the
/// end of a session, a release and a stop.
async fn once(stage: Stage) -> Outcome {
    for (what, expected) in [("closed", 1), ("released-closed", 2), ("stopped-released-closed", 1)] {
        let scene = Scene::open(&stage, what, 1).await?;
        let mut member = scene.broker.join("", &scene.queue).await?;
        let [delivery] = &receive(&mut member, 1).await?[..] else { return Err("more than one".into()) };
        if what.starts_with("stopped") {
            member.stop_receiving().await?;
        }
        if what.contains("released") {
            member.settle(vec![Settlement::release(delivery.token)]).await?;
        }
        if what.starts_with("released") {
            // The broker delivers the message here again, and the end of the session counts that
            // delivery as well.
            receive(&mut member, 1).await?;
        }
        member.close().await?;
        let counts = scene.delivered(1).await?;
        println!("{what}: {counts:?}");
        assert_eq!(counts, [expected], "{what}");
    }
    Ok(())
}

/// Holds the first message until it is allowed to continue.
pub(crate) struct Holds {
    pub(crate) called: Arc<Semaphore>,
    pub(crate) go: Arc<Semaphore>,
}

#[async_trait]
impl Handler<Sqlite> for Holds {
    async fn handle(&self, _: &mut Tx<Sqlite>, _: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        self.called.add_permits(1);
        self.go.acquire().await.map_err(|_| HandlerError::retry("the test is over"))?.forget();
        Ok(None)
    }
}

/// Goal: a deployment costs each prefetched message one delivery, not two. Oracle: the broker's
/// count for each message that is left after a stop in the middle; the message in hand is settled.
async fn stopped(stage: Stage) -> Outcome {
    const MESSAGES: usize = 40;
    let scene = Scene::open(&stage, "stopped", MESSAGES.try_into()?).await?;
    let database = Database::<Sqlite>::migrated(&stage).await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let (called, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let subscriber = Arc::new(Subscriber::new(&Config::new(&scene.url), [scene.queue.clone()])?);
    let consumer = Consumer::builder(inbox, ConsumerName::new("billing")?)
        .subscribe(move || {
            let subscriber = Arc::clone(&subscriber);
            async move { subscriber.subscribe().await }
        })
        .handler(Holds { called: Arc::clone(&called), go: Arc::clone(&go) })
        .prefetch(std::num::NonZeroUsize::new(10).ok_or("zero")?)
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    called.acquire().await?.forget();
    shutdown.graceful.cancel();
    go.add_permits(1);
    tokio::time::timeout(Duration::from_secs(240), running).await???;
    let counts = scene.delivered(MESSAGES - 1).await?;
    assert_eq!(counts.len(), MESSAGES - 1, "the one in hand is settled");
    assert!(counts.contains(&1) && counts.iter().all(|count| *count <= 1), "{counts:?}");
    Ok(())
}
