//! The guard: one effect per consumer, scope and message, in every race.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::{consumer, json, message, message_of, scope};
use bytes::Bytes;
use inbox::{
    Admission, AdmitError, Candidate, CommitError, ConfirmError, ConsumerName, Inbox, InboxTransaction,
    PayloadComparison, Refusal, SourceComparison, Tenant,
};
use message::{Committed, Fault, Fingerprint, Message, Source};

tests::cases! { "inbox/guard/{on}/{case}":
    every {
        racing_consumers_apply_once,
        a_waiting_consumer_takes_over_after_a_rollback,
        each_consumer_and_each_scope_applies,
        hostile_names_are_names_and_nothing_else,
        a_duplicate_gets_the_stored_result,
        a_reused_id_is_refused_before_any_effect,
        an_id_of_another_source_is_refused,
        json_of_the_same_content_is_the_same_payload_on_demand,
        ids_outside_the_window_are_refused_with_both_times,
        what_is_refused_by_its_time_is_counted_once,
        a_batch_admits_each_message_once,
        racing_batches_in_opposite_order_apply_once,
        an_open_transaction_of_the_caller_is_confirmed_only_after_its_commit,
        a_rolled_back_savepoint_gives_no_proof,
        a_transaction_that_was_ended_by_a_dropped_begin_admits_nothing,
        a_chained_transaction_is_one_of_its_own,
        a_result_is_not_stored_from_another_transaction,
    }
    on_postgres {
        a_swallowed_error_on_postgres_gives_no_proof,
        a_commit_without_an_answer_is_unknown_on_postgres,
        a_deferred_trigger_that_fails_is_the_cause_on_postgres,
    }
}

async fn admit<DB: TestDatabase>(
    tx: &mut InboxTransaction<DB>,
    name: &str,
    message: &Message,
) -> Result<Admission<DB>, AdmitError> {
    tx.admit(&consumer(name), &Tenant::none(), message).await
}

/// Handles a message as a consumer does. Returns whether it applied the effect, and the proofs.
async fn consume<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    name: &str,
    message: &Message,
) -> (bool, Vec<Committed>) {
    consume_in(inbox.begin().await.unwrap(), name, message).await
}

async fn consume_in<DB: TestDatabase>(
    mut tx: InboxTransaction<DB>,
    name: &str,
    message: &Message,
) -> (bool, Vec<Committed>) {
    let fresh = matches!(admit(&mut tx, name, message).await.unwrap(), Admission::Fresh(_));
    if fresh {
        DB::apply(&mut tx, name, message).await.unwrap();
    }
    (fresh, tx.commit().await.unwrap())
}

/// Does the same as [`consume`], but starts over whenever the database times out while it waits for
/// a lock. Counts these refusals.
async fn consume_patiently<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    name: &str,
    message: &Message,
    refusals: &AtomicU32,
) -> (bool, Vec<Committed>) {
    loop {
        match inbox.begin().await {
            Ok(tx) => return consume_in(tx, name, message).await,
            Err(error) => assert_eq!(error.fault(), Fault::Broker, "{error}"),
        }
        refusals.fetch_add(1, Ordering::SeqCst);
    }
}

async fn racing_consumers_apply_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let message = message("once");
    let racing = (0..16).map(|_| {
        let (inbox, message) = (inbox.clone(), message.clone());
        tokio::spawn(async move { consume(&inbox, "billing", &message).await })
    });
    let mut applied = 0;
    for racer in racing.collect::<Vec<_>>() {
        let (fresh, proofs) = racer.await.unwrap();
        applied += u32::from(fresh);
        assert_eq!(proofs, [Committed::attest(message.id.as_uuid())]);
    }
    assert_eq!(applied, 1);
    assert_eq!(DB::effects(&database.pool, "billing").await, ["once"]);
}

