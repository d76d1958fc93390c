//! A producer and a consumer whose facts and effects can be counted.
//!
//! Placing an order raises the counter of its key, writes the order and enqueues the message, all
//! in one transaction. The row lock of the counter makes the numbers of a key ascend in commit
//! order. The consumer writes one effect per message, into a table that accepts duplicates.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
use message::{Delivery, MessageId, Settlement, Subscription};
use outbox::{NewMessage, Outbox};
use serde_json::json;
use sqlx::Transaction;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backends::Backend;
use crate::brokers::Broker;
use crate::databases::{Database, Dialect};
use crate::eventually::eventually;
use crate::facts::{Fact, exactly_once};
use crate::roles::Role;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Maximum deliveries of a receive.
const BATCH: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
/// Interval at which the consumer extends its unsettled deliveries: well below the shortest
/// visibility timeout.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(100);

/// `IDENTITY` stands for the dialect's ascending number. Effects are read in its order.
const TABLES: &str = "\
CREATE TABLE counter (key TEXT PRIMARY KEY, seq BIGINT NOT NULL);
CREATE TABLE placed (key TEXT NOT NULL, seq BIGINT NOT NULL);
CREATE TABLE effect (n IDENTITY PRIMARY KEY, fact TEXT NOT NULL);
CREATE TABLE repeated (n IDENTITY PRIMARY KEY, fact TEXT NOT NULL);";

/// A service that places orders, and a service that applies them.
pub struct Workload<DB: Dialect> {
    /// Orders, outbox, inbox and effects.
    pub database: Database<DB>,
    /// The topic of the orders.
    pub topic: String,
    /// The broker between the two services.
    pub broker: Arc<dyn Broker>,
    outbox: Outbox<DB>,
}

impl<DB: Dialect> Clone for Workload<DB> {
    fn clone(&self) -> Self {
        Self {
            database: self.database.clone(),
            topic: self.topic.clone(),
            broker: Arc::clone(&self.broker),
            outbox: self.outbox.clone(),
        }
    }
}

impl<DB: Dialect> Workload<DB> {
    /// Opens a workload with its own database and topic.
    ///
    /// # Errors
    /// The database or the broker refused or is unavailable.
    pub async fn open(stage: &Stage, broker: Arc<dyn Broker>) -> Result<Self, Failure> {
        let database = Database::<DB>::migrated(stage).await?;
        Self::on(database, broker).await
    }

    /// Opens a workload on this database, with its own topic.
    ///
    /// # Errors
    /// The database or the broker refused or is unavailable.
    pub async fn on(database: Database<DB>, broker: Arc<dyn Broker>) -> Result<Self, Failure> {
        let topic = broker.topic_name("orders");
        broker.create_topic(&topic).await?;
        let identity = if DB::BACKEND == Backend::Sqlite { "INTEGER" } else { "BIGSERIAL" };
        database.execute(&TABLES.replace("IDENTITY", identity)).await?;
        database.let_use(Role::Producer, "counter, placed").await?;
        database.let_use(Role::Consumer, "effect, repeated").await?;
        // A test may enqueue more than any broker accepts, on purpose.
        let limit = message::SizeLimit { destination: "the test", message_bytes_max: 64 << 20 };
        let outbox = Outbox::builder().limit(limit).build();
        Ok(Self { database, topic, broker, outbox })
    }

    /// Returns the producer's outbox.
    #[must_use]
    pub fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Places an order in this transaction: takes the next number of its key and enqueues its
    /// message.
    ///
    /// # Errors
    /// A statement or the outbox failed.
    pub async fn place_in(&self, tx: &mut Transaction<'_, DB>, key: &str) -> Result<Fact, Failure> {
        let seq = self.next(tx, key).await?;
        self.outbox.enqueue(tx, self.message(key, seq)).await?;
        Ok(Fact::new(key, seq))
    }

