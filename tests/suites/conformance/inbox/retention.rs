//! Forgetting without a gap: every process refuses the messages of forgotten days.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::NonZeroU32;
use std::time::Duration;

use crate::inbox::chunks::chunks_of;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::store_dead_letter;
use crate::inbox::{consumer, json, keyed, message, message_of};
use inbox::{
    Admission, AdmitError, ConfirmError, DeadLetterQuery, Gathered, Inbox, OpenError, PayloadComparison,
    Reason, Refusal, Tenant,
};
use message::Message;
use migrations::Dialect as Name;
use tests::Stage;

tests::cases! { "inbox/retention/{on}/{case}":
    every {
        a_replay_after_expiry_is_refused_by_every_process,
        many_processes_open_and_maintain_at_once,
        options_out_of_bounds_are_refused,
        an_operator_does_not_begin_the_memory_of_an_inbox,
        a_part_of_maintenance_that_fails_keeps_no_other_back,
        failures_of_what_took_effect_are_forgotten,
        a_missing_schema_says_what_to_run,
    }
    on_postgres {
        a_day_is_created_beside_an_open_transaction_on_postgres,
        creating_a_day_gives_way_and_tries_again_on_postgres,
        inboxes_of_one_database_do_not_wait_for_each_other_on_postgres,
        a_role_that_may_not_create_days_says_so_on_postgres,
        a_clock_that_jumps_ahead_forgets_nothing_on_postgres,
        a_day_that_is_gone_is_not_made_again_on_postgres,
        a_first_opening_by_a_clock_that_is_ahead_refuses_nothing_on_postgres,
    }
    postgres { days_are_forgotten_beside_open_transactions_on_postgres }
}

const DAY: Duration = Duration::from_secs(86_400);

async fn consume<DB: TestDatabase>(inbox: &Inbox<DB>, message: &Message) -> Result<bool, AdmitError> {
    let mut tx = inbox.begin().await.unwrap();
    let admission = tx.admit(&consumer("billing"), &Tenant::none(), message).await?;
    let fresh = matches!(admission, Admission::Fresh(_));
    if fresh {
        DB::apply(&mut tx, "billing", message).await.unwrap();
    }
    drop(tx.commit().await.unwrap());
    Ok(fresh)
}

pub(super) async fn a_replay_after_expiry_is_refused_by_every_process<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let long = database.inbox().await;
    let now = long.window().now;
    let (old, recent) = (message_of(now - 10 * DAY, "old"), message_of(now - DAY / 2, "recent"));
    assert!(consume(&long, &old).await.unwrap() && consume(&long, &recent).await.unwrap());

    // Another process remembers for one day only, and runs maintenance.
    let short = database.options().retention(DAY);
    let short = Inbox::<DB>::open(database.pool.clone(), short).await.unwrap();
    assert!(short.maintain().await.unwrap().expired > 0);
    assert_eq!(short.maintain().await.unwrap().expired, 0, "nothing is left to forget");
    let confirmed = long.confirm(&consumer("billing"), &Tenant::none(), &old).await;
    assert!(matches!(confirmed, Err(ConfirmError::NotCommitted { .. })), "the record is gone");

    // The first process still assumes 14 days. It may need a second call, but it never applies the
    // message.
    let refused = match consume(&long, &old).await {
        Err(AdmitError::Expired { .. }) => consume(&long, &old).await,
        other => other,
    };
    assert!(matches!(refused, Err(AdmitError::Refused(Refusal::TooOld { .. }))), "{refused:?}");
    assert!(!consume(&long, &recent).await.unwrap(), "what is kept is a duplicate");

    // Maintenance with the long retention does not create the forgotten days again.
    long.maintain().await.unwrap();
    let anew = database.inbox().await;
    for inbox in [&long, &anew] {
        let refused = consume(inbox, &old).await;
        assert!(matches!(refused, Err(AdmitError::Refused(Refusal::TooOld { .. }))), "{refused:?}");
        assert!(inbox.window().retained_from >= now - 3 * DAY, "memory begins where it was moved to");
    }
    assert_eq!(DB::effects(&database.pool, "billing").await, ["old", "recent"]);
}

