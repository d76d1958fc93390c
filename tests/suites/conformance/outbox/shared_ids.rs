//! Two rows with one id. A sequence that was set back assigns ids again, and the primary key of a
//! segment does not cover the other seven segments.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use message::MessageId;
use outbox::NewMessage;
use outbox_log::entries::{EntryRef, Selection, Standing};
use outbox_log::reconcile::Stage;
use outbox_log::{
    BrokerTransaction, Cursor, DueKind, Entry, EntryId, ExceptionChange, ExceptionState, Fenced, LogOptions,
    Mark, PageLimit, RelayName, entries,
};
use sqlx::Postgres;

use crate::outbox::histories::{after_ten, beside, dead, keys, log_and_cursor, read_anew};
use crate::outbox::retention::{Relay, parked, rows};
use crate::outbox::support::{Database, Follower, SMALL, granted, relay, source};

tests::cases! { "outbox/shared_ids/{on}/{case}":
    on_postgres {
        two_rows_of_one_id_that_wait_for_the_relay_are_both_read,
        a_page_does_not_end_between_two_rows_of_one_id,
        rows_of_one_id_get_new_ones_when_a_relay_meets_them,
        rows_of_a_sequence_that_went_back_twice_keep_the_order_of_each_time,
        a_row_behind_a_moved_one_does_not_overtake_it,
        what_a_rebased_cursor_leaves_out_stays_left_out_under_its_new_id,
        what_is_parked_of_a_row_moves_with_it,
        another_relay_reads_what_it_had_not_passed,
        a_row_that_every_relay_has_passed_keeps_its_id,
        a_row_with_the_id_of_a_parked_message_moves_and_the_message_keeps_its_own,
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Returns messages with ids from days ago, so that their rows are in another segment.
pub(super) fn made_ago(days: u32, range: std::ops::Range<i32>) -> impl Iterator<Item = NewMessage> + Send {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let made = (now - DAY * days).as_millis();
    range.enumerate().map(move |(n, number)| {
        let id = format!("{:08x}-{:04x}-7000-8000-{n:012x}", made >> 16, made & 0xffff);
        let message = NewMessage::new("orders").id(id.parse().unwrap());
        message.key(number.to_string()).payload(number.to_string())
    })
}

pub(super) async fn set_sequence(db: &Database<Postgres>, to: i64) {
    db.run(&format!("SELECT setval('outbox_message_id_seq', {to})")).await;
}

fn last_read(entry: &Entry) -> Option<(EntryId, MessageId)> {
    Some((entry.id, entry.message_id().parse().ok()?))
}

pub(super) async fn shared(db: &Database<Postgres>) -> i64 {
    db.number("SELECT count(*) - count(DISTINCT id) FROM outbox_message").await
}

/// Writes rows 11 to 20, and then rows 12 to 17 again. No relay has read them yet.
async fn twins(db: &Database<Postgres>) {
    db.enqueue(made_ago(3, 10..20)).await;
    set_sequence(db, 11).await;
    db.enqueue(made_ago(0, 20..26)).await;
    assert_eq!(shared(db).await, 6);
}

fn numbers(range: std::ops::Range<i32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

async fn two_rows_of_one_id_that_wait_for_the_relay_are_both_read(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    twins(db).await;
    assert_eq!(read_anew(db).await, numbers(10..26), "{}", log_and_cursor(db).await);
    assert_eq!(shared(db).await, 0);
}

/// The sequence was ahead again before the relay's poll, so the poll finds nothing wrong. The page
/// has to return both rows.
async fn a_page_does_not_end_between_two_rows_of_one_id(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    twins(db).await;
    set_sequence(db, 30).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    for entries_max in 1..=5 {
        for bytes_max in [1, 5, 1_000] {
            let mut follower = Follower::new(db.reader().await, cursor.clone());
            follower.limit = PageLimit { entries_max, bytes_max, ..SMALL };
            let all: BTreeSet<_> = keys(&follower.all().await).into_iter().collect();
            assert_eq!(all, numbers(10..26).into_iter().collect(), "{entries_max}, {bytes_max}");
        }
    }
}

async fn rows_of_one_id_get_new_ones_when_a_relay_meets_them(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, follower) = after_ten(db).await;
    twins(db).await;
    set_sequence(db, 30).await;
    drop(follower);
    checkpoint_store.renumber(EntryId(12)).await.unwrap();
    let late = checkpoint_store.renew(epoch, Duration::from_secs(30)).await.unwrap();
    assert_eq!(late, Fenced::Lost, "who leads has read them by their former ids");
    assert_eq!(shared(db).await, 0);
    assert_eq!(read_anew(db).await, numbers(10..26));
}

async fn rows_of_a_sequence_that_went_back_twice_keep_the_order_of_each_time(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.enqueue(made_ago(4, 10..20)).await;
    set_sequence(db, 11).await;
    db.enqueue(made_ago(2, 20..26)).await;
    set_sequence(db, 12).await;
    db.enqueue(made_ago(0, 26..30)).await;
    assert_eq!(shared(db).await, 10);
    let read = read_anew(db).await;
    let all: BTreeSet<_> = read.iter().cloned().collect();
    assert_eq!((read.len(), all), (20, numbers(10..30).into_iter().collect()));
    for times in [10..20, 20..26, 26..30] {
        let numbers = numbers(times);
        let of: Vec<_> = read.iter().filter(|key| numbers.contains(key)).collect();
        assert_eq!(of, numbers.iter().collect::<Vec<_>>(), "{read:?}");
    }
    assert_eq!(shared(db).await, 0);
}

/// Rows of the same key that follow a moved row are moved as well; rows of other keys stay.
async fn a_row_behind_a_moved_one_does_not_overtake_it(db: &Database<Postgres>) {
    drop(after_ten(db).await);
    db.enqueue(made_ago(3, 10..20)).await;
    set_sequence(db, 18).await;
    // These get the ids 19 and 20 a second time, and then 21 to 23.
    db.enqueue((20..25).map(|n| NewMessage::new("orders").key("same").payload(n.to_string()))).await;
    db.enqueue(made_ago(0, 25..26)).await;
    let order = "SELECT string_agg(convert_from(payload, 'UTF8'), ' ' ORDER BY id) FROM outbox_message
        WHERE id > 10";
    assert_eq!(shared(db).await, 2);
    db.checkpoint_store("a").await.renumber(EntryId(19)).await.unwrap();
    let found: String = sqlx::query_scalar(order).fetch_one(&db.admin).await.unwrap();
    assert_eq!(found, "10 11 12 13 14 15 16 17 18 19 25 20 21 22 23 24");
}

/// An operator has discarded a message, and its row gets a new id before a rebased cursor has
/// passed it again.
async fn what_a_rebased_cursor_leaves_out_stays_left_out_under_its_new_id(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, follower) = after_ten(db).await;
    let rebased = format!(
        "{}@@rebased",
        follower.cursor().base.as_str().split("@").take(2).collect::<Vec<_>>().join("@")
    );
    let cursor = Cursor::at(Mark::new(rebased));
    assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &[]).await.unwrap(), Fenced::Held);
    twins(db).await;
    set_sequence(db, 30).await;
    db.run(
        "INSERT INTO outbox_rebased (relay, id, message_id)
         SELECT 'main', id, message_id FROM outbox_message WHERE key IN ('12', '22')",
    )
    .await;
    checkpoint_store.renumber(EntryId(12)).await.unwrap();
    let mut expected = numbers(10..26);
    expected.retain(|key| key != "12" && key != "22");
    assert_eq!(read_anew(db).await, expected, "{}", log_and_cursor(db).await);
}

