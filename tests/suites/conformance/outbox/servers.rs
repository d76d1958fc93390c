//! Servers as they are configured in practice: other default isolation levels, roles that are
//! read-only by default, encodings other than UTF-8, functions that a cloud removes.

use std::time::Duration;

use message::MessageId;
use migrations::{Line, Migrator};
use outbox::{NewMessage, Outbox};
use outbox_log::admin::LogAdmin;
use outbox_log::read_only::ReadOnly;
use outbox_log::retention::LogRetention;
use outbox_log::{
    Acquired, CheckpointStore, Cursor, EntryId, ExceptionChange, ExceptionState, Fenced, LogOptions,
    LogReader, PageLimit, Parked,
};
use sqlx::Postgres;
use tests::trial::chain;
use tests::{Database, Failure, Outcome, Role, Stage};

use crate::outbox::support::{SMALL, relay, source};

const TTL: Duration = Duration::from_secs(30);
const LIMIT: PageLimit = PageLimit { entries_max: 100, ..SMALL };

tests::cases! { "outbox/servers/{on}/{case}":
    postgres {
        no_look_at_the_log_aborts_a_serializable_transaction = aborts_none,
        a_role_that_reads_only_by_default_can_lead = read_only_by_default,
        tables_are_made_whatever_the_defaults_are = migrates_by_default,
        a_server_that_does_not_tell_its_timeline_is_led = without_a_timeline,
        an_outbox_works_in_latin1 = latin1,
        consumers_are_refused_what_cannot_hold_others_texts = refused_encodings,
        sql_ascii_takes_utf8 = sql_ascii,
    }
    night postgres { a_limit_for_idle_sessions_ends_no_lease = limited_idle_sessions }
}

async fn store(db: &Database<Postgres>) -> Result<Box<dyn CheckpointStore>, Failure> {
    let log = outbox_log::open(db.relay_url()?.as_str(), source(), LogOptions::default())?;
    Ok(log.checkpoint_store(&relay(), "a").await?)
}

async fn lead(store: &mut Box<dyn CheckpointStore>) -> Result<(i64, Cursor), Failure> {
    match store.acquire(TTL).await? {
        Acquired::Granted { lease, cursor, .. } => Ok((lease.epoch, cursor)),
        Acquired::Busy { holder, .. } => Err(format!("busy: {holder}").into()),
    }
}

/// A query on the log, run by the relay or by an operator.
enum Look {
    /// No query, to see whether the transactions conflict without one.
    Nothing,
    Poll(Box<dyn LogReader>, Cursor),
    Status(std::sync::Arc<dyn LogAdmin>),
    Segments(std::sync::Arc<dyn LogRetention>),
}

impl Look {
    async fn look(&mut self) -> Outcome {
        match self {
            Self::Nothing => {}
            Self::Poll(reader, cursor) => {
                let difference =
                    reader.next_difference(&cursor.base).await?.ok_or("nothing has committed")?;
                let page = reader.read_page(&difference, EntryId::default(), LIMIT).await?;
                assert!(!page.entries.is_empty(), "the look saw nothing");
            }
            Self::Status(admin) => assert!(!admin.relays().await?.is_empty(), "the look saw no relay"),
            Self::Segments(retention) => {
                assert!(!retention.segments(Duration::from_secs(3_600)).await?.is_empty());
            }
        }
        Ok(())
    }
}