async fn many_processes_open_and_maintain_at_once<DB: TestDatabase>(database: &Database<DB>) {
    let racing: Vec<_> = (0..8)
        .map(|number| {
            let (pool, options) = (database.pool.clone(), database.options());
            tokio::spawn(async move {
                let retention = DAY * (1 + number % 3);
                let options = options.retention(retention);
                let inbox = Inbox::<DB>::open(pool, options).await.unwrap();
                let message = message(&number.to_string());
                assert!(consume(&inbox, &message).await.unwrap());
                inbox.maintain().await.unwrap();
                assert!(!consume(&inbox, &message).await.unwrap());
            })
        })
        .collect();
    for racer in racing {
        racer.await.unwrap();
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 8);
}

async fn options_out_of_bounds_are_refused<DB: TestDatabase>(database: &Database<DB>) {
    for options in [
        database.options().retention(Duration::from_secs(3_600)),
        database.options().retention(1_000 * DAY),
        database.options().skew_max(2 * DAY),
    ] {
        let opened = Inbox::<DB>::open(database.pool.clone(), options).await;
        assert!(matches!(opened, Err(OpenError::OutOfBounds(_))));
    }
}

async fn a_missing_schema_says_what_to_run<DB: TestDatabase>(database: &Database<DB>) {
    drop(database.inbox().await);
    let mut tx = database.admin.begin().await.unwrap();
    DB::sql(&mut tx, "DROP TABLE outbox_toolkit_migration").await.unwrap();
    tx.commit().await.unwrap();
    let error = Inbox::<DB>::open(database.pool.clone(), database.options()).await.unwrap_err();
    assert!(error.to_string().contains("relay migrate up --line inbox"), "{error}");
}

/// Goal: days are forgotten however long handlers take and however payloads are compared, and their
/// late messages are refused. Oracle: the result of maintenance beside an open transaction of
/// today, and the answer of another process.
async fn days_are_forgotten_beside_open_transactions_on_postgres(stage: Stage) {
    for payloads in [PayloadComparison::Bytes, PayloadComparison::CanonicalJson] {
        super::each(stage.clone(), async |database| days_are_forgotten(database, payloads).await).await;
    }
}

async fn days_are_forgotten(database: &Database<sqlx::Postgres>, payloads: PayloadComparison) {
    let options = database.options().payloads(payloads);
    let long = Inbox::<sqlx::Postgres>::open(database.pool.clone(), options).await.unwrap();
    let now = long.window().now;
    let old = message_of(now - 10 * DAY, "old");
    assert!(consume(&long, &old).await.unwrap());
    let mut open = long.begin().await.unwrap();
    let (name, none) = (consumer("billing"), Tenant::none());
    assert!(matches!(open.admit(&name, &none, &json("1")).await.unwrap(), Admission::Fresh(_)));
    let short = database.options().retention(DAY);
    let short = Inbox::<sqlx::Postgres>::open(database.pool.clone(), short).await.unwrap();
    maintained(&short).await;
    let empty = "SELECT count(*) FROM pg_constraint WHERE conname = 'inbox_message_day_is_forgotten' \
        AND connamespace = current_schema()::regnamespace";
    let empty = async || sqlx::query_scalar::<_, i64>(empty).fetch_one(&database.admin).await.unwrap();
    assert!(empty().await >= 10, "they wait for a quiet moment");
    let refused = consume(&long, &old).await;
    assert!(matches!(refused, Err(AdmitError::Expired { .. })), "{refused:?}");
    let refused = consume(&long, &old).await;
    assert!(matches!(refused, Err(AdmitError::Refused(Refusal::TooOld { .. }))), "{refused:?}");
    assert_eq!(open.commit().await.unwrap().len(), 1);
    maintained(&short).await;
    assert_eq!(empty().await, 0, "dropped");
}

/// Maintains an inbox. Maintenance waits for a lock only for milliseconds and succeeds another
/// time: another inbox, autovacuum or the end of a session may hold one.
async fn maintained(inbox: &Inbox<sqlx::Postgres>) {
    while let Err(busy) = inbox.maintain().await {
        assert!(format!("{busy:?}").contains("lock timeout"), "{busy:?}");
    }
}

