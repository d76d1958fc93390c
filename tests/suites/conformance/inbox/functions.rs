//! The functions for consumers that do not have the library: they write what the library writes,
//! and each finds the rows of the other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::{WORKS, billing, store_dead_letter};
use crate::inbox::{json, keyed, message, message_of};
use inbox::{
    Admission, AdmitError, Day, DeadLetterId, DeadLetterQuery, Inbox, Reason, RedriveOptions, Redriven,
    Resolution, Signature, Tenant,
};
use message::{Message, Source, TraceContext};
use sqlx::{PgConnection, Postgres, Row};
use time::Date;
use time::format_description::well_known::Rfc3339;
use time::macros::datetime;
use uuid::Uuid;

tests::cases! { "inbox/functions/{on}/{case}":
    on_postgres {
        library_and_function_admit_a_message_once,
        a_function_refuses_what_the_library_refuses,
        an_effect_is_proved_only_by_the_transaction_that_admitted_it,
        what_a_peer_writes_can_be_stored,
        a_dead_letter_of_a_function_is_redriven_by_the_library,
        a_redrive_is_taken_in_the_transaction_of_its_effect,
        a_redrive_that_ends_its_process_is_given_up,
        a_late_failure_ends_no_newer_request,
        duplicates_lock_only_their_day,
        deliveries_without_an_id_are_told_apart,
        failures_are_counted_until_the_message_is_admitted,
        a_dead_letter_of_another_message_leaves_the_failures_of_its_id,
        a_day_that_is_read_is_forgotten_later,
        maintenance_believes_the_clock_that_is_behind,
        maintenance_goes_on_after_a_part_that_failed,
    }
}

/// Returns the answer of `inbox_admit`.
async fn admit(connection: &mut PgConnection, message: &Message) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("SELECT inbox_admit('billing', $1, $2, $3, $4, $5)")
        .bind(message.id.as_uuid())
        .bind(message.kind.as_str())
        .bind(message.content_type.as_str())
        .bind(message.payload.as_ref())
        .bind(message.source.as_str())
        .fetch_one(connection)
        .await
}

/// Asks `inbox_finish` for the proof. Returns the SQLSTATE and the text of its refusal.
async fn finish(connection: &mut PgConnection, message: &Message) -> Result<(), (String, String)> {
    let finished = sqlx::query("SELECT inbox_finish('billing', $1)").bind(message.id.as_uuid());
    finished.execute(connection).await.map(drop).map_err(|error| {
        let error = error.into_database_error().expect("an answer of the server");
        (error.code().unwrap_or_default().into_owned(), error.message().to_owned())
    })
}

/// Stores a dead letter with `inbox_store_dead_letter`.
async fn store(database: &Database<Postgres>, message: &Message, reason: &str) -> DeadLetterId {
    let statement =
        "SELECT inbox_store_dead_letter('billing', $1, $2, $3, $4, $5, $6, 'it broke', $7, $8::jsonb, $9, $10,
        $11, $12, 'orders')";
    let id: Uuid = sqlx::query_scalar(statement)
        .bind(message.id.as_uuid())
        .bind(message.topic.as_str())
        .bind(message.kind.as_str())
        .bind(message.content_type.as_str())
        .bind(message.payload.as_ref())
        .bind(reason)
        .bind(message.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(serde_json::to_string(&message.headers).unwrap())
        .bind(message.source.as_str())
        .bind(message.time.format(&Rfc3339).unwrap())
        .bind(message.trace.as_ref().map(|trace| trace.parent().to_owned()))
        .bind(message.trace.as_ref().and_then(|trace| trace.state().map(str::to_owned)))
        .fetch_one(&database.pool)
        .await
        .unwrap();
    DeadLetterId(id)
}

/// Whether the library admits a message. Its transaction is rolled back.
async fn is_new_to_the_library(inbox: &Inbox<Postgres>, message: &Message) -> Result<bool, AdmitError> {
    let mut tx = inbox.begin().await.unwrap();
    let admitted = tx.admit(&billing(), &Tenant::none(), message).await?;
    Ok(matches!(admitted, Admission::Fresh(_)))
}

