//! A database server whose clock is wrong by days for a while.

mod relay;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{
    Admission, AfterDeadLetter, Backoff, Cause, Consumer, ConsumerName, Gathered, Handler, HandlerError,
    Inbox, InboxOptions, Reason, RunError, Shutdown, Tenant, Tx,
};
use message::{
    Delivery, DeliveryToken, EventType, Fingerprint, Message, OrderingKey, PayloadEncoding, SizeLimit,
    Splitter, Topic,
};
use outbox::Outbox;
use saga::{Retry, Run, Sagas, StepError, Stop, WorkerOptions};
use sqlx::Postgres;
use tests::eventually::when;
use tests::{Cluster, Database, Failure, Outcome, Stage, eventually};
use tokio::task::JoinHandle;

use crate::inbox::broker::Broker;
use crate::inbox::message_of;

const DAY: i64 = 86_400;

tests::cases! { "clocks/{on}/{case}":
    night postgres + xtask {
        a_server_that_was_days_ahead_has_forgotten_nothing = days_ahead,
        a_server_that_is_days_ahead_ends_no_wait = waits,
        a_server_whose_clock_steps_back_keeps_every_backoff = steps_back,
    }
    modules { relay }
}

/// The three parts of one process that remember: inbox, keys and sagas.
struct Memories {
    inbox: Inbox<Postgres>,
    keys: IdempotencyKeys<Postgres>,
    sagas: Sagas<Postgres>,
}

impl Memories {
    async fn open(database: &Database<Postgres>) -> Result<Self, Failure> {
        let saga = async |saga: &mut Run<Postgres>, cents: i64| {
            let paid: i64 = saga.step("pay", async |_| Ok(cents)).await?;
            Ok(paid)
        };
        Ok(Self {
            inbox: Inbox::open(database.consumer.clone(), InboxOptions::default()).await?,
            keys: IdempotencyKeys::open(database.service.clone(), KeyOptions::default()).await?,
            sagas: Sagas::builder(database.service.clone(), Outbox::new())
                .saga("checkout", 1, saga)
                .open()
                .await?,
        })
    }

    /// Runs everything that forgets, and everything that prepares coming days.
    async fn maintain(&self) -> Outcome {
        // Part of it may fail while the clock is wrong, but it must lose nothing.
        drop(self.inbox.maintain().await);
        self.keys.maintain().await?;
        self.sagas.forget().await?;
        Ok(())
    }

    /// Returns whether the message is new to the inbox, and records it.
    async fn is_new(&self, message: &Message) -> Result<bool, Failure> {
        let mut tx = self.inbox.begin().await?;
        let admission = tx.admit(&ConsumerName::new("billing")?, &Tenant::none(), message).await?;
        let is_new = matches!(admission, Admission::Fresh(_));
        drop(tx.commit().await?);
        Ok(is_new)
    }

    /// Keeps the first chunk of a message.
    async fn keep_a_chunk(&self) -> Outcome {
        let whole = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, "x".repeat(5_000));
        let limit = SizeLimit { destination: "the test", message_bytes_max: 2_000 };
        let splitter = Splitter { limit, encoding: PayloadEncoding::Raw, chunked_bytes_max: 1 << 20 };
        let chunks = splitter.split(&whole)?.ok_or("it is larger than the limit")?;
        let mut tx = self.inbox.begin().await?;
        let gathered = tx.gather(&ConsumerName::new("billing")?, &Tenant::none(), &chunks[0]).await?;
        assert!(matches!(gathered, Gathered::Kept { held: 1, .. }), "{gathered:?}");
        drop(tx.commit().await?);
        Ok(())
    }

    /// Returns whether the request was free, and completes it.
    async fn is_free(&self) -> Result<bool, Failure> {
        let id = KeyId::of_texts("tenant-1", "charge", "order-7")?;
        let fingerprint = Fingerprint::of_parts("charge", "", b"1250");
        match self.keys.claim(&id, fingerprint, &ClaimOptions::default()).await? {
            Claimed::Acquired(claim) => {
                claim.complete(Ending::Succeeded, b"charged").await?;
                Ok(true)
            }
            Claimed::Replay(_) => Ok(false),
            other => Err(format!("{other:?}").into()),
        }
    }
}

