//! Databases that were set back or replaced: a sequence that was set back, a cursor of another
//! server, a server that crashed behind a pooler, a clock that was set back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use message::Headers;
use outbox::NewMessage;
use outbox_log::admin::{self, ChosenEntry, Decision, OperatorDecision};
use outbox_log::read_only::ReadOnly;
use outbox_log::reconcile::{self, Rows, Stage};
use outbox_log::{
    Acquired, CheckpointStore, Cursor, EntryId, ExceptionChange, ExceptionState, Fenced, HeldAsk, LogError,
    LogOptions, Mark, Parked, QueueName,
};
use sqlx::{Postgres, Sqlite};

use crate::outbox::support::{Database, Follower, SMALL, TTL, granted, relay, source};

tests::cases! { "outbox/histories/{on}/{case}":
    on_postgres {
        rows_after_a_truncate_that_restarted_the_sequence_are_read,
        rows_are_read_when_the_sequence_has_overtaken_the_cursor_again,
        a_sequence_that_is_set_back_while_a_relay_leads_ends_its_term,
        rows_above_a_sequence_that_was_set_back_are_read,
        a_row_in_a_gap_below_the_mark_is_read_after_a_sequence_was_set_back,
        a_row_in_a_gap_behind_many_young_rows_is_read_after_a_sequence_was_set_back,
        a_sequence_behind_the_rows_is_set_forward_for_the_producers,
        a_cursor_of_another_server_is_not_believed,
        a_cursor_of_another_server_is_told_by_that_servers_name,
        a_foreign_cursor_hides_nothing_from_another_relay,
        what_was_in_flight_is_waited_for_before_its_snapshot_is_given_up,
        what_stands_beside_the_log_is_not_read_again_after_a_restore,
        a_parked_message_keeps_its_id_when_it_is_given_out_again,
        no_message_is_parked_under_the_id_of_another_one,
        a_relay_that_was_held_up_forgets_nothing_that_is_left_out,
        a_row_below_the_head_of_an_open_difference_is_read_after_a_sequence_was_set_back,
        what_was_never_read_counts_as_ahead_after_a_sequence_was_set_back,
        what_was_discarded_or_edited_does_not_leave_again_after_a_restore,
        producers_go_on_while_the_sequence_waits_for_a_long_transaction,
        producers_go_on_while_cursors_are_compared,
        who_reads_the_cursors_keeps_no_rebase_waiting,
        a_cursor_that_says_too_much_stops_no_producer,
        a_server_that_recovered_from_a_crash_takes_no_checkpoint_of_before,
        a_reader_of_another_server_refuses_the_cursor,
        status_tells_which_server_a_cursor_belongs_to,
        a_limit_for_transactions_ends_no_rebase,
        rows_of_a_segment_that_is_detached_are_not_passed,
        a_checkpoint_beside_a_detached_segment_names_it,
        an_edit_beside_a_detached_segment_names_it,
    }
    on_sqlite {
        a_file_whose_ids_were_set_back_is_refused_with_what_to_run,
        no_message_is_parked_under_the_id_of_another_one_of_a_file,
        a_file_that_another_one_replaced_is_led_no_longer,
    }
}

pub(super) fn orders(range: std::ops::Range<i32>) -> impl Iterator<Item = NewMessage> + Send {
    range.map(|n| NewMessage::new("orders").key(n.to_string()))
}

pub(super) fn keys(entries: &[outbox_log::Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.key().unwrap().to_owned()).collect()
}

/// Runs a relay that has read ten entries and stored its cursor.
pub(super) async fn after_ten(db: &Database<Postgres>) -> (Box<dyn CheckpointStore>, i64, Follower) {
    db.enqueue(orders(0..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 10);
    // A poll that finds nothing may move the base.
    assert!(follower.next().await.is_none());
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
    (checkpoint_store, lease.epoch, follower)
}

/// Describes the log and its cursor, for the failure message of a test.
pub(super) async fn log_and_cursor(db: &Database<Postgres>) -> String {
    let question =
        "SELECT (SELECT string_agg(concat_ws(' ', id, key, xid), ', ' ORDER BY id) FROM outbox_message)
        || '; ' || (SELECT string_agg(cursor, ', ') FROM outbox_relay)";
    sqlx::query_scalar(question).fetch_one(&db.admin).await.unwrap()
}

/// Reads as a relay does after it has taken over.
pub(super) async fn read_anew(db: &Database<Postgres>) -> Vec<String> {
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    keys(&Follower::new(db.reader().await, cursor).all().await)
}

async fn rows_after_a_truncate_that_restarted_the_sequence_are_read(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..15)).await;
    assert_eq!(read_anew(db).await, ["10", "11", "12", "13", "14"]);
}

async fn rows_are_read_when_the_sequence_has_overtaken_the_cursor_again(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..30)).await;
    let expected: Vec<String> = (10..30).map(|n: i32| n.to_string()).collect();
    assert_eq!(read_anew(db).await, expected);
}

/// Returns the segments that have rows.
async fn segments_with_rows(db: &Database<Postgres>) -> Vec<String> {
    let question = "SELECT DISTINCT tableoid::regclass::text FROM outbox_message ORDER BY 1";
    sqlx::query_scalar(question).fetch_all(&db.admin).await.unwrap()
}