async fn a_waiting_consumer_takes_over_after_a_rollback<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let message = message("taken over");
    let mut first = inbox.begin().await.unwrap();
    assert!(matches!(admit(&mut first, "billing", &message).await.unwrap(), Admission::Fresh(_)));
    DB::apply(&mut first, "billing", &message).await.unwrap();
    let holder = DB::holder(&mut first).await;
    let rival = Inbox::open(DB::rival(database).await, database.options()).await.unwrap();
    let refusals = Arc::new(AtomicU32::new(0));
    let second = tokio::spawn({
        let (message, refusals) = (message.clone(), Arc::clone(&refusals));
        async move { consume_patiently(&rival, "billing", &message, &refusals).await }
    });
    tests::eventually("the second one waits in the database", async || {
        let is_waiting = DB::is_waited_for(database, holder, &refusals).await;
        if second.is_finished() {
            return Err("it did not wait for the first one".into());
        }
        Ok(is_waiting.then_some(()))
    })
    .await
    .unwrap();
    first.rollback().await.unwrap();
    let (fresh, proofs) = second.await.unwrap();
    assert!(fresh && proofs.len() == 1);
    assert_eq!(DB::effects(&database.pool, "billing").await, ["taken over"]);
}

async fn each_consumer_and_each_scope_applies<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let message = message("shared");
    for (name, tenant, expected) in [
        ("billing", "", true),
        ("shipping", "", true),
        ("billing", "tenant-1", true),
        ("billing", "tenant-2", true),
        ("billing", "tenant-1", false),
        ("shipping", "", false),
    ] {
        let mut tx = inbox.begin().await.unwrap();
        let admission = tx.admit(&consumer(name), &scope(tenant), &message).await.unwrap();
        assert_eq!(matches!(admission, Admission::Fresh(_)), expected, "{name} {tenant}");
        drop(tx.commit().await.unwrap());
    }
}

/// A valid name of a consumer or a tenant is stored unchanged, never matches another name, and
/// never acts as SQL.
async fn hostile_names_are_names_and_nothing_else<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let names = tests::hostile::NAMES.into_iter().chain(["billing", "billing ", "%", "_", "billing'--"]);
    let mut accepted = Vec::new();
    for name in names {
        let Ok(consumer) = ConsumerName::new(name) else {
            assert!(name.is_empty() || name.contains(char::is_control), "{name:?} is refused");
            continue;
        };
        accepted.push((name, consumer));
    }
    assert!(accepted.len() > 12, "{accepted:?}");
    // All of them get the same message. If a name matched another one, its message would already be
    // applied.
    let message = message("once each");
    for (name, consumer) in &accepted {
        for (scope, is_fresh) in
            [(Tenant::none(), true), (Tenant::new(*name).unwrap(), true), (Tenant::none(), false)]
        {
            let mut tx = inbox.begin().await.unwrap();
            let admission = tx.admit(consumer, &scope, &message).await.unwrap();
            assert_eq!(matches!(admission, Admission::Fresh(_)), is_fresh, "{name:?} for {scope:?}");
            if is_fresh {
                DB::apply(&mut tx, name, &message).await.unwrap();
            }
            tx.commit().await.unwrap();
        }
    }
    for (name, _) in accepted {
        assert_eq!(DB::effects(&database.pool, name).await, ["once each"; 2], "{name:?}");
    }
}

async fn a_duplicate_gets_the_stored_result<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let message = message("with result");
    let outcome = async || inbox.outcome(&consumer("billing"), &Tenant::none(), message.id).await.unwrap();
    assert_eq!(outcome().await, None);
    let mut tx = inbox.begin().await.unwrap();
    let Admission::Fresh(guard) = admit(&mut tx, "billing", &message).await.unwrap() else { panic!("fresh") };
    guard.complete(&mut tx, b"invoice 7").await.unwrap();
    drop(tx.commit().await.unwrap());
    let before = inbox.window().now;
    let mut tx = inbox.begin().await.unwrap();
    let Admission::Duplicate(first) = admit(&mut tx, "billing", &message).await.unwrap() else { panic!() };
    assert_eq!(first.result, Some(Bytes::from_static(b"invoice 7")));
    assert!(first.processed_at <= before + Duration::from_secs(1));
    let Admission::Duplicate(again) = admit(&mut tx, "billing", &message).await.unwrap() else { panic!() };
    assert_eq!(first, again, "the original time comes back every time");
    assert_eq!(tx.commit().await.unwrap().len(), 2);
    assert_eq!(outcome().await, Some(first), "also without a duplicate");
}

