//! The days that a call locks: only those of its messages, however many days the inbox remembers.
//! The sweep locks past days, and all sessions share the server's lock table.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::NonZeroU32;
use std::time::Duration;

use crate::inbox::database::Database;
use crate::inbox::dead_letters::store_dead_letter;
use crate::inbox::failures::dead_letters;
use crate::inbox::held_keys::signature;
use crate::inbox::runner::Effect;
use crate::inbox::{consumer, json};
use inbox::{
    Admission, Candidate, Cause, DeadLetterId, Inbox, ManyDecided, PayloadComparison, Reason, RedriveError,
    RedriveOptions, Redriven, Requested, Resolution, SeenLetter, Tenant,
};
use message::{Delivery, DeliveryToken};
use sqlx::Postgres;
use sqlx::postgres::PgPoolOptions;
use tests::Outcome;
use uuid::Uuid;

tests::cases! { "inbox/locks/{on}/{case}":
    on_postgres {
        a_call_locks_the_days_of_its_messages_alone_on_postgres,
        operators_lock_dead_letters_in_one_order_on_postgres,
        a_decision_about_a_dead_letter_that_is_redriven_says_so_on_postgres,
    }
}

/// PostgreSQL makes custom plans for the first five executions. Only then may it choose a generic
/// plan, which cannot skip a day.
const ROUNDS: usize = 6;

const CALLS: [&str; 12] = [
    "admit a fresh message",
    "store a result",
    "admit a copy",
    "admit a copy that is written anew",
    "admit a batch",
    "admit a batch again",
    "confirm",
    "outcome",
    "dead-letter and redrive",
    "hold and redrive",
    "dead-letter and discard",
    "look a message up",
];