async fn library_and_function_admit_a_message_once(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let theirs = json(r#"{"order":1}"#);
    let ours = json(r#"{"order":2}"#);

    let mut tx = database.pool.begin().await.unwrap();
    assert_eq!(admit(&mut tx, &theirs).await.unwrap(), "new");
    assert_eq!(admit(&mut tx, &theirs).await.unwrap(), "duplicate");
    // The guard of the library waits for the open transaction.
    let rival = tokio::spawn({
        let (inbox, theirs) = (inbox.clone(), theirs.clone());
        async move { is_new_to_the_library(&inbox, &theirs).await.unwrap() }
    });
    let holder = Postgres::holder(&mut tx).await;
    tests::eventually("a waiting guard", async || {
        Ok(Postgres::is_waited_for(database, holder, &AtomicU32::new(0)).await.then_some(()))
    })
    .await
    .unwrap();
    tx.commit().await.unwrap();
    assert!(!rival.await.unwrap());

    let mut tx = inbox.begin().await.unwrap();
    assert!(matches!(tx.admit(&billing(), &Tenant::none(), &ours).await, Ok(Admission::Fresh(_))));
    drop(tx.commit().await.unwrap());
    let mut connection = database.pool.acquire().await.unwrap();
    assert_eq!(admit(&mut connection, &ours).await.unwrap(), "duplicate");

    // Fingerprints and sources are those of the library.
    let changed = json(r#"{"order":3}"#).with_id(ours.id);
    assert_eq!(admit(&mut connection, &changed).await.unwrap(), "key_reused");
    let elsewhere = Message { source: Source::new("/other").unwrap(), ..ours.clone() };
    assert_eq!(admit(&mut connection, &elsewhere).await.unwrap(), "key_reused");
    let refused = is_new_to_the_library(&inbox, &json("{}").with_id(theirs.id)).await;
    assert!(matches!(refused, Err(AdmitError::Refused(_))), "{refused:?}");

    // After a rollback there is no record.
    let undone = json("{}");
    let mut tx = database.pool.begin().await.unwrap();
    assert_eq!(admit(&mut tx, &undone).await.unwrap(), "new");
    tx.rollback().await.unwrap();
    assert!(is_new_to_the_library(&inbox, &undone).await.unwrap());
}

async fn a_function_refuses_what_the_library_refuses(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let now = inbox.window().now;
    let mut connection = database.pool.acquire().await.unwrap();
    let old = message_of(inbox.window().retained_from - Duration::from_secs(1), "old");
    assert_eq!(admit(&mut connection, &old).await.unwrap(), "too_old");
    let ahead = message_of(now + Duration::from_secs(2 * 86_400), "ahead");
    assert_eq!(admit(&mut connection, &ahead).await.unwrap(), "from_the_future");
    let random = "SELECT inbox_admit('billing', gen_random_uuid(), 'order.placed', 'text/plain', 'x')";
    let random: String = sqlx::query_scalar(random).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(random, "malformed");

    // A row that is not there and cannot be inserted is not a duplicate. A trigger stands for a day
    // that is forgotten between the two statements of the function.
    let lost = message("lost");
    let triggers = [
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER nothing BEFORE INSERT ON inbox_message FOR EACH ROW EXECUTE FUNCTION nothing()",
    ];
    for statement in triggers {
        sqlx::query(statement).execute(&database.admin).await.unwrap();
    }
    assert_eq!(admit(&mut connection, &lost).await.unwrap(), "too_old");
    sqlx::query("DROP FUNCTION nothing CASCADE").execute(&database.admin).await.unwrap();
    assert_eq!(admit(&mut connection, &lost).await.unwrap(), "new");

    // A missing day is not the message's fault.
    sqlx::query("DELETE FROM inbox_day").execute(&database.admin).await.unwrap();
    let error = admit(&mut connection, &message("today")).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("55000"), "{error}");
    let unknown =
        "SELECT inbox_store_dead_letter('billing', NULL, 'orders', NULL, NULL, 'x', 'held', 'no id')";
    let error = sqlx::query(unknown).execute(&mut *connection).await.unwrap_err();
    assert!(error.to_string().contains("cannot have the reason held"), "{error}");
}

/// Goal: no client acknowledges a message whose handler has ended its transaction, or ignored an
/// error. Oracle: the proof is refused in every transaction but the one that holds the effect.
async fn an_effect_is_proved_only_by_the_transaction_that_admitted_it(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut connection = database.pool.acquire().await.unwrap();
    let tx = &mut *connection;
    let run = async |tx: &mut PgConnection, sql: &'static str| sqlx::raw_sql(sql).execute(tx).await.map(drop);
    let [first, second, other] = ["first", "second", "other"].map(message);

    // It holds for several messages, and beside savepoints of handlers.
    run(tx, "BEGIN").await.unwrap();
    assert_eq!(admit(tx, &first).await.unwrap(), "new");
    run(tx, "SAVEPOINT of_the_caller").await.unwrap();
    assert_eq!(admit(tx, &second).await.unwrap(), "new");
    run(tx, "SAVEPOINT of_a_handler; ROLLBACK TO of_a_handler").await.unwrap();
    assert_eq!(finish(tx, &first).await, Ok(()));
    assert_eq!(finish(tx, &second).await, Ok(()));
    run(tx, "RELEASE of_the_caller").await.unwrap();
    assert_eq!(finish(tx, &second).await, Ok(()));
    run(tx, "COMMIT").await.unwrap();
    assert_eq!(admit(tx, &second).await.unwrap(), "duplicate");

    let refused = async |tx: &mut PgConnection, message: &Message, text: &str| {
        let (code, error) = finish(tx, message).await.unwrap_err();
        assert!(
            code == "25000" && error.contains(text) && error.contains(&message.id.to_string()),
            "{error}"
        );
    };
    let was_rolled_back = "was rolled back";
    // Rolled back to a savepoint before it, by its handler, or replaced by another transaction.
    run(tx, "BEGIN; SAVEPOINT before").await.unwrap();
    assert_eq!(admit(tx, &other).await.unwrap(), "new");
    run(tx, "ROLLBACK TO before").await.unwrap();
    refused(tx, &other, was_rolled_back).await;
    for end in ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"] {
        run(tx, "ROLLBACK; BEGIN").await.unwrap();
        assert_eq!(admit(tx, &other).await.unwrap(), "new");
        run(tx, end).await.unwrap();
        refused(tx, &other, was_rolled_back).await;
        // Another message of the new transaction proves nothing.
        run(tx, "ROLLBACK; BEGIN").await.unwrap();
        assert_eq!(admit(tx, &message(end)).await.unwrap(), "new");
        refused(tx, &other, was_rolled_back).await;
    }
    // An error that was ignored.
    run(tx, "ROLLBACK; BEGIN").await.unwrap();
    assert_eq!(admit(tx, &other).await.unwrap(), "new");
    run(tx, "SELECT 1 / 0").await.unwrap_err();
    assert_eq!(finish(tx, &other).await.unwrap_err().0, "25P02");
    // Committed by its handler.
    run(tx, "ROLLBACK; BEGIN").await.unwrap();
    assert_eq!(admit(tx, &other).await.unwrap(), "new");
    run(tx, "COMMIT").await.unwrap();
    refused(tx, &other, "was committed before its handler returned").await;

    // A redrive, of a message that the inbox has as dead, and of one that it has not.
    let dead = message("dead");
    let unknown = store_dead_letter(&inbox, &message("unknown"), Reason::KeyReused).await;
    for letter in [store_dead_letter(&inbox, &dead, Reason::Poison).await, unknown] {
        request(&inbox, letter).await;
        let begun = begin(tx).await.unwrap();
        let found = inbox.dead_letter_by_id(letter).await.unwrap().unwrap().message().unwrap();
        run(tx, "BEGIN").await.unwrap();
        assert!(take(tx, begun).await.is_some());
        assert_eq!(finish(tx, &found).await, Ok(()));
        run(tx, "ROLLBACK").await.unwrap();
        refused(tx, &found, was_rolled_back).await;
        run(tx, "BEGIN").await.unwrap();
        assert!(take(tx, begun).await.is_some());
        run(tx, "COMMIT").await.unwrap();
        refused(tx, &found, "was committed").await;
    }
}

/// Goal: no delivery stops a consumer because it cannot be stored. Oracle: each one is stored, and
/// the library reads all of them.
async fn what_a_peer_writes_can_be_stored(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let store = async |id: Uuid, with: &str| -> DeadLetterId {
        let statement = format!(
            "SELECT inbox_store_dead_letter('billing', $1, 'orders', 'order.placed', 'text/plain', 'x', 'poison',
            'it broke', {with})"
        );
        let id = sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).bind(id).fetch_one(&database.pool).await;
        DeadLetterId(id.unwrap_or_else(|error| panic!("{with}: {error}")))
    };

    // A text becomes a time or null.
    for (text, expected) in [
        ("2026-03-01T12:00:00.123+02:00", Some(datetime!(2026-03-01 10:00:00.123 UTC))),
        ("yesterday", None),
        ("infinity", None),
        ("2026-13-01T00:00:00Z", None),
        ("9999-12-31T23:59:59-12:00", None),
    ] {
        let stored = store(message("x").id.as_uuid(), &format!("made_at => '{text}'")).await;
        let letter = inbox.dead_letter_by_id(stored).await.unwrap().unwrap();
        assert_eq!((letter.reason, letter.time), (Reason::Poison, expected), "{text}");
        assert!(letter.message().is_ok(), "{text}");
    }

    // A delivery that cannot be a message is kept as malformed. The key is too long for an index,
    // even compressed.
    let long = "key => (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)";
    let malformed = [
        (store(message("x").id.as_uuid(), long).await, "its key has 9600 bytes"),
        (store(Uuid::nil(), "key => 'ann'").await, "is no UUIDv7"),
        (store(message("x").id.as_uuid(), "source => repeat('/', 5000)").await, "more than 255 bytes"),
    ];
    for (id, problem) in malformed {
        let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
        assert_eq!((letter.reason, letter.message_id), (Reason::Malformed, None));
        assert!(letter.error.contains("it broke") && letter.error.contains(problem), "{}", letter.error);
        let texts = [letter.key, letter.source].map(|text| text.unwrap_or_default());
        assert!(texts.iter().all(|text| text.len() <= 1_000), "{texts:?}");
    }
    let nothing = store(message("x").id.as_uuid(), r#"headers => '{"a": null, "b": "c"}'"#).await;
    let letter = inbox.dead_letter_by_id(nothing).await.unwrap().unwrap();
    let expected = [("a", ""), ("b", "c")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(letter.headers, expected);
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().len(), 9);
}