/// Goal: a relay does not pass the rows of a segment that is detached, neither where it leads nor
/// where it begins, nor the rows of a transaction that was open at its last mark. Oracle: the
/// errors, which name the segment and the remedy; the rows that are read once it is attached again.
async fn rows_of_a_segment_that_is_detached_are_not_passed(db: &Database<Postgres>) {
    let (checkpoint_store, _, mut follower) = after_ten(db).await;
    let segments = segments_with_rows(db).await;
    let segment = segments.first().unwrap();
    let number = segment.strip_prefix("outbox_message_").unwrap();
    let attach = format!("ALTER TABLE outbox_message ATTACH PARTITION {segment} FOR VALUES IN ({number})");
    let detach = format!("ALTER TABLE outbox_message DETACH PARTITION {segment}");
    let other = (number.parse::<u8>().unwrap() + 1) % 8;
    // Some bits of an id's time are its segment.
    let beside = format!(
        "INSERT INTO outbox_message (message_id, topic, key, payload) VALUES \
         ('0190{:02x}00-0000-7000-8000-000000000001', 'orders', 'beside', '')",
        other << 2
    );

    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    db.enqueue(orders(10..12)).await;
    assert_eq!(follower.all().await.len(), 2);
    let base = follower.cursor().base;
    late.commit().await.unwrap();
    db.enqueue(orders(12..14)).await;
    let difference = follower.reader.next_difference(&base).await.unwrap().unwrap();
    db.run(&detach).await;
    db.run(&beside).await;
    for after in [EntryId(0), EntryId(difference.ceiling - 1)] {
        let error = follower.reader.read_page(&difference, after, SMALL).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(segment) && text.contains("ATTACH PARTITION"), "{text}");
        assert!(matches!(error, LogError::Operator { .. }), "{text}");
    }
    drop((checkpoint_store, follower));
    let error = db.checkpoint_store("a").await.acquire(TTL).await.map(drop).unwrap_err();
    assert!(error.to_string().contains(segment), "{error}");

    db.run(&attach).await;
    let mut found = read_anew(db).await;
    found.sort();
    assert_eq!(found, ["10", "11", "12", "13", "beside", "late"]);
}

/// Goal: what is parked while its segment is detached is not stored without its content, and the
/// error names the segment. Oracle: the error with its remedy; the copy, once the segment is
/// attached again.
async fn a_checkpoint_beside_a_detached_segment_names_it(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, mut follower) = after_ten(db).await;
    db.enqueue(telling(10..11)).await;
    let entry = follower.all().await.remove(0);
    let cursor = follower.cursor();
    let segment: String =
        sqlx::query_scalar("SELECT tableoid::regclass::text FROM outbox_message ORDER BY id DESC LIMIT 1")
            .fetch_one(&db.admin)
            .await
            .unwrap();
    let number = segment.strip_prefix("outbox_message_").unwrap();
    db.run(&format!("ALTER TABLE outbox_message DETACH PARTITION {segment}")).await;
    let error = checkpoint_store.checkpoint(epoch, &cursor, &[dead(&entry)]).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&segment) && text.contains("ATTACH PARTITION"), "{text}");
    assert!(matches!(error, LogError::Operator { .. }), "{text}");
    assert_eq!(beside(db).await, []);

    db.run(&format!("ALTER TABLE outbox_message ATTACH PARTITION {segment} FOR VALUES IN ({number})")).await;
    let mut change = dead(&entry);
    if let ExceptionChange::Park(parked) = &mut change {
        parked.state = ExceptionState::Held;
    }
    let stored = checkpoint_store.checkpoint(epoch, &cursor, &[change]).await.unwrap();
    assert_eq!(stored, Fenced::Held);
    assert_eq!(beside(db).await, [(String::from("10"), Some(String::from("10")))]);

    // A message that was too large to be copied is not reported as gone either.
    db.run("UPDATE outbox_parked SET payload = NULL").await;
    db.run(&format!("ALTER TABLE outbox_message DETACH PARTITION {segment}")).await;
    let asks = [HeldAsk { queue: QueueName::of("orders", Some("10")), from: EntryId(0) }];
    let error = follower.reader.read_held(&asks, SMALL).await.unwrap_err();
    assert!(error.to_string().contains(&segment), "{error}");
    db.run(&format!("ALTER TABLE outbox_message ATTACH PARTITION {segment} FOR VALUES IN ({number})")).await;
    let held = follower.reader.read_held(&asks, SMALL).await.unwrap().remove(0);
    assert_eq!(held.exceptions[0].entry.message.as_ref().unwrap().payload, "10");
}

