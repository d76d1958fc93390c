//! Less frequent work of services and operators: batches, chunks, results, erasure, the functions
//! for consumers without the library, requests of sagas, and sagas that are stuck.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::Duration;

use brokers::memory::Broker;
use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions, KeysOfName, OnExpired};
use inbox::{
    Admission, Backoff, Consumer, ConsumerName, DeadLetterId, DeadLetterQuery, HandlerError, Inbox,
    LettersOfKey, RedriveOptions, Tenant, Tx,
};
use message::{Fingerprint, Message, PayloadEncoding, SizeLimit, Splitter, Topic};
use outbox::Outbox;
use saga::{Replied, Run, SagaId, Sagas, Started, StepError, StepKey, Stop, WorkerOptions};
use sqlx::Postgres;
use tests::eventually::when;
use tests::{Database, Outcome, eventually};
use uuid::Uuid;

use super::CONSUMER;
use super::operate::{TIMES, many, signature};
use super::work::order;

/// Fails every attempt at a message that asks for it.
async fn noted(tx: &mut Tx<Postgres>, message: &Message) -> Result<(), HandlerError> {
    if &message.payload[..] == b"always too early" {
        return Err(HandlerError::retry("it is too early"));
    }
    sqlx::query("INSERT INTO effect VALUES ('in a batch')").execute(&mut **tx).await?;
    Ok(())
}

/// Gives a consumer that works in batches new messages, copies, a message that fails again and
/// again, and messages in chunks, of one of which the last chunks are missing. It expires.
pub(super) async fn batches_and_chunks(database: &Database<Postgres>, inbox: &Inbox<Postgres>) -> Outcome {
    let broker = Broker::new();
    let topic = Topic::new("orders")?;
    let limit = SizeLimit { destination: "the test", message_bytes_max: 2_000 };
    let splitter = Splitter { limit, encoding: PayloadEncoding::Raw, chunked_bytes_max: 1 << 20 };
    let mut fresh = Vec::new();
    for number in 0..20 {
        fresh.push(order(&format!("batch-{number}"), "{}")?);
    }
    // The copies are in later batches than the messages.
    for message in fresh.iter().chain(&fresh) {
        broker.put(&topic, Ok(message.clone()));
    }
    broker.put(&topic, Ok(order("early", "always too early")?));
    for number in 0..TIMES {
        let large = order(&format!("large-{number}"), "x".repeat(5_000))?;
        let chunks = splitter.split(&large)?.ok_or("it fits into one message")?;
        let arrived = if number == 0 { 2 } else { chunks.len() };
        for chunk in chunks.into_iter().take(arrived) {
            broker.put(&topic, Ok(chunk));
        }
    }
    let consumer = Consumer::builder(inbox.clone(), CONSUMER)
        .on_message("order.placed", noted)
        .subscribe(broker.subscriber(CONSUMER, [topic]))
        .backoff(Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) })
        .attempts_max(3)
        .batch(NonZeroUsize::MIN.saturating_add(9))
        .build()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async { drop(stopped.await) }));
    // A broker whose consumer has not come yet is drained as well.
    let is_consumed = async || Ok(when(broker.is_drained() && !inbox.incomplete(many()).await?.is_empty()));
    eventually("all is consumed", is_consumed).await?;
    drop(stop);
    running.await??;
    for _ in 0..TIMES {
        assert_eq!(inbox.incomplete(many()).await?.len(), 1);
    }
    let late = "UPDATE /* the test */ inbox_chunk_set SET begun_at = begun_at - interval '1 year'";
    database.execute(late).await?;
    assert_eq!(inbox.maintain().await?.incomplete_expired, 1);
    Ok(())
}

