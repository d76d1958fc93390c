//! Decisions of operators: how long they count, which message they belong to, and when they are
//! deleted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use message::Headers;
use operate::dead::{Corrected, EditSent, MessageRef, edit as correct, editable, edited};
use operate::failures::FailedAttempts;
use operate::{OperateErrorKind, Operator, Role, Signed};
use outbox_log::admin::{self, ChosenEntry, Decision, OperatorDecision};
use outbox_log::entries::{EntryRef, Selection, Standing};
use outbox_log::retention::ForgetError;
use outbox_log::{
    Acquired, Entry, EntryId, ExceptionChange, ExceptionState, Fenced, LogOptions, Parked, PauseScope,
};

use crate::outbox::retention::{Relay, messages, open, parked, rows};
use crate::outbox::searches::{places, told};
use crate::outbox::support::{Database, TTL, TestDialect, granted, pipeline, relay, source};

tests::cases! { "outbox/decisions/{on}/{case}":
    every {
        a_decision_counts_whatever_id_its_entry_had,
        an_edit_is_withdrawn_with_its_relay,
        a_relay_that_is_forgotten_leaves_no_pause,
        what_is_discarded_with_a_relay_goes_in_parts,
        a_relay_that_returns_while_it_is_forgotten_is_told_what_is_gone,
        decisions_that_may_not_go_keep_no_others,
        the_last_ten_errors_of_an_entry_are_kept,
        the_same_error_again_is_written_once,
        an_edit_covers_the_content_that_was_shown,
        the_audit_keeps_what_an_edit_found_and_left,
    }
}

/// Decides about a parked message.
pub(super) async fn decide<DB: TestDialect>(db: &Database<DB>, entry: &Entry, decision: Decision) {
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let decree = OperatorDecision { decision, signature: outbox::Signature::new("ops", "a test") };
    let chosen = [ChosenEntry { id: entry.id, message_id: entry.message_id(), edited_at: None }];
    admin.decide(&relay(), &chosen, decree).await.unwrap().remove(0).unwrap();
}

pub(super) fn edit() -> Decision {
    Decision::Edit { payload: Some("repaired".into()), headers: None, replaces: None }
}

/// Returns whether the history of a message, its row in a list, and a comparison show it as
/// discarded, and as edited.
async fn shown<DB: TestDialect>(db: &Database<DB>, entry: &Entry) -> [(bool, bool); 3] {
    let (_, entries) =
        outbox_log::entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let id = uuid::Uuid::parse_str(&entry.message_id()).unwrap();
    let found = entries.find(&relay(), EntryRef::Id(entry.id)).await.unwrap().remove(0);
    let extent = entries.extent(&relay()).await.unwrap();
    let page = entries.select(&relay(), &extent, &Selection::default(), EntryId(0)).await.unwrap();
    let standing = page.entries.iter().find(|selected| selected.id == entry.id).unwrap().standing;
    let row = rows(db).await.find(&[id]).await.unwrap().remove(0);
    [
        (found.is_discarded, found.is_edited),
        (standing == Standing::Discarded, standing == Standing::Edited),
        (row.stage == outbox_log::reconcile::Stage::Discarded, row.edited),
    ]
}

/// Goal: an operator who queries a message sees the decisions about it, although ids were assigned
/// again after a sequence was set back, and a rebase gave the entry another one. Oracle: the answer
/// to each query before and after the decisions name other ids.
async fn a_decision_counts_whatever_id_its_entry_had<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(2)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    let park = |entry| ExceptionChange::Park(parked(entry, ExceptionState::Dead));
    main.pass(&entries.iter().map(park).collect::<Vec<_>>()).await;
    decide(db, &entries[0], Decision::Discard).await;
    decide(db, &entries[1], edit()).await;
    decide(db, &entries[1], Decision::Requeue).await;
    main.pass(&entries.iter().map(|entry| ExceptionChange::Resolve(entry.id)).collect::<Vec<_>>()).await;
    for _ in 0..2 {
        assert_eq!(shown(db, &entries[0]).await, [(true, false); 3]);
        assert_eq!(shown(db, &entries[1]).await, [(false, true); 3]);
        db.run("UPDATE outbox_audit SET id = id + 900").await;
    }
}