/// Goal: an edit of a message whose only content is in a detached segment is not lost, and does not
/// drop the headers that it keeps. Oracle: the error with its remedy, and the copy and the audit as
/// they were; what the edit leaves once the segment is attached again.
async fn an_edit_beside_a_detached_segment_names_it(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, mut follower) = after_ten(db).await;
    db.enqueue(telling(10..11).map(|message| message.header("tenant", "acme"))).await;
    let entry = follower.all().await.remove(0);
    let stored = checkpoint_store.checkpoint(epoch, &follower.cursor(), &[dead(&entry)]).await.unwrap();
    assert_eq!(stored, Fenced::Held);
    // This is the state of a message that was too large to be copied.
    db.run("UPDATE outbox_parked SET payload = NULL, headers = NULL").await;
    let segment: String =
        sqlx::query_scalar("SELECT tableoid::regclass::text FROM outbox_message ORDER BY id DESC LIMIT 1")
            .fetch_one(&db.admin)
            .await
            .unwrap();
    let number = segment.strip_prefix("outbox_message_").unwrap();
    db.run(&format!("ALTER TABLE outbox_message DETACH PARTITION {segment}")).await;
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let chosen = [ChosenEntry { id: entry.id, message_id: entry.message_id(), edited_at: None }];
    let payload = || Decision::Edit { payload: Some("new".into()), headers: None, replaces: None };
    let decree = |decision| OperatorDecision { decision, signature: outbox::Signature::new("ops", "a test") };
    let seen = Decision::Edit { payload: Some("new".into()), headers: None, replaces: Some(String::new()) };
    let labels = Decision::Edit { payload: None, headers: Some(Headers::new()), replaces: None };
    for edit in [payload(), labels, seen] {
        let text = admin.decide(&relay(), &chosen, decree(edit)).await.unwrap_err().to_string();
        assert!(text.contains(&segment) && text.contains("ATTACH PARTITION"), "{text}");
    }
    let untouched = "SELECT count(*) FROM outbox_parked WHERE edited_at IS NULL AND payload IS NULL";
    assert_eq!(db.number(untouched).await, 1);
    assert_eq!(db.number("SELECT count(*) FROM outbox_audit").await, 0);

    db.run(&format!("ALTER TABLE outbox_message ATTACH PARTITION {segment} FOR VALUES IN ({number})")).await;
    admin.decide(&relay(), &chosen, decree(payload())).await.unwrap().remove(0).unwrap();
    assert_eq!(beside(db).await, [(String::from("10"), Some(String::from("new")))]);
    let kept = "SELECT count(*) FROM outbox_parked WHERE headers ->> 'tenant' = 'acme'";
    assert_eq!(db.number(kept).await, 1);
}

async fn a_sequence_that_is_set_back_while_a_relay_leads_ends_its_term(db: &Database<Postgres>) {
    let (checkpoint_store, _, mut follower) = after_ten(db).await;
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..15)).await;
    let base = follower.cursor().base;
    let error = follower.reader.next_difference(&base).await.unwrap_err();
    assert!(error.to_string().contains("outbox_message_id_seq"), "{error}");
    drop((checkpoint_store, follower));
    assert_eq!(read_anew(db).await, ["10", "11", "12", "13", "14"]);
}

/// Returns the key of each parked message, in the order of ids, with the payload of its copy. The
/// payload is the key of the message that was copied.
pub(super) async fn beside(db: &Database<Postgres>) -> Vec<(String, Option<String>)> {
    let question = "SELECT e.key, convert_from(p.payload, 'UTF8') FROM outbox_exception AS e
        LEFT JOIN outbox_parked AS p USING (relay, shard, id) ORDER BY id";
    sqlx::query_as(question).fetch_all(&db.admin).await.unwrap()
}

/// Returns orders whose payload is their key.
fn telling(range: std::ops::Range<i32>) -> impl Iterator<Item = NewMessage> + Send {
    range.map(|n| NewMessage::new("orders").key(n.to_string()).payload(n.to_string()))
}

/// Returns the change that parks an entry as dead.
pub(super) fn dead(entry: &outbox_log::Entry) -> ExceptionChange {
    let mut change = parked(entry.id.0, entry.message_id(), ExceptionState::Dead);
    if let ExceptionChange::Park(parked) = &mut change {
        parked.key = entry.key().map(str::to_owned);
    }
    change
}

/// The sequence goes back below a parked message whose row no longer exists. The id is then
/// assigned to another message, which has to be parked as well.
async fn a_parked_message_keeps_its_id_when_it_is_given_out_again(db: &Database<Postgres>) {
    db.enqueue(telling(0..10)).await;
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let entries = follower.all().await;
    let stored = store.checkpoint(lease.epoch, &follower.cursor(), &[dead(&entries[3])]).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(telling(10..15)).await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let later = follower.all().await;
    assert_eq!(keys(&later), ["10", "11", "12", "14", "13"], "the row with its id has moved");
    let stored = store.checkpoint(lease.epoch, &follower.cursor(), &[dead(&later[4])]).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    let both = ["3", "13"].map(|key| (key.to_owned(), Some(key.to_owned())));
    assert_eq!(beside(db).await, both);
    assert_eq!(db.number("SELECT min(id) FROM outbox_exception").await, entries[3].id.0);
    let next = "SELECT nextval('outbox_message_id_seq') - (SELECT max(id) FROM outbox_exception)";
    assert_eq!(db.number(next).await, 1, "the sequence goes on behind the new id");
}