/// Stores results, and removes them and the contents of closed dead letters.
pub(super) async fn results_and_erasure(inbox: &Inbox<Postgres>) -> Outcome {
    let consumer: ConsumerName = CONSUMER.parse()?;
    let of = LettersOfKey { key: String::from("old-7"), topic: None, tenant: None };
    let mut query = DeadLetterQuery { resolved_too: true, ..DeadLetterQuery::default() };
    query.consumer = Some(consumer.clone());
    for number in 0..TIMES {
        let message = order("result", format!("{number}"))?;
        let mut tx = inbox.begin().await?;
        let Admission::Fresh(guard) = tx.admit(&consumer, &Tenant::none(), &message).await? else {
            return Err("a new message was admitted before".into());
        };
        guard.complete(&mut tx, b"done").await?;
        drop(tx.commit().await?);
        drop(inbox.attempt(&consumer, &Tenant::none(), message.id).await?);
        let ids = [message.id.as_uuid()];
        assert_eq!(inbox.results_of(&ids, None).await?, 1);
        assert_eq!(inbox.erase_results(&ids, None).await?, 1);

        drop(inbox.letters_of_key(&of, None).await?);
        let letters = inbox.dead_letters(&query).await?;
        query.after = letters.last().map(|letter| letter.id);
        let ids: Vec<DeadLetterId> = letters.iter().take(20).map(|letter| letter.id).collect();
        drop(inbox.letters_of_topic(&ids, "orders").await?);
        inbox.erase_letters(&ids).await?;
    }
    Ok(())
}

/// Calls the functions as consumers without the library do.
pub(super) async fn functions(database: &Database<Postgres>, inbox: &Inbox<Postgres>) -> Outcome {
    const ADMIT: &str = "SELECT inbox_admit('billing', $1, 'order.placed', 'application/json', $2, '/shop')";
    const STORE: &str = "SELECT inbox_store_dead_letter('billing', $1, 'orders', 'order.placed', \
        'application/json', $2, 'poison', 'it broke', 'by-function', '{}', '/shop', '2026-11-28T10:00:00Z', \
        NULL, NULL, 'orders')";
    for _ in 0..TIMES {
        let id = Uuid::now_v7();
        let mut tx = database.admin.begin().await?;
        sqlx::query(ADMIT).bind(id).bind(&b"{}"[..]).execute(&mut *tx).await?;
        sqlx::query("SELECT inbox_finish('billing', $1)").bind(id).execute(&mut *tx).await?;
        tx.commit().await?;

        let id = Uuid::now_v7();
        let count = "SELECT inbox_count_failure('billing', $1, 'no')";
        sqlx::query(count).bind(id).execute(&database.admin).await?;
        let store = sqlx::query_scalar(STORE).bind(id).bind(&b"{}"[..]);
        let letter = DeadLetterId(store.fetch_one(&database.admin).await?);
        inbox.request_redrive(letter, RedriveOptions::default(), &signature()).await?;
        let begin = sqlx::query_scalar("SELECT inbox_begin_redrive('billing')");
        let request: Option<i64> = begin.fetch_one(&database.admin).await?;
        let mut tx = database.admin.begin().await?;
        let take = "SELECT dead_letter FROM inbox_take_redrive('billing', $1)";
        sqlx::query(take).bind(request).execute(&mut *tx).await?;
        tx.rollback().await?;
        let fail = "SELECT inbox_fail_redrive('billing', $1, 'no such price')";
        sqlx::query(fail).bind(request).execute(&database.admin).await?;
    }
    let maintain = "SELECT inbox_maintain((clock_timestamp() AT TIME ZONE 'UTC')::date)";
    drop(database.texts(maintain).await?);
    // The questions of `relay doctor` about an inbox.
    for sql in [
        include_str!("../../../../relay/operate/src/doctor/sql/inbox.sql"),
        include_str!("../../../../relay/operate/src/doctor/sql/dead_letter_seq.sql"),
    ] {
        let sql = sql.replace("{schema}", "");
        sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&database.admin).await?;
    }
    Ok(())
}