    /// As [`place_in`](Self::place_in), with `padding` additional bytes of payload. Returns the id
    /// and the payload of the message.
    ///
    /// # Errors
    /// A statement or the outbox failed.
    pub async fn place_large_in(
        &self,
        tx: &mut Transaction<'_, DB>,
        key: &str,
        padding: usize,
    ) -> Result<(MessageId, Vec<u8>), Failure> {
        let seq = self.next(tx, key).await?;
        let payload = serde_json::to_vec(&json!({ "key": key, "seq": seq, "padding": "x".repeat(padding) }))?;
        let message = self.message(key, seq).payload(payload.clone());
        Ok((self.outbox.enqueue(tx, message).await?.message_id(), payload))
    }

    /// Takes the next number of a key and records the order.
    async fn next(&self, tx: &mut Transaction<'_, DB>, key: &str) -> Result<i64, Failure> {
        let next = format!(
            "INSERT INTO counter (key, seq) VALUES ('{key}', 1) \
             ON CONFLICT (key) DO UPDATE SET seq = counter.seq + 1 RETURNING seq"
        );
        let seq = *<DB as Dialect>::integers(tx, &next).await?.first().ok_or("the counter gave no number")?;
        <DB as Dialect>::execute(tx, &format!("INSERT INTO placed VALUES ('{key}', {seq})")).await?;
        Ok(seq)
    }

    /// Returns the message of an order.
    pub fn message(&self, key: &str, seq: i64) -> NewMessage {
        let payload = json!({ "key": key, "seq": seq });
        NewMessage::new(&self.topic).key(key).kind("order.placed").json(&payload)
    }

    /// Places one order in a separate transaction.
    ///
    /// # Errors
    /// A statement or the outbox failed.
    pub async fn place(&self, key: &str) -> Outcome {
        let mut tx = self.begin().await?;
        self.place_in(&mut tx, key).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Places orders one by one, taking the keys in turn.
    ///
    /// # Errors
    /// A statement or the outbox failed.
    pub async fn place_many(&self, keys: usize, orders: usize) -> Outcome {
        for number in 0..orders {
            self.place(&format!("key-{}", number % keys)).await?;
        }
        Ok(())
    }

    /// Begins a transaction that may write.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn begin(&self) -> Result<Transaction<'static, DB>, Failure> {
        let statement = if DB::BACKEND == Backend::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
        Ok(self.database.producer.begin_with(statement).await?)
    }

    /// Starts a consumer of the topic. It ends when it is dropped or stopped.
    ///
    /// # Errors
    /// The inbox could not be opened.
    pub async fn consume(&self) -> Result<Consumer, Failure> {
        let inbox = Inbox::open(self.database.consumer.clone(), InboxOptions::default()).await?;
        let (stop, stopped) = watch::channel(false);
        let work = Work {
            inbox,
            consumer: ConsumerName::new("workload")?,
            broker: Arc::clone(&self.broker),
            topic: self.topic.clone(),
            stopped,
        };
        Ok(Consumer { stop, task: tokio::spawn(work.run()) })
    }

    /// Waits until every placed order has an effect. Then checks that each has exactly one, in
    /// order, and that nothing else has an effect.
    ///
    /// # Errors
    /// The checker found a violation, or some order had no effect in time.
    pub async fn settled(&self) -> Outcome {
        let waited = eventually("every order took effect", || async {
            let placed = self.database.integer("SELECT count(*) FROM placed").await?;
            let effects = self.database.integer("SELECT count(DISTINCT fact) FROM effect").await?;
            Ok((effects >= placed).then_some(()))
        });
        let waited = waited.await;
        exactly_once(&self.placed().await?, &self.effects().await?, self.broker.order())?;
        waited
    }

    /// Waits until there are at least `at_least` effects.
    ///
    /// # Errors
    /// They do not come in time.
    pub async fn applied(&self, at_least: i64) -> Outcome {
        eventually(&format!("{at_least} effects"), || async {
            let effects = self.database.integer("SELECT count(*) FROM effect").await?;
            Ok((effects >= at_least).then_some(()))
        })
        .await
    }