async fn a_reused_id_is_refused_before_any_effect<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let one = message("one");
    let other = message("other").with_id(one.id);
    consume(&inbox, "billing", &one).await;
    let mut tx = inbox.begin().await.unwrap();
    let refused = admit(&mut tx, "billing", &other).await.unwrap_err();
    let AdmitError::Refused(Refusal::KeyReused { stored, received, id, .. }) = refused else { panic!() };
    assert_eq!((stored, received, id), (Fingerprint::of(&one), Fingerprint::of(&other), one.id));
    tx.rollback().await.unwrap();
    let confirmed = inbox.confirm(&consumer("billing"), &Tenant::none(), &other).await;
    assert!(matches!(confirmed, Err(ConfirmError::Refused(Refusal::KeyReused { .. }))));
}

/// Goal: source and id together identify a message, so that no effect is lost silently when two
/// producers use the same id. Oracle: the answer of each way to admit.
async fn an_id_of_another_source_is_refused<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let one = message("one");
    let from =
        |source: &str, message: &Message| Message { source: Source::new(source).unwrap(), ..message.clone() };
    let other = from("/t2", &one);
    consume(&inbox, "billing", &one).await;
    let mut tx = inbox.begin().await.unwrap();
    let refused = admit(&mut tx, "billing", &other).await.unwrap_err();
    let AdmitError::Refused(Refusal::OtherSource { stored, received, .. }) = refused else { panic!() };
    assert_eq!((stored.as_str(), received.as_str()), (one.source.as_str(), "/t2"));
    let two = message("two");
    let candidates = [&two, &from("/t2", &two), &other, &one];
    let candidates = candidates.map(|message| Candidate { tenant: Tenant::none(), message });
    let admitted = tx.admit_batch(&consumer("billing"), &candidates).await.unwrap();
    let [Ok(Admission::Fresh(_)), Err(in_batch), Err(before), Ok(Admission::Duplicate(_))] = &admitted[..]
    else {
        panic!("{admitted:?}")
    };
    for refused in [in_batch, before] {
        assert!(matches!(refused, Refusal::OtherSource { .. }), "{refused}");
    }
    tx.rollback().await.unwrap();
    let confirmed = inbox.confirm(&consumer("billing"), &Tenant::none(), &other).await;
    assert!(matches!(confirmed, Err(ConfirmError::Refused(Refusal::OtherSource { .. }))));

    let options = database.options().sources(SourceComparison::Ignored);
    let one_outbox = Inbox::<DB>::open(database.pool.clone(), options).await.unwrap();
    let mut tx = one_outbox.begin().await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &other).await.unwrap(), Admission::Duplicate(_)));
    tx.rollback().await.unwrap();
}