/// That an id was assigned twice shows only when both messages are to be parked: the sequence is
/// ahead again, and the later row belongs to a transaction that was open before.
async fn no_message_is_parked_under_the_id_of_another_one(db: &Database<Postgres>) {
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("other")).await.unwrap();
    db.enqueue(telling(0..1)).await;
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let entries = follower.all().await;
    let stored = store.checkpoint(lease.epoch, &follower.cursor(), &[dead(&entries[0])]).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    db.run("DELETE FROM outbox_message").await;
    db.run("SELECT setval('outbox_message_id_seq', 1)").await;
    late.enqueue(telling(1..2).next().unwrap()).await.unwrap();
    late.commit().await.unwrap();
    let before = follower.cursor();
    let mut later = follower.all().await;
    let other = later.pop().unwrap();
    assert_eq!(other.id, entries[0].id, "the id was given out again");
    let refused = store.checkpoint(lease.epoch, &before, &[dead(&other)]).await.unwrap_err();
    assert!(refused.to_string().contains("assigned again"), "{refused}");
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let moved = follower.all().await.pop().unwrap();
    assert_eq!(moved.message_id(), other.message_id());
    let stored = store.checkpoint(lease.epoch, &follower.cursor(), &[dead(&moved)]).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    let both = ["0", "1"].map(|key| (key.to_owned(), Some(key.to_owned())));
    assert_eq!(beside(db).await, both);
}

/// The sequence goes back to ids that the relay, busy meanwhile, has not read yet.
async fn rows_above_a_sequence_that_was_set_back_are_read(db: &Database<Postgres>) {
    let (checkpoint_store, _, mut follower) = after_ten(db).await;
    db.enqueue(orders(10..30)).await;
    db.run("SELECT setval('outbox_message_id_seq', 15)").await;
    let base = follower.cursor().base;
    let error = follower.reader.next_difference(&base).await.unwrap_err();
    assert!(error.to_string().contains("outbox_message_id_seq"), "{error}");
    drop((checkpoint_store, follower));
    let expected: Vec<String> = (10..30).map(|n: i32| n.to_string()).collect();
    assert_eq!(read_anew(db).await, expected);
}

/// The sequence goes back and overtakes the relay again between two polls.
async fn a_row_in_a_gap_below_the_mark_is_read_after_a_sequence_was_set_back(db: &Database<Postgres>) {
    // No row has the ids up to 5.
    db.run("SELECT setval('outbox_message_id_seq', 5)").await;
    let (checkpoint_store, _, mut follower) = after_ten(db).await;
    db.run("SELECT setval('outbox_message_id_seq', 1)").await;
    db.enqueue(orders(10..12)).await;
    db.run("SELECT setval('outbox_message_id_seq', 15)").await;
    db.enqueue(orders(12..14)).await;
    let base = follower.cursor().base;
    let error = follower.reader.next_difference(&base).await.unwrap_err();
    assert!(error.to_string().contains("the row 2 "), "{error}");
    drop((checkpoint_store, follower));
    assert_eq!(read_anew(db).await, ["10", "11", "12", "13"]);
}

/// As above, after more young rows than a mark examines: an operator has set the sequence back and
/// forward again while no relay was running.
async fn a_row_in_a_gap_behind_many_young_rows_is_read_after_a_sequence_was_set_back(
    db: &Database<Postgres>,
) {
    db.run("SELECT setval('outbox_message_id_seq', 5)").await;
    let (checkpoint_store, _, mut follower) = after_ten(db).await;
    for first in (10..12_010).step_by(1_000) {
        db.enqueue(orders(first..first + 1_000)).await;
    }
    db.run("SELECT setval('outbox_message_id_seq', 1)").await;
    db.enqueue(orders(20_000..20_001)).await;
    db.run("SELECT setval('outbox_message_id_seq', 15000)").await;
    let base = follower.cursor().base;
    let error = follower.reader.next_difference(&base).await.unwrap_err();
    assert!(error.to_string().contains("the row 2 "), "{error}");
    drop((checkpoint_store, follower));
    let found = read_anew(db).await;
    assert_eq!((found.len(), found[0].as_str()), (12_001, "20000"));
}

async fn a_sequence_behind_the_rows_is_set_forward_for_the_producers(db: &Database<Postgres>) {
    // No relay has read yet: the rows were restored, but the sequence was not.
    db.enqueue(orders(0..10)).await;
    db.run("ALTER SEQUENCE outbox_message_id_seq RESTART WITH 3").await;
    assert_eq!(read_anew(db).await.len(), 10);
    db.enqueue(orders(10..11)).await;
    assert_eq!(db.number("SELECT max(id) FROM outbox_message").await, 11);
}

async fn a_cursor_of_another_server_is_not_believed(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, follower) = after_ten(db).await;
    // As after `migrate up` on a new server and a data-only restore of an empty log: the recorded
    // server is the current one, and only the cursor shows that it is not.
    let floor = follower.cursor().base.as_str().split('@').next().unwrap().to_owned();
    let foreign = Cursor::at(Mark::new(format!("{floor}@9000000000:9000000000:")));
    assert_eq!(checkpoint_store.checkpoint(epoch, &foreign, &[]).await.unwrap(), Fenced::Held);
    drop((checkpoint_store, follower));
    // This server recognises its own rows by their time, so these become older than its own.
    db.run("UPDATE outbox_message SET enqueued_at = enqueued_at - interval '1 day'").await;
    db.enqueue(orders(10..12)).await;
    assert_eq!(read_anew(db).await, ["10", "11"]);
}