/// Goal: a message that the next relay of the name publishes is not shown as edited, because the
/// edited copy was removed with the former relay. Oracle: the answer to each query before the relay
/// is forgotten, after it, and after another edit.
async fn an_edit_is_withdrawn_with_its_relay<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(1)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entry = main.follower.all().await.remove(0);
    for round in 0..2 {
        main.pass(&[ExceptionChange::Park(parked(&entry, ExceptionState::Dead))]).await;
        decide(db, &entry, edit()).await;
        decide(db, &entry, Decision::Requeue).await;
        main.pass(&[ExceptionChange::Resolve(entry.id)]).await;
        assert_eq!(shown(db, &entry).await, [(false, true); 3], "round {round}");

        assert_eq!(main.checkpoint_store.release(main.epoch).await.unwrap(), Fenced::Held);
        open(db).forget(&relay(), false).await.unwrap();
        main = Relay::new(db, &relay()).await;
        assert_eq!(main.pass(&[]).await.len(), 1);
        // Broker and inboxes may still have the edited content: a comparison accepts either
        // content.
        assert_eq!(shown(db, &entry).await, [(false, false), (false, false), (false, true)], "round {round}");
    }
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let audit = admin.audit(&relay(), 10).await.unwrap();
    let told: Vec<_> =
        audit.iter().map(|record| (record.action.as_str(), &*record.signature.actor)).collect();
    let round = [("requeue", "relay forget"), ("requeue", "ops"), ("edit", "ops")];
    assert_eq!(told, [round, round].concat());

    // Nothing is left to withdraw.
    assert_eq!(main.checkpoint_store.release(main.epoch).await.unwrap(), Fenced::Held);
    open(db).forget(&relay(), false).await.unwrap();
    assert_eq!(admin.audit(&relay(), 10).await.unwrap().len(), 6);
}

/// Goal: a new relay under the name of a forgotten one publishes. Oracle: the pauses of both, and
/// of another relay.
async fn a_relay_that_is_forgotten_leaves_no_pause<DB: TestDialect>(db: &Database<DB>) {
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let other = outbox_log::RelayName::new("other").unwrap();
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    for name in [&relay(), &other] {
        for scope in [PauseScope::Pipeline, PauseScope::Topic(String::from("orders"))] {
            admin.pause(name, &scope, "ops", "a migration").await.unwrap();
        }
    }
    assert_eq!(main.checkpoint_store.release(main.epoch).await.unwrap(), Fenced::Held);
    open(db).forget(&relay(), false).await.unwrap();
    assert_eq!(admin.pauses(&relay()).await.unwrap().len(), 0);
    assert_eq!(admin.pauses(&other).await.unwrap().len(), 2);
}

/// Parks 25,000 entries: two parts of a discard, and some.
async fn park_many<DB: TestDialect>(db: &Database<DB>) {
    const PARKED: i64 = 25_000;
    let is_sqlite = DB::DIALECT == migrations::Dialect::Sqlite;
    let cast = if is_sqlite { "" } else { "::uuid" };
    let content = if is_sqlite { "x'00', 0" } else { "'\\x00', now()" };
    let counted = format!(
        "WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {PARKED})"
    );
    for insert in [
        format!(
            "outbox_exception (relay, id, message_id, topic, state) {counted} SELECT 'main', n, \
             ('00000000-0000-7000-8000-' || substr('000000000000' || n, length('000000000000' || n) - 11)){cast}, \
             'orders', 'held' FROM counted"
        ),
        format!(
            "outbox_parked (relay, id, content_type, payload, enqueued_at) {counted} SELECT 'main', n, \
             'text/plain', {content} FROM counted"
        ),
    ] {
        db.run(&format!("INSERT INTO {insert}")).await;
    }
}