/// Goal: a part of maintenance that fails does not prevent the other parts, and is counted. Oracle:
/// the rows that are purged although days cannot be forgotten, and the count of failures.
pub(super) async fn a_part_of_maintenance_that_fails_keeps_no_other_back<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let counters = tests::Counters::installed();
    let failures = || counters.value("inbox_maintenance_failures_total", &[("part", "forget days")]);
    let inbox = database.inbox().await;
    let id = message("failed").id;
    inbox.record_failure(&consumer("billing"), &Tenant::none(), id, "it broke", None).await.unwrap();
    let [long_ago, breaking] = match DB::DIALECT {
        Name::Postgres => [
            "UPDATE inbox_attempt SET first_failed_at = '2020-01-01'",
            "ALTER FUNCTION inbox_expire_days(date) RENAME TO inbox_expire_no_days",
        ],
        Name::Sqlite => [
            "UPDATE inbox_attempt SET first_failed_at = 0",
            "CREATE TRIGGER no_forgetting BEFORE UPDATE ON inbox_retention BEGIN SELECT RAISE(ABORT, 'no'); END",
        ],
    };
    let mut tx = database.admin.begin().await.unwrap();
    for statement in [long_ago, breaking] {
        DB::sql(&mut tx, statement).await.unwrap();
    }
    tx.commit().await.unwrap();
    inbox.advance(3 * DAY);
    let before = failures();
    inbox.maintain().await.unwrap_err();
    assert!(failures() > before);
    let left = inbox.attempt(&consumer("billing"), &Tenant::none(), id).await.unwrap();
    assert_eq!(left, None, "purged all the same");
}

/// Goal: the failures of a message do not stay behind for as long as the inbox remembers, when a
/// process applied it that had no reason to look for them: its delivery was not marked as one that
/// comes again, as after a restart with Kafka. Oracle: what maintenance removes; the failures of a
/// held message and of one without an effect still count.
async fn failures_of_what_took_effect_are_forgotten<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let (billing, scope) = (consumer("billing"), Tenant::none());
    let [applied, held, waiting] = ["applied", "held", "waiting"].map(|payload| keyed(payload, payload));
    store_dead_letter(&inbox, &held, Reason::Held).await;
    for failed in [&applied, &held, &waiting] {
        inbox.record_failure(&billing, &scope, failed.id, "not yet", None).await.unwrap();
    }
    assert!(consume(&inbox, &applied).await.unwrap());
    let is_noted =
        async |message: &Message| inbox.attempt(&billing, &scope, message.id).await.unwrap().is_some();
    assert!(is_noted(&applied).await, "nothing has looked for it");
    assert_eq!(inbox.maintain().await.unwrap().attempts_purged, 1);
    assert!(!is_noted(&applied).await && is_noted(&held).await && is_noted(&waiting).await);
}

/// Goal: an operator who views an inbox before its first consumer does not determine how far back
/// it remembers; it is shown as empty. Oracle: a message of an age that only the consumer's
/// retention accepts takes effect once; the operator sees a later dead letter.
async fn an_operator_does_not_begin_the_memory_of_an_inbox<DB: TestDatabase>(database: &Database<DB>) {
    let open = || Inbox::open_for_operators(database.pool.clone(), database.options());
    let operator = open().await.unwrap();
    assert!(!operator.has_memory());
    assert_eq!(operator.dead_letters(&DeadLetterQuery::default()).await.unwrap(), []);
    let options = database.options().retention(17 * DAY);
    let inbox = Inbox::<DB>::open(database.pool.clone(), options).await.unwrap();
    let old = message_of(inbox.window().now - 16 * DAY, "old");
    assert!(consume(&inbox, &old).await.unwrap());
    assert!(!consume(&inbox, &old).await.unwrap());
    assert!(open().await.unwrap().has_memory());
}

/// Returns a pool for which the database's clock is 30 days ahead.
async fn a_month_ahead(database: &Database<sqlx::Postgres>) -> sqlx::PgPool {
    let schema = database.schema.clone().unwrap();
    let statement = migrations::Template::new(
        "CREATE FUNCTION {schema}clock_timestamp() RETURNS timestamptz LANGUAGE sql \
        AS $$SELECT pg_catalog.clock_timestamp() + interval '30 days'$$",
    );
    sqlx::query(&statement.schema(Some(&schema)).render()).execute(&database.admin).await.unwrap();
    // The statements of the inbox find this function before the server's own.
    let path = format!("{}, pg_catalog", schema.as_str());
    let options = (*database.pool.connect_options()).clone().options([("search_path", path)]);
    sqlx::postgres::PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap()
}