/// Goal: an operator sees and decides about the dead letter of a consumer in another language as
/// about any other one. Oracle: the library reads the message as it was sent, and applies it once.
async fn a_dead_letter_of_a_function_is_redriven_by_the_library(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut sent = keyed("order-7", r#"{"order":7}"#);
    sent.headers.insert("tenant", "\u{c4}").unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    sent.trace = Some(TraceContext::new(parent, Some(String::from("vendor=x"))).unwrap());
    let id = store(database, &sent, "poison").await;
    assert_eq!(store(database, &sent, "poison").await, id, "a copy is counted");
    assert_eq!(store_dead_letter(&inbox, &sent, Reason::Poison).await, id, "also by the library");
    let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
    let mut stored = letter.message().unwrap();
    assert!((stored.time - sent.time).abs() < Duration::from_millis(1));
    stored.time = sent.time;
    assert_eq!(stored, sent);
    assert_eq!((letter.reason, letter.deliveries, letter.error.as_str()), (Reason::Poison, 3, "it broke"));

    // It stops copies, wherever they come from.
    assert!(!is_new_to_the_library(&inbox, &sent).await.unwrap());
    let mut connection = database.pool.acquire().await.unwrap();
    assert_eq!(admit(&mut connection, &sent).await.unwrap(), "dead_letter");
    let redriven = inbox.redrive(&billing(), id, &WORKS, RedriveOptions::default()).await.unwrap();
    assert_eq!(redriven, Redriven::Now(Resolution::Applied));
    assert_eq!(admit(&mut connection, &sent).await.unwrap(), "duplicate");
    assert_eq!(Postgres::effects(&database.pool, "billing").await, [r#"{"order":7}"#]);

    // One that took effect meanwhile leaves nothing to decide.
    let applied = message("applied");
    assert_eq!(admit(&mut connection, &applied).await.unwrap(), "new");
    let late = store(database, &applied, "rejected").await;
    let late = inbox.dead_letter_by_id(late).await.unwrap().unwrap();
    assert_eq!(late.resolved.map(|(resolution, _)| resolution), Some(Resolution::Duplicate));
    let reused = store(database, &message("other").with_id(applied.id), "rejected").await;
    assert_eq!(inbox.dead_letter_by_id(reused).await.unwrap().unwrap().reason, Reason::KeyReused);
}

/// Begins the next redrive. Returns its request.
async fn begin(connection: &mut PgConnection) -> Option<i64> {
    let begun = "SELECT inbox_begin_redrive('billing')";
    sqlx::query_scalar(begun).fetch_one(connection).await.unwrap()
}

/// Takes a redrive that was begun. Returns its dead letter and its payload.
async fn take(connection: &mut PgConnection, request: i64) -> Option<(Uuid, Vec<u8>)> {
    let taken = "SELECT dead_letter, payload FROM inbox_take_redrive('billing', $1)";
    let row = sqlx::query(taken).bind(request).fetch_optional(connection).await.unwrap()?;
    Some((row.get(0), row.get(1)))
}

/// Ends a redrive that was begun. Returns whether it was open.
async fn fail(database: &Database<Postgres>, request: i64, error: &str) -> bool {
    let failed = sqlx::query_scalar("SELECT inbox_fail_redrive('billing', $1, $2)");
    failed.bind(request).bind(error).fetch_one(&database.pool).await.unwrap()
}

async fn outcomes(database: &Database<Postgres>) -> Vec<String> {
    let outcomes = "SELECT coalesce(outcome, 'open') FROM inbox_audit ORDER BY seq";
    sqlx::query_scalar(outcomes).fetch_all(&database.admin).await.unwrap()
}

async fn request(inbox: &Inbox<Postgres>, id: DeadLetterId) {
    let signature = Signature { actor: "ann".into(), note: "prices are back".into(), selection: None };
    inbox.request_redrive(id, RedriveOptions::default(), &signature).await.unwrap();
}

async fn a_redrive_is_taken_in_the_transaction_of_its_effect(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let poison = message("poison");
    let id = store_dead_letter(&inbox, &poison, Reason::Poison).await;
    let mut connection = database.pool.acquire().await.unwrap();
    assert_eq!(begin(&mut connection).await, None, "without a request there is nothing to do");
    request(&inbox, id).await;

    // A process that ends in the middle leaves the request to the next one.
    let begun = begin(&mut connection).await.unwrap();
    let mut tx = database.pool.begin().await.unwrap();
    assert_eq!(take(&mut tx, begun).await, Some((id.0, b"poison".to_vec())));
    assert_eq!(begin(&mut connection).await, None, "another process does not wait for it");
    let mut other = database.pool.begin().await.unwrap();
    assert!(take(&mut other, begun).await.is_none(), "nor take it");
    other.rollback().await.unwrap();
    tx.rollback().await.unwrap();
    assert!(inbox.dead_letter_by_id(id).await.unwrap().unwrap().resolved.is_none());

    // A handler that fails ends the request.
    assert!(fail(database, begun, "still broken").await);
    assert!(!fail(database, begun, "again").await);
    request(&inbox, id).await;
    let begun = begin(&mut connection).await.unwrap();
    let mut tx = database.pool.begin().await.unwrap();
    assert!(take(&mut tx, begun).await.is_some());
    Postgres::apply(&mut tx, "billing", &poison).await.unwrap();
    tx.commit().await.unwrap();
    assert!(take(&mut connection, begun).await.is_none());
    let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
    assert_eq!(letter.resolved.map(|(resolution, _)| resolution), Some(Resolution::Applied));
    assert!(!is_new_to_the_library(&inbox, &poison).await.unwrap());

    // One that cannot be redriven ends with the reason, and the next one is taken.
    let old = message_of(inbox.window().retained_from - Duration::from_secs(1), "old");
    let old = store_dead_letter(&inbox, &old, Reason::TooOld).await;
    let next = store_dead_letter(&inbox, &message("next"), Reason::Rejected).await;
    request(&inbox, old).await;
    request(&inbox, next).await;
    let refused = begin(&mut connection).await.unwrap();
    assert!(take(&mut connection, refused).await.is_none());
    let begun = begin(&mut connection).await.unwrap();
    assert_eq!(take(&mut connection, begun).await, Some((next.0, b"next".to_vec())));
    assert_eq!(outcomes(database).await, ["still broken", "applied", "it is refused: too_old", "applied"]);
    let open = inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap();
    assert_eq!(open.iter().map(|letter| letter.id).collect::<Vec<_>>(), [old]);
    let notes: i64 =
        sqlx::query_scalar("SELECT count(*) FROM inbox_attempt").fetch_one(&database.admin).await.unwrap();
    assert_eq!(notes, 0, "whatever the end was, it is not in hand any more");
}

/// Goal: a redrive whose handler ends its process again and again does not keep the consumer from
/// its queue. Oracle: the sixth process begins the next request, and the first one has the reason.
async fn a_redrive_that_ends_its_process_is_given_up(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let killer = store_dead_letter(&inbox, &message("killer"), Reason::Poison).await;
    let other = store_dead_letter(&inbox, &message("other"), Reason::Poison).await;
    request(&inbox, killer).await;
    request(&inbox, other).await;
    let mut connection = database.pool.acquire().await.unwrap();
    for _ in 0..5 {
        let begun = begin(&mut connection).await.unwrap();
        let mut tx = database.pool.begin().await.unwrap();
        assert_eq!(take(&mut tx, begun).await, Some((killer.0, b"killer".to_vec())));
        tx.rollback().await.unwrap();
    }
    let begun = begin(&mut connection).await.unwrap();
    assert_eq!(take(&mut connection, begun).await, Some((other.0, b"other".to_vec())));
    let ended = outcomes(database).await;
    assert!(ended[0].starts_with("five processes ended") && ended[1] == "applied", "{ended:?}");
    assert!(inbox.dead_letter_by_id(killer).await.unwrap().unwrap().resolved.is_none());

    // An operator may ask again, and then it is counted from the beginning.
    request(&inbox, killer).await;
    let begun = begin(&mut connection).await.unwrap();
    assert!(take(&mut connection, begun).await.is_some());
}

/// Goal: a process that reports late does not end what an operator has asked for since. Oracle: the
/// outcomes.
async fn a_late_failure_ends_no_newer_request(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let id = store_dead_letter(&inbox, &message("flaky"), Reason::Poison).await;
    request(&inbox, id).await;
    let mut connection = database.pool.acquire().await.unwrap();
    let first = begin(&mut connection).await.unwrap();
    // Another process ends the request, and an operator asks again.
    assert!(fail(database, first, "applied").await);
    request(&inbox, id).await;
    assert!(!fail(database, first, "late").await);
    // No error looks like the word of a closed dead letter.
    assert_eq!(outcomes(database).await, ["it failed: applied", "open"]);
    let second = begin(&mut connection).await.unwrap();
    assert!(take(&mut connection, second).await.is_some());
}

/// Goal: a session that has seen many duplicates holds no lock on other days while its transaction
/// is open: their partitions can be dropped. Oracle: the locks of the session.
async fn duplicates_lock_only_their_day(database: &Database<Postgres>) {
    drop(database.inbox().await);
    let mut connection = database.pool.acquire().await.unwrap();
    let (seen, dead) = (message("seen"), message("dead"));
    assert_eq!(admit(&mut connection, &seen).await.unwrap(), "new");
    store(database, &dead, "poison").await;
    for (again, answer) in [(&seen, "duplicate"), (&dead, "dead_letter")] {
        // PostgreSQL keeps a plan after five runs.
        for _ in 0..7 {
            assert_eq!(admit(&mut connection, again).await.unwrap(), answer);
        }
    }
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    assert_eq!(admit(&mut connection, &seen).await.unwrap(), "duplicate");
    let locked =
        "SELECT count(DISTINCT c.relname) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
        WHERE l.pid = pg_backend_pid() AND c.relname ~ '^inbox_message_[0-9]{8}$'";
    let locked: i64 = sqlx::query_scalar(locked).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(locked, 1);
    sqlx::query("ROLLBACK").execute(&mut *connection).await.unwrap();
}

/// Goal: no delivery without an id hides another one. Oracle: those that differ in one part are
/// several dead letters, and a copy is counted.
async fn deliveries_without_an_id_are_told_apart(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let store = async |with: &str| -> Uuid {
        let statement = format!(
            "SELECT inbox_store_dead_letter('billing', NULL, 'orders', payload => 'x', reason => 'malformed',
            error => 'no id', {with})"
        );
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_one(&database.pool).await.unwrap()
    };
    let mut all = std::collections::BTreeSet::new();
    let parts = [
        "kind => NULL, content_type => NULL",
        "kind => 'a', content_type => NULL",
        "kind => NULL, content_type => 'a'",
        "kind => NULL, content_type => NULL, key => 'a'",
        "kind => NULL, content_type => NULL, source => 'a'",
        "kind => NULL, content_type => NULL, made_at => 'a'",
        "kind => NULL, content_type => NULL, traceparent => 'a'",
        "kind => NULL, content_type => NULL, tracestate => 'a'",
        r#"kind => NULL, content_type => NULL, headers => '{"amqp.message_id": "a"}'"#,
    ];
    for with in parts {
        assert!(all.insert(store(with).await), "{with}");
    }
    assert!(!all.insert(store(parts[0]).await), "a copy");
    assert_eq!(inbox.dead_letters(&DeadLetterQuery::default()).await.unwrap().len(), parts.len());
}

async fn failures_are_counted_until_the_message_is_admitted(database: &Database<Postgres>) {
    let message = message("flaky");
    let count = async |error: &str| {
        let statement = "SELECT inbox_count_failure('billing', $1, $2)";
        let count = sqlx::query_scalar::<_, i32>(statement).bind(message.id.as_uuid()).bind(error);
        count.fetch_one(&database.pool).await.unwrap()
    };
    let inbox = database.inbox().await;
    assert_eq!(count("first").await, 1);
    assert_eq!(count("second").await, 2);
    let letter = store(database, &message, "poison").await;
    assert_eq!(inbox.dead_letter_by_id(letter).await.unwrap().unwrap().attempts, 2);
    assert_eq!(count("again").await, 1, "a dead letter begins at none");
    inbox
        .discard(letter, &Signature { actor: "ann".into(), note: "no".into(), selection: None })
        .await
        .unwrap();
    let mut connection = database.pool.acquire().await.unwrap();
    assert_eq!(admit(&mut connection, &message).await.unwrap(), "dead_letter");
    let other = crate::inbox::message("other");
    let statement = "SELECT inbox_count_failure('billing', $1, 'once')";
    sqlx::query(statement).bind(other.id.as_uuid()).execute(&mut *connection).await.unwrap();
    assert_eq!(admit(&mut connection, &other).await.unwrap(), "new");
    let left = "SELECT count(*) FROM inbox_attempt WHERE message_id = $1";
    let left = sqlx::query_scalar::<_, i64>(left).bind(other.id.as_uuid());
    assert_eq!(left.fetch_one(&mut *connection).await.unwrap(), 0, "its failures are forgotten");
}

/// Goal: storing and redriving a letter that the inbox refused because of its id forgets no failure
/// of the message that really has the id, whatever the end of the redrive is. Oracle: its failures,
/// and the notes of redrives that are left.
async fn a_dead_letter_of_another_message_leaves_the_failures_of_its_id(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut connection = database.pool.acquire().await.unwrap();
    let flaky = message("flaky");
    let other = Message { payload: "other".into(), ..flaky.clone() };
    let count = "SELECT inbox_count_failure('billing', $1, 'once')";
    let count = sqlx::query_scalar::<_, i32>(count).bind(flaky.id.as_uuid());
    assert_eq!(count.fetch_one(&mut *connection).await.unwrap(), 1);
    let letter = store(database, &other, "key_reused").await;
    assert_eq!(inbox.dead_letter_by_id(letter).await.unwrap().unwrap().attempts, 0, "it never failed");
    let kept = async || {
        let kept = "SELECT concat_ws(' ', attempts, ends) FROM inbox_attempt WHERE message_id = $1";
        let kept = sqlx::query_scalar::<_, String>(kept).bind(flaky.id.as_uuid());
        kept.fetch_optional(&database.admin).await.unwrap()
    };
    assert_eq!(kept().await.as_deref(), Some("1 0"), "stored");

    request(&inbox, letter).await;
    let begun = begin(&mut connection).await.unwrap();
    assert_eq!(kept().await.as_deref(), Some("1 1"));
    assert!(fail(database, begun, "broken").await);
    assert_eq!(kept().await.as_deref(), Some("1 0"), "failed");

    request(&inbox, letter).await;
    for _ in 0..5 {
        assert!(begin(&mut connection).await.is_some());
    }
    assert_eq!(begin(&mut connection).await, None);
    assert_eq!(kept().await.as_deref(), Some("1 0"), "given up");

    let admit = "INSERT INTO inbox_message (message_id, consumer, fingerprint)
        VALUES ($1, 'billing', inbox_fingerprint('k', 'text/plain', 'x'))";
    sqlx::query(admit).bind(flaky.id.as_uuid()).execute(&mut *connection).await.unwrap();
    request(&inbox, letter).await;
    let begun = begin(&mut connection).await.unwrap();
    assert!(take(&mut connection, begun).await.is_none());
    assert_eq!(outcomes(database).await.last().unwrap(), "it is refused: key_reused");
    assert_eq!(kept().await.as_deref(), Some("1 0"), "refused");
}

/// Returns the days that a forgetting of everything before `days` days ago has emptied.
async fn forgotten(connection: &mut PgConnection, days: i32) -> Result<Vec<Date>, sqlx::Error> {
    let expire = "SELECT inbox_expire_days((clock_timestamp() AT TIME ZONE 'UTC')::date - $1)";
    sqlx::query_scalar(expire).bind(days).fetch_all(connection).await
}

/// Runs maintenance by a clock that is ahead of the server's by some days. Returns what it could
/// not do.
async fn maintain(connection: &mut PgConnection, ahead: i32, retention: i32) -> Vec<String> {
    let maintain = "SELECT inbox_maintain((clock_timestamp() AT TIME ZONE 'UTC')::date + $1, $2)";
    sqlx::query_scalar(maintain).bind(ahead).bind(retention).fetch_all(connection).await.unwrap()
}

/// Goal: a backup or a report that reads an old day delays neither the other days nor a consumer.
/// Oracle: which days are emptied at once, the error of a call that could do nothing, and the
/// answer for a message of the day that is read, before and after it is emptied.
async fn a_day_that_is_read_is_forgotten_later(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut connection = database.pool.acquire().await.unwrap();
    let now = inbox.window().now;
    let read = message_of(now - Duration::from_secs(6 * 86_400), "read");
    assert_eq!(admit(&mut connection, &read).await.unwrap(), "new");
    let day = Day::of_id(read.id);
    let mut report = database.admin.begin().await.unwrap();
    let select = format!("SELECT count(*) FROM inbox_message_{}", day.suffix());
    let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(select)).fetch_one(&mut *report).await.unwrap();
    assert_eq!(rows, 1);

    let emptied = forgotten(&mut connection, 4).await.unwrap();
    assert!(emptied.len() >= 2 && !emptied.contains(&day.date()), "{emptied:?}");
    assert_eq!(admit(&mut connection, &read).await.unwrap(), "too_old");
    // If all days exist, no lock is needed.
    let mut creator = database.admin.begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(7597682998164844593 # 'inbox_message'::regclass::oid::bigint)";
    sqlx::query(lock).execute(&mut *creator).await.unwrap();
    let today = "SELECT inbox_create_days(current_date, current_date)";
    let created: i64 = sqlx::query_scalar(today).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(created, 0);
    drop(creator.rollback().await);

    let error = forgotten(&mut connection, 4).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("55P03"), "{error}");
    assert!(error.to_string().contains("is in use"), "{error}");
    let problems = maintain(&mut connection, 0, 4).await;
    assert!(problems.len() == 1 && problems[0].contains("is in use"), "{problems:?}");
    report.commit().await.unwrap();
    assert_eq!(forgotten(&mut connection, 4).await.unwrap(), [day.date()]);
    assert_eq!(admit(&mut connection, &read).await.unwrap(), "too_old");
}

/// Goal: one clock that is far ahead forgets nothing. Oracle: the beginning of memory after a call
/// with a date ahead, and with one behind.
async fn maintenance_believes_the_clock_that_is_behind(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut connection = database.pool.acquire().await.unwrap();
    let remembered = message_of(inbox.window().now - Duration::from_secs(5 * 86_400), "remembered");
    assert_eq!(admit(&mut connection, &remembered).await.unwrap(), "new");
    for ahead in [400, -30] {
        assert_eq!(maintain(&mut connection, ahead, 6).await, [] as [String; 0]);
        assert_eq!(admit(&mut connection, &remembered).await.unwrap(), "duplicate");
    }
    assert_eq!(maintain(&mut connection, 0, 4).await, [] as [String; 0]);
    assert_eq!(admit(&mut connection, &remembered).await.unwrap(), "too_old");
}

/// Goal: maintenance makes the days ahead and removes what is old although one day is gone. Oracle:
/// the text that it returns, the days, and the rows that are left.
async fn maintenance_goes_on_after_a_part_that_failed(database: &Database<Postgres>) {
    let inbox = database.inbox().await;
    let mut connection = database.pool.acquire().await.unwrap();
    let message = message_of(inbox.window().now - Duration::from_secs(2 * 86_400), "x");
    store(database, &message, "poison").await;
    let part = format!("inbox_message_{}", Day::of_id(message.id).suffix());
    let ahead = "(SELECT max(relname) FROM pg_class JOIN pg_inherits ON inhrelid = pg_class.oid
        WHERE inhparent = 'inbox_message'::regclass)";
    let statements = [
        format!("DROP TABLE {part}"),
        format!("DO $$ BEGIN EXECUTE 'DROP TABLE ' || {ahead}; END $$"),
        "DELETE FROM inbox_day WHERE day = (SELECT max(day) FROM inbox_day)".to_owned(),
        "UPDATE inbox_dead_letter SET resolution = 'discarded', resolved_at = '2020-01-01'".to_owned(),
        "INSERT INTO inbox_attempt VALUES ('billing', '', gen_random_uuid(), 1, 'x', '2020-01-01', '2020-01-01')"
            .to_owned(),
    ];
    for statement in statements {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&database.admin).await.unwrap();
    }
    let problems = maintain(&mut connection, 0, 4).await;
    assert!(problems.len() == 1 && problems[0].contains(&part), "{problems:?}");
    let left = "SELECT (SELECT count(*) FROM inbox_attempt) + (SELECT count(*) FROM inbox_dead_letter)";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(left, 0);
    let last = "SELECT max(day) = (clock_timestamp() AT TIME ZONE 'UTC')::date + 7 FROM inbox_day";
    assert!(sqlx::query_scalar::<_, bool>(last).fetch_one(&mut *connection).await.unwrap());
}
