//! Inbox, keys and sagas on full tables of which the planner knows nothing, or believes that they
//! are empty: no call may touch more than a few pages for each row that it returns. PostgreSQL
//! counts them itself (`pg_stat_statements`), so that every statement is seen, whoever wrote it.
//! The statements of the outbox have a suite of their own: `outbox/plans`.

use std::time::Duration;

use brokers::memory::Broker;
use inbox::keys::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{
    AfterDeadLetter, Backoff, Consumer, DeadLetterQuery, HandlerError, Inbox, InboxOptions, RedriveOptions,
    Signature, Tx,
};
use libtest_mimic::Trial;
use message::{EventType, Fingerprint, Message, OrderingKey, Topic};
use outbox::Outbox;
use saga::{Run, SagaQuery, Sagas};
use sqlx::Postgres;
use tests::eventually::when;
use tests::trial::at_night;
use tests::{Cluster, Database, Failure, Outcome, Stage, cluster, eventually, trial};

/// Rows of each table.
const ROWS: u32 = 100_000;
/// Pages that a call may touch: some, and some for each row that it returns or changes.
const PAGES: i64 = 400;
const PAGES_A_ROW: i64 = 60;
/// The same for what runs once an hour, whose steps are larger.
const PAGES_OF_MAINTENANCE: i64 = 70_000;
/// The walk over all held keys, which is done only after something was closed, or every 5 min.
const PAGES_OF_HELD_KEYS: i64 = 10 * 50_000;
const CONSUMER: &str = "billing";

pub(crate) fn trials() -> Vec<Trial> {
    let name = "statistics/postgres/no_call_depends_on_them";
    at_night(vec![trial(name, &cluster::NEEDS, depends_on_none)])
}

/// As full as after a bad week: dead letters of as many keys, one held message behind each of some;
/// finished requests; sagas that wait, and sagas that have ended.
const FILL: &str = "
INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, kind, source,
    time, content_type, headers, payload, reason, error, attempts, origin)
SELECT gen_random_uuid(), 'billing', '', m, decode(repeat('00', 32), 'hex'), m, 'orders', 'old-' || n % 50000,
    'order.placed', '/shop', now(), 'application/json', '[]', '{}', CASE WHEN n < 50000 THEN 'poison' ELSE 'held' END, 'no such price', 1, 'orders'
FROM generate_series(1, {rows}) n, LATERAL (SELECT outbox_new_message_id() AS m WHERE n > 0) id;
INSERT INTO inbox_attempt (consumer, scope, message_id, attempts, last_error, next_at)
SELECT 'billing', '', outbox_new_message_id(), 1, 'no', clock_timestamp() FROM generate_series(1, {rows});
INSERT INTO inbox_message (message_id, consumer, scope, fingerprint)
SELECT outbox_new_message_id(), 'billing', '', decode(repeat('00', 32), 'hex') FROM generate_series(1, {rows});
INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, outcome, claimed_at,
    processed_at, expires_at)
SELECT 't', 'charge', 'old-' || n, decode(repeat('00', 32), 'hex'), 'succeeded', 1, gen_random_uuid(), '', now(),
    now(), now() + interval '1 day' FROM generate_series(1, {rows}) n;
INSERT INTO saga (type, id, version, input, wake_at, state, output, ended_at)
SELECT 'checkout', 'old-' || n, 1, '1', CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END,
    CASE WHEN n % 2 = 0 THEN 'running' ELSE 'finished' END, CASE WHEN n % 2 = 1 THEN '1' END,
    CASE WHEN n % 2 = 1 THEN now() END FROM generate_series(1, {rows}) n;
INSERT INTO saga_step (type, id, name, position, kind, state, undo, result)
SELECT 'checkout', 'old-' || n, 'pay', 1, 'step', 'done', 'none', '1' FROM generate_series(1, {rows}) n;
";