    /// Returns how often the consumer received a message that already had its effect.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn repeated(&self) -> Result<i64, Failure> {
        self.database.integer("SELECT count(*) FROM repeated").await
    }

    /// Returns the committed orders.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn placed(&self) -> Result<Vec<Fact>, Failure> {
        let rows = self.database.texts("SELECT key || '#' || seq FROM placed").await?;
        rows.iter().map(|row| parse(row)).collect()
    }

    /// Returns the orders that took effect, in the order of their effects.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn effects(&self) -> Result<Vec<Fact>, Failure> {
        let rows = self.database.texts("SELECT fact FROM effect ORDER BY n").await?;
        rows.iter().map(|row| parse(row)).collect()
    }
}

fn parse(text: &str) -> Result<Fact, Failure> {
    let (key, seq) = text.rsplit_once('#').ok_or("a fact without a number")?;
    Ok(Fact::new(key, seq.parse()?))
}

/// A running consumer. It ends when this is dropped.
pub struct Consumer {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Consumer {
    /// Stops the consumer between two deliveries, and waits until it has ended.
    ///
    /// # Errors
    /// The consumer panicked.
    pub async fn stop(self) -> Outcome {
        self.stop.send_replace(true);
        Ok(self.task.await?)
    }
}

struct Work<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: ConsumerName,
    broker: Arc<dyn Broker>,
    topic: String,
    stopped: watch::Receiver<bool>,
}

impl<DB: Dialect> Work<DB> {
    /// Runs until it is stopped. Subscribes again after every failure, since tests restart the
    /// broker and the database.
    async fn run(self) {
        while !self.is_stopped() {
            if let Err(failure) = self.session().await {
                tracing::info!("the consumer begins anew: {failure}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow() || self.stopped.has_changed().is_err()
    }

    async fn session(&self) -> Outcome {
        let mut subscription = self.broker.join("workload", &self.topic).await?;
        let consumed = self.consume(subscription.as_mut()).await;
        // Another session of a queue must not begin before the broker has ended this one.
        let closed = subscription.close().await;
        consumed?;
        Ok(closed?)
    }

    async fn consume(&self, subscription: &mut dyn Subscription) -> Outcome {
        while !self.is_stopped() {
            let deliveries = subscription.receive(BATCH, WAIT).await?;
            let mut told = Instant::now();
            for (at, delivery) in deliveries.iter().enumerate() {
                self.apply(subscription, delivery).await?;
                // On a busy machine the broker would otherwise redeliver the rest of a batch, which
                // would count as repeated.
                if told.elapsed() > KEEP_ALIVE {
                    let rest: Vec<_> = deliveries[at + 1..].iter().map(|delivery| delivery.token).collect();
                    subscription.keep_alive(&rest).await?;
                    told = Instant::now();
                }
            }
        }
        Ok(())
    }

    async fn apply(&self, subscription: &mut dyn Subscription, delivery: &Delivery) -> Outcome {
        let message = delivery.message.as_ref().map_err(|malformed| malformed.problem.clone())?;
        let order: serde_json::Value = serde_json::from_slice(&message.payload)?;
        let (key, seq) = (order["key"].as_str().ok_or("an order without a key")?, &order["seq"]);
        let mut tx = self.inbox.begin().await?;
        let table = match tx.admit(&self.consumer, &Tenant::none(), message).await? {
            Admission::Fresh(_) => "effect",
            Admission::Duplicate(_) => "repeated",
        };
        <DB as Dialect>::execute(&mut tx, &format!("INSERT INTO {table} (fact) VALUES ('{key}#{seq}')"))
            .await?;
        for proof in tx.commit().await? {
            subscription.settle(vec![Settlement::done(delivery, proof)?]).await?;
        }
        Ok(())
    }
}