async fn call(inbox: &Inbox<Postgres>, call: &str, payloads: PayloadComparison) -> Outcome {
    let (billing, none) = (consumer("billing"), Tenant::none());
    let message = json(r#"{"a":1,"b":2}"#);
    let mut tx = inbox.begin().await?;
    let Admission::Fresh(guard) = tx.admit(&billing, &none, &message).await? else { panic!("fresh") };
    match call {
        "admit a fresh message" => drop(tx.commit().await?),
        "store a result" => {
            guard.complete(&mut tx, b"done").await?;
            let locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() \
                AND relation::regclass::text LIKE '%inbox\\_message%'";
            let locks: i64 = sqlx::query_scalar(locks).fetch_one(&mut **tx).await?;
            assert!((1..=6).contains(&locks), "{locks} locks of tables and indexes");
            drop(tx.commit().await?);
        }
        "admit a copy"
        | "admit a copy that is written anew"
        | "confirm"
        | "outcome"
        | "look a message up" => {
            drop(tx.commit().await?);
            let anew = json(r#"{"b":2,"a":1}"#).with_id(message.id);
            let is_anew = call.ends_with("anew") && payloads == PayloadComparison::CanonicalJson;
            let copy = if is_anew { &anew } else { &message };
            match call {
                "confirm" => drop(inbox.confirm(&billing, &none, copy).await?),
                "outcome" => assert!(inbox.outcome(&billing, &none, copy.id).await?.is_some()),
                "look a message up" => assert_eq!(inbox.known(copy.id.as_uuid()).await?.len(), 1),
                _ => {
                    let mut tx = inbox.begin().await?;
                    assert!(matches!(tx.admit(&billing, &none, copy).await?, Admission::Duplicate(_)));
                    drop(tx.commit().await?);
                }
            }
        }
        "admit a batch" | "admit a batch again" => {
            drop(tx.commit().await?);
            let messages: Vec<_> = (0..300).map(|n| json(&n.to_string())).collect();
            let candidate = |message| Candidate { tenant: Tenant::none(), message };
            let candidates: Vec<_> = messages.iter().map(candidate).collect();
            for _ in 0..if call.ends_with("again") { 2 } else { 1 } {
                let mut tx = inbox.begin().await?;
                tx.admit_batch(&billing, &candidates).await?;
                drop(tx.commit().await?);
            }
        }
        _ => {
            tx.rollback().await?;
            let id = message.id;
            let delivery = Delivery {
                token: DeliveryToken(1),
                message: Ok(message),
                redelivered: false,
                origin: String::from("orders[3]@17"),
            };
            let reason = if call.starts_with("hold") { Reason::Held } else { Reason::Rejected };
            let cause = Cause::new(reason, String::from("no such price"), 1);
            drop(inbox.dead_letter(&billing, &none, &delivery, cause).await?);
            let letters = dead_letters(inbox).await;
            let letter = letters.iter().find(|letter| letter.message_id == Some(id)).unwrap();
            if call.ends_with("discard") {
                inbox.discard(letter.id, &signature()).await?;
            } else {
                inbox.redrive(&billing, letter.id, &Effect::works(), RedriveOptions::default()).await?;
            }
        }
    }
    Ok(())
}

/// Goal: neither a comparison of contents, nor a batch, nor a cached plan makes a call lock days
/// without any of its messages. Oracle: another session holds all other days as the sweep does, and
/// no call waits for it; the locks of an open transaction, as PostgreSQL lists them.
async fn a_call_locks_the_days_of_its_messages_alone_on_postgres(database: &Database<Postgres>) {
    drop(database.inbox().await);
    let mut met = Vec::new();
    for payloads in [PayloadComparison::Bytes, PayloadComparison::CanonicalJson] {
        let mut sweep = database.admin.begin().await.unwrap();
        lock_other_days(database, &mut sweep).await;
        // One connection, which keeps its plans.
        let options = (*database.pool.connect_options()).clone().options([("lock_timeout", "100ms")]);
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let options = database.options().payloads(payloads);
        let inbox = Inbox::<Postgres>::open(pool.clone(), options).await.unwrap();
        for name in CALLS {
            for round in 1..=ROUNDS {
                if let Err(error) = call(&inbox, name, payloads).await {
                    met.push(format!("{name}, {payloads:?}, call {round}: {error}"));
                    break;
                }
            }
        }
        pool.close().await;
        sweep.rollback().await.unwrap();
    }
    assert!(met.is_empty(), "calls that need other days:\n{}", met.join("\n"));
}

/// Locks all days except yesterday, today and tomorrow.
async fn lock_other_days(database: &Database<Postgres>, sweep: &mut sqlx::Transaction<'static, Postgres>) {
    let days = "SELECT string_agg(format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', c.oid::regclass), ';') \
        FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid \
        WHERE i.inhparent = 'inbox_message'::regclass \
            AND c.relname NOT IN (SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC' + n * interval '1 day', \
                '\"inbox_message_\"YYYYMMDD') FROM generate_series(-1, 1) AS n)";
    let lock: String = sqlx::query_scalar(days).fetch_one(&database.admin).await.unwrap();
    assert!(lock.split(';').count() >= 10, "{lock}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut **sweep).await.unwrap();
}

/// Goal: two operators who decide about the same dead letters, each in another order, never
/// deadlock. Oracle: while a discard waits for the first dead letter by id, although it is given
/// last, the other one is not locked.
async fn operators_lock_dead_letters_in_one_order_on_postgres(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut ids = Vec::new();
    for payload in ["1", "2"] {
        ids.push(store_dead_letter(&inbox, &json(payload), Reason::Rejected).await);
    }
    ids.sort_by_key(|id| id.0);
    let mut other = database.admin.begin().await.unwrap();
    let lock = "SELECT FROM inbox_dead_letter WHERE id = $1 FOR UPDATE";
    sqlx::query(lock).bind(ids[0].0).execute(&mut *other).await.unwrap();
    let letters = [ids[1], ids[0]].map(seen);
    let decided = ManyDecided { signature: signature(), id: Uuid::now_v7() };
    let discarding = tokio::spawn(async move { inbox.discard_all(&letters, &decided).await });
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))";
    let waits = async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *other).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(4), waits).await.expect("the discard waits");
    sqlx::query("SET LOCAL lock_timeout = '1s'").execute(&mut *other).await.unwrap();
    sqlx::query(lock).bind(ids[1].0).execute(&mut *other).await.unwrap();
    other.rollback().await.unwrap();
    let done = discarding.await.unwrap().unwrap();
    let is_done = |it: &Result<_, _>| matches!(it, Ok(Redriven::Now(Resolution::Discarded)));
    assert!(done.len() == 2 && done.iter().all(is_done), "{done:?}");
}