/// Goal: plans of a new database do not stop a service, and autovacuum need not come first. Oracle:
/// the pages that PostgreSQL counts for each statement, whether tables were never analysed or when
/// they were empty, and whether plans are generic or made for each call.
async fn depends_on_none(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    for setting in ["autovacuum = off", "shared_preload_libraries = 'pg_stat_statements'", "fsync = off"] {
        cluster.execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    cluster.crash().await?;
    cluster.resume().await?;
    let mut worst = Vec::new();
    for is_analysed in [false, true] {
        for plans in ["force_generic_plan", "force_custom_plan"] {
            let name = format!("{plans}_{is_analysed}");
            cluster.execute(&format!("CREATE DATABASE {name}")).await?;
            cluster.execute(&format!("ALTER DATABASE {name} SET plan_cache_mode = {plans}")).await?;
            let (base, _) =
                cluster.url().rsplit_once('/').map(|(base, _)| (base.to_owned(), ())).unwrap_or_default();
            let database = Database::<Postgres>::migrated_at(&stage, format!("{base}/{name}")).await?;
            database.execute("CREATE EXTENSION pg_stat_statements").await?;
            database.execute("CREATE TABLE effect (key text)").await?;
            if is_analysed {
                database.execute("ANALYZE").await?;
            }
            // Opening it makes the days.
            let inbox = Inbox::open(database.admin.clone(), InboxOptions::default()).await?;
            inbox.maintain().await?;
            database.execute(&FILL.replace("{rows}", &ROWS.to_string())).await?;
            drop(database.texts("SELECT pg_stat_statements_reset()::text").await?);
            consumes(&inbox).await?;
            keys(&database).await?;
            sagas(&database).await?;
            worst.extend(over_the_bound(&database, &name).await?);
        }
    }
    assert!(worst.is_empty(), "statements that touch too many pages:\n{}", worst.join("\n"));
    Ok(())
}

/// Statements on tables of the toolkit that touched more pages than they may.
async fn over_the_bound(database: &Database<Postgres>, name: &str) -> Result<Vec<String>, Failure> {
    let statements = format!(
        "SELECT '{name}: ' || (shared_blks_hit + shared_blks_read) / calls || ' pages, ' || rows / calls || ' rows, '
            || calls || ' calls: ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 400)
         FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND query ~ '(inbox|idempotency|saga)_?' AND query !~ 'the test' AND toplevel
            AND (shared_blks_hit + shared_blks_read) / calls > {PAGES} + {PAGES_A_ROW} * (rows / calls)
                + CASE WHEN query LIKE 'DELETE%' THEN {PAGES_OF_MAINTENANCE}
                    WHEN query LIKE '%first_held%' THEN {PAGES_OF_HELD_KEYS} ELSE 0 END"
    );
    let calls =
        database.integer("SELECT count(*) FROM pg_stat_statements WHERE query ~ 'inbox_dead_letter'").await?;
    assert!(calls > 3, "the statements were not counted");
    database.texts(&statements).await
}

fn order(key: &str, payload: &'static str) -> Result<Message, Failure> {
    let message = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, payload);
    Ok(message.with_key(OrderingKey::new(key)?))
}