async fn json_of_the_same_content_is_the_same_payload_on_demand<DB: TestDatabase>(database: &Database<DB>) {
    let by_bytes = database.inbox().await;
    let options = database.options().payloads(PayloadComparison::CanonicalJson);
    let by_content = Inbox::open(database.pool.clone(), options).await.unwrap();
    let one = json(r#"{"order":7,"cents":1250}"#);
    let same = json(r#" { "cents": 1250, "order": 7 } "#).with_id(one.id);
    let other = json(r#"{"cents":1250.0,"order":7}"#).with_id(one.id);
    let (in_batch, its_copy) = (json(r#"{"a":1,"b":2}"#), json(r#"{"b":2,"a":1}"#));
    let its_copy = its_copy.with_id(in_batch.id);

    let mut tx = by_content.begin().await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &one).await.unwrap(), Admission::Fresh(_)));
    let candidate = |message| Candidate { tenant: Tenant::none(), message };
    let candidates = [&in_batch, &its_copy, &same, &other].map(candidate);
    let admitted = tx.admit_batch(&consumer("billing"), &candidates).await.unwrap();
    let [Ok(Admission::Fresh(_)), Ok(Admission::Duplicate(_)), Ok(Admission::Duplicate(_)), Err(refused)] =
        &admitted[..]
    else {
        panic!("{admitted:?}")
    };
    assert!(matches!(refused, Refusal::KeyReused { .. }), "{refused}");
    tx.commit().await.unwrap();

    let mut tx = by_content.begin().await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &same).await.unwrap(), Admission::Duplicate(_)));
    assert!(admit(&mut tx, "billing", &other).await.is_err(), "1250.0 is written otherwise");
    tx.rollback().await.unwrap();
    assert!(by_content.confirm(&consumer("billing"), &Tenant::none(), &same).await.is_ok());
    let mut tx = by_bytes.begin().await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &one).await.unwrap(), Admission::Duplicate(_)));
    assert!(admit(&mut tx, "billing", &same).await.is_err(), "bytes are what is promised");
    tx.rollback().await.unwrap();
    // A message that was admitted by its bytes has no stored content to compare with.
    let before = json(r#"{"a":1,"b":2}"#);
    consume(&by_bytes, "billing", &before).await;
    let mut tx = by_content.begin().await.unwrap();
    let reordered = json(r#"{"b":2,"a":1}"#).with_id(before.id);
    assert!(admit(&mut tx, "billing", &reordered).await.is_err());
    tx.rollback().await.unwrap();
}

async fn ids_outside_the_window_are_refused_with_both_times<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let window = inbox.window();
    let mut tx = inbox.begin().await.unwrap();
    let old = message_of(window.oldest_accepted_at() - Duration::from_secs(60), "old");
    let refused = admit(&mut tx, "billing", &old).await.unwrap_err();
    let AdmitError::Refused(Refusal::TooOld { generated_at, oldest_accepted_at, .. }) = refused else {
        panic!()
    };
    assert!(generated_at == old.id.generated_at() && oldest_accepted_at > generated_at);
    let early = message_of(window.newest_accepted_at() + Duration::from_secs(600), "early");
    let refused = admit(&mut tx, "billing", &early).await.unwrap_err();
    let AdmitError::Refused(Refusal::FromTheFuture { generated_at, newest_accepted_at, .. }) = refused else {
        panic!()
    };
    assert!(generated_at == early.id.generated_at() && newest_accepted_at < generated_at);
    // A refusal by time leaves the transaction usable. Times at both ends of the window are
    // accepted.
    for inside in [
        message_of(window.oldest_accepted_at() + Duration::from_secs(60), "oldest"),
        message_of(window.newest_accepted_at(), "newest"),
    ] {
        assert!(matches!(admit(&mut tx, "billing", &inside).await.unwrap(), Admission::Fresh(_)));
    }
    assert_eq!(tx.commit().await.unwrap().len(), 2);
}

async fn what_is_refused_by_its_time_is_counted_once<DB: TestDatabase>(database: &Database<DB>) {
    let counters = tests::Counters::installed();
    let inbox = database.inbox().await;
    let window = inbox.window();
    let name = format!("counted-{}", message::MessageId::new());
    let old = message_of(window.oldest_accepted_at() - Duration::from_secs(60), "old");
    let early = message_of(window.newest_accepted_at() + Duration::from_secs(600), "early");
    let counted = |reason| counters.value("inbox_refused_total", &[("consumer", &name), ("reason", reason)]);
    let mut tx = inbox.begin().await.unwrap();
    assert!(admit(&mut tx, &name, &old).await.is_err() && admit(&mut tx, &name, &early).await.is_err());
    assert!(admit(&mut tx, &name, &message("present")).await.is_ok());
    assert_eq!((counted("too_old"), counted("from_the_future")), (1, 1));
    let candidates = [&old, &early].map(|message| Candidate { tenant: Tenant::none(), message });
    let refused = tx.admit_batch(&consumer(&name), &candidates).await.unwrap();
    assert!(refused.iter().all(Result::is_err));
    assert_eq!((counted("too_old"), counted("from_the_future")), (2, 2));
    tx.rollback().await.unwrap();
}

