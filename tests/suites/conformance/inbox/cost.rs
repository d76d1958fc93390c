//! The cost of the guard: messages on the wire, and rows that PostgreSQL reads. The count of rows
//! distinguishes a scan of a whole day from an index lookup.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::store_dead_letter;
use crate::inbox::{consumer, keyed, message};
use async_trait::async_trait;
use inbox::{
    Admission, AfterDeadLetter, Candidate, Handler, HandlerError, Inbox, InboxOptions, InboxTransaction,
    Reason, RedriveOptions, Redriven, Resolution, Tenant, Tx,
};
use message::Message;
use sqlx::postgres::{PgPoolOptions, PgSslMode};
use sqlx::{PgPool, Postgres};
use tests::log_capture::{LogCapture, PING, PREPARE};
use tests::{Failure, Outcome, Stage};

tests::cases! { "inbox/cost/{on}/{case}":
    on_postgres {
        a_batch_of_any_length_is_looked_up_by_the_index,
        a_key_is_looked_up_past_nothing_that_does_not_hold_it,
    }
    postgres { a_message_costs_one_statement_more }
}

/// Returns how many rows full scans of the days have read so far, in all sessions.
async fn scanned(admin: &PgPool) -> i64 {
    let read = "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_all_tables \
        WHERE schemaname = current_schema() AND relname LIKE 'inbox\\_message\\_2%'";
    sqlx::query_scalar(read).fetch_one(admin).await.unwrap()
}

/// Goal: batches are looked up row by row through the index, however many messages a batch and a
/// day have. Oracle: the server's count of rows that full scans have read.
async fn a_batch_of_any_length_is_looked_up_by_the_index(database: &Database<Postgres>) {
    const REMEMBERED: usize = 6_000;
    let inbox = database.inbox().await;
    let billing = consumer("billing");
    let messages: Vec<_> = (0..REMEMBERED).map(|n| message(&n.to_string())).collect();
    let candidates: Vec<_> =
        messages.iter().map(|message| Candidate { tenant: Tenant::none(), message }).collect();
    for batch in candidates.chunks(1_000) {
        let mut tx = inbox.begin().await.unwrap();
        tx.admit_batch(&billing, batch).await.unwrap();
        assert_eq!(tx.commit().await.unwrap().len(), batch.len());
    }
    sqlx::query("ANALYZE inbox_message").execute(&database.admin).await.unwrap();
    for len in [1, 10, 100, 500, 2_000] {
        let before = scanned(&database.admin).await;
        let mut tx = inbox.begin().await.unwrap();
        let admissions = tx.admit_batch(&billing, &candidates[..len]).await.unwrap();
        assert!(admissions.iter().all(|admission| matches!(admission, Ok(Admission::Duplicate(_)))));
        // Flushes the statistics at the end of this transaction instead of some time later.
        sqlx::query("SELECT pg_stat_force_next_flush()").execute(&mut **tx).await.unwrap();
        assert_eq!(tx.commit().await.unwrap().len(), len);
        assert_eq!(scanned(&database.admin).await - before, 0, "rows read in full scans by a batch of {len}");
    }
}

/// Reports what its session has read when its transaction ends, instead of some time later.
struct Reports;

#[async_trait]
impl Handler<Postgres> for Reports {
    async fn handle(&self, tx: &mut Tx<Postgres>, _: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        <Postgres as TestDatabase>::sql(tx, "SELECT pg_stat_force_next_flush()").await?;
        Ok(None)
    }
}