async fn set_clock(cluster: &Cluster, database: &Database<Postgres>, seconds: i64) -> Outcome {
    cluster.set_clock(seconds)?;
    let off = "SELECT (extract(epoch FROM clock_timestamp()))::bigint";
    eventually("the server's clock has moved", || async {
        let here = time::OffsetDateTime::now_utc().unix_timestamp();
        Ok(when((database.integer(off).await? - here - seconds).abs() < 60))
    })
    .await?;
    // Each session reads the file once a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

fn order() -> Result<Message, Failure> {
    Ok(Message::new(Topic::new("orders")?, EventType::new("order.placed")?, "{}"))
}

/// Goal: one wrong clock deletes nothing. While the server's clock is ahead by more than every
/// retention, maintenance runs in a process from before and in one that starts. Then the clock is
/// corrected. Oracle: the earlier message, request and saga are still known, the chunk still waits
/// for the others, and a new message takes effect.
async fn days_ahead(stage: Stage) -> Outcome {
    let cluster = Cluster::start_with_clock(&stage).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let old = Memories::open(&database).await?;
    let message = order()?;
    assert!(old.is_new(&message).await?);
    assert!(old.is_free().await?);
    old.keep_a_chunk().await?;
    let mut tx = Outbox::new().begin(&database.service).await?;
    assert_eq!(old.sagas.start(&mut tx, "checkout", "order-7", &1_i64).await?, saga::Started::Started);
    tx.commit().await?;
    let running = old.sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let finished = "SELECT count(*) FROM saga WHERE state = 'finished'";
    eventually("the saga is finished", || async { Ok(when(database.integer(finished).await? == 1)) }).await?;

    set_clock(&cluster, &database, 400 * DAY).await?;
    old.maintain().await?;
    let started = Memories::open(&database).await?;
    started.maintain().await?;

    set_clock(&cluster, &database, 0).await?;
    worker.abort();
    for (memories, which) in
        [(&old, "old"), (&started, "started"), (&Memories::open(&database).await?, "new")]
    {
        memories.maintain().await?;
        println!("{which}: {:?}", memories.inbox.window());
        assert!(!memories.is_new(&message).await?, "the message was forgotten");
        assert!(!memories.is_free().await?, "the request was forgotten");
        let waiting = memories.inbox.incomplete(NonZeroU32::MAX).await?;
        assert_eq!(waiting.len(), 1, "the chunk was given up");
        assert_eq!(database.integer(finished).await?, 1, "the saga was forgotten");
        assert!(memories.is_new(&order()?).await?, "no new message is taken any more");
    }
    Ok(())
}

#[derive(serde::Serialize)]
struct ShipOrder {
    order: i64,
}

impl message::Event for ShipOrder {
    const TOPIC: &'static str = "shipping";
    const KIND: &'static str = "ship.order";
}

/// The function of sagas that wait: for a reply, in a pause, or for a call.
async fn wait(saga: &mut Run<Postgres>, kind: i64) -> Result<(), Stop> {
    match kind {
        0 => saga.request("wait", &ShipOrder { order: kind }).within(Duration::from_secs(48 * 3_600)).await,
        1 => saga.sleep("wait", Duration::from_secs(86_400)).await,
        _ => {
            let retry = Retry::times(u32::MAX).within(Duration::from_secs(86_400));
            let call = saga.call("wait", async |_| Err::<(), _>(StepError::retry("the bank is away")));
            call.retry(retry).await
        }
    }
}

/// Goal: while the server's clock is three days ahead, no request times out, no pause ends, and no
/// call or message is abandoned because of its age. Once the clock is right, each wait ends at its
/// time. Oracle: the steps after workers have checked them, the next runs afterwards, the age of a
/// failure.
async fn waits(stage: Stage) -> Outcome {
    let cluster = Cluster::start_with_clock(&stage).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let mut options = WorkerOptions::default();
    options.backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_millis(100) };
    let sagas = Sagas::builder(database.service.clone(), Outbox::new()).options(options);
    let sagas = sagas.saga("checkout", 1, wait).open().await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let (billing, failing) = (ConsumerName::new("billing")?, order()?.id);
    inbox.record_failure(&billing, &Tenant::none(), failing, "away", None).await?;
    let mut tx = Outbox::new().begin(&database.service).await?;
    for kind in 0..3_i64 {
        let started = sagas.start(&mut tx, "checkout", &kind.to_string(), &kind).await?;
        assert_eq!(started, saga::Started::Started);
    }
    tx.commit().await?;
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let waiting = "SELECT count(*) FROM saga_step WHERE name = 'wait' AND state IN ('waiting', 'calling')";
    eventually("all wait", || async { Ok(when(database.integer(waiting).await? == 3)) }).await?;

    set_clock(&cluster, &database, 3 * DAY).await?;
    let calls = "SELECT coalesce(sum(attempts), 0)::bigint FROM saga_step WHERE name = 'wait'";
    let before = database.integer(calls).await?;
    let seen = "SELECT count(*) FROM saga WHERE error LIKE '%by its worker''s clock%'";
    eventually("workers have looked at all of them", || async {
        let (seen, calls) = (database.integer(seen).await?, database.integer(calls).await?);
        Ok(when(seen == 2 && calls > before + 3))
    })
    .await?;
    let noted = inbox.record_failure(&billing, &Tenant::none(), failing, "away", None).await?;
    assert!(noted.age < Duration::from_secs(3_600), "{noted:?}");
    assert_eq!(database.integer(waiting).await?, 3, "one has ended");

    set_clock(&cluster, &database, 0).await?;
    eventually("they wait for their times", || async {
        sagas.wake_stranded().await?;
        let due = "SELECT count(*) FROM saga JOIN saga_step AS t USING (type, id) WHERE wake_at = t.due_at";
        Ok(when(database.integer(due).await? == 2))
    })
    .await?;
    worker.abort();
    assert_eq!(database.integer(waiting).await?, 3, "one has ended");
    assert_eq!(database.integer("SELECT count(*) FROM saga WHERE state = 'running'").await?, 3);
    Ok(())
}