/// One relay has parked the later of the two rows, but another relay has not read it.
async fn what_is_parked_of_a_row_moves_with_it(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, mut follower) = after_ten(db).await;
    let other = RelayName::new("other").unwrap();
    drop(granted(&mut db.log.checkpoint_store(&other, "o").await.unwrap()).await);
    twins(db).await;
    set_sequence(db, 30).await;
    let entries = follower.all().await;
    let entry = entries.iter().find(|entry| entry.key() == Some("22")).unwrap();
    // A broker transaction refers to the row by its id.
    let transaction = BrokerTransaction { log: String::from("0a1b"), number: 3, is_rebased: false };
    let cursor = Cursor { transaction: Some(transaction), ..follower.cursor() };
    let stored = checkpoint_store.checkpoint(epoch, &cursor, &[dead(entry)]).await;
    assert_eq!(stored.unwrap(), Fenced::Held);
    checkpoint_store.renumber(EntryId(12)).await.unwrap();
    let doubt = checkpoint_store.doubt(&cursor, last_read(entry)).await.unwrap();
    assert_eq!(doubt, None, "it is here under another id");
    assert_eq!(beside(db).await, [(String::from("22"), Some(String::from("22")))]);
    let same = "SELECT count(*) FROM outbox_exception AS e JOIN outbox_message AS m USING (id, message_id)
        WHERE e.id > 30";
    assert_eq!(db.number(same).await, 1, "{}", log_and_cursor(db).await);
    // The relay has passed all of the rows, and does not read the parked row again.
    let (_, found) = granted(&mut db.checkpoint_store("a").await).await;
    assert!(!found.base.as_str().ends_with("@rebased"), "{:?}", found.base);
    assert!(found.transaction.unwrap().is_rebased);
    assert_eq!(Follower::new(db.reader().await, Cursor::at(found.base)).all().await.len(), 0);
}