/// Holds keys by transactions, renews, releases and loses leases, and erases what was answered.
pub(super) async fn keys(database: &Database<Postgres>) -> Outcome {
    let keys = IdempotencyKeys::open(database.admin.clone(), KeyOptions::default()).await?;
    let refuses = ClaimOptions::default().on_expired(OnExpired::Refuse);
    let fingerprint = Fingerprint::of_parts("charge", "", b"1250");
    let name = KeysOfName { name: String::from("t"), tenant: None };
    for number in 0..TIMES {
        let id = KeyId::of_texts("t", "charge", &format!("held-{number}"))?;
        let Claimed::Acquired(tx) = keys.begin(&id, fingerprint, &refuses).await? else {
            return Err("a new key was there".into());
        };
        tx.commit(Ending::Succeeded, b"charged").await?;
        drop(keys.begin(&id, fingerprint, &refuses).await?);
        drop(keys.named(&name, None).await?);
        assert!(keys.erase(&id, "ann").await?);

        let id = KeyId::of_texts("t", "charge", &format!("leased-{number}"))?;
        let Claimed::Acquired(claim) = keys.claim(&id, fingerprint, &refuses).await? else {
            return Err("a new key was there".into());
        };
        claim.renew().await?;
        claim.release().await?;
        // The same key again, which the release has left in the table.
        let Claimed::Acquired(claim) = keys.claim(&id, fingerprint, &refuses).await? else {
            return Err("a released key was not free".into());
        };
        claim.leave_unknown().await?;
        assert!(keys.decide(&id, None, idempotency::Action::Discard, &signature()).await?);
    }
    keys.maintain().await?;
    Ok(())
}

/// The courses of a saga: its input.
const REQUESTS: i64 = 0;
const CALLS: i64 = 1;
const IS_STUCK: i64 = 2;
const IS_STUCK_UNDOING: i64 = 3;
const IS_UNDONE: i64 = 4;
const SLEEPS: i64 = 5;
const WAYS: i64 = 6;

#[derive(serde::Serialize, serde::Deserialize)]
struct ShipOrder {
    order: i64,
}

impl message::Event for ShipOrder {
    const TOPIC: &'static str = "shipping";
    const KIND: &'static str = "ship.order";
}

/// Returns whether a saga fails now: every other time that it asks.
fn fails_now(id: &str) -> bool {
    static FAILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Ok(mut failed) = FAILED.lock() else { return false };
    let fails = failed.insert(id.to_owned());
    if !fails {
        failed.remove(id);
    }
    fails
}

async fn course(saga: &mut Run<Postgres>, way: i64) -> Result<i64, Stop> {
    let id = saga.id().to_owned();
    let look: i64 = saga
        .step("look", async |_| if fails_now(&id) { Err(StepError::retry("not yet")) } else { Ok(way) })
        .await?;
    let reserved: i64 = saga
        .step("reserve", async |_| Ok(look))
        .undo(
            async |_, _: &i64| {
                if way == IS_STUCK_UNDOING { Err(StepError::retry("the shelf is gone")) } else { Ok(()) }
            },
        )
        .await?;
    match way {
        REQUESTS => {
            let parcel: i64 = saga.request("ship", &ShipOrder { order: reserved }).await?;
            Ok(parcel)
        }
        CALLS => {
            let charged: i64 = saga.call("charge", async |_| Ok(reserved)).await?;
            Ok(charged)
        }
        IS_STUCK => {
            let price: i64 =
                saga.step("price", async |_| Err::<i64, _>(StepError::retry("there is no rate"))).await?;
            Ok(price)
        }
        SLEEPS => {
            saga.sleep("pause", Duration::from_secs(3_600)).await?;
            Ok(reserved)
        }
        IS_STUCK_UNDOING | IS_UNDONE => Err(Stop::because("the shop is closed")),
        _ => Err(Stop::because("there is no such way")),
    }
}

fn name(way: i64, number: usize) -> String {
    format!("way-{way}-{number}")
}