async fn applied(tx: &mut Tx<Postgres>, message: &Message) -> Result<(), HandlerError> {
    if &message.payload[..] == b"bad" {
        return Err(HandlerError::reject("no such price"));
    }
    sqlx::query("INSERT INTO effect VALUES ($1)")
        .bind(message.key.as_ref().map(OrderingKey::as_str))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// A consumer that holds keys gets fresh messages, copies, messages of held keys, and bad ones;
/// operators look and decide.
async fn consumes(inbox: &Inbox<Postgres>) -> Outcome {
    let (broker, topic) = (Broker::new(), Topic::new("orders")?);
    for number in 0..20 {
        let fresh = order(&format!("new-{number}"), "{}")?;
        for message in [fresh.clone(), fresh, order(&format!("old-{number}"), "{}")?, order("bad", "bad")?] {
            broker.put(&topic, Ok(message));
        }
    }
    let consumer = Consumer::builder(inbox.clone(), CONSUMER)
        .on_message("order.placed", applied)
        .subscribe(broker.subscriber(CONSUMER, [topic]))
        .backoff(Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) })
        .after_dead_letter(AfterDeadLetter::HoldKey)
        .redrive_interval(Some(Duration::from_millis(20)))
        .build()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async { drop(stopped.await) }));
    eventually("all is consumed", || async { Ok(when(broker.is_drained())) }).await?;

    let mut query = DeadLetterQuery::default();
    let first = inbox.dead_letters(&query).await?;
    query.after = first.last().map(|letter| letter.id);
    let letters = inbox.dead_letters(&query).await?;
    let by = Signature { actor: String::from("ann"), note: String::from("a test"), selection: None };
    let poison: Vec<_> = letters.iter().filter(|letter| letter.reason == inbox::Reason::Poison).collect();
    assert!(poison.len() >= 6, "the fill has changed");
    for letter in &poison[..3] {
        inbox.discard(letter.id, &by).await?;
    }
    for letter in &poison[3..6] {
        drop(inbox.dead_letter_by_id(letter.id).await?);
        inbox.request_redrive(letter.id, RedriveOptions::default(), &by).await?;
    }
    eventually("what was asked for is carried out", || async {
        let decisions = inbox.decisions(10.try_into()?).await?;
        Ok(when(decisions.iter().all(|decision| decision.done_at.is_some())))
    })
    .await?;
    drop(inbox.incomplete(10.try_into()?).await?);
    inbox.maintain().await?;
    drop(stop);
    Ok(running.await??)
}

async fn keys(database: &Database<Postgres>) -> Outcome {
    let keys = IdempotencyKeys::open(database.admin.clone(), KeyOptions::default()).await?;
    for number in 0..20 {
        let fingerprint = Fingerprint::of_parts("charge", "", b"1250");
        for _ in 0..2 {
            let id = KeyId::of_texts("t", "charge", &format!("new-{number}"))?;
            if let Claimed::Acquired(claim) = keys.claim(&id, fingerprint, &ClaimOptions::default()).await? {
                claim.complete(Ending::Succeeded, b"charged").await?;
            }
        }
        let old = KeyId::of_texts("t", "charge", &format!("old-{}", number + 1))?;
        drop(keys.claim(&old, fingerprint, &ClaimOptions::default()).await?);
    }
    keys.maintain().await?;
    drop(keys.stuck(10.try_into()?).await?);
    drop(keys.decisions(10.try_into()?).await?);
    Ok(())
}

async fn sagas(database: &Database<Postgres>) -> Outcome {
    let saga = async |saga: &mut Run<Postgres>, cents: i64| {
        let paid: i64 = saga.step("pay", async |_| Ok(cents)).undo(async |_, _: &i64| Ok(())).await?;
        saga.sleep("rest", Duration::from_millis(1)).await?;
        let shipped: i64 = saga.step("ship", async |_| Ok(paid)).await?;
        Ok(shipped)
    };
    let sagas =
        Sagas::builder(database.admin.clone(), Outbox::new()).saga("checkout", 1, saga).open().await?;
    for number in 0..20 {
        let mut tx = Outbox::new().begin(&database.admin).await?;
        sagas.start(&mut tx, "checkout", &format!("new-{number}"), &1_i64).await?;
        tx.commit().await?;
    }
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let finished =
        "SELECT /* the test */ count(*) FROM saga WHERE id >= 'new-' AND id < 'new.' AND state = 'finished'";
    let waited =
        eventually("the sagas are finished", || async { Ok(when(database.integer(finished).await? == 20)) });
    let waited = waited.await;
    worker.abort();
    waited?;
    drop(sagas.list(&SagaQuery::open(100.try_into()?)).await?);
    drop(sagas.overdue(Duration::from_secs(60)).await?);
    sagas.forget().await?;
    Ok(())
}