async fn a_batch_admits_each_message_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut messages: Vec<_> = (0..300).map(|n| message(&n.to_string())).collect();
    consume(&inbox, "billing", &messages[7]).await;
    messages.push(messages[3].clone());
    messages.push(message("another").with_id(messages[5].id));
    messages.push(message_of(inbox.window().oldest_accepted_at() - Duration::from_secs(60), "old"));
    let candidates: Vec<_> =
        messages.iter().map(|message| Candidate { tenant: Tenant::none(), message }).collect();
    let mut tx = inbox.begin().await.unwrap();
    let admissions = tx.admit_batch(&consumer("billing"), &candidates).await.unwrap();
    for (at, admission) in admissions.iter().enumerate() {
        let seen = match admission {
            Ok(Admission::Fresh(guard)) => {
                assert_eq!(guard.id(), messages[at].id, "results are in the order of the messages");
                "fresh"
            }
            Ok(Admission::Duplicate(_)) => "duplicate",
            Err(Refusal::KeyReused { .. }) => "reused",
            Err(Refusal::TooOld { .. }) => "too old",
            Err(_) => "other",
        };
        let expected = match at {
            7 | 300 => "duplicate",
            301 => "reused",
            302 => "too old",
            _ => "fresh",
        };
        assert_eq!(seen, expected, "message {at}");
    }
    let proofs = tx.commit().await.unwrap();
    let subjects: Vec<_> = proofs.iter().map(Committed::subject).collect();
    let expected: Vec<_> = messages[..301].iter().map(|message| message.id.as_uuid()).collect();
    assert_eq!(subjects, expected);
}

/// Goal: two consumers with the same long batch in opposite orders wait for each other. Oracle:
/// neither fails, as it would in a deadlock, and each message is fresh once.
async fn racing_batches_in_opposite_order_apply_once<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for round in 0..10 {
        let messages: Vec<_> = (0..900).map(|n| message(&format!("{round}-{n}"))).collect();
        let racing = [false, true].map(|is_reversed| {
            let (inbox, mut messages) = (inbox.clone(), messages.clone());
            if is_reversed {
                messages.reverse();
            }
            tokio::spawn(async move {
                let candidates: Vec<_> =
                    messages.iter().map(|message| Candidate { tenant: Tenant::none(), message }).collect();
                let mut tx = inbox.begin().await.unwrap();
                let admissions = tx.admit_batch(&consumer("billing"), &candidates).await.unwrap();
                let fresh = admissions.iter().filter(|one| matches!(one, Ok(Admission::Fresh(_)))).count();
                assert_eq!(tx.commit().await.unwrap().len(), candidates.len());
                fresh
            })
        });
        let mut fresh = 0;
        for racer in racing {
            fresh += racer.await.unwrap();
        }
        assert_eq!(fresh, messages.len());
    }
}

async fn an_open_transaction_of_the_caller_is_confirmed_only_after_its_commit<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let (name, none, message) = (consumer("billing"), Tenant::none(), message("own transaction"));
    let mut tx = database.pool.begin().await.unwrap();
    assert!(matches!(inbox.admit(&mut tx, &name, &none, &message).await.unwrap(), Admission::Fresh(_)));
    let early = inbox.confirm(&name, &none, &message).await;
    assert!(matches!(early, Err(ConfirmError::NotCommitted { .. })));
    tx.commit().await.unwrap();
    let proof = inbox.confirm(&name, &none, &message).await.unwrap();
    assert_eq!(proof.subject(), message.id.as_uuid());
}