/// Goal: a relay can be forgotten, however many entries are parked for it, and an interrupted call
/// keeps its progress. Between two parts, the relay does not begin without what is discarded.
/// Oracle: the entries left after a call whose third part fails, and after the next call; the
/// answer to the relay's request for the lease. A relay that leads again a minute later loses
/// nothing more.
async fn what_is_discarded_with_a_relay_goes_in_parts<DB: TestDialect>(db: &Database<DB>) {
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    assert_eq!(main.checkpoint_store.release(main.epoch).await.unwrap(), Fenced::Held);
    park_many(db).await;
    let is_sqlite = DB::DIALECT == migrations::Dialect::Sqlite;
    let refuse: &[&str] = if is_sqlite {
        &["CREATE TRIGGER refused BEFORE DELETE ON outbox_exception WHEN OLD.id = 24000 \
           BEGIN SELECT RAISE(ABORT, 'interrupted'); END"]
    } else {
        &[
            "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN RAISE EXCEPTION 'interrupted'; END$$",
            "CREATE TRIGGER refused BEFORE DELETE ON outbox_exception FOR EACH ROW WHEN (OLD.id = 24000) \
             EXECUTE FUNCTION refused()",
        ]
    };
    for sql in refuse {
        db.run(sql).await;
    }
    let left = async || {
        let count = async |table: &str| db.number(&format!("SELECT count(*) FROM {table}")).await;
        [count("outbox_exception").await, count("outbox_parked").await, count("outbox_relay").await]
    };

    let failed = open(db).forget(&relay(), true).await.unwrap_err();
    assert!(matches!(&failed, ForgetError::Log(_)), "{failed}");
    assert_eq!(left().await, [5_000, 5_000, 1], "two parts are gone, and the relay is not");
    let refused = open(db).forget(&relay(), false).await.unwrap_err();
    assert!(matches!(refused, ForgetError::Parked { entries: 5_000, .. }), "{refused}");
    match main.checkpoint_store.acquire(TTL).await.unwrap() {
        Acquired::Busy { holder, .. } => assert_eq!(holder, "relay forget"),
        Acquired::Granted { .. } => panic!("the relay goes on without what is discarded"),
    }
    let failed = open(db).forget(&relay(), true).await.unwrap_err();
    assert!(matches!(&failed, ForgetError::Log(_)), "no relay leads: {failed}");
    let past = if is_sqlite { "1" } else { "clock_timestamp() - interval '1 second'" };
    db.run(&format!("UPDATE outbox_relay SET lease_until = {past} WHERE lease_seconds = 60")).await;
    let (returned, _) = granted(&mut main.checkpoint_store).await;
    let refused = open(db).forget(&relay(), true).await.unwrap_err();
    assert!(matches!(refused, ForgetError::Leading { .. }), "{refused}");
    assert_eq!(left().await, [5_000, 5_000, 1]);
    assert_eq!(main.checkpoint_store.release(returned.epoch).await.unwrap(), Fenced::Held);

    db.run(if is_sqlite { "DROP TRIGGER refused" } else { "DROP TRIGGER refused ON outbox_exception" }).await;
    open(db).forget(&relay(), true).await.unwrap();
    assert_eq!(left().await, [0, 0, 0]);
}

/// Goal: an operator whose `relay forget --discard-parked` is overtaken by the relay learns that
/// messages are gone. Oracle: the error, and the entries that are left, where the relay takes its
/// lease after the first part.
async fn a_relay_that_returns_while_it_is_forgotten_is_told_what_is_gone<DB: TestDialect>(db: &Database<DB>) {
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    assert_eq!(main.checkpoint_store.release(main.epoch).await.unwrap(), Fenced::Held);
    let config = pipeline(&relay(), &db.relay_url());
    let name = relay();
    let signed = signed("ann");
    let forgotten = || operate::forget::forget(&config, &signed, &name, true);
    park_many(db).await;
    let leads = "UPDATE outbox_relay SET holder = 'b', lease_seconds = 300, lease_until =";
    let returns: &[String] = if DB::DIALECT == migrations::Dialect::Sqlite {
        &[format!(
            "CREATE TRIGGER returns AFTER DELETE ON outbox_exception WHEN OLD.id = 1 \
             BEGIN {leads} CAST(unixepoch('subsec') * 1000000 AS INTEGER) + 300000000; END"
        )]
    } else {
        &[
            format!(
                "CREATE FUNCTION returns() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER \
                 SET search_path FROM CURRENT AS $$BEGIN {leads} clock_timestamp() + interval '300 s'; RETURN NULL; END$$"
            ),
            String::from(
                "CREATE TRIGGER returns AFTER DELETE ON outbox_exception FOR EACH ROW WHEN (OLD.id = 1) \
                 EXECUTE FUNCTION returns()",
            ),
        ]
    };
    for sql in returns {
        db.run(sql).await;
    }
    let error = forgotten().await.unwrap_err();
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, 15_000);
    let told = format!("{error}; {}", error.help().unwrap_or_default());
    assert!(told.contains("is led by b"), "{told}");
    assert!(told.contains("10000 of its parked messages are discarded"), "{told}");
    // Nothing was discarded by this call.
    let error = forgotten().await.unwrap_err();
    let told = format!("{error}; {}", error.help().unwrap_or_default());
    assert!(told.contains("is led by b") && !told.contains("discarded"), "{told}");
}

