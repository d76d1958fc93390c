//! Decisions of operators: their signatures have size limits, and the records are kept for years
//! and then removed.

use std::num::NonZeroU32;

use idempotency::{IdempotencyKeys, KeyId, KeyOptions};
use inbox::{
    Cause, ConsumerName, DeadLetterId, DeadLetterQuery, Inbox, InboxOptions, Reason, RedriveOptions,
    Requested, Signature, Tenant,
};
use message::{Delivery, DeliveryToken, EventType, Message, NOTE_BYTES_MAX, Source, TEXT_BYTES_MAX, Topic};
use outbox::Outbox;
use outbox_log::admin::{self, ChosenEntry, DECIDED_MAX, DecideError, Decision, OperatorDecision};
use outbox_log::{EntryId, LogError, LogOptions, PauseScope, RelayName};
use saga::{SagaId, Sagas};
use sqlx::{Postgres, Sqlite};
use tests::{Backend, Database, Dialect, Failure, Outcome, Stage};

/// Returns the time some days ago, in the SQL of the database.
pub(crate) fn days_ago<DB: Dialect>(days: i32) -> String {
    match DB::BACKEND {
        Backend::Postgres => format!("clock_timestamp() - interval '1 day' * {days}"),
        _ => format!("(unixepoch() - 86400 * {days}) * 1000000"),
    }
}

tests::cases! { "audit/{on}/{case}":
    databases { what_stays_does_not_keep_what_is_behind_it, texts_of_any_size_are_kept_or_refused }
    postgres { decisions_outlive_their_retention_by_little = outlive_and_are_not_taken_back }
    sqlite { decisions_outlive_their_retention_by_little = outlive::<Sqlite> }
}

/// Goal: services remove decisions older than three years as part of their maintenance, with their
/// normal rights. Younger decisions stay, and so does a redrive that has not been carried out.
/// Oracle: the rows.
async fn outlive<DB: Dialect>(stage: Stage) -> Outcome {
    let db = Database::<DB>::migrated(&stage).await?;
    for days in [1_200, 1_000] {
        let at = days_ago::<DB>(days);
        for done in ["'discarded', 1", "NULL, NULL"] {
            let done = done.replace(", 1", &format!(", {at}"));
            let letter = format!("00000000-0000-0000-0000-00000000{days}");
            db.execute(&format!(
                "INSERT INTO inbox_audit (actor, note, dead_letter, consumer, action, at, outcome, done_at) \
                 VALUES ('ann', 'x', '{letter}', 'billing', 'discard', {at}, {done})"
            ))
            .await?;
        }
        for insert in [
            "idempotency_audit (actor, note, action, scope, operation, key, at) VALUES ('ann', 'x', 'discard', 't', 'o', 'k'",
            "saga_audit (actor, note, action, type, id, at) VALUES ('ann', 'x', 'retry', 'checkout', '7'",
        ] {
            db.execute(&format!("INSERT INTO {insert}, {at})")).await?;
        }
    }
    let inbox = Inbox::open(db.consumer.clone(), InboxOptions::default()).await?;
    assert_eq!(inbox.maintain().await?.decisions_purged, 1);
    IdempotencyKeys::open(db.service.clone(), KeyOptions::default()).await?.maintain().await?;
    let sagas = Sagas::builder(db.service.clone(), Outbox::new()).open().await?;
    assert_eq!(sagas.forget_decisions().await?, 1);
    for (table, left) in [("inbox_audit", 3), ("idempotency_audit", 1), ("saga_audit", 1)] {
        assert_eq!(db.integer(&format!("SELECT count(*) FROM {table}")).await?, left, "{table}");
    }
    Ok(())
}

/// Goal: requests that are never carried out, and decisions with a time in the future, do not keep
/// later decisions forever. Oracle: the rows, with more of both than one statement examines.
async fn what_stays_does_not_keep_what_is_behind_it<DB: Dialect>(stage: Stage) -> Outcome {
    const STAY: u32 = 1_200;
    let db = Database::<DB>::migrated(&stage).await?;
    let (old, future) = (days_ago::<DB>(1_200), days_ago::<DB>(-1));
    let insert = async |table: &str, columns: &str, values: &str, count: u32| {
        db.execute(&format!(
            "INSERT INTO {table} (actor, note, {columns}) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) \
             SELECT 'ann', 'x', {values} FROM n"
        ))
        .await
    };
    let columns = "dead_letter, consumer, action, at, outcome, done_at";
    let letter = "'00000000-0000-0000-0000-000000000000'";
    let open = format!("{letter}, 'gone ' || n, 'redrive', {old}, NULL, NULL");
    insert("inbox_audit", columns, &open, STAY).await?;
    let done = format!("{letter}, 'billing', 'discard', {old}, 'discarded', {old}");
    insert("inbox_audit", columns, &done, 7).await?;
    for (at, count) in [(&future, STAY), (&old, 7)] {
        let values = format!("'discard', 't', 'o', 'k', {at}");
        insert("idempotency_audit", "action, scope, operation, key, at", &values, count).await?;
        let values = format!("'retry', 'checkout', '7', {at}");
        insert("saga_audit", "action, type, id, at", &values, count).await?;
    }
    let inbox = Inbox::open(db.consumer.clone(), InboxOptions::default()).await?;
    assert_eq!(inbox.maintain().await?.decisions_purged, 7);
    IdempotencyKeys::open(db.service.clone(), KeyOptions::default()).await?.maintain().await?;
    let sagas = Sagas::builder(db.service.clone(), Outbox::new()).open().await?;
    assert_eq!(sagas.forget_decisions().await?, 7);
    for table in ["inbox_audit", "idempotency_audit", "saga_audit"] {
        let left = db.integer(&format!("SELECT count(*) FROM {table}")).await?;
        assert_eq!(left, i64::from(STAY), "{table}");
    }
    Ok(())
}