/// One of two relays is in the middle of the difference whose rows get new ids.
async fn another_relay_reads_what_it_had_not_passed(db: &Database<Postgres>) {
    let (mut checkpoint_store, _, follower) = after_ten(db).await;
    drop(follower);
    let other = RelayName::new("other").unwrap();
    let mut store = db.log.checkpoint_store(&other, "o").await.unwrap();
    let (lease, cursor) = granted(&mut store).await;
    let mut inside = Follower::new(db.log.reader(&other).await.unwrap(), cursor);
    assert_eq!(inside.all().await.len(), 10);
    assert!(inside.next().await.is_none());
    twins(db).await;
    set_sequence(db, 30).await;
    inside.limit = PageLimit { entries_max: 4, bytes_max: 1_000, ..SMALL };
    let first = keys(&inside.next().await.unwrap());
    let stored = store.checkpoint(lease.epoch, &inside.cursor(), &[]).await.unwrap();
    assert_eq!(stored, Fenced::Held);
    checkpoint_store.renumber(EntryId(12)).await.unwrap();
    let (difference, after) = inside.open.clone().unwrap();
    let error = inside.reader.read_page(&difference, after, inside.limit).await.unwrap_err();
    assert!(error.to_string().contains("another server"), "it reads on with a ceiling of before: {error}");
    assert_eq!(store.renew(lease.epoch, Duration::from_secs(30)).await.unwrap(), Fenced::Lost);
    let (_, cursor) = granted(&mut store).await;
    let again = keys(&Follower::new(db.log.reader(&other).await.unwrap(), cursor).all().await);
    let all: BTreeSet<_> = first.iter().chain(&again).cloned().collect();
    assert_eq!(all, numbers(10..26).into_iter().collect(), "{first:?}, {again:?}");
    // The relay passes again only rows that are now behind all others.
    let repeated: Vec<_> = again.iter().filter(|key| first.contains(key)).cloned().collect();
    assert_eq!(repeated, numbers(20..20 + i32::try_from(repeated.len()).unwrap()));
    assert_eq!(first[..2], numbers(10..12));
}

async fn a_row_that_every_relay_has_passed_keeps_its_id(db: &Database<Postgres>) {
    let (mut checkpoint_store, epoch, mut follower) = after_ten(db).await;
    db.enqueue(made_ago(3, 10..20)).await;
    assert_eq!(follower.all().await.len(), 10);
    let stored = checkpoint_store.checkpoint(epoch, &follower.cursor(), &[]).await.unwrap();
    assert_eq!(stored, Fenced::Held);
    set_sequence(db, 11).await;
    db.enqueue(made_ago(0, 20..26)).await;
    assert_eq!(read_anew(db).await, numbers(20..26));
    assert_eq!(shared(db).await, 6, "{}", log_and_cursor(db).await);
}

/// Goal: a dead message and the message that is held behind it keep their ids, their order and
/// their content, although a sequence that was set back has given the ids to rows of another
/// segment. Their contents are in the log alone, like those of messages that are too large to be
/// copied. Oracle: the tables, every query of operators, and what the relay reads when it is due.
async fn a_row_with_the_id_of_a_parked_message_moves_and_the_message_keeps_its_own(db: &Database<Postgres>) {
    db.enqueue(made_ago(3, 0..10)).await;
    let mut main = Relay::new(db, &relay()).await;
    let read = main.follower.all().await;
    let park = |place: usize, state| ExceptionChange::Park(parked(&read[place], state));
    main.pass(&[park(4, ExceptionState::Dead), park(5, ExceptionState::Held)]).await;
    db.run("UPDATE outbox_parked SET payload = NULL, headers = NULL").await;
    set_sequence(db, 4).await;
    db.enqueue(made_ago(0, 10..13)).await;
    assert_eq!(shared(db).await, 3);

    let mut main = Relay::new(db, &relay()).await;
    assert_eq!(keys(&main.pass(&[]).await), ["12", "10", "11"], "{}", log_and_cursor(db).await);
    assert_eq!(beside(db).await, [("4", None), ("5", None)].map(|(key, copy)| (key.to_owned(), copy)));
    let places = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM outbox_exception
        JOIN outbox_message USING (id, message_id)";
    let places: Option<String> = sqlx::query_scalar(places).fetch_one(&db.admin).await.unwrap();
    assert_eq!(places.as_deref(), Some("5 6"), "each is still beside its own row");

    let ids: Vec<_> = read[4..6].iter().map(|entry| entry.message_id().parse().unwrap()).collect();
    let (_, log) = entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let extent = log.extent(&relay()).await.unwrap();
    let page = log.select(&relay(), &extent, &Selection::default(), EntryId(0)).await.unwrap();
    let selected: Vec<_> = page.entries.iter().filter(|entry| ids.contains(&entry.message_id)).collect();
    let standing: Vec<_> = selected.iter().map(|entry| entry.standing).collect();
    assert_eq!(standing, [ExceptionState::Dead, ExceptionState::Held].map(Standing::Parked));
    assert_eq!(log.find(&relay(), EntryRef::MessageId(ids[0])).await.unwrap().len(), 1);
    let compared = rows(db).await.find(&ids).await.unwrap();
    assert!(compared.iter().all(|row| matches!(row.stage, Stage::Beside(_))), "{compared:?}");

    db.run("UPDATE outbox_exception SET state = 'retrying', due_at = now() WHERE key = '4'").await;
    let due = main.follower.reader.read_due(DueKind::Retrying, None, SMALL).await.unwrap().exceptions;
    assert_eq!(due[0].entry.message.as_ref().unwrap().payload, "4");
}