/// Goal: retention of decisions never stops, however many of the oldest must stay, or were made
/// while the clock was ahead. Oracle: the records that calls have removed, each of which examines
/// 1,000, while the log has the message of the oldest 2,500, and afterwards.
async fn decisions_that_may_not_go_keep_no_others<DB: TestDialect>(db: &Database<DB>) {
    const KEEP: Duration = Duration::from_secs(400 * 86_400);
    let retention = open(db);
    db.enqueue(messages(1)).await;
    let earlier = match DB::DIALECT {
        migrations::Dialect::Sqlite => {
            "CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 401 * 86400 * 1000000"
        }
        migrations::Dialect::Postgres => "now() - interval '401 days'",
    };
    let decisions = |count: i32, message_id: &str, at: &str| {
        format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             INSERT INTO outbox_audit (actor, relay, id, message_id, action, note, at)
             SELECT 'ops', 'main', 1, {message_id}, 'discard', 'a test', {at} FROM n"
        )
    };
    let gone = "'0190b5a2-0000-7000-8000-000000000001'";
    db.run(&decisions(2_500, "(SELECT message_id FROM outbox_message)", earlier)).await;
    let later = earlier.replace("- interval '401", "+ interval '1").replace("- 401", "+ 1");
    db.run(&decisions(2_000, gone, &later)).await;
    db.run(&decisions(7, gone, earlier)).await;
    let recent = earlier.replace("401", "1");
    db.run(&decisions(1_500, gone, &recent)).await;
    let after = async |calls: usize| {
        let mut removed = 0;
        for _ in 0..calls {
            removed += retention.forget_decisions(KEEP).await.unwrap();
        }
        removed
    };
    assert_eq!(after(7).await, 7);
    assert_eq!(after(7).await, 0, "the rest may not go");
    db.run("DELETE FROM outbox_message").await;
    assert_eq!(after(8).await, 2_500);
    assert_eq!(db.number("SELECT count(*) FROM outbox_audit").await, 3_500);
}

/// Parks the entry with this error, as the relay does after a failure.
async fn fail(main: &mut Relay, entry: &Entry, attempts: u32, error: &str) {
    let state = if attempts < 10 { ExceptionState::Retrying } else { ExceptionState::Dead };
    let failed = Parked { attempts, error: Some(error.to_owned()), ..parked(entry, state) };
    main.pass(&[ExceptionChange::Park(failed)]).await;
}

/// Returns the errors that the history of a message shows, latest first.
async fn errors_of<DB: TestDialect>(db: &Database<DB>, entry: &Entry) -> Vec<FailedAttempts> {
    let places = places(db);
    let mut story = told(&places, &entry.message_id()).await;
    places.close().await;
    story.outboxes.remove(0).failures
}

fn lines(failures: &[FailedAttempts]) -> Vec<String> {
    failures.iter().map(|failed| format!("{}: {}", failed.numbers(), failed.error)).collect()
}

/// Goal: an operator sees what happened before the last error, and its storage stays small whatever
/// brokers answer. Oracle: the errors of a message that fails with a new text each time, with texts
/// of any characters and of the greatest length, is requeued, and fails again; the bytes that are
/// stored.
async fn the_last_ten_errors_of_an_entry_are_kept<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(1)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entry = main.follower.all().await.remove(0);
    assert_eq!(errors_of(db, &entry).await, []);
    for (attempts, error) in [(1, "a"), (2, "a"), (3, "b"), (3, "\"q\" \\ 'q' \u{1}{schema} $1 ä"), (10, "b")]
    {
        fail(&mut main, &entry, attempts, error).await;
    }
    let shown = errors_of(db, &entry).await;
    let hostile = "3: \"q\" \\ 'q' \u{1}{schema} $1 ä";
    assert_eq!(lines(&shown), ["4 to 10: b", hostile, "3: b", "1 to 2: a"]);
    assert!(shown.iter().map(|failed| failed.at.unwrap()).rev().is_sorted(), "{shown:?}");

    decide(db, &entry, Decision::Requeue).await;
    assert_eq!(lines(&errors_of(db, &entry).await)[0], "4 to 10: b", "not tried since");
    fail(&mut main, &entry, 1, "b").await;
    assert_eq!(lines(&errors_of(db, &entry).await)[..2], ["1: b", "4 to 10: b"]);

    // More and longer ones than are kept.
    for attempts in 2..12 {
        fail(&mut main, &entry, attempts, &format!("{attempts} {}", "ä".repeat(2_040))).await;
    }
    let shown = errors_of(db, &entry).await;
    assert_eq!((shown.len(), shown[0].last, shown[9].last), (10, 11, 2));
    assert_eq!(shown[0].error.chars().count(), 2_043, "the last one is whole");
    assert_eq!(shown[9].error.chars().count(), 501, "cut, with an ellipsis");
    let stored = if DB::DIALECT == migrations::Dialect::Sqlite {
        "octet_length(earlier_errors)"
    } else {
        "octet_length(earlier_errors::text)::bigint"
    };
    let bytes = db.number(&format!("SELECT {stored} FROM outbox_exception")).await;
    assert!((9_000..9 * 1_200).contains(&bytes), "{bytes}");

    main.pass(&[ExceptionChange::Resolve(entry.id)]).await;
    assert_eq!(errors_of(db, &entry).await, [], "they go with the exception");
}