async fn a_rolled_back_savepoint_gives_no_proof<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for misuse in ["ROLLBACK TO SAVEPOINT one", "ROLLBACK"] {
        let mut tx = inbox.begin().await.unwrap();
        DB::sql(&mut tx, "SAVEPOINT one").await.unwrap();
        let message = message("undone");
        assert!(matches!(admit(&mut tx, "billing", &message).await.unwrap(), Admission::Fresh(_)));
        DB::sql(&mut tx, misuse).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert!(error.is_rolled_back(), "{misuse}: {error}");
    }
    // A message that is admitted later does not replace the undone one.
    let mut tx = inbox.begin().await.unwrap();
    DB::sql(&mut tx, "SAVEPOINT one").await.unwrap();
    let (undone, later) = (message("undone"), message("later"));
    assert!(matches!(admit(&mut tx, "billing", &undone).await.unwrap(), Admission::Fresh(_)));
    DB::sql(&mut tx, "ROLLBACK TO SAVEPOINT one").await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &later).await.unwrap(), Admission::Fresh(_)));
    assert!(tx.commit().await.unwrap_err().is_rolled_back());
    for message in [undone, later] {
        let confirmed = inbox.confirm(&consumer("billing"), &Tenant::none(), &message).await;
        assert!(matches!(confirmed, Err(ConfirmError::NotCommitted { .. })));
    }
}

/// A chained transaction is independent: it proves only its own messages, and its rollback does not
/// undo the previous transaction.
async fn a_chained_transaction_is_one_of_its_own<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let [first, second, third] = [message("first"), message("second"), message("third")];
    let mut tx = inbox.begin().await.unwrap();
    let (mut chained, mut proven) = (0, Vec::new());
    for message in [&first, &second] {
        assert!(matches!(admit(&mut tx, "billing", message).await.unwrap(), Admission::Fresh(_)));
        let (proofs, next) = tx.commit_and_chain().await.unwrap();
        proven.extend(proofs.iter().map(Committed::subject));
        chained += usize::from(next.is_some());
        tx = match next {
            Some(next) => next,
            None => inbox.begin().await.unwrap(),
        };
    }
    assert_eq!(proven, [first.id.as_uuid(), second.id.as_uuid()]);
    assert_eq!(chained, if DB::CHAINS { 2 } else { 0 });
    assert!(matches!(admit(&mut tx, "billing", &third).await.unwrap(), Admission::Fresh(_)));
    drop(tx);
    for (message, is_kept) in [(first, true), (second, true), (third, false)] {
        let confirmed = inbox.confirm(&consumer("billing"), &Tenant::none(), &message).await;
        assert_eq!(confirmed.is_ok(), is_kept);
    }
    // An empty transaction commits and proves nothing.
    assert!(inbox.begin().await.unwrap().commit_and_chain().await.unwrap().0.is_empty());
}

async fn a_result_is_not_stored_from_another_transaction<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut tx = inbox.begin().await.unwrap();
    let Admission::Fresh(guard) = admit(&mut tx, "billing", &message("x")).await.unwrap() else { panic!() };
    tx.rollback().await.unwrap();
    let mut other = inbox.begin().await.unwrap();
    assert!(guard.complete(&mut other, b"lost").await.is_err());
}

/// PostgreSQL aborts a transaction on any error, and answers its COMMIT with a silent rollback.
async fn a_swallowed_error_on_postgres_gives_no_proof(database: &Database<sqlx::Postgres>) {
    let inbox = database.inbox().await;
    let mut tx = inbox.begin().await.unwrap();
    let message = message("swallowed");
    assert!(matches!(admit(&mut tx, "billing", &message).await.unwrap(), Admission::Fresh(_)));
    assert!(sqlx::Postgres::sql(&mut tx, "SELECT 1 / 0").await.is_err());
    assert!(matches!(tx.commit().await, Err(CommitError::Refused { .. })));
    let confirmed = inbox.confirm(&consumer("billing"), &Tenant::none(), &message).await;
    assert!(matches!(confirmed, Err(ConfirmError::NotCommitted { .. })));
}