async fn a_cursor_of_another_server_is_told_by_that_servers_name(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, follower) = after_ten(db).await;
    let floor = follower.cursor().base.as_str().split('@').next().unwrap().to_owned();
    db.run("UPDATE outbox_message SET enqueued_at = enqueued_at - interval '1 day'").await;
    db.enqueue(orders(10..12)).await;
    // This server has assigned as many transaction ids as the other one, so they prove nothing.
    let seen: String =
        sqlx::query_scalar("SELECT pg_current_snapshot()::text").fetch_one(&db.admin).await.unwrap();
    let there = "1/1/00000000-0000-4000-8000-000000000000";
    let foreign = Cursor::at(Mark::new(format!("{floor}@{seen}@{there}")));
    assert_eq!(checkpoint_store.checkpoint(epoch, &foreign, &[]).await.unwrap(), Fenced::Held);
    drop((checkpoint_store, follower));
    assert_eq!(read_anew(db).await, ["10", "11"]);
}

async fn a_foreign_cursor_hides_nothing_from_another_relay(db: &Database<Postgres>) {
    let other = outbox_log::RelayName::new("other").unwrap();
    let (mut checkpoint_store, epoch, _) = after_ten(db).await;
    let (_, cursor) = granted(&mut db.log.checkpoint_store(&other, "o").await.unwrap()).await;
    let mut sound = Follower::new(db.log.reader(&other).await.unwrap(), cursor);
    assert_eq!(sound.all().await.len(), 10);
    // While it is open, no later transaction id counts as finished.
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    db.enqueue(orders(10..12)).await;
    let foreign = Cursor::at(Mark::new("10@9000000000:9000000000:"));
    assert_eq!(checkpoint_store.checkpoint(epoch, &foreign, &[]).await.unwrap(), Fenced::Held);
    let (_, rebased) = granted(&mut db.checkpoint_store("a").await).await;
    assert_eq!(keys(&sound.all().await), ["10", "11"]);
    late.commit().await.unwrap();
    assert_eq!(keys(&sound.all().await), ["late"]);
    let again = keys(&Follower::new(db.reader().await, rebased).all().await);
    assert!(["late", "10", "11"].iter().all(|key| again.iter().any(|found| found == key)), "{again:?}");
}

async fn what_was_in_flight_is_waited_for_before_its_snapshot_is_given_up(db: &Database<Postgres>) {
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    // Its id is below the floor of this cursor.
    drop(after_ten(db).await);
    // A row of another server, as after a data-only restore. Compared as text, its transaction
    // id precedes every shorter one.
    db.enqueue(orders(10..11)).await;
    db.run("UPDATE outbox_message SET xid = '1000000000000000000' WHERE key = '10'").await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let refused = checkpoint_store.acquire(TTL).await.map(drop);
    let before = log_and_cursor(db).await;
    late.commit().await.unwrap();
    let again = read_anew(db).await;
    assert!(
        ["late", "10"].iter().all(|key| again.iter().any(|found| found == key)),
        "read: {again:?}\nthe first lease: {refused:?}\nbefore: {before}\nafter: {}",
        log_and_cursor(db).await
    );
    let error = refused.unwrap_err();
    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("session "), "{error}");
}

/// Waits until some session waits for a lock on a table.
async fn somebody_waits_for(db: &Database<Postgres>, table: &str) {
    let question = format!(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{table}'::regclass \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    );
    tests::eventually("somebody waits", || async { Ok((db.number(&question).await > 0).then_some(())) })
        .await
        .unwrap();
}

async fn a_relay_that_was_held_up_forgets_nothing_that_is_left_out(db: &Database<Postgres>) {
    let (mut checkpoint_store, _, follower) = after_ten(db).await;
    drop(follower);
    let mut rebase = db.admin.begin().await.unwrap();
    sqlx::query("LOCK TABLE outbox_server_run IN ACCESS EXCLUSIVE MODE").execute(&mut *rebase).await.unwrap();
    // It uses the lease that it took before, which has been lost when it continues.
    let held_up = async {
        if let Acquired::Granted { lease, .. } = checkpoint_store.acquire(TTL).await.unwrap() {
            assert_eq!(checkpoint_store.renew(lease.epoch, TTL).await.unwrap(), Fenced::Lost);
        }
    };
    let meanwhile = async {
        // It has its lease and its cursor, and is about to compare them.
        somebody_waits_for(db, "outbox_server_run").await;
        for statement in [
            "UPDATE outbox_relay SET epoch = epoch + 1, holder = 'b', cursor = '{\"base\":\"5@1:1:@@rebased\"}'",
            "INSERT INTO outbox_rebased (relay, id, message_id) VALUES ('main', 7, gen_random_uuid())",
        ] {
            sqlx::query(statement).execute(&mut *rebase).await.unwrap();
        }
        rebase.commit().await.unwrap();
    };
    tokio::join!(held_up, meanwhile);
    assert_eq!(db.number("SELECT count(*) FROM outbox_rebased").await, 1);
}

async fn producers_go_on_while_the_sequence_waits_for_a_long_transaction(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    let mut long = db.outbox.begin(&db.pool).await.unwrap();
    long.enqueue(NewMessage::new("orders").key("long")).await.unwrap();
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let acquire = checkpoint_store.acquire(TTL);
    tokio::pin!(acquire);
    let error = loop {
        // The lock of an INSERT.
        let producer = db.run(
            "SET lock_timeout = '2s'; BEGIN; LOCK TABLE ONLY outbox_message IN ROW EXCLUSIVE MODE; COMMIT",
        );
        tokio::select! {
            acquired = &mut acquire => break acquired.unwrap_err(),
            _ = producer => {}
        }
    };
    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("session "), "{error}");
    long.commit().await.unwrap();
    assert_eq!(read_anew(db).await, ["long"]);
}