/// Goal: an outage of hours, in which a message fails in the same way at every attempt, writes
/// nothing beyond what a failure writes anyway. Oracle: the column after such attempts, also when
/// the entry was held in between, and after another error.
async fn the_same_error_again_is_written_once<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(1)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entry = main.follower.all().await.remove(0);
    let kept = "SELECT count(*) FROM outbox_exception WHERE earlier_errors IS NOT NULL";
    for attempts in 0..9 {
        fail(&mut main, &entry, attempts, "no route").await;
    }
    assert_eq!(db.number(kept).await, 0);
    for attempts in [8, 9] {
        let held = Parked { attempts, ..parked(&entry, ExceptionState::Held) };
        main.pass(&[ExceptionChange::Park(held)]).await;
        fail(&mut main, &entry, attempts, "no route").await;
    }
    assert_eq!(lines(&errors_of(db, &entry).await), ["9: no route", "1 to 8: no route"]);
    fail(&mut main, &entry, 10, "too large").await;
    assert_eq!(lines(&errors_of(db, &entry).await), ["10: too large", "1 to 9: no route"]);
}

fn signed(name: &str) -> Signed {
    Signed { operator: Operator::new(name, Role::Operator), note: String::from("a test") }
}

fn corrected(payload: &str) -> Corrected {
    Corrected { decision: uuid::Uuid::now_v7(), payload: Some(payload.into()), headers: None }
}

/// Returns the numbers of the edits of a message, latest first.
async fn edits<DB: TestDialect>(db: &Database<DB>, entry: &Entry) -> Vec<i64> {
    let places = places(db);
    let story = told(&places, &entry.message_id()).await;
    places.close().await;
    story.decisions.iter().filter(|line| line.action == "edit").filter_map(|line| line.number).collect()
}

/// Goal: of two operators who correct one message, none overwrites what the other has written or
/// decided. Oracle: the answers to edits of a message that, since it was shown, was edited, was
/// requeued, or died again; the decisions in the audit.
async fn an_edit_covers_the_content_that_was_shown<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue(messages(1)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entry = main.follower.all().await.remove(0);
    fail(&mut main, &entry, 10, "too large").await;
    let asked: MessageRef = entry.message_id().parse().unwrap();
    let places = places(db);
    let of_ann = editable(&places, &signed("ann"), &asked).await.unwrap();
    let of_bob = editable(&places, &signed("bob"), &asked).await.unwrap();
    assert_eq!((of_ann.payload.as_deref(), of_ann.was_edited), (Some(&b"0"[..]), false));
    let first = corrected("{\"n\":1}");
    let sent = correct(&places, &signed("ann"), &of_ann.seen, first.clone()).await.unwrap();
    assert_eq!(sent, EditSent::Now);
    let sent = correct(&places, &signed("ann"), &of_ann.seen, first.clone()).await.unwrap();
    assert_eq!(sent, EditSent::Before { was_requeued: false }, "sent twice");
    let other = Corrected { payload: Some(b"{\"n\":2}".to_vec()), ..first.clone() };
    let refused = correct(&places, &signed("ann"), &of_ann.seen, other).await.unwrap_err();
    assert_eq!(refused.kind(), OperateErrorKind::Conflict);
    assert!(refused.to_string().contains("sent before, with another content"), "{refused}");
    let refused = correct(&places, &signed("bob"), &of_bob.seen, corrected("2")).await.unwrap_err();
    assert_eq!(refused.kind(), OperateErrorKind::Conflict);
    assert!(refused.to_string().contains("edited by somebody else since it was shown"), "{refused}");
    assert_eq!(edits(db, &entry).await.len(), 1);

    // As it is now, and then in the hands of the relay.
    let of_bob = editable(&places, &signed("bob"), &asked).await.unwrap();
    assert_eq!((of_bob.payload.as_deref(), of_bob.was_edited), (Some(&b"{\"n\":1}"[..]), true));
    assert_eq!(of_bob.seen.message_id, entry.message_id(), "the id stays");
    decide(db, &entry, Decision::Requeue).await;
    let sent = correct(&places, &signed("ann"), &of_ann.seen, first).await.unwrap();
    assert_eq!(sent, EditSent::Before { was_requeued: true });
    for dies_again in [false, true] {
        if dies_again {
            fail(&mut main, &entry, 10, "too large").await;
        } else {
            let refused = editable(&places, &signed("bob"), &asked).await.unwrap_err();
            assert_eq!(refused.kind(), OperateErrorKind::Conflict, "{refused}");
        }
        let refused = correct(&places, &signed("bob"), &of_bob.seen, corrected("3")).await.unwrap_err();
        assert_eq!(refused.kind(), OperateErrorKind::Conflict, "{refused}");
    }
    assert_eq!(edits(db, &entry).await.len(), 1);
    let views = "SELECT count(*) FROM outbox_operation WHERE action = 'payload'";
    assert_eq!(db.number(views).await, 3, "each look at the content is recorded");
    let number = edits(db, &entry).await[0];
    edited(&places, &signed("ann"), relay().as_str(), number).await.unwrap();
    let of_topic = format!("{views} AND selection LIKE '% topic={}'", entry.topic());
    assert_eq!(db.number(&of_topic).await, 4, "with the topic");
    places.close().await;
}