/// Goal: an inbox whose first consumer starts while the server's clock is ahead by more than its
/// retention refuses nothing for that reason later. Oracle: a message from the beginning of the
/// retention, once the clock is right.
async fn a_first_opening_by_a_clock_that_is_ahead_refuses_nothing_on_postgres(
    database: &Database<sqlx::Postgres>,
) {
    let ahead = Inbox::<sqlx::Postgres>::open(a_month_ahead(database).await, database.options()).await;
    let ahead = ahead.unwrap().window();
    let right = database.inbox().await;
    let window = right.window();
    assert!(ahead.now - window.now > time::Duration::days(29));
    let early = message_of(window.now - window.retention + Duration::from_secs(600), "early");
    assert!(consume(&right, &early).await.unwrap());
    assert!(!consume(&right, &early).await.unwrap());
}

/// Goal: a single reading of a database clock that is far ahead forgets nothing. Oracle: a message
/// of some days ago is still a duplicate when the clock is right again, and a chunk still waits for
/// the others.
async fn a_clock_that_jumps_ahead_forgets_nothing_on_postgres(database: &Database<sqlx::Postgres>) {
    let right = database.inbox().await;
    let remembered = message_of(right.window().now - 5 * DAY, "remembered");
    assert!(consume(&right, &remembered).await.unwrap());
    let mut tx = right.begin().await.unwrap();
    let chunk = chunks_of(&message(&"x".repeat(5_000))).swap_remove(0);
    let gathered = tx.gather(&consumer("billing"), &Tenant::none(), &chunk).await.unwrap();
    assert!(matches!(gathered, Gathered::Kept { held: 1, .. }), "{gathered:?}");
    drop(tx.commit().await.unwrap());
    let pool = a_month_ahead(database).await;
    let jumped = Inbox::<sqlx::Postgres>::open(pool, database.options()).await.unwrap();
    assert!(jumped.window().now - right.window().now > time::Duration::days(29));
    let error = jumped.maintain().await.unwrap_err();
    assert!(matches!(error, OpenError::ClocksDiffer { .. }), "{error}");
    assert!(!consume(&right, &remembered).await.unwrap(), "a duplicate as before");
    assert_eq!(right.incomplete(NonZeroU32::MAX).await.unwrap().len(), 1, "no chunk was given up");
}