/// Before the relay polls, another process sets the sequence forward again and dies before it can
/// repair the cursors.
async fn a_row_below_the_head_of_an_open_difference_is_read_after_a_sequence_was_set_back(
    db: &Database<Postgres>,
) {
    db.enqueue(orders(0..5)).await;
    // The ids 6 and 7 belong to no row.
    db.run("SELECT setval('outbox_message_id_seq', 7)").await;
    db.enqueue(orders(5..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let first = keys(&follower.next().await.unwrap());
    let stored = checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await;
    assert_eq!((stored.unwrap(), first.len()), (Fenced::Held, 7));
    drop((checkpoint_store, follower));
    db.run("SELECT setval('outbox_message_id_seq', 5)").await;
    db.enqueue(orders(10..12)).await;
    db.run("SELECT setval('outbox_message_id_seq', 12)").await;
    let read = read_anew(db).await;
    for key in ["7", "8", "9", "10", "11"] {
        assert!(read.iter().any(|found| found == key), "{key} in {read:?}: {}", log_and_cursor(db).await);
    }
}

/// Until a relay has repaired its cursor, only the rows show that they are new.
async fn what_was_never_read_counts_as_ahead_after_a_sequence_was_set_back(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..15)).await;
    let ReadOnly::Postgres(connection) = ReadOnly::open(&db.url, true, "a test").await.unwrap() else {
        panic!("not PostgreSQL")
    };
    let mut rows = reconcile::postgres(connection, None, &relay()).await.unwrap();
    let (first, last) = (uuid::Uuid::nil(), uuid::Uuid::max());
    let stages = async |rows: &mut Box<dyn Rows>| -> Vec<Stage> {
        rows.page(first, last, 10).await.unwrap().into_iter().map(|row| row.stage).collect()
    };
    assert_eq!(stages(&mut rows).await, [Stage::Ahead; 5]);
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 5);
    let stored = checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    assert_eq!(stages(&mut rows).await, [Stage::Passed; 5]);
}

/// An operator has discarded two messages; for the second, a requeue followed.
async fn what_was_discarded_or_edited_does_not_leave_again_after_a_restore(db: &Database<Postgres>) {
    db.enqueue(orders(0..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let page = follower.next().await.unwrap();
    let changes = [1, 2, 3].map(|at: usize| dead(&page[at]));
    let stored = checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &changes).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    // The third was published with an operator's content, and its row has the former one.
    let decided = [
        (&page[1], ["requeue", "discard"]),
        (&page[2], ["discard", "requeue"]),
        (&page[3], ["edit", "requeue"]),
    ];
    for (entry, actions) in decided {
        for action in actions {
            db.run(&format!(
                "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note) \
                 VALUES ('ops', 'main', {}, '{}', '{action}', 'a test')",
                entry.id,
                entry.message_id()
            ))
            .await;
        }
    }
    let resolve = [1, 2, 3].map(|at: usize| ExceptionChange::Resolve(page[at].id));
    let stored = checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &resolve).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    drop((checkpoint_store, follower));
    db.run("UPDATE outbox_identity SET system_identifier = '1'").await;
    assert_eq!(read_anew(db).await, ["0", "2", "4", "5", "6", "7", "8", "9"]);
}

/// Goal: producers continue while cursors are compared with the log and lists are written. Oracle:
/// a producer enqueues without waiting for a lock while the rebase is made to wait halfway.
async fn producers_go_on_while_cursors_are_compared(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..15)).await;
    let mut reader = db.admin.begin().await.unwrap();
    sqlx::query("LOCK TABLE outbox_rebased IN SHARE MODE").execute(&mut *reader).await.unwrap();
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let rebased = async { granted(&mut checkpoint_store).await.1 };
    let meanwhile = async {
        somebody_waits_for(db, "outbox_rebased").await;
        let mut tx = db.pool.begin().await.unwrap();
        sqlx::query("SET LOCAL lock_timeout = '1s'").execute(&mut *tx).await.unwrap();
        let enqueued = db.outbox.enqueue_batch(&mut tx, orders(15..16)).await;
        reader.rollback().await.unwrap();
        enqueued.unwrap();
        tx.commit().await.unwrap();
    };
    let (cursor, ()) = tokio::join!(rebased, meanwhile);
    let read = keys(&Follower::new(db.reader().await, cursor).all().await);
    assert_eq!(read, ["10", "11", "12", "13", "14", "15"]);
}

/// A dump reads the cursors, for hours.
async fn who_reads_the_cursors_keeps_no_rebase_waiting(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..15)).await;
    let mut dump = db.admin.begin().await.unwrap();
    sqlx::query("SELECT * FROM outbox_relay").execute(&mut *dump).await.unwrap();
    assert_eq!(read_anew(db).await, ["10", "11", "12", "13", "14"]);
    dump.rollback().await.unwrap();
}

async fn a_cursor_that_says_too_much_stops_no_producer(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.run("UPDATE outbox_relay SET cursor = '{\"base\":\"9223372036854775806@1:1:\"}'").await;
    let error = db.checkpoint_store("a").await.acquire(TTL).await.unwrap_err();
    assert!(matches!(error, LogError::Operator { .. }), "{error}");
    assert!(error.to_string().contains("the relay main says that the id 9223372036854775806"), "{error}");
    db.enqueue(orders(10..12)).await;
    assert_eq!(db.number("SELECT max(id) FROM outbox_message").await, 12);
}