/// Goal: whether a key is held is answered without a walk over its open dead letters that do not
/// hold it. Oracle: the server's count of dead letters that a redrive has read, beside 2,000 that
/// were refused because of a reused id.
async fn a_key_is_looked_up_past_nothing_that_does_not_hold_it(database: &Database<Postgres>) {
    const READ: &str = "SELECT (sum(idx_tup_fetch) + sum(seq_tup_read))::bigint FROM pg_stat_all_tables \
        WHERE schemaname = current_schema() AND relname = 'inbox_dead_letter'";
    let inbox = database.inbox().await;
    store_dead_letter(&inbox, &keyed("k", "refused"), Reason::KeyReused).await;
    for sql in [
        "INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, kind, \
         source, time, content_type, headers, payload, reason, error, attempts, origin) \
         SELECT gen_random_uuid(), consumer, scope, gen_random_uuid(), fingerprint, message_id, topic, key, kind, \
         source, time, content_type, headers, payload, reason, error, attempts, origin \
         FROM inbox_dead_letter, generate_series(1, 2000)",
        "ANALYZE inbox_dead_letter",
    ] {
        sqlx::query(sql).execute(&database.admin).await.unwrap();
    }
    let id = store_dead_letter(&inbox, &keyed("k", "poison"), Reason::Poison).await;
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(&database.pool).await.unwrap();
    database.pool.close().await;
    let pool = PgPool::connect_with((*database.pool.connect_options()).clone()).await.unwrap();
    let inbox = Inbox::open(pool, database.options()).await.unwrap();
    let read = async || sqlx::query_scalar::<_, i64>(READ).fetch_one(&database.admin).await.unwrap();
    let before = read().await;
    let options = RedriveOptions::default().after_dead_letter(AfterDeadLetter::HoldKey);
    let redriven = inbox.redrive(&consumer("billing"), id, &Reports, options).await.unwrap();
    assert_eq!(redriven, Redriven::Now(Resolution::Applied));
    let read = read().await - before;
    eprintln!("a redrive has read {read} rows of the dead letters");
    assert!(read < 100, "{read}");
    inbox.pool().close().await;
}

/// Admits a message and applies its effect if it is fresh.
async fn work(tx: &mut InboxTransaction<Postgres>, message: &Message) -> Outcome {
    if let Admission::Fresh(_) = tx.admit(&consumer("billing"), &Tenant::none(), message).await? {
        <Postgres as TestDatabase>::apply(tx, "billing", message).await?;
    }
    Ok(())
}

/// Goal: in addition to BEGIN, its effect and COMMIT, a fresh message costs one statement, because
/// the check of its row is sent with COMMIT. A duplicate costs a second statement instead of its
/// effect. A chained transaction needs no BEGIN. Oracle: the messages on the wire.
async fn a_message_costs_one_statement_more(stage: Stage) -> Outcome {
    const ADMIT: &str = "INSERT INTO inbox_message";
    const EFFECT: &str = "INSERT INTO effect";
    const FIND: &str = "SELECT fingerprint, source, result, processed_at, dead_letter FROM inbox_message";
    const LOOK_AND_COMMIT: &str = "SELECT CASE WHEN";
    let database = Postgres::create().await;
    let options = (*database.pool.connect_options()).clone();
    let (log_capture, port) =
        LogCapture::before(&stage, &format!("{}:{}", options.get_host(), options.get_port())).await?;
    let options = options.host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
    // One connection, so that no statement is prepared twice.
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let told = async || -> Result<Vec<String>, Failure> {
        // Once the connection is back in the pool, a rollback in the background has finished.
        drop(pool.acquire().await?);
        let said = log_capture.take().into_iter().filter(|said| said != PING && said != PREPARE);
        let begin = |said: String| {
            let ends = [" WHERE", " marks =", "("];
            let end = ends.iter().find_map(|end| said.find(end)).unwrap_or(said.len());
            said[..end].trim_end().to_owned()
        };
        Ok(said.map(begin).collect())
    };
    let again = message("again");
    // The first transactions prepare the statements.
    for (message, expected) in [
        (&message("one"), None),
        (&again, None),
        (&again, None),
        (&message("two"), Some([ADMIT, EFFECT])),
        (&again, Some([ADMIT, FIND])),
    ] {
        told().await?;
        let mut tx = inbox.begin().await?;
        work(&mut tx, message).await?;
        tx.commit().await?;
        let told = told().await?;
        if let Some([first, second]) = expected {
            // The commit has begun an empty transaction, which the pool rolls back with its ping.
            assert_eq!(told, ["BEGIN", first, second, LOOK_AND_COMMIT, "ROLLBACK"]);
        }
    }
    let mut next = Some(inbox.begin().await?);
    for payload in ["three", "four"] {
        let mut tx = next.take().ok_or("nothing was chained")?;
        work(&mut tx, &message(payload)).await?;
        next = tx.commit_and_chain().await?.1;
    }
    drop(next);
    let each = [ADMIT, EFFECT, LOOK_AND_COMMIT];
    assert_eq!(told().await?, [&["BEGIN"], &each[..], &each[..], &["ROLLBACK"]].concat());
    pool.close().await;
    Postgres::remove(database).await;
    Ok(())
}