fn seen(id: DeadLetterId) -> SeenLetter {
    SeenLetter { id, reason: Reason::Rejected, deliveries: 1 }
}

/// Goal: a decision about a dead letter that is being redriven reports this within the call
/// timeout, and decides nothing; one about many leaves it out. Oracle: the errors; the stored
/// decisions; the same decision after the redrive.
async fn a_decision_about_a_dead_letter_that_is_redriven_says_so_on_postgres(database: &Database<Postgres>) {
    let options = database.options().call_timeout(Duration::from_secs(8));
    let inbox = Inbox::<Postgres>::open(database.pool.clone(), options).await.unwrap();
    let id = store_dead_letter(&inbox, &json(r#"{"a":1}"#), Reason::Rejected).await;
    // The lock that a redrive holds while its handler runs.
    let mut redrive = database.admin.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM inbox_dead_letter WHERE id = $1 FOR UPDATE").bind(id.0);
    lock.execute(&mut *redrive).await.unwrap();
    for refused in [
        inbox.discard(id, &signature()).await.map(drop),
        inbox.request_redrive(id, RedriveOptions::default(), &signature()).await.map(drop),
    ] {
        let Err(RedriveError::InHand { id: named }) = refused else { panic!("{refused:?}") };
        assert_eq!(named, id);
    }
    assert_eq!(inbox.decisions(NonZeroU32::MIN).await.unwrap(), []);
    // In a list with two free dead letters, about which the decisions succeed.
    let mut free = Vec::new();
    for payload in ["1", "2"] {
        free.push(store_dead_letter(&inbox, &json(payload), Reason::Rejected).await);
    }
    let decided = || ManyDecided { signature: signature(), id: Uuid::now_v7() };
    let letters = [free[0], id, free[1]].map(seen);
    let asked = inbox.request_redrives(&letters, RedriveOptions::default(), &decided()).await.unwrap();
    assert!(matches!(asked[1], Err(RedriveError::InHand { id: named }) if named == id), "{asked:?}");
    assert!([&asked[0], &asked[2]].iter().all(|it| matches!(it, Ok(Requested::Now))), "{asked:?}");
    let done = inbox.discard_all(&letters, &decided()).await.unwrap();
    assert!(matches!(done[1], Err(RedriveError::InHand { id: named }) if named == id), "{done:?}");
    let is_done = |it: &Result<_, _>| matches!(it, Ok(Redriven::Now(Resolution::Discarded)));
    assert!(is_done(&done[0]) && is_done(&done[2]), "{done:?}");
    let alone = inbox.discard_all(&letters[1..2], &decided()).await.unwrap();
    assert!(matches!(alone[..], [Err(RedriveError::InHand { .. })]), "{alone:?}");
    redrive.rollback().await.unwrap();
    let decisions = inbox.decisions(NonZeroU32::MIN.saturating_add(9)).await.unwrap();
    assert_eq!(decisions.len(), 4, "{decisions:?}");
    assert!(decisions.iter().all(|decision| decision.subject.dead_letter != id), "{decisions:?}");
    assert_eq!(inbox.discard(id, &signature()).await.unwrap(), Redriven::Now(Resolution::Discarded));
}