/// The server disconnects in the middle of COMMIT, because a deferred trigger ends the session the
/// first time.
async fn a_commit_without_an_answer_is_unknown_on_postgres(database: &Database<sqlx::Postgres>) {
    for statement in [
        "CREATE SEQUENCE commits",
        "GRANT USAGE ON SEQUENCE commits TO PUBLIC",
        "CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('commits') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER leave AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION leave()",
    ] {
        sqlx::query(statement).execute(&database.admin).await.unwrap();
    }
    let inbox = database.inbox().await;
    let message = message("unknown");
    let mut tx = inbox.begin().await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &message).await.unwrap(), Admission::Fresh(_)));
    sqlx::Postgres::apply(&mut tx, "billing", &message).await.unwrap();
    let outcome = tx.commit().await;
    assert!(matches!(outcome, Err(CommitError::Unknown { .. })), "{outcome:?}");
    // The next delivery finds that nothing was committed, so it applies.
    assert!(consume(&inbox, "billing", &message).await.0);
    assert!(!consume(&inbox, "billing", &message).await.0);
    assert_eq!(sqlx::Postgres::effects(&database.pool, "billing").await, ["unknown"]);
}

/// Goal: an error of a service's own trigger is not mistaken for a transaction that has ended, nor
/// the reverse, whatever its code. Oracle: the cause that the commit names.
async fn a_deferred_trigger_that_fails_is_the_cause_on_postgres(database: &Database<sqlx::Postgres>) {
    let inbox = database.inbox().await;
    for (work, told) in [
        ("PERFORM 1 / 0", "division by zero"),
        ("PERFORM ('x' || TG_NAME)::int", "invalid input syntax for type integer"),
    ] {
        for statement in [
            "DROP TRIGGER IF EXISTS fail ON effect",
            &format!(
                "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN {work}; RETURN NULL; END $$"
            ),
            "CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION fail()",
        ] {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&database.admin).await.unwrap();
        }
        let message = message("failed");
        let mut tx = inbox.begin().await.unwrap();
        assert!(matches!(admit(&mut tx, "billing", &message).await.unwrap(), Admission::Fresh(_)));
        sqlx::Postgres::apply(&mut tx, "billing", &message).await.unwrap();
        let Err(CommitError::Refused { source: cause, .. }) = tx.commit().await else {
            panic!("{work}: not rolled back with a cause");
        };
        let cause = message::error_text::chain(&*cause).to_string();
        assert!(cause.contains(told), "{work}: {cause}");
    }
}

/// Goal: after sqlx has ended a transaction unnoticed by the handler, no inbox row is stored
/// without its effect, and no proof is given. Oracle: the answers to later calls that admit.
async fn a_transaction_that_was_ended_by_a_dropped_begin_admits_nothing<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let messages = ["first", "second", "third"].map(message);
    let mut tx = inbox.begin().await.unwrap();
    assert!(matches!(admit(&mut tx, "billing", &messages[0]).await.unwrap(), Admission::Fresh(_)));
    tests::drop_a_begin(&mut **tx).await;
    assert!(matches!(admit(&mut tx, "billing", &messages[1]).await, Err(AdmitError::Store(_))));
    let candidates = [Candidate { tenant: Tenant::none(), message: &messages[2] }];
    assert!(tx.admit_batch(&consumer("billing"), &candidates).await.is_err());
    let ended = tx.commit().await.unwrap_err();
    assert!(ended.is_rolled_back() && ended.to_string().contains("begin()"), "{ended}");
    for message in &messages {
        assert!(consume(&inbox, "billing", message).await.0, "it is not there yet");
    }
}