fn parked(id: i64, message_id: String, state: ExceptionState) -> ExceptionChange {
    ExceptionChange::Park(Parked {
        id: EntryId(id),
        message_id,
        topic: String::from("orders"),
        key: Some(String::from("k")),
        state,
        attempts: 1,
        due_in: None,
        fault: None,
        error: None,
    })
}

async fn what_stands_beside_the_log_is_not_read_again_after_a_restore(db: &Database<Postgres>) {
    db.enqueue(orders(0..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit.entries_max = 5;
    let page = follower.next().await.unwrap();
    let id = |at: usize| (page[at].id.0, page[at].message_id());
    let change = |at: usize, state| parked(id(at).0, id(at).1, state);
    let changes = [change(1, ExceptionState::Dead), change(2, ExceptionState::Discarded)];
    // The cursor is inside a difference: entries that it has settled have ids above the base.
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &changes).await.unwrap(),
        Fenced::Held
    );
    assert_eq!(checkpoint_store.release(lease.epoch).await.unwrap(), Fenced::Held);
    drop((checkpoint_store, follower));
    db.run("UPDATE outbox_identity SET system_identifier = '1'").await;
    let mut checkpoint_store = db.checkpoint_store("b").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    // A discarded entry is removed before its row would be read again.
    let gone = [ExceptionChange::Resolve(EntryId(id(2).0))];
    assert_eq!(checkpoint_store.checkpoint(lease.epoch, &cursor, &gone).await.unwrap(), Fenced::Held);
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit.entries_max = 1;
    assert_eq!(keys(&follower.all().await), ["0", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception WHERE state = 'dead'").await, 1);
    // From a mark of this server on, no entry is left out.
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
    granted(&mut checkpoint_store).await;
    assert_eq!(db.number("SELECT count(*) FROM outbox_rebased").await, 0);
}

async fn a_server_that_recovered_from_a_crash_takes_no_checkpoint_of_before(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, mut follower) = after_ten(db).await;
    db.enqueue(orders(10..11)).await;
    // Crash recovery empties unlogged tables.
    db.run("TRUNCATE outbox_server_run").await;
    assert_eq!(checkpoint_store.checkpoint(epoch, &follower.cursor(), &[]).await.unwrap(), Fenced::Lost);
    let park = [parked(1, message::MessageId::new().to_string(), ExceptionState::Dead)];
    assert_eq!(checkpoint_store.checkpoint(epoch, &follower.cursor(), &park).await.unwrap(), Fenced::Lost);
    assert_eq!(checkpoint_store.renew(epoch, TTL).await.unwrap(), Fenced::Lost);
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, 0);
    let base = follower.cursor().base;
    let error = follower.reader.next_difference(&base).await.unwrap_err();
    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
    // The same processes continue with a new lease.
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(keys(&follower.all().await), ["10"]);
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
}

async fn a_reader_of_another_server_refuses_the_cursor(db: &Database<Postgres>) {
    let (_, _, follower) = after_ten(db).await;
    let mark = follower.cursor().base.as_str().to_owned();
    let (history, _) = mark.rsplit_once('/').unwrap();
    let other = Mark::new(format!("{history}/00000000-0000-4000-8000-000000000000"));
    let error = db.reader().await.next_difference(&other).await.unwrap_err();
    assert!(error.to_string().contains("another server"), "{error}");
}

async fn status_tells_which_server_a_cursor_belongs_to(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let history = admin.relays().await.unwrap().remove(0).history.unwrap();
    let system: String = sqlx::query_scalar("SELECT system_identifier::text FROM pg_control_system()")
        .fetch_one(&db.admin)
        .await
        .unwrap();
    assert_eq!((history.system_identifier, history.is_present), (system, true));
    // As on a standby that was promoted.
    db.run(&format!("UPDATE outbox_relay SET cursor = replace(cursor, '/{}/', '/900/')", history.timeline))
        .await;
    let history = admin.relays().await.unwrap().remove(0).history.unwrap();
    assert_eq!((history.timeline, history.is_present), (900, false));
    // The relay continues from it.
    db.enqueue(orders(10..11)).await;
    assert_eq!(read_anew(db).await, ["10"]);
}

/// The file was set back, and its ids have overtaken the relay before its next poll.
/// Goal: a rebase, which may rewrite a whole log, outlives the `transaction_timeout` of its role.
/// Oracle: the setting in the transaction that replaces the cursor, which is known by the time
/// limit of a rebase.
async fn a_limit_for_transactions_ends_no_rebase(db: &Database<Postgres>) {
    let known = "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'";
    if db.number(known).await == 0 {
        eprintln!("not run: transaction_timeout exists since PostgreSQL 17");
        return;
    }
    drop(after_ten(db).await);
    for statement in [
        "CREATE TABLE seen (statement_timeout text, transaction_timeout text)",
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
            INSERT INTO public.seen
            VALUES (current_setting('statement_timeout'), current_setting('transaction_timeout'));
            RETURN NULL;
        END $$",
        "CREATE TRIGGER see AFTER UPDATE ON outbox_relay FOR EACH ROW EXECUTE FUNCTION see()",
        "DO $$ BEGIN
            EXECUTE format('ALTER DATABASE %I SET transaction_timeout = 20000', current_database());
        END $$",
    ] {
        db.run(statement).await;
    }
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    db.enqueue(orders(10..15)).await;
    assert_eq!(read_anew(db).await, ["10", "11", "12", "13", "14"]);
    let seen = "SELECT DISTINCT transaction_timeout FROM seen WHERE statement_timeout = '30min'";
    let seen: Vec<String> = sqlx::query_scalar(seen).fetch_all(&db.admin).await.unwrap();
    assert_eq!(seen, ["0"]);
}