/// Goal: what an operator has replaced can be read afterwards, and the audit stays small. Oracle:
/// the record of edits of payload and headers up to the limit and above it, after the message has
/// left.
async fn the_audit_keeps_what_an_edit_found_and_left<DB: TestDialect>(db: &Database<DB>) {
    const MAX: usize = 64 << 10;
    db.enqueue(messages(1)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entry = main.follower.all().await.remove(0);
    fail(&mut main, &entry, 10, "too large").await;
    let mut headers = Headers::new();
    headers.insert("tenant", "acme").unwrap();
    let whole = vec![b'x'; MAX];
    let large = vec![b'x'; MAX + 1];
    for (payload, headers) in [(Some(whole.clone()), None), (None, Some(headers)), (Some(large), None)] {
        let payload = payload.map(Into::into);
        decide(db, &entry, Decision::Edit { payload, headers, replaces: None }).await;
    }
    let places = places(db);
    let asked: MessageRef = entry.message_id().parse().unwrap();
    let refused = editable(&places, &signed("ann"), &asked).await.unwrap_err();
    assert!(
        refused.to_string().contains("65537 bytes; the maximum that is edited here is 65536"),
        "{refused}"
    );
    main.pass(&[ExceptionChange::Resolve(entry.id)]).await;

    let mut records = Vec::new();
    for number in edits(db, &entry).await.into_iter().rev() {
        records.push(edited(&places, &signed("ann"), relay().as_str(), number).await.unwrap());
    }
    let tenant =
        |json: &Option<Vec<u8>>| serde_json::from_slice::<Headers>(json.as_deref().unwrap()).unwrap();
    assert_eq!(records[0].payload_before.as_deref(), Some(&b"0"[..]));
    assert_eq!(records[0].payload_after.as_deref(), Some(&whole[..]));
    assert!(tenant(&records[0].headers_after).is_empty());
    assert!(tenant(&records[1].headers_before).is_empty());
    assert_eq!(tenant(&records[1].headers_after).get("tenant"), Some("acme"));
    assert_eq!(records[2].payload_before.as_deref(), Some(&whole[..]));
    assert_eq!(records[2].payload_after, None, "larger than is kept");
    assert_eq!(tenant(&records[2].headers_after).get("tenant"), Some("acme"));
    let refused = edited(&places, &signed("ann"), relay().as_str(), 4_000).await.unwrap_err();
    assert!(refused.to_string().contains("the audit has no edit 4000"), "{refused}");
    places.close().await;
    // Other decisions have no content.
    let kept = "SELECT count(*) FROM outbox_audit WHERE payload_before IS NOT NULL AND action <> 'edit'";
    assert_eq!(db.number(kept).await, 0);
}