/// Goal: as above; and no service can remove a recent decision. Oracle: the database refuses both
/// ways.
async fn outlive_and_are_not_taken_back(stage: Stage) -> Outcome {
    outlive::<Postgres>(stage.clone()).await?;
    let db = Database::<Postgres>::migrated(&stage).await?;
    for (pool, line) in [(&db.consumer, "inbox"), (&db.service, "idempotency"), (&db.service, "saga")] {
        for (sql, code) in [
            (format!("SELECT {line}_purge_audit(now() - interval '29 days', 10)"), "22023"),
            (format!("DELETE FROM {line}_audit"), "42501"),
        ] {
            let answer = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).execute(pool).await;
            let error = answer.err().ok_or_else(|| format!("{sql} was not refused"))?;
            assert_eq!(error.as_database_error().and_then(|e| e.code()).as_deref(), Some(code), "{sql}");
        }
    }
    Ok(())
}

/// Returns signatures, each with the text of its refusal, or `None` for an accepted signature.
fn signatures() -> Vec<(Signature, Option<String>)> {
    let text = |bytes: usize| "n".repeat(bytes);
    let mut signatures = Vec::new();
    for (is_note, max) in [(false, TEXT_BYTES_MAX), (true, NOTE_BYTES_MAX)] {
        for bytes in [0, max, max + 1, 100 * max] {
            let (actor, note) = if is_note { (text(3), text(bytes)) } else { (text(bytes), text(4)) };
            let refused = match bytes {
                0 => Some(format!("is empty; give it 1 to {max} bytes")),
                _ => (bytes > max).then(|| format!("has {bytes} bytes; the limit is {max}")),
            };
            signatures.push((Signature { actor, note, selection: None }, refused));
        }
    }
    let nul = Signature { actor: String::from("ann"), note: String::from("a\0b"), selection: None };
    signatures.push((nul, Some(String::from("NUL is not allowed"))));
    signatures
}