/// Goal: a day that was dropped, detached or moved to another schema is not created again, because
/// its messages would take effect again. Oracle: the refusal and its text for a consumer that runs
/// and one that starts; the doctor's findings; the effects, also after the day was attached again
/// or abandoned.
async fn a_day_that_is_gone_is_not_made_again_on_postgres(database: &Database<sqlx::Postgres>) {
    let schema = database.schema.clone().unwrap();
    let inbox = database.inbox().await;
    let now = inbox.window().now;
    let applied = message_of(now - 2 * DAY, "applied");
    assert!(consume(&inbox, &applied).await.unwrap());
    let day = inbox::Day::of_id(applied.id);
    let part = migrations::Identifier::new(format!("inbox_message_{}", day.suffix())).unwrap();
    let attic = migrations::Identifier::new(format!("{schema}_attic")).unwrap();
    let admin = async |statement: &'static str| {
        let statement = migrations::Template::new(statement).schema(Some(&schema)).identifier("part", &part);
        let statement = statement.identifier("attic", &attic).identifier("home", &schema);
        sqlx::query(&statement.render()).execute(&database.admin).await.unwrap();
    };
    let lost = async || {
        let migrator = migrations::Migrator::<sqlx::Postgres>::new(migrations::Line::Inbox);
        let mut connection = database.admin.acquire().await.unwrap();
        migrator.schema(Some(schema.clone())).missing(&mut connection).await.unwrap()
    };
    let is_refused = async || {
        for attempt in 0..2 {
            let error = consume(&inbox, &applied).await.unwrap_err();
            let is_gone =
                matches!(&error, AdmitError::Day(OpenError::DayLost { day: gone, .. }) if *gone == day);
            assert!(is_gone || attempt == 0 && matches!(error, AdmitError::Expired { .. }), "{error}");
        }
        let error =
            Inbox::<sqlx::Postgres>::open(database.pool.clone(), database.options()).await.unwrap_err();
        assert_eq!(error.fault(), message::Fault::Operator);
        let text = error.to_string();
        let forget = format!("inbox_expire_days('{}')", day.next());
        assert!(text.contains(&day.to_string()) && text.contains(&forget), "{text}");
        inbox.maintain().await.unwrap_err();
        assert_eq!(lost().await, [format!("partition {part}")]);
    };
    assert_eq!(lost().await, [] as [String; 0]);

    admin("ALTER TABLE {schema}inbox_message DETACH PARTITION {schema}{part}").await;
    is_refused().await;
    admin("CREATE SCHEMA {attic}").await;
    admin("ALTER TABLE {schema}{part} SET SCHEMA {attic}").await;
    is_refused().await;

    admin("ALTER TABLE {attic}.{part} SET SCHEMA {home}").await;
    let (first, end) = day.bounds();
    let attach = "ALTER TABLE {schema}inbox_message ATTACH PARTITION {schema}{part} FOR VALUES FROM ({first}) TO ({end})";
    let attach = migrations::Template::new(attach).schema(Some(&schema)).identifier("part", &part);
    let attach = attach.uuid("first", first).uuid("end", end).render();
    sqlx::query(&attach).execute(&database.admin).await.unwrap();
    assert!(!consume(&inbox, &applied).await.unwrap(), "a duplicate");
    assert_eq!(lost().await, [] as [String; 0]);

    admin("DROP TABLE {schema}{part}").await;
    is_refused().await;
    sqlx::query("SELECT inbox_expire_days($1)")
        .bind(day.next().date())
        .execute(&database.admin)
        .await
        .unwrap();
    let anew = database.inbox().await;
    let refused = consume(&anew, &applied).await;
    assert!(matches!(refused, Err(AdmitError::Refused(Refusal::TooOld { .. }))), "{refused:?}");
    assert!(consume(&anew, &message("later")).await.unwrap());
    assert_eq!(
        <sqlx::Postgres as TestDatabase>::effects(&database.pool, "billing").await,
        ["applied", "later"]
    );
    admin("DROP SCHEMA {attic}").await;
}

/// The creation of a day must neither wait for consumers at work nor block them.
async fn a_day_is_created_beside_an_open_transaction_on_postgres(database: &Database<sqlx::Postgres>) {
    let long = database.options().retention(30 * DAY);
    let inbox = database.inbox().await;
    let now = inbox.window().now;
    let mut tx = inbox.begin().await.unwrap();
    let (name, none) = (consumer("billing"), Tenant::none());
    assert!(matches!(tx.admit(&name, &none, &message("open")).await.unwrap(), Admission::Fresh(_)));
    // Memory begins 14 days ago, and a longer retention alone does not extend it into the past. So
    // move its beginning back: now there are days to create.
    sqlx::query("UPDATE inbox_retention SET retained_from = retained_from - interval '30 days'")
        .execute(&database.admin)
        .await
        .unwrap();
    let opened =
        tokio::time::timeout(DAY / 8_640, Inbox::<sqlx::Postgres>::open(database.pool.clone(), long));
    let wide = opened.await.expect("not blocked by the open transaction").unwrap();
    assert!(consume(&wide, &message_of(now - 20 * DAY, "earlier day")).await.unwrap());
    assert_eq!(tx.commit().await.unwrap().len(), 1);
}