/// Counts the calls for each payload, and asks for ten minutes each time.
#[derive(Clone, Default)]
struct Away(Arc<Mutex<HashMap<String, u32>>>);

#[async_trait]
impl Handler<Postgres> for Away {
    async fn handle(&self, _: &mut Tx, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let payload = String::from_utf8_lossy(&message.payload).into_owned();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(payload).or_default() += 1;
        Err(HandlerError::retry_after(Duration::from_secs(600), "away"))
    }
}

impl Away {
    fn calls(&self, payload: &str) -> u32 {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(payload).copied().unwrap_or_default()
    }
}

/// Runs a consumer that reads the server's clock only when it needs to. Returns what ends it.
fn consume(
    inbox: &Inbox<Postgres>,
    broker: &Broker,
    away: &Away,
    redrive_interval: Option<Duration>,
) -> Result<(Shutdown, JoinHandle<Result<(), RunError>>), Failure> {
    let source = broker.clone();
    let consumer = Consumer::builder(inbox.clone(), "billing")
        .subscribe(move || {
            let broker = source.clone();
            async move { Ok(broker.subscribe()) }
        })
        .handler(away.clone())
        .after_dead_letter(AfterDeadLetter::HoldKey)
        .redrive_interval(redrive_interval)
        .maintain_interval(None)
        .build()?;
    let shutdown = Shutdown::new();
    Ok((shutdown.clone(), tokio::spawn(consumer.run(shutdown))))
}

/// Goal: when the server's clock steps back by 20 minutes under a running process, as in a
/// failover, a held message and a redelivered one still wait out the pauses that were recorded
/// since. Oracle: the handler runs once for each, while it runs for other messages.
async fn steps_back(stage: Stage) -> Outcome {
    let cluster = Cluster::start_with_clock(&stage).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let open = || Inbox::open(database.consumer.clone(), InboxOptions::default());
    // Each has its own reading of the server's clock.
    let handles = [open().await?, open().await?];
    let an_hour_ago = handles[0].window().now - Duration::from_secs(3_600);
    let message = |payload: &str| message_of(an_hour_ago, payload);
    let held = Delivery {
        token: DeliveryToken(1),
        message: Ok(message("held").with_key(OrderingKey::new("k")?)),
        redelivered: false,
        origin: String::from("orders[3]@17"),
    };
    let cause = Cause::new(Reason::Held, String::from("held behind another"), 0);
    drop(handles[0].dead_letter(&ConsumerName::new("billing")?, &Tenant::none(), &held, cause).await?);
    set_clock(&cluster, &database, -1_200).await?;
    let away = Away::default();
    let (none, broker) = (Broker::new([]), Broker::new([message("delivered")]));
    for last in ["one", "two"] {
        broker.send(Ok(message(last)));
        let running = [
            consume(&handles[0], &none, &away, Some(Duration::from_millis(50)))?,
            consume(&handles[1], &broker, &away, None)?,
        ];
        eventually("all were tried", || async {
            Ok(when(["held", "delivered", last].iter().all(|payload| away.calls(payload) > 0)))
        })
        .await?;
        // Time for many checks.
        tokio::time::sleep(Duration::from_secs(3)).await;
        for (shutdown, task) in running {
            shutdown.abort.cancel();
            drop(task.await?);
        }
        broker.lose_session();
        assert_eq!((away.calls("held"), away.calls("delivered")), (1, 1), "until {last}");
    }
    Ok(())
}