/// Goal: every call of the libraries that records a decision keeps actor and note whole, or refuses
/// them with length and limit before it changes anything. The error of a failure is kept up to its
/// limit. Oracle: the errors of each call; the stored values.
async fn texts_of_any_size_are_kept_or_refused<DB: Dialect>(stage: Stage) -> Outcome {
    let db = Database::<DB>::migrated(&stage).await?;
    let inbox = Inbox::open(db.admin.clone(), InboxOptions::default()).await?;
    let keys = IdempotencyKeys::open(db.admin.clone(), KeyOptions::default()).await?;
    let sagas = Sagas::builder(db.admin.clone(), Outbox::new()).open().await?;
    let outbox = admin::open(db.url.as_str(), Source::new("/test")?, LogOptions::default())?;
    let (relay, key) = (RelayName::new("main")?, KeyId::of_texts("t", "o", "k")?);
    let all = NonZeroU32::MAX;
    for (signature, refused) in signatures() {
        let Signature { actor, note, .. } = &signature;
        let decree = OperatorDecision {
            decision: Decision::Requeue,
            signature: Signature::new(actor.clone(), note.clone()),
        };
        let letter = dead_letter(&inbox, "no").await?;
        let scope = PauseScope::Topic(String::from("orders"));
        let saga = sagas.retry(&SagaId::new("checkout", "7")?, &signature).await;
        let Some(refused) = refused else {
            assert!(outbox.decide(&relay, &[], decree).await?.is_empty());
            assert!(outbox.pause(&relay, &scope, actor, note).await?);
            let pauses = outbox.pauses(&relay).await?;
            assert_eq!((&pauses[0].actor, &pauses[0].reason), (actor, note));
            assert!(outbox.resume(&relay, &scope, None, actor, note).await?);
            let requested = inbox.request_redrive(letter, RedriveOptions::default(), &signature).await?;
            assert_eq!(requested, Requested::Now);
            inbox.discard(letter, &signature).await?;
            for decision in inbox.decisions(NonZeroU32::MIN.saturating_add(1)).await? {
                assert_eq!(decision.signature, signature);
            }
            assert!(!keys.decide(&key, None, idempotency::Action::Release, &signature).await?);
            assert!(matches!(saga, Err(saga::DecideError::NotFound { .. })), "{saga:?}");
            continue;
        };
        let redriven = inbox.request_redrive(letter, RedriveOptions::default(), &signature).await;
        let errors = [
            ("decide", text_of(outbox.decide(&relay, &[], decree).await)?),
            ("pause", text_of(outbox.pause(&relay, &scope, actor, note).await)?),
            ("resume", text_of(outbox.resume(&relay, &scope, None, actor, note).await)?),
            ("redrive", text_of(redriven)?),
            ("discard", text_of(inbox.discard(letter, &signature).await)?),
            ("key", text_of(keys.decide(&key, None, idempotency::Action::Release, &signature).await)?),
            ("saga", text_of(saga)?),
        ];
        for (call, error) in errors {
            assert!(error.contains(&refused) && error.len() < 500, "{call}: {error}, and not {refused}");
        }
        // The refused calls have left it open.
        inbox.discard(letter, &signatures()[1].0).await?;
    }
    for scope in [PauseScope::Topic("t".repeat(256)), PauseScope::Key(String::new())] {
        let refused = outbox.pause(&relay, &scope, "ann", "a test").await;
        assert!(matches!(refused, Err(LogError::Operator { .. })), "{refused:?}");
    }
    assert!(outbox.pauses(&relay).await?.is_empty());

    let entry = |id| ChosenEntry { id: EntryId(id), message_id: String::from("none"), edited_at: None };
    for count in [0, 1, DECIDED_MAX, DECIDED_MAX + 1, 100 * DECIDED_MAX] {
        let decree =
            OperatorDecision { decision: Decision::Discard, signature: Signature::new("ann", "a test") };
        let entries: Vec<_> = (1_i64..).map(entry).take(count).collect();
        match outbox.decide(&relay, &entries, decree).await {
            Ok(verdicts) => {
                assert!(count <= DECIDED_MAX && verdicts.len() == count, "{count}");
                assert!(verdicts.iter().all(Result::is_err));
            }
            Err(DecideError::TooMany { entries }) => assert!(entries == count && count > DECIDED_MAX),
            Err(other) => return Err(other.into()),
        }
    }

    let consumer = ConsumerName::new("billing")?;
    for bytes in [0, 4_096, 4_097, 409_600] {
        let error = "\0".repeat(bytes);
        let stored = match bytes {
            0 => String::from("an error without a text"),
            _ => message::error_text::storable(&error, 4_096),
        };
        let failing = message()?.id;
        inbox.record_failure(&consumer, &Tenant::none(), failing, &error, None).await?;
        let attempt = inbox.attempt(&consumer, &Tenant::none(), failing).await?.ok_or("no attempt")?;
        assert_eq!(attempt.last_error, stored);
        let letter = dead_letter(&inbox, &error).await?;
        let query = DeadLetterQuery { limit: all, ..DeadLetterQuery::default() };
        let letters = inbox.dead_letters(&query).await?;
        let kept = letters.iter().find(|kept| kept.id == letter).ok_or("no letter")?;
        assert_eq!(kept.error, stored);
    }
    Ok(())
}

fn message() -> Result<Message, Failure> {
    Ok(Message::new(Topic::new("orders")?, EventType::new("order.placed")?, "x"))
}

/// Stores a dead letter with this error. Returns its id.
pub(crate) async fn dead_letter<DB: Dialect>(
    inbox: &Inbox<DB>,
    error: &str,
) -> Result<DeadLetterId, Failure> {
    let (consumer, message) = (ConsumerName::new("billing")?, message()?);
    let id = message.id;
    let delivery = Delivery {
        token: DeliveryToken(1),
        message: Ok(message),
        redelivered: false,
        origin: String::from("queue orders"),
    };
    let cause = Cause::new(Reason::Rejected, error.to_owned(), 1);
    drop(inbox.dead_letter(&consumer, &Tenant::none(), &delivery, cause).await?);
    let query = DeadLetterQuery { limit: NonZeroU32::MAX, ..DeadLetterQuery::default() };
    let letters = inbox.dead_letters(&query).await?;
    let letter = letters.iter().find(|letter| letter.message_id == Some(id)).ok_or("no letter")?;
    Ok(letter.id)
}

fn text_of<T, E: std::error::Error>(result: Result<T, E>) -> Result<String, Failure> {
    match result {
        Ok(_) => Err("it was not refused".into()),
        Err(error) => Ok(error.to_string()),
    }
}