async fn start(database: &Database<Postgres>, sagas: &Sagas<Postgres>, way: i64, number: usize) -> Outcome {
    let mut tx = Outbox::new().begin(&database.admin).await?;
    let started = sagas.start(&mut tx, "checkout", &name(way, number), &way).await?;
    assert!(matches!(started, Started::Started | Started::AlreadyThere(_)), "{started:?}");
    tx.commit().await?;
    Ok(())
}

async fn reply(database: &Database<Postgres>, sagas: &Sagas<Postgres>, number: usize) -> Outcome {
    let key: StepKey = format!("checkout/{}/ship", name(REQUESTS, number)).parse()?;
    let mut tx = Outbox::new().begin(&database.admin).await?;
    let replied = sagas.reply(&mut tx, &key, &serde_json::Value::from(7)).await?;
    assert_ne!(replied, Replied::Nobody, "the saga of {key} is there");
    tx.commit().await?;
    Ok(())
}

/// Waits until this many sagas of this test are as the condition says.
async fn until(database: &Database<Postgres>, condition: &str, sagas: usize) -> Outcome {
    let count = format!(
        "SELECT /* the test */ count(*) FROM saga WHERE type = 'checkout' AND id >= 'way-' AND id < 'way.' \
         AND {condition}"
    );
    eventually(&format!("{sagas} sagas: {condition}"), || async {
        Ok(when(usize::try_from(database.integer(&count).await?)? == sagas))
    })
    .await
}

/// Runs sagas that send requests, call, sleep, and are undone or stuck. Operators retry, skip,
/// cancel and erase them. The sagas of the fill have other versions, so that no worker takes them.
pub(super) async fn sagas(database: &Database<Postgres>) -> Outcome {
    let mut options = WorkerOptions::default();
    options.backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) };
    options.poll_max = Duration::from_millis(10);
    options.attempts_max = 3;
    let sagas = Sagas::builder(database.admin.clone(), Outbox::new()).options(options);
    let sagas = sagas.saga("checkout", 3, course).open().await?;
    for number in 0..TIMES {
        for way in 0..WAYS {
            start(database, &sagas, way, number).await?;
        }
        start(database, &sagas, REQUESTS, number).await?;
    }
    // Half of the replies are there before the sagas wait for them.
    for number in 0..TIMES / 2 {
        reply(database, &sagas, number).await?;
    }
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let decided = decide(database, &sagas).await;
    worker.abort();
    decided?;
    for number in 0..TIMES {
        reply(database, &sagas, number).await?;
        let found = sagas.of_id(&name(REQUESTS, number)).await?;
        assert_eq!(found.len(), 1);
        drop(sagas.show(&found[0].id).await?);
        assert!(sagas.erase(&found[0].id).await?);
    }
    Ok(())
}

async fn decide(database: &Database<Postgres>, sagas: &Sagas<Postgres>) -> Outcome {
    let id = |way, number| SagaId::new("checkout", name(way, number));
    let late = TIMES - TIMES / 2;
    until(database, "waits_for = 'ship' AND worker IS NULL AND stuck_at IS NULL", late).await?;
    for number in TIMES / 2..TIMES {
        reply(database, sagas, number).await?;
    }
    until(database, "stuck_at IS NOT NULL", 2 * TIMES).await?;
    sagas.retry(&id(IS_STUCK, 0)?, &signature()).await?;
    until(database, "stuck_at IS NOT NULL", 2 * TIMES).await?;
    until(database, "waits_for = 'pause' AND worker IS NULL", TIMES).await?;
    let price = serde_json::Value::from(7);
    for number in 0..TIMES {
        sagas.skip(&id(IS_STUCK, number)?, "price", Some(&price), &signature()).await?;
        sagas.skip(&id(IS_STUCK_UNDOING, number)?, "reserve", None, &signature()).await?;
        sagas.cancel(&id(SLEEPS, number)?, &signature()).await?;
    }
    until(database, "ended_at IS NULL", 0).await
}