/// Runs one round: a transaction reads an account and enqueues, another one changes the account and
/// commits, and then `look` reads the log. Each of these alone is harmless. But a look that takes
/// part in the serializable order completes a dangerous structure, and PostgreSQL aborts the first
/// transaction. Returns whether it was aborted.
async fn round(db: &Database<Postgres>, look: &mut Look) -> Result<bool, Failure> {
    const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";
    let mut business = db.admin.begin_with(BEGIN).await?;
    let cents: i32 =
        sqlx::query_scalar("SELECT cents FROM account WHERE id = 1").fetch_one(&mut *business).await?;
    let message = NewMessage::new("orders").json(&cents);
    Outbox::<Postgres>::new().enqueue(&mut business, message).await?;
    let mut other = db.admin.begin_with(BEGIN).await?;
    sqlx::query("UPDATE account SET cents = cents + 1 WHERE id = 1").execute(&mut *other).await?;
    other.commit().await?;
    look.look().await?;
    match business.commit().await {
        Ok(()) => Ok(false),
        Err(error) if is_conflict(&error) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn is_conflict(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "40001")
}

/// Goal: where a database or role is serializable by default, queries of the relay and of its
/// operators do not take part in the serializable order of the service's own transactions. Oracle:
/// the server reports no serialization failures, with and without such queries.
async fn aborts_none(stage: Stage) -> Outcome {
    const ROUNDS: usize = 20;
    let db = Database::<Postgres>::migrated(&stage).await?;
    let name = db.name()?;
    db.execute(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")).await?;
    db.execute("CREATE TABLE account (id integer PRIMARY KEY, cents integer NOT NULL)").await?;
    db.execute("INSERT INTO account VALUES (1, 100)").await?;
    // An entry that the polls find.
    db.append("orders", "k", "{}").await?;
    let (url, options) = (db.relay_url()?, LogOptions::default());
    let (_, cursor) = lead(&mut store(&db).await?).await?;
    let reader = outbox_log::open(url.as_str(), source(), options.clone())?.reader(&relay()).await?;
    let mut aborted = Vec::new();
    for (what, mut look) in [
        ("nothing", Look::Nothing),
        ("a poll", Look::Poll(reader, cursor)),
        ("status", Look::Status(outbox_log::admin::open(url.as_str(), source(), options.clone())?)),
        ("segments", Look::Segments(outbox_log::retention::open(url.as_str(), source(), options)?)),
    ] {
        let mut count = 0;
        for _ in 0..ROUNDS {
            count += usize::from(round(&db, &mut look).await?);
        }
        aborted.push((what, count));
    }
    assert_eq!(aborted, [("nothing", 0), ("a poll", 0), ("status", 0), ("segments", 0)], "of {ROUNDS} each");
    Ok(())
}

/// Goal: a relay whose role may write, but is read-only by default, can lead. Oracle: lease,
/// checkpoint and emptied segments.
async fn read_only_by_default(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let (name, user) = (db.name()?, Role::Relay.user());
    db.execute(&format!("ALTER ROLE {user} IN DATABASE {name} SET default_transaction_read_only = on"))
        .await?;
    let mut store = store(&db).await?;
    let (epoch, cursor) = lead(&mut store).await?;
    assert_eq!(store.checkpoint(epoch, &cursor, &[]).await?, Fenced::Held);
    let retention = outbox_log::retention::open(db.relay_url()?.as_str(), source(), LogOptions::default())?;
    retention.expire(Duration::from_secs(3_600)).await?;
    Ok(())
}

/// Goal: a limit for idle sessions that is shorter than a renewal of the lease ends no session of
/// the relay, nor one in which a command only reads. Oracle: lease, reader and command after a rest
/// of several limits.
async fn limited_idle_sessions(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let version = db.integer("SELECT current_setting('server_version_num')::bigint").await?;
    if version < 140_000 {
        eprintln!("not run: idle_session_timeout exists since PostgreSQL 14");
        return Ok(());
    }
    let (name, user) = (db.name()?, Role::Relay.user());
    db.execute(&format!("ALTER ROLE {user} IN DATABASE {name} SET idle_session_timeout = '1s'")).await?;
    let mut store = store(&db).await?;
    let (epoch, cursor) = lead(&mut store).await?;
    let log = outbox_log::open(db.relay_url()?.as_str(), source(), LogOptions::default())?;
    let mut reader = log.reader(&relay()).await?;
    let ReadOnly::Postgres(mut command) = ReadOnly::open(db.relay_url()?.as_str(), true, "a test").await?
    else {
        return Err("not PostgreSQL".into());
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(store.renew(epoch, TTL).await?, Fenced::Held);
    reader.next_difference(&cursor.base).await?;
    outbox_log::read_only::begin(&mut command, Duration::from_secs(1)).await?.commit().await?;
    Ok(())
}

/// Goal: migrations succeed in a database whose sessions are read-only and serializable by default.
/// Oracle: every line is up to date.
async fn migrates_by_default(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty(&stage).await?;
    let name = db.name()?;
    db.execute(&format!(
        "ALTER DATABASE {name} SET default_transaction_read_only = on;
         ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    ))
    .await?;
    let pool = outbox::pool::<Postgres>(&db.url).await?;
    let mut connection = pool.acquire().await?;
    for line in Line::ALL {
        let migrator = Migrator::<Postgres>::new(line);
        migrator.up(&mut connection).await?;
        migrator.check(&mut connection).await?;
    }
    drop(connection);
    pool.close().await;
    Ok(())
}

/// Goal: a relay can lead in a cloud that refuses the functions of the write-ahead log. Oracle: the
/// lease is granted, and operators get answers.
async fn without_a_timeline(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    db.refuse_wal_functions().await?;
    let mut first = store(&db).await?;
    let (epoch, cursor) = lead(&mut first).await?;
    assert_eq!(first.checkpoint(epoch, &cursor, &[]).await?, Fenced::Held);
    assert_eq!(first.doubt(&cursor, None).await?, None, "its own mark is believed");
    assert_eq!(first.release(epoch).await?, Fenced::Held);
    let (_, again) = lead(&mut store(&db).await?).await?;
    assert_eq!(again, cursor);
    let (admin, entries) =
        outbox_log::entries::open(db.relay_url()?.as_str(), source(), LogOptions::default())?;
    let status = admin.relays().await?;
    let history = status[0].history.as_ref().ok_or("the cursor has no history")?;
    assert_eq!((history.timeline, history.is_present), (0, true), "an unknown timeline is 0");
    assert!(entries.extent(&relay()).await?.is_of_this_server);
    Ok(())
}

/// Returns options for a database with this encoding and a locale that fits every encoding.
fn encoded(encoding: &str) -> String {
    format!("TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
}

/// Creates a database with an outbox in this encoding.
async fn outbox_in(stage: &Stage, encoding: &str) -> Result<Database<Postgres>, Failure> {
    let db = Database::<Postgres>::empty_with(stage, &encoded(encoding)).await?;
    let mut connection = db.admin.acquire().await?;
    Migrator::<Postgres>::new(Line::Outbox).up(&mut connection).await?;
    tests::roles::grant(&mut connection, &[Line::Outbox], None).await?;
    Ok(db)
}

/// Stores a dead message with an error text that no legacy encoding can represent. Returns the key
/// and the error as they are read back.
async fn dead_letter_of(db: &Database<Postgres>, key: &str) -> Result<(String, String), Failure> {
    let id = MessageId::new();
    let mut tx = db.producer.begin().await?;
    let message = NewMessage::new("orders").id(id).key(key).header("city", "Z\u{fc}rich").json(&1);
    Outbox::<Postgres>::new().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    let mut store = store(db).await?;
    let (epoch, cursor) = lead(&mut store).await?;
    let log = outbox_log::open(db.relay_url()?.as_str(), source(), LogOptions::default())?;
    let mut reader = log.reader(&relay()).await?;
    let difference = reader.next_difference(&cursor.base).await?.ok_or("nothing to read")?;
    let page = reader.read_page(&difference, EntryId::default(), LIMIT).await?;
    let entry = page.entries.into_iter().next().ok_or("nothing was read")?;
    let read = entry.message.as_ref().map_err(|invalid| format!("{invalid:?}"))?;
    assert_eq!(read.headers.get("city"), Some("Z\u{fc}rich"));
    let parked = Parked {
        id: entry.id,
        message_id: id.to_string(),
        topic: String::from("orders"),
        key: read.key.as_ref().map(|key| key.as_str().to_owned()),
        state: ExceptionState::Dead,
        attempts: 1,
        due_in: None,
        fault: Some(message::Fault::Message),
        error: Some(String::from("header \u{2026} is \u{65e5}\u{672c}, Stra\u{df}e")),
    };
    let changes = [ExceptionChange::Park(parked)];
    assert_eq!(store.checkpoint(epoch, &cursor, &changes).await?, Fenced::Held);
    let admin = outbox_log::admin::open(db.relay_url()?.as_str(), source(), LogOptions::default())?;
    let dead = admin.list(&relay(), ExceptionState::Dead, EntryId::default(), 10).await?;
    let dead = dead.into_iter().next().ok_or("no dead message")?;
    Ok((dead.key.ok_or("no key")?, dead.error.ok_or("no error")?))
}

/// Goal: an outbox beside business tables in LATIN1 works, and no character of an error text stops
/// the relay. Oracle: key and header unchanged, and the error with the characters escaped.
async fn latin1(stage: Stage) -> Outcome {
    let db = outbox_in(&stage, "LATIN1").await?;
    let (key, error) = dead_letter_of(&db, "k\u{e9}y").await?;
    assert_eq!(key, "k\u{e9}y");
    assert_eq!(error, "header \\u{2026} is \\u{65e5}\\u{672c}, Stra\\u{df}e");
    // An enqueue with a character that the encoding lacks is refused, and the error names the
    // encoding.
    let mut tx = db.producer.begin().await?;
    let message = NewMessage::new("orders").key("\u{65e5}").json(&1);
    let refused = Outbox::<Postgres>::new().enqueue(&mut tx, message).await.err().ok_or("it was stored")?;
    assert!(chain(&refused).contains("LATIN1"), "{}", chain(&refused));
    Ok(())
}

/// Goal: tables that cannot hold what other services send are not created. Oracle: one sentence
/// that names the encoding and the remedy, and no table.
async fn refused_encodings(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty_with(&stage, &encoded("LATIN1")).await?;
    let mut connection = db.admin.acquire().await?;
    for line in [Line::Inbox, Line::Idempotency, Line::Saga] {
        let refused = Migrator::<Postgres>::new(line).up(&mut connection).await;
        let text = chain(&refused.err().ok_or("it was migrated")?);
        assert!(text.contains("LATIN1") && text.contains("ENCODING 'UTF8'"), "{text}");
    }
    assert_eq!(db.integer("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await?, 0);
    Ok(())
}

/// Goal: a database without an encoding accepts UTF-8 as it is. Oracle: every line is migrated, and
/// texts are unchanged.
async fn sql_ascii(stage: Stage) -> Outcome {
    let db = outbox_in(&stage, "SQL_ASCII").await?;
    let (key, error) = dead_letter_of(&db, "k\u{e9}y").await?;
    assert_eq!(
        (key.as_str(), error.as_str()),
        ("k\u{e9}y", "header \u{2026} is \u{65e5}\u{672c}, Stra\u{df}e")
    );
    let mut connection = db.admin.acquire().await?;
    for line in Line::ALL {
        Migrator::<Postgres>::new(line).up(&mut connection).await?;
    }
    Ok(())
}