async fn no_message_is_parked_under_the_id_of_another_one_of_a_file(db: &Database<Sqlite>) {
    db.enqueue(orders(0..2)).await;
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.all().await;
    let dead = || [parked(2, message::MessageId::new().to_string(), ExceptionState::Dead)];
    let stored = store.checkpoint(lease.epoch, &follower.cursor(), &dead()).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    let refused = store.checkpoint(lease.epoch, &follower.cursor(), &dead()).await.unwrap_err();
    assert!(refused.to_string().contains("a different one under its id 2"), "{refused}");
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, 1);
}

async fn a_file_whose_ids_were_set_back_is_refused_with_what_to_run(db: &Database<Sqlite>) {
    db.enqueue(orders(0..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 10);
    let dead = [parked(2, message::MessageId::new().to_string(), ExceptionState::Dead)];
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &dead).await.unwrap(),
        Fenced::Held
    );
    db.run(
        "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note)
         SELECT 'ops', relay, id, message_id, 'discard', 'a test' FROM outbox_exception",
    )
    .await;
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, 1);
    db.run("DELETE FROM outbox_message").await;
    // A segment that retention has emptied is no reason to refuse.
    let (lease, _) = granted(&mut checkpoint_store).await;
    assert_eq!(checkpoint_store.release(lease.epoch).await.unwrap(), Fenced::Held);
    db.run("DELETE FROM sqlite_sequence").await;
    db.enqueue(orders(10..12)).await;
    let ended = db.reader().await.next_difference(&follower.cursor().base).await.unwrap_err().to_string();
    assert!(ended.contains("read up to the entry 10") && ended.contains("ids up to 2"), "{ended}");
    let error = checkpoint_store.acquire(TTL).await.unwrap_err().to_string();
    assert!(error.contains("read up to the entry 10") && error.contains("ids up to 2"), "{error}");
    let (_, commands) = error.split_once(" and run ").unwrap();
    for command in commands.split("; ") {
        let command = match command.strip_prefix("and, so that everything in the log leaves again") {
            Some(rest) => rest.split_once("), ").unwrap().1,
            None => command,
        };
        db.run(command).await;
    }
    for table in ["outbox_exception", "outbox_parked"] {
        assert_eq!(db.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    let withdrawn = "SELECT count(*) FROM outbox_audit WHERE action = 'requeue' AND actor = 'relay forget'
        AND seq = (SELECT max(seq) FROM outbox_audit)";
    assert_eq!(db.number(withdrawn).await, 1);
    let (_, cursor) = granted(&mut checkpoint_store).await;
    assert_eq!(keys(&Follower::new(db.reader().await, cursor).all().await), ["10", "11"]);
}

/// Goal: neither leader nor standby keeps using a removed file, and the next term reads the file
/// that replaced it. Oracle: the errors; the entries that the next term reads.
async fn a_file_that_another_one_replaced_is_led_no_longer(db: &Database<Sqlite>) {
    db.enqueue(orders(0..2)).await;
    let mut leader = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut leader).await;
    let mut standby = db.checkpoint_store("b").await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 2);
    assert_eq!(leader.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(), Fenced::Held);
    assert_eq!(leader.renew(lease.epoch, TTL).await.unwrap(), Fenced::Held);

    let directory = db.directory.as_ref().unwrap().path();
    let [file, copy] = ["outbox.db", "copy.db"].map(|name| directory.join(name));
    db.run(&format!("VACUUM INTO '{}'", copy.display())).await;
    for name in ["outbox.db", "outbox.db-wal", "outbox.db-shm"] {
        _ = std::fs::remove_file(directory.join(name));
    }
    std::fs::rename(&copy, &file).unwrap();
    let services = outbox::pool::<Sqlite>(&db.url).await.unwrap();
    let mut tx = db.outbox.begin(&services).await.unwrap();
    tx.enqueue_batch(orders(2..4)).await.unwrap();
    tx.commit().await.unwrap();
    services.close().await;

    let refused = leader.renew(lease.epoch, TTL).await.unwrap_err();
    assert!(refused.to_string().contains("outbox.db was replaced by another file"), "{refused}");
    assert_eq!(refused.fault(), message::Fault::Broker, "the next term may lead: {refused}");
    let refused = standby.other_holder().await.unwrap_err();
    assert!(refused.to_string().contains("was replaced by another file"), "{refused}");

    let mut next = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut next).await;
    assert_eq!(keys(&Follower::new(db.reader().await, cursor).all().await), ["2", "3"]);
    assert_eq!(next.renew(lease.epoch, TTL).await.unwrap(), Fenced::Held);
}