/// Goal: a process that needs a day while a lock is in its way waits for a bounded time, and then
/// tries again. Oracle: two waits of one opening, the first of which the server ends; the day
/// exists once the lock is released.
async fn creating_a_day_gives_way_and_tries_again_on_postgres(database: &Database<sqlx::Postgres>) {
    let inbox = database.inbox().await;
    let schema = database.schema.clone().unwrap();
    let tomorrow = inbox::Day::of(inbox.window().now).next();
    let part = migrations::Identifier::new(format!("inbox_message_{}", tomorrow.suffix())).unwrap();
    let template = migrations::Template::new("DROP TABLE {schema}{part}");
    let drop_day = template.schema(Some(&schema)).identifier("part", &part).render();
    sqlx::query(&drop_day).execute(&database.admin).await.unwrap();
    // As if it had never been created.
    sqlx::query("DELETE FROM inbox_day WHERE day = $1")
        .bind(tomorrow.date())
        .execute(&database.admin)
        .await
        .unwrap();
    let mut standing = database.admin.begin().await.unwrap();
    sqlx::query("LOCK TABLE inbox_message IN SHARE MODE").execute(&mut *standing).await.unwrap();
    let opening = tokio::spawn(Inbox::<sqlx::Postgres>::open(database.pool.clone(), database.options()));
    let waiting = "SELECT query_start FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let query = format!("%{schema}%inbox_create_days%");
    let mut waits = std::collections::BTreeSet::new();
    while waits.len() < 2 {
        assert!(!opening.is_finished(), "it gave up after {} waits", waits.len());
        let started: Option<time::OffsetDateTime> =
            sqlx::query_scalar(waiting).bind(&query).fetch_optional(&database.admin).await.unwrap();
        waits.extend(started);
    }
    standing.rollback().await.unwrap();
    opening.await.unwrap().unwrap();
    let exists = "SELECT to_regclass($1) IS NOT NULL";
    let found = sqlx::query_scalar(exists).bind(part.as_str()).fetch_one(&database.admin).await;
    assert!(found.unwrap_or(false), "{part} is there again");
}

/// Goal: an inbox whose days are being created holds back no inbox of another schema. Oracle: the
/// other one opens while the first one's lock is held.
async fn inboxes_of_one_database_do_not_wait_for_each_other_on_postgres(database: &Database<sqlx::Postgres>) {
    let mut creating = database.admin.begin().await.unwrap();
    let create = "SELECT inbox_create_days(current_date, current_date)";
    sqlx::query(create).execute(&mut *creating).await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    let held: i64 = sqlx::query_scalar(held).fetch_one(&mut *creating).await.unwrap();
    assert_eq!(held, 1);
    let other = <sqlx::Postgres as TestDatabase>::create().await;
    assert!(consume(&other.inbox().await, &message("beside it")).await.unwrap());
    creating.rollback().await.unwrap();
    <sqlx::Postgres as TestDatabase>::remove(other).await;
}

/// A consumer without the owner's rights runs while the days exist, and reports what is missing
/// when they do not.
async fn a_role_that_may_not_create_days_says_so_on_postgres(database: &Database<sqlx::Postgres>) {
    drop(database.inbox().await);
    let role = database.schema.clone().unwrap();
    for template in [
        "CREATE ROLE {role}",
        "GRANT USAGE ON SCHEMA {role} TO {role}",
        "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {role} TO {role}",
    ] {
        let grant = migrations::Template::new(template).identifier("role", &role).render();
        sqlx::query(&grant).execute(&database.admin).await.unwrap();
    }
    let as_role = database.admin.connect_options().as_ref().clone().options([("role", role.as_str())]);
    let pool = sqlx::PgPool::connect_with(as_role).await.unwrap();
    let humble = Inbox::<sqlx::Postgres>::open(pool.clone(), database.options()).await.unwrap();
    assert!(consume(&humble, &message("permitted")).await.unwrap());

    let template = "DROP TABLE {schema}{part}";
    let day = inbox::Day::of(humble.window().now).next();
    let part = migrations::Identifier::new(format!("inbox_message_{}", day.suffix())).unwrap();
    let drop_day = migrations::Template::new(template).schema(Some(&role)).identifier("part", &part).render();
    sqlx::query(&drop_day).execute(&database.admin).await.unwrap();
    let error = Inbox::<sqlx::Postgres>::open(pool.clone(), database.options()).await.unwrap_err();
    assert_eq!(error.fault(), message::Fault::Operator);
    assert!(error.to_string().contains("grant this role EXECUTE on inbox_create_days"), "{error}");
    pool.close().await;
    for template in ["DROP OWNED BY {role}", "DROP ROLE {role}"] {
        let revoke = migrations::Template::new(template).identifier("role", &role).render();
        sqlx::query(&revoke).execute(&database.admin).await.unwrap();
    }
}
