//! Lease, fencing, exceptions and decisions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use outbox::NewMessage;
use outbox_log::admin::{self, Blocker, ChosenEntry, DecideError, Decision, OperatorDecision};
use outbox_log::read_only::ReadOnly;
use outbox_log::reconcile::{self, Stage};
use outbox_log::{
    Acquired, BrokerTrouble, Cursor, DueKind, EntryId, Exception, ExceptionChange, ExceptionState, Fenced,
    HeldAsk, LogOptions, PageLimit, Parked, PauseScope, StuckPage,
};

use crate::outbox::rows::{due as all_due, insert, zeros};
use crate::outbox::support::{Database, Follower, SMALL, TTL, TestDialect, granted, relay, source};

tests::cases! { "outbox/checkpoint_store/{on}/{case}":
    every {
        a_held_lease_is_busy_and_an_expired_one_is_taken_over,
        a_fenced_holder_changes_nothing,
        a_released_lease_is_free_at_once,
        a_forgotten_holder_writes_nothing_under_the_same_name,
        a_holder_that_takes_its_lease_again_gets_the_cursor_that_is_stored,
        a_lease_that_a_clock_has_put_far_ahead_ends_after_its_own_length,
        exceptions_come_back_when_they_are_due,
        probes_and_requeued_entries_are_read_before_the_rest,
        requeued_entries_are_due_in_the_order_of_their_ids,
        held_entries_are_read_by_their_key_in_pages,
        a_scheduled_entry_is_due_at_its_own_time_however_late_it_is_parked,
        the_last_change_of_an_entry_counts,
        only_what_blocks_its_key_is_read_at_a_takeover,
        operators_decide_about_dead_entries_only,
        operators_decide_about_entries_that_are_retried_for_them,
        a_checkpoint_brings_no_discarded_entry_back,
        a_decision_reaches_the_messages_that_were_chosen_and_no_others,
        what_was_given_up_stays_known_and_nothing_else_does,
        only_the_pause_that_was_meant_ends,
        status_tells_holder_backlog_and_exceptions,
        what_keeps_a_relay_from_its_broker_stands_beside_its_cursor,
        status_tells_since_when_nothing_was_stored_under_a_lease,
    }
    on_postgres {
        a_free_lease_is_granted_to_one_of_two_that_see_it_free,
        a_decision_whose_answer_is_lost_is_unknown,
        a_checkpoint_removes_an_entry_that_an_operator_takes,
        an_entry_that_is_due_again_is_no_longer_taken,
        the_transaction_that_holds_rows_back_is_named,
        a_prepared_transaction_that_holds_rows_back_is_named,
        processes_that_wait_for_the_lease_are_counted,
    }
}

async fn a_held_lease_is_busy_and_an_expired_one_is_taken_over<DB: TestDialect>(db: &Database<DB>) {
    let (mut a, mut b) = (db.checkpoint_store("a").await, db.checkpoint_store("b").await);
    let (first, _) = granted(&mut a).await;
    let Acquired::Busy { holder, expires_in } = b.acquire(TTL).await.unwrap() else {
        panic!("granted twice")
    };
    assert_eq!(holder, "a");
    assert!(expires_in <= TTL && expires_in > TTL / 2, "{expires_in:?}");
    let (again, _) = granted(&mut a).await;
    assert_eq!(again.epoch, first.epoch + 1);
    assert_eq!(a.renew(first.epoch, TTL).await.unwrap(), Fenced::Lost);
    assert_eq!(a.renew(again.epoch, Duration::ZERO).await.unwrap(), Fenced::Held);

    let Acquired::Granted { lease, taken_over_from, .. } = b.acquire(TTL).await.unwrap() else {
        panic!("busy")
    };
    assert_eq!((lease.epoch, taken_over_from.as_deref()), (again.epoch + 1, Some("a")));
}

/// Goal: the lease has one holder even if two processes see it free at the same moment: both have
/// read the row before either of them takes it. Oracle: one is granted, and the other one learns
/// the holder's name.
async fn a_free_lease_is_granted_to_one_of_two_that_see_it_free(db: &Database<sqlx::Postgres>) {
    let (mut a, mut b) = (db.checkpoint_store("a").await, db.checkpoint_store("b").await);
    let (first, _) = granted(&mut a).await;
    assert_eq!(a.release(first.epoch).await.unwrap(), Fenced::Held);
    // Readers pass a locked row, writers wait for it.
    let mut lock = db.admin.begin().await.unwrap();
    sqlx::query("SELECT FROM outbox_relay FOR UPDATE").execute(&mut *lock).await.unwrap();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock' AND state = 'active'";
    let both_have_read = async {
        let both = async || Ok((db.number(waits).await == 2).then_some(()));
        tests::eventually("both wait to take the lease", both).await.unwrap();
        lock.rollback().await.unwrap();
    };
    let (of_a, of_b, ()) = tokio::join!(a.acquire(TTL), b.acquire(TTL), both_have_read);
    match [of_a.unwrap(), of_b.unwrap()] {
        [Acquired::Granted { .. }, Acquired::Busy { holder, .. }] => assert_eq!(holder, "a"),
        [Acquired::Busy { holder, .. }, Acquired::Granted { .. }] => assert_eq!(holder, "b"),
        both => panic!("{both:?}"),
    }
}

/// The epochs of a relay that was forgotten begin again. A write of its holder that arrives only
/// now is refused although the epoch is the same.
async fn a_forgotten_holder_writes_nothing_under_the_same_name<DB: TestDialect>(db: &Database<DB>) {
    let (mut a, mut b) = (db.checkpoint_store("a").await, db.checkpoint_store("b").await);
    let (old, cursor) = granted(&mut a).await;
    db.run("DELETE FROM outbox_relay").await;
    let (new, _) = granted(&mut b).await;
    assert_eq!(old.epoch, new.epoch);
    assert_eq!(a.checkpoint(old.epoch, &cursor, &[]).await.unwrap(), Fenced::Lost);
    assert_eq!(a.renew(old.epoch, TTL).await.unwrap(), Fenced::Lost);
    assert_eq!(a.release(old.epoch).await.unwrap(), Fenced::Lost);
    assert_eq!(b.renew(new.epoch, TTL).await.unwrap(), Fenced::Held);
}

/// Goal: a process that takes its own lease again goes on from the cursor in the database, which
/// may have been restored meanwhile, not from the one that it stored last. Oracle: the first
/// cursor.
async fn a_holder_that_takes_its_lease_again_gets_the_cursor_that_is_stored<DB: TestDialect>(
    db: &Database<DB>,
) {
    let mut store = db.checkpoint_store("a").await;
    let (lease, first) = granted(&mut store).await;
    db.run("CREATE TABLE backup AS SELECT relay, cursor FROM outbox_relay").await;
    insert(db, "topic, payload", &format!("'orders', {}", zeros::<DB>(1))).await;
    let mut follower = Follower::new(db.reader().await, first.clone());
    assert_eq!(follower.all().await.len(), 1);
    assert_eq!(store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(), Fenced::Held);
    let (_, later) = granted(&mut store).await;
    assert_ne!(later, first);
    db.run("UPDATE outbox_relay SET cursor = (SELECT backup.cursor FROM backup)").await;
    let (_, again) = granted(&mut store).await;
    assert_eq!(again, first);
}

async fn a_lease_that_a_clock_has_put_far_ahead_ends_after_its_own_length<DB: TestDialect>(
    db: &Database<DB>,
) {
    let ttl = Duration::from_secs(1);
    let mut old = db.checkpoint_store("old").await;
    assert!(matches!(old.acquire(ttl).await.unwrap(), Acquired::Granted { .. }));
    drop(old);
    // The new primary's clock is an hour behind, or the previous holder's was ahead.
    let hour = if db.directory.is_some() { "3600000000" } else { "interval '1 hour'" };
    db.run(&format!("UPDATE outbox_relay SET lease_until = lease_until + {hour}")).await;
    let mut standby = db.checkpoint_store("standby").await;
    let begun = std::time::Instant::now();
    loop {
        match standby.acquire(ttl).await.unwrap() {
            Acquired::Granted { taken_over_from, .. } => {
                assert_eq!(taken_over_from.as_deref(), Some("old"));
                break;
            }
            Acquired::Busy { expires_in, .. } => {
                assert!(expires_in <= 2 * ttl, "{expires_in:?}");
                tokio::time::sleep(expires_in).await;
            }
        }
    }
    assert!(begun.elapsed() >= ttl, "a holder that lives would have renewed it meanwhile");
}

async fn a_fenced_holder_changes_nothing<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue((0..3).map(|n| NewMessage::new("orders").json(&n))).await;
    let (mut a, mut b) = (db.checkpoint_store("a").await, db.checkpoint_store("b").await);
    let (zombie, cursor) = granted(&mut a).await;
    let mut follower = Follower::new(db.reader().await, cursor.clone());
    follower.all().await;
    assert_eq!(a.renew(zombie.epoch, Duration::ZERO).await.unwrap(), Fenced::Held);
    let (lease, _) = granted(&mut b).await;

    let park = [ExceptionChange::Park(parked(1, ExceptionState::Dead, None))];
    assert_eq!(a.checkpoint(zombie.epoch, &follower.cursor(), &park).await.unwrap(), Fenced::Lost);
    assert_eq!(a.checkpoint(zombie.epoch, &follower.cursor(), &[]).await.unwrap(), Fenced::Lost);
    assert_eq!(a.release(zombie.epoch).await.unwrap(), Fenced::Lost);
    assert_eq!(db.reader().await.stuck(EntryId(0), 10, true).await.unwrap(), StuckPage::default());
    let (_, stored) = granted(&mut b).await;
    assert_eq!(stored, cursor);
    assert_eq!(b.checkpoint(lease.epoch, &cursor, &[]).await.unwrap(), Fenced::Lost);
}

async fn a_released_lease_is_free_at_once<DB: TestDialect>(db: &Database<DB>) {
    let (mut a, mut b) = (db.checkpoint_store("a").await, db.checkpoint_store("b").await);
    let (lease, cursor) = granted(&mut a).await;
    assert_eq!(a.release(lease.epoch).await.unwrap(), Fenced::Held);
    assert_eq!(a.checkpoint(lease.epoch, &cursor, &[]).await.unwrap(), Fenced::Lost);
    let Acquired::Granted { taken_over_from, .. } = b.acquire(TTL).await.unwrap() else { panic!("busy") };
    assert_eq!(taken_over_from, None);
}

/// Returns the message id of an entry: a parked message has the id of its row.
fn message_id(entry: i64) -> message::MessageId {
    static KNOWN: LazyLock<Mutex<HashMap<i64, message::MessageId>>> = LazyLock::new(Mutex::default);
    *KNOWN.lock().unwrap().entry(entry).or_insert_with(message::MessageId::new)
}

fn parked(id: i64, state: ExceptionState, due_in: Option<Duration>) -> Parked {
    Parked {
        id: EntryId(id),
        message_id: message_id(id).to_string(),
        topic: String::from("orders"),
        key: Some(format!("key-{id}")),
        state,
        attempts: 3,
        due_in,
        fault: Some(message::Fault::Message),
        error: Some(String::from("refused")),
    }
}

/// Parks entries as the relay does, beside five entries in the log.
async fn with_parked<DB: TestDialect>(
    db: &Database<DB>,
    changes: &[ExceptionChange],
) -> (Box<dyn outbox_log::CheckpointStore>, i64, Cursor) {
    let message = |n| NewMessage::new("orders").key(format!("key-{n}")).json(&n).id(message_id(n));
    db.enqueue((1..=5).map(message)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    assert_eq!(checkpoint_store.checkpoint(lease.epoch, &cursor, changes).await.unwrap(), Fenced::Held);
    (checkpoint_store, lease.epoch, cursor)
}

/// Returns everything that is due, in the order of ids.
async fn due_now<DB: TestDialect>(db: &Database<DB>) -> Vec<Exception> {
    all_due(&mut db.reader().await, SMALL).await
}

async fn exceptions_come_back_when_they_are_due<DB: TestDialect>(db: &Database<DB>) {
    let hour = Some(Duration::from_secs(3600));
    let park = |id, state, due_in| ExceptionChange::Park(parked(id, state, due_in));
    let changes = [
        park(1, ExceptionState::Retrying, Some(Duration::ZERO)),
        park(2, ExceptionState::Scheduled, hour),
        park(3, ExceptionState::Held, None),
        park(4, ExceptionState::Dead, None),
        park(99, ExceptionState::Retrying, None),
    ];
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &changes).await;
    let mut reader = db.reader().await;
    let scheduled = reader.read_due(DueKind::Scheduled, None, SMALL).await.unwrap();
    assert!(scheduled.exceptions.is_empty() && scheduled.exhausted, "{scheduled:?}");
    let next = scheduled.next_in.unwrap();
    assert!(next > Duration::from_secs(3500) && next <= Duration::from_secs(3600), "{next:?}");
    let due = reader.read_due(DueKind::Retrying, None, SMALL).await.unwrap();
    // Both were parked at the same time or one after the other, so their order varies.
    let mut ids: Vec<_> = due.exceptions.iter().map(|e| e.entry.id.0).collect();
    ids.sort_unstable();
    assert_eq!((ids, due.exhausted), (vec![1, 99], true));
    assert_eq!(due.next_in, None, "what is scheduled is read by itself");
    let find = |id| due.exceptions.iter().find(|e| e.entry.id.0 == id).unwrap();
    assert_eq!((find(1).state, find(1).attempts), (ExceptionState::Retrying, 3));
    assert_eq!(&find(1).entry.message.as_ref().unwrap().payload[..], b"1");
    assert!(find(99).entry.message.as_ref().unwrap_err().problem.contains("no longer in outbox_message"));

    // One entry at a time.
    let one = PageLimit { entries_max: 1, ..SMALL };
    let first = reader.read_due(DueKind::Retrying, None, one).await.unwrap();
    assert_eq!((first.exceptions.len(), first.exhausted), (1, false));
    let second = reader.read_due(DueKind::Retrying, first.position, one).await.unwrap();
    assert_eq!(second.exceptions.len(), 1);
    assert!(second.position > first.position);
    let third = reader.read_due(DueKind::Retrying, second.position, one).await.unwrap();
    assert_eq!((third.exceptions.len(), third.exhausted, third.position), (0, true, second.position));

    let stuck = reader.stuck(EntryId(0), 10, true).await.unwrap();
    assert_eq!(stuck.exceptions.iter().map(|e| e.id.0).collect::<Vec<_>>(), [1, 4, 99]);
    let page = reader.stuck(EntryId(1), 1, true).await.unwrap();
    assert_eq!(page.exceptions.iter().map(|e| e.id.0).collect::<Vec<_>>(), [4]);

    let resolve = [ExceptionChange::Resolve(EntryId(1)), ExceptionChange::Resolve(EntryId(99))];
    assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &resolve).await.unwrap(), Fenced::Held);
    assert!(due_now(db).await.is_empty());
    assert_eq!(
        db.number("SELECT count(*) FROM outbox_parked").await,
        3,
        "copies go with what they belong to"
    );
}

/// Goal: the probe of a stopped topic and entries that an operator has requeued or discarded are
/// read whatever is due before them. Oracle: the entries that are read.
async fn probes_and_requeued_entries_are_read_before_the_rest<DB: TestDialect>(db: &Database<DB>) {
    let retried = |id, due_in| {
        let parked = parked(id, ExceptionState::Retrying, Some(Duration::from_secs(due_in)));
        ExceptionChange::Park(parked)
    };
    let dead = |id| ExceptionChange::Park(parked(id, ExceptionState::Dead, None));
    let changes = [retried(1, 0), retried(2, 0), retried(3, 3_600), dead(4), dead(5)];
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &changes).await;
    let mut reader = db.reader().await;
    let mut read = async |probes: &[i64], limit| {
        let probes: Vec<_> = probes.iter().copied().map(EntryId).collect();
        let first = reader.read_first(&probes, limit).await.unwrap();
        let id = |one: &Exception| (one.entry.id.0, one.state, one.entry.message.is_ok());
        first.iter().map(id).collect::<Vec<_>>()
    };
    let is_read = |id| (id, ExceptionState::Retrying, true);
    assert_eq!(read(&[], SMALL).await, []);
    assert_eq!(read(&[2, 3, 5, 99], SMALL).await, [is_read(2)], "3 is not due, and 5 is dead");
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let signature = outbox::Signature::new("ops", "its endpoint is back");
    let decree = |decision| OperatorDecision { decision, signature: signature.clone() };
    admin.decide(&relay(), &[chosen(5)], decree(Decision::Requeue)).await.unwrap().remove(0).unwrap();
    assert_eq!(read(&[2], SMALL).await, [is_read(2), is_read(5)]);
    assert_eq!(read(&[2], PageLimit { entries_max: 1, ..SMALL }).await, [is_read(2)]);
    // A probe comes before what was requeued earlier than it is due: that may be in the window.
    let again = ExceptionChange::Park(parked(2, ExceptionState::Retrying, Some(Duration::from_millis(1))));
    assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &[again]).await.unwrap(), Fenced::Held);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(read(&[2], SMALL).await, [is_read(2), is_read(5)]);
    assert_eq!(read(&[2, 5], SMALL).await, [is_read(5), is_read(2)], "in the order of their times");
    assert_eq!(read(&[2], PageLimit { entries_max: 1, ..SMALL }).await, [is_read(2)]);
    admin.decide(&relay(), &[chosen(4)], decree(Decision::Discard)).await.unwrap().remove(0).unwrap();
    assert_eq!(read(&[], SMALL).await, [is_read(5), (4, ExceptionState::Discarded, true)]);
}

/// Goal: requeued entries of a key leave in their order, wherever their rows lie. Oracle: the order
/// in which they are due.
async fn requeued_entries_are_due_in_the_order_of_their_ids<DB: TestDialect>(db: &Database<DB>) {
    let dead = |id| ExceptionChange::Park(parked(id, ExceptionState::Dead, None));
    let _leading = with_parked(db, &[dead(1), dead(2), dead(3)]).await;
    // PostgreSQL writes a changed row behind the others.
    db.run("UPDATE outbox_exception SET attempts = attempts WHERE id = 1").await;
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let signature = outbox::Signature::new("ops", "its endpoint is back");
    let decree = OperatorDecision { decision: Decision::Requeue, signature };
    let decided = admin.decide(&relay(), &[1, 2, 3].map(chosen), decree).await.unwrap();
    assert!(decided.iter().all(Result::is_ok));
    let due = db.reader().await.read_due(DueKind::Retrying, None, SMALL).await.unwrap();
    assert_eq!(due.exceptions.iter().map(|one| one.entry.id.0).collect::<Vec<_>>(), [1, 2, 3]);
}

async fn held_entries_are_read_by_their_key_in_pages<DB: TestDialect>(db: &Database<DB>) {
    let message = |n: i64| match n % 3 {
        0 => NewMessage::new("orders").json(&n),
        key => NewMessage::new("orders").key(format!("key-{key}")).json(&n),
    };
    db.enqueue((1..=30).map(|n| message(n).id(message_id(n)))).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let park = |id: i64| {
        let key = (id % 3 != 0).then(|| format!("key-{}", id % 3));
        ExceptionChange::Park(Parked { key, ..parked(id, ExceptionState::Held, None) })
    };
    let changes: Vec<_> = (1..=30).map(park).collect();
    assert_eq!(checkpoint_store.checkpoint(lease.epoch, &cursor, &changes).await.unwrap(), Fenced::Held);

    let mut reader = db.reader().await;
    let names = reader.held_queues(None, 100).await.unwrap();
    let first: Vec<_> = names.queues.iter().map(|q| (q.name.as_str(), q.first.0, q.topic.as_str())).collect();
    assert_eq!(first, [("kkey-1", 1, "orders"), ("kkey-2", 2, "orders"), ("torders", 3, "orders")]);
    assert!(names.exhausted);
    let rest = reader.held_queues(Some(&names.queues[0].name), 100).await.unwrap();
    assert_eq!(rest.queues.len(), 2);
    let short = reader.held_queues(None, 2).await.unwrap();
    assert_eq!((short.queues.len(), short.exhausted), (2, false), "as many as were asked for");

    let ask = |queue: usize, from| HeldAsk { queue: names.queues[queue].name.clone(), from: EntryId(from) };
    let limit = PageLimit { entries_max: 12, ..SMALL };
    let pages = reader.read_held(&[ask(0, 1), ask(1, 20), ask(2, 100)], limit).await.unwrap();
    let ids: Vec<Vec<i64>> =
        pages.iter().map(|page| page.exceptions.iter().map(|e| e.entry.id.0).collect()).collect();
    assert_eq!(ids, [vec![1, 4, 7, 10], vec![20, 23, 26, 29], vec![]]);
    assert!(!pages[0].exhausted && pages[2].exhausted);
    assert_eq!(&pages[1].exceptions[0].entry.message.as_ref().unwrap().payload[..], b"20");
    // A limit in bytes that is too small still returns one entry.
    let tiny = PageLimit { bytes_max: 1, ..limit };
    let pages = reader.read_held(&[ask(0, 1), ask(2, 1)], tiny).await.unwrap();
    assert_eq!((pages[0].exceptions.len(), pages[0].exhausted, pages[1].exhausted), (1, false, false));
}

async fn a_scheduled_entry_is_due_at_its_own_time_however_late_it_is_parked<DB: TestDialect>(
    db: &Database<DB>,
) {
    let at = time::OffsetDateTime::now_utc() + Duration::from_secs(600);
    let scheduled = NewMessage::new("orders").key("key-1").json(&1).deliver_at(at);
    db.enqueue([scheduled.id(message_id(1))]).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    // As if it had been read an hour ago.
    let late = ExceptionChange::Park(parked(1, ExceptionState::Scheduled, Some(Duration::from_secs(4200))));
    assert_eq!(checkpoint_store.checkpoint(lease.epoch, &cursor, &[late]).await.unwrap(), Fenced::Held);
    let next = db.reader().await.read_due(DueKind::Scheduled, None, SMALL).await.unwrap().next_in.unwrap();
    assert!(next > Duration::from_secs(500) && next <= Duration::from_secs(600), "{next:?}");
}

async fn the_last_change_of_an_entry_counts<DB: TestDialect>(db: &Database<DB>) {
    let park = |id, state| ExceptionChange::Park(parked(id, state, None));
    let resolve = |id| ExceptionChange::Resolve(EntryId(id));
    let changes = [
        park(1, ExceptionState::Retrying),
        resolve(1),
        resolve(2),
        park(2, ExceptionState::Held),
        park(2, ExceptionState::Dead),
    ];
    with_parked(db, &changes).await;
    let stuck = db.reader().await.stuck(EntryId(0), 10, true).await.unwrap().exceptions;
    assert_eq!(stuck.iter().map(|e| (e.id.0, e.state)).collect::<Vec<_>>(), [(2, ExceptionState::Dead)]);
}

/// Goal: a relay that takes over is given only what blocks a key: no dead entry without a key, and
/// with the policy `pass` none at all. Oracle: the ids in the answers, and the id at which each
/// step of the walk ended, whatever it found.
async fn only_what_blocks_its_key_is_read_at_a_takeover<DB: TestDialect>(db: &Database<DB>) {
    let park = |id, key: Option<&str>, state| {
        ExceptionChange::Park(Parked { key: key.map(str::to_owned), ..parked(id, state, None) })
    };
    let changes = [
        park(1, None, ExceptionState::Dead),
        park(2, Some("a"), ExceptionState::Dead),
        park(3, None, ExceptionState::Retrying),
        park(4, Some("b"), ExceptionState::Retrying),
        park(5, Some("b"), ExceptionState::Held),
    ];
    with_parked(db, &changes).await;
    let mut reader = db.reader().await;
    for (dead_blocks, blocking) in [(true, vec![2, 4]), (false, vec![4])] {
        let all = reader.stuck(EntryId(0), 5, dead_blocks).await.unwrap();
        assert_eq!(all.exceptions.iter().map(|e| e.id.0).collect::<Vec<_>>(), blocking);
        assert_eq!(all.next, None);
        let mut found = Vec::new();
        let mut ends = Vec::new();
        let mut next = Some(EntryId(0));
        while let Some(after) = next {
            let page = reader.stuck(after, 1, dead_blocks).await.unwrap();
            found.extend(page.exceptions.iter().map(|e| e.id.0));
            ends.extend(page.next.map(|id| id.0));
            next = page.next;
        }
        assert_eq!((found, ends), (blocking, vec![1, 2, 3, 4]));
    }
}

async fn operators_decide_about_dead_entries_only<DB: TestDialect>(db: &Database<DB>) {
    let park = |id, state| ExceptionChange::Park(parked(id, state, None));
    let changes = [1, 2, 3].map(|id| park(id, ExceptionState::Dead));
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &changes).await;
    let held = [park(4, ExceptionState::Held)];
    assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &held).await.unwrap(), Fenced::Held);
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let decree =
        |decision| OperatorDecision { decision, signature: outbox::Signature::new("ops", "topic repaired") };
    let decide =
        async |id, decision| admin.decide(&relay(), &[chosen(id)], decree(decision)).await.unwrap().remove(0);

    let dead = admin.list(&relay(), ExceptionState::Dead, EntryId(1), 10).await.unwrap();
    assert_eq!(dead.iter().map(|e| (e.id.0, e.payload_bytes)).collect::<Vec<_>>(), [(2, 1), (3, 1)]);
    decide(1, Decision::Requeue).await.unwrap();
    decide(2, Decision::Discard).await.unwrap();
    let payload = Some(bytes::Bytes::from_static(b"repaired"));
    let mut headers = message::Headers::new();
    headers.insert("repaired", "yes").unwrap();
    decide(3, Decision::Edit { payload, headers: Some(headers), replaces: None }).await.unwrap();
    decide(3, Decision::Requeue).await.unwrap();

    let error = decide(4, Decision::Requeue).await.unwrap_err();
    assert!(matches!(&error, DecideError::NotDead { state, .. } if state == "held"), "{error}");
    assert!(matches!(decide(77, Decision::Discard).await, Err(DecideError::NoSuchEntry { .. })));
    assert!(matches!(decide(1, Decision::Requeue).await, Err(DecideError::NotDead { .. })));

    let due = due_now(db).await;
    let states: Vec<_> = due.iter().map(|e| (e.entry.id.0, e.state, e.attempts)).collect();
    let (retrying, discarded) = (ExceptionState::Retrying, ExceptionState::Discarded);
    assert_eq!(states, [(1, retrying, 0), (2, discarded, 3), (3, retrying, 0)]);
    let edited = due[2].entry.message.as_ref().unwrap();
    assert_eq!((&edited.payload[..], edited.headers.get("repaired")), (&b"repaired"[..], Some("yes")));

    let audit = admin.audit(&relay(), 10).await.unwrap();
    let actions: Vec<_> =
        audit.iter().map(|r| (r.subject.id.0, r.action.as_str(), &*r.signature.actor)).collect();
    assert_eq!(
        actions,
        [(3, "requeue", "ops"), (3, "edit", "ops"), (2, "discard", "ops"), (1, "requeue", "ops")]
    );
    let edited = &audit[1].subject;
    assert!(edited.digest_before.is_some() && edited.digest_before != edited.digest_after);
}

/// Goal: between two retries, an entry can be discarded whatever the cause of its failure, and
/// edited if an operator has to act: the broker may have the content of any other. While the relay
/// may be sending it, it cannot. Oracle: the verdicts, and the entries that the relay reads as due:
/// the discarded ones, and the edited one with its new content.
async fn operators_decide_about_entries_that_are_retried_for_them<DB: TestDialect>(db: &Database<DB>) {
    let park = |id, due_in, fault| {
        let parked = parked(id, ExceptionState::Retrying, Some(Duration::from_secs(due_in)));
        ExceptionChange::Park(Parked { fault: Some(fault), ..parked })
    };
    let (operator, broker) = (message::Fault::Operator, message::Fault::Broker);
    let changes = [
        park(1, 3600, operator),
        park(2, 0, operator),
        park(3, 3600, broker),
        park(4, 3600, operator),
        park(5, 0, broker),
    ];
    with_parked(db, &changes).await;
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let decide = async |ids: &[i64], decision| {
        let chosen: Vec<_> = ids.iter().copied().map(chosen).collect();
        let (actor, note) = (String::from("ops"), String::from("no such topic"));
        let decree = OperatorDecision { decision, signature: outbox::Signature::new(actor, note) };
        admin.decide(&relay(), &chosen, decree).await.unwrap()
    };

    let trying = |verdict: &Result<(), DecideError>| matches!(verdict, Err(DecideError::Trying { .. }));
    let payload = Some(bytes::Bytes::from_static(b"repaired"));
    let edit = Decision::Edit { payload: payload.clone(), headers: None, replaces: None };
    assert!(trying(&decide(&[3], edit).await.remove(0)), "the broker may have it");
    let verdicts = decide(&[1, 2, 3, 5], Decision::Discard).await;
    assert!(verdicts[0].is_ok() && trying(&verdicts[1]), "{verdicts:?}");
    assert!(verdicts[2].is_ok() && trying(&verdicts[3]), "{verdicts:?}");
    decide(&[4], Decision::Edit { payload, headers: None, replaces: None }).await.remove(0).unwrap();
    let requeued = decide(&[4], Decision::Requeue).await.remove(0);
    assert!(matches!(requeued, Err(DecideError::NotDead { .. })), "{requeued:?}");

    let due = due_now(db).await;
    let states: Vec<_> = due.iter().map(|e| (e.entry.id.0, e.state)).collect();
    let (retrying, discarded) = (ExceptionState::Retrying, ExceptionState::Discarded);
    assert_eq!(states, [(1, discarded), (2, retrying), (3, discarded), (4, retrying), (5, retrying)]);
    let edited = due.iter().find(|e| e.entry.id == EntryId(4)).unwrap().entry.message.as_ref().unwrap();
    assert_eq!(&edited.payload[..], b"repaired");
    let audit = admin.audit(&relay(), 10).await.unwrap();
    let actions: Vec<_> = audit.iter().map(|r| (r.subject.id.0, r.action.as_str())).collect();
    assert_eq!(actions, [(4, "edit"), (3, "discard"), (1, "discard")]);
}

/// Goal: a discarded message stays discarded, although the relay changes it from memory before it
/// has read the decision, as at the end of a session; and it gives its place to no other message.
/// Oracle: what the relay reads next, and the entries after its answer.
async fn a_checkpoint_brings_no_discarded_entry_back<DB: TestDialect>(db: &Database<DB>) {
    let park = |state, due_in| {
        let parked = parked(1, state, Some(Duration::from_secs(due_in)));
        Parked { fault: Some(message::Fault::Broker), ..parked }
    };
    let waiting = ExceptionChange::Park(park(ExceptionState::Retrying, 3600));
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &[waiting]).await;
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let signature = outbox::Signature::new("ops", "it never answers");
    let decree = OperatorDecision { decision: Decision::Discard, signature };
    admin.decide(&relay(), &[chosen(1)], decree).await.unwrap().remove(0).unwrap();
    for state in [ExceptionState::Retrying, ExceptionState::Held, ExceptionState::Dead] {
        let change = [ExceptionChange::Park(park(state, 0))];
        assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &change).await.unwrap(), Fenced::Held);
        let due = due_now(db).await;
        let states: Vec<_> = due.iter().map(|e| (e.entry.id.0, e.state)).collect();
        assert_eq!(states, [(1, ExceptionState::Discarded)], "after {state}");
    }
    let resolve = [ExceptionChange::Resolve(EntryId(1))];
    let other =
        Parked { message_id: message::MessageId::new().to_string(), ..park(ExceptionState::Retrying, 0) };
    let refused = checkpoint_store.checkpoint(epoch, &cursor, &[ExceptionChange::Park(other)]).await;
    assert!(refused.is_err(), "{refused:?}");
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let resolved = checkpoint_store.checkpoint(lease.epoch, &cursor, &resolve).await.unwrap();
    assert_eq!(resolved, Fenced::Held);
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, 0);
}

/// Goal: when the session breaks at the commit, no error claims that nothing was done. Oracle: the
/// error of a commit in which the server ends the session.
async fn a_decision_whose_answer_is_lost_is_unknown(db: &Database<sqlx::Postgres>) {
    let dead = [1, 2].map(|id| ExceptionChange::Park(parked(id, ExceptionState::Dead, None)));
    with_parked(db, &dead).await;
    db.run(
        "CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS \
            'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'",
    )
    .await;
    db.run(
        "CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON outbox_audit DEFERRABLE INITIALLY DEFERRED \
            FOR EACH ROW EXECUTE FUNCTION ends()",
    )
    .await;
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let decree =
        OperatorDecision { decision: Decision::Requeue, signature: outbox::Signature::new("ops", "a test") };
    let error = admin.decide(&relay(), &[chosen(1), chosen(2)], decree).await.unwrap_err();
    assert!(matches!(error, DecideError::Unknown(_)), "{error}");
    assert!(error.to_string().contains("list the messages again"), "{error}");
    assert_eq!(error.fault(), message::Fault::Broker);
}

/// Goal: an entry that the relay has published is removed, although an operator takes it at the
/// same time for a decision: otherwise it would be published again. Oracle: the checkpoint waits
/// for the operator's transaction; afterwards neither the entry nor its copy exists.
async fn a_checkpoint_removes_an_entry_that_an_operator_takes(db: &Database<sqlx::Postgres>) {
    let hour = Some(Duration::from_secs(3600));
    let retrying = |id| {
        let parked = parked(id, ExceptionState::Retrying, hour);
        ExceptionChange::Park(Parked { fault: Some(message::Fault::Operator), ..parked })
    };
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &[1, 2, 3].map(retrying)).await;
    let mut operator = db.admin.begin().await.unwrap();
    // Takes entry 1 like `SET_DUE`.
    sqlx::query("UPDATE outbox_exception SET due_at = clock_timestamp() + interval '1 minute' WHERE id = 1")
        .execute(&mut *operator)
        .await
        .unwrap();
    let stored = tokio::spawn(async move {
        let resolved = [1, 2, 99].map(|id| ExceptionChange::Resolve(EntryId(id)));
        checkpoint_store.checkpoint(epoch, &cursor, &resolved).await.unwrap()
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock' AND state = 'active'";
    tests::eventually("the checkpoint waits", async || Ok((db.number(waits).await == 1).then_some(())))
        .await
        .unwrap();
    operator.commit().await.unwrap();
    assert_eq!(stored.await.unwrap(), Fenced::Held);
    assert_eq!(db.number("SELECT sum(id)::bigint FROM outbox_exception").await, 3, "the entries left");
    assert_eq!(db.number("SELECT sum(id)::bigint FROM outbox_parked").await, 3, "the copies left");
}

/// Goal: a process that slept after it took an entry for a decision does not decide about it once
/// the relay may send it again. Oracle: the entries that the statement of the decision locks,
/// before and after the time until which they were taken.
async fn an_entry_that_is_due_again_is_no_longer_taken(db: &Database<sqlx::Postgres>) {
    let hour = Some(Duration::from_secs(3600));
    with_parked(db, &[ExceptionChange::Park(parked(1, ExceptionState::Retrying, hour))]).await;
    let listed = outbox_log::postgres::inventory::statements();
    let lock = &listed.iter().find(|listed| listed.name == "admin.LOCK_ENTRIES").unwrap().sql;
    for (minutes, locked) in [(1, 1), (-1, 0)] {
        let take = "UPDATE outbox_exception SET due_at = clock_timestamp() + make_interval(mins => $1) \
            RETURNING due_at::text";
        let taken_until: String = sqlx::query_scalar(take).bind(minutes).fetch_one(&db.admin).await.unwrap();
        let locking = sqlx::query(sqlx::AssertSqlSafe(lock.clone())).bind(relay().as_str().to_owned());
        let locking = locking.bind(vec![1_i64]).bind(taken_until).bind(None::<time::OffsetDateTime>);
        let found = locking.fetch_all(&db.admin).await.unwrap();
        assert_eq!(found.len(), locked, "{minutes} minutes");
    }
}

/// Names a parked entry as an operator does.
fn chosen(id: i64) -> ChosenEntry {
    ChosenEntry { id: EntryId(id), message_id: message_id(id).to_string(), edited_at: None }
}

/// Goal: a decision about many entries reaches, in one transaction, each one that is dead and still
/// holds the message that the operator saw. A place that meanwhile holds another message is left
/// alone. Oracle: the verdict on each, the states, and one line of the audit for each entry that
/// was decided about.
async fn a_decision_reaches_the_messages_that_were_chosen_and_no_others<DB: TestDialect>(db: &Database<DB>) {
    let park = |id, state| ExceptionChange::Park(parked(id, state, None));
    let changes = [1, 2, 3].map(|id| park(id, ExceptionState::Dead));
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &changes).await;
    let held = [park(4, ExceptionState::Held)];
    assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &held).await.unwrap(), Fenced::Held);
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let decree = OperatorDecision {
        decision: Decision::Discard,
        signature: outbox::Signature::new("ops", "sent by hand"),
    };
    let moved = ChosenEntry { message_id: message_id(77).to_string(), ..chosen(2) };
    let entries = [chosen(3), moved, chosen(1), chosen(4), chosen(77)];
    let verdicts = admin.decide(&relay(), &entries, decree).await.unwrap();
    let [Ok(()), Err(moved), Ok(()), Err(held), Err(absent)] = &verdicts[..] else {
        panic!("{verdicts:?}");
    };
    let now = message_id(2).to_string();
    assert!(matches!(moved, DecideError::AnotherMessage { message_id, .. } if *message_id == now), "{moved}");
    assert!(matches!(held, DecideError::NotDead { state, .. } if state == "held"), "{held}");
    assert!(matches!(absent, DecideError::NoSuchEntry { .. }), "{absent}");
    let dead = admin.list(&relay(), ExceptionState::Dead, EntryId(0), 10).await.unwrap();
    assert_eq!(dead.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), [2]);
    let audit = admin.audit(&relay(), 10).await.unwrap();
    let lines: Vec<_> =
        audit.iter().map(|line| (line.subject.id.0, line.subject.message_id.clone())).collect();
    assert_eq!(lines, [1, 3].map(|id| (id, message_id(id).to_string())), "the latest first");
    let of_one = admin.audit_of(&relay(), message_id(3).as_uuid(), 10).await.unwrap();
    assert_eq!(of_one, audit[1..], "only those about the message");
}

/// Goal: once the relay has carried out a discard, exactly that message is known as discarded.
/// Oracle: the stage of each row and the list, for four kinds of entries: discarded; taken back;
/// discarded only by another relay; in the place of another message that was discarded.
async fn what_was_given_up_stays_known_and_nothing_else_does<DB: TestDialect>(db: &Database<DB>) {
    let changes = [1, 2, 3, 4].map(|id| ExceptionChange::Park(parked(id, ExceptionState::Dead, None)));
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &changes).await;
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let decree = OperatorDecision {
        decision: Decision::Discard,
        signature: outbox::Signature::new("ops", "sent by hand"),
    };
    for verdict in admin.decide(&relay(), &[chosen(1), chosen(2)], decree).await.unwrap() {
        verdict.unwrap();
    }
    let named: Vec<_> = (1..=5).map(|id| message_id(id).as_uuid()).collect();
    let listed = async || {
        let listed = admin.list(&relay(), ExceptionState::Discarded, EntryId(0), 10).await.unwrap();
        assert_eq!(admin.discarded(&relay(), &named).await.unwrap(), listed, "named, they are the same");
        assert_eq!(admin.discarded(&relay(), &named[2..4]).await.unwrap(), []);
        listed.into_iter().map(|entry| (entry.id.0, entry.error.unwrap_or_default())).collect::<Vec<_>>()
    };
    let told = |id| (id, String::from("discarded by ops: sent by hand; it was dead: refused"));
    assert_eq!(listed().await, [told(1), told(2)], "not taken up yet");
    let audit = |relay: &str, id: i64, message: message::MessageId, action: &str| {
        format!(
            "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note) \
             VALUES ('ops', '{relay}', {id}, '{message}', '{action}', 'a test')"
        )
    };
    let position = match DB::DIALECT {
        migrations::Dialect::Sqlite => "4",
        migrations::Dialect::Postgres => "4@99999999:99999999:",
    };
    let mut connection = db.admin.acquire().await.unwrap();
    for statement in [
        audit("main", 2, message_id(2), "requeue"),
        audit("main", 3, message_id(77), "discard"),
        audit("shipping", 4, message_id(4), "discard"),
        audit("main", 5, message_id(5), "discard"),
    ] {
        DB::execute(&mut connection, &statement).await.unwrap();
    }
    let resolve = [1, 2, 3, 4].map(|id| ExceptionChange::Resolve(EntryId(id)));
    assert_eq!(checkpoint_store.checkpoint(epoch, &cursor, &resolve).await.unwrap(), Fenced::Held);
    let passed = format!("UPDATE outbox_relay SET cursor = '{{\"base\":\"{position}\",\"progress\":null}}'");
    DB::execute(&mut connection, &passed).await.unwrap();
    drop(connection);

    let mut rows = match ReadOnly::open(&db.url, true, "a test").await.unwrap() {
        ReadOnly::Postgres(connection) => reconcile::postgres(connection, None, &relay()).await.unwrap(),
        ReadOnly::Sqlite(connection) => reconcile::sqlite(connection, &relay()).await.unwrap(),
    };
    let ids: Vec<_> = (1..=5).map(|id| message_id(id).as_uuid()).collect();
    let found = rows.find(&ids).await.unwrap();
    let stage = |id: i64| found.iter().find(|row| row.id == message_id(id).as_uuid()).unwrap().stage;
    assert_eq!([1, 2, 3, 4].map(stage), [Stage::Discarded, Stage::Passed, Stage::Passed, Stage::Passed]);
    if DB::DIALECT == migrations::Dialect::Sqlite {
        assert_eq!(stage(5), Stage::Ahead, "the cursor was set back: it is owed again");
    }
    assert_eq!(listed().await.first(), Some(&told(1)), "taken up");
}

/// Two operators see a pause. One ends it, a third operator pauses again for another reason, and
/// then the other one's decision arrives.
async fn only_the_pause_that_was_meant_ends<DB: TestDialect>(db: &Database<DB>) {
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let scope = PauseScope::Topic("orders".into());
    let pauses = async || admin.pauses(&relay()).await.unwrap();
    assert!(admin.pause(&relay(), &scope, "ann", "look first").await.unwrap());
    let seen = Some(pauses().await[0].since);
    assert!(admin.resume(&relay(), &scope, seen, "ann", "looked").await.unwrap());
    // SQLite stores milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(admin.pause(&relay(), &scope, "ben", "the topic is full").await.unwrap());
    assert!(!admin.resume(&relay(), &scope, seen, "cid", "late").await.unwrap());
    let left = pauses().await;
    assert!(matches!(&left[..], [pause] if pause.actor == "ben"), "{left:?}");
    assert!(admin.resume(&relay(), &scope, Some(left[0].since), "ben", "emptied").await.unwrap());
    assert!(admin.pause(&relay(), &scope, "ann", "again").await.unwrap());
    assert!(admin.resume(&relay(), &scope, None, "ann", "whichever").await.unwrap());
    assert_eq!(pauses().await, []);
    let notes: Vec<String> =
        admin.operations(&relay(), 10).await.unwrap().into_iter().map(|it| it.signature.note).collect();
    let told = ["whichever", "again", "emptied", "the topic is full", "looked", "look first"];
    assert_eq!(notes, told, "what was not done is not told");
}

async fn status_tells_holder_backlog_and_exceptions<DB: TestDialect>(db: &Database<DB>) {
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    assert_eq!(admin.relays().await.unwrap(), []);
    let changes = [ExceptionChange::Park(parked(1, ExceptionState::Dead, None))];
    let (mut checkpoint_store, epoch, cursor) = with_parked(db, &changes).await;
    let status = admin.relays().await.unwrap().remove(0);
    assert_eq!((status.relay.as_str(), status.epoch), ("main", epoch));
    let holder = status.holder.unwrap();
    assert!(holder.name == "a" && holder.expires_in.unwrap() <= TTL);
    assert_eq!(status.backlog.entries_max, 5);
    assert_eq!(status.backlog.oldest.unwrap().0, EntryId(1));
    assert_eq!((status.exceptions[&ExceptionState::Dead], status.exceptions[&ExceptionState::Held]), (1, 0));

    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit.entries_max = 2;
    follower.next().await.unwrap();
    assert_eq!(checkpoint_store.checkpoint(epoch, &follower.cursor(), &[]).await.unwrap(), Fenced::Held);
    let backlog = admin.relays().await.unwrap().remove(0).backlog;
    assert_eq!((backlog.entries_max, backlog.oldest.unwrap().0), (3, EntryId(3)));
    follower.all().await;
    assert_eq!(checkpoint_store.checkpoint(epoch, &follower.cursor(), &[]).await.unwrap(), Fenced::Held);
    let backlog = admin.relays().await.unwrap().remove(0).backlog;
    assert_eq!((backlog.entries_max, backlog.oldest), (0, None));
    assert_eq!(admin.blocker().await.unwrap(), None);
}

/// Goal: the leader's note about its broker is visible until the problem is solved, and does not
/// move the cursor. Oracle: status and extent; the cursor that the next holder gets; a note of a
/// fenced holder.
async fn what_keeps_a_relay_from_its_broker_stands_beside_its_cursor<DB: TestDialect>(db: &Database<DB>) {
    let (admin, entries) =
        outbox_log::entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let known = async || {
        let status = admin.relay(&relay()).await.unwrap().unwrap();
        let extent = entries.extent(&relay()).await.unwrap();
        assert_eq!(status.broker_trouble, extent.broker_trouble());
        (status.broker_trouble, status.cursor)
    };
    let (mut store, epoch, cursor) = with_parked(db, &[]).await;
    assert_eq!(known().await, (None, cursor.clone()));
    let since = time::OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
    let text = "no \u{e9} \u{2026} \"transaction\": \u{1} \0 here; look there";
    let trouble = BrokerTrouble::of(text, false, since);
    store.note_trouble(epoch, Some(trouble.clone())).await.unwrap();
    assert_eq!(known().await, (Some(trouble.clone()), cursor.clone()));
    assert_eq!(store.checkpoint(epoch, &cursor, &[]).await.unwrap(), Fenced::Held);
    let park = [ExceptionChange::Park(parked(1, ExceptionState::Held, None))];
    assert_eq!(store.checkpoint(epoch, &cursor, &park).await.unwrap(), Fenced::Held);
    assert_eq!(known().await, (Some(trouble.clone()), cursor.clone()), "checkpoints keep it");

    assert_eq!(store.release(epoch).await.unwrap(), Fenced::Held);
    let mut next = db.checkpoint_store("b").await;
    let (lease, given) = granted(&mut next).await;
    assert_eq!((given, known().await.0), (cursor.clone(), Some(trouble.clone())));
    next.note_trouble(lease.epoch, None).await.unwrap();
    store.note_trouble(epoch, Some(trouble)).await.unwrap();
    assert_eq!(known().await, (None, cursor));
}

/// Goal: what the leader before did not store is not counted against the next one, and several
/// leaders in succession that store nothing are not each taken for a new one. Oracle: the times
/// since a checkpoint, which is put an hour back, and since the first lease after it.
async fn status_tells_since_when_nothing_was_stored_under_a_lease<DB: TestDialect>(db: &Database<DB>) {
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let taken_for = async || admin.relay(&relay()).await.unwrap().unwrap().taken_for;
    let hour = if db.directory.is_some() { "3600000000" } else { "interval '1 hour'" };
    let (mut a, mut b) = (db.checkpoint_store("a").await, db.checkpoint_store("b").await);
    let (lease, cursor) = granted(&mut a).await;
    assert_eq!(taken_for().await, None, "the row is new");
    db.run(&format!("UPDATE outbox_relay SET checkpoint_at = checkpoint_at - {hour}")).await;
    assert_eq!(taken_for().await, None, "it has led for an hour");
    assert_eq!(a.release(lease.epoch).await.unwrap(), Fenced::Held);

    let (lease, given) = granted(&mut b).await;
    assert_eq!(given, cursor);
    assert!(taken_for().await.unwrap() < Duration::from_secs(600), "it has just begun");
    let trouble = BrokerTrouble::of("refused", true, time::OffsetDateTime::UNIX_EPOCH);
    b.note_trouble(lease.epoch, Some(trouble)).await.unwrap();
    db.run(&format!("UPDATE outbox_relay SET checkpoint_at = checkpoint_at - {hour}")).await;
    assert_eq!(b.release(lease.epoch).await.unwrap(), Fenced::Held);
    let (lease, _) = granted(&mut a).await;
    assert!(taken_for().await.unwrap() > Duration::from_secs(3_000), "neither has stored anything");

    assert_eq!(a.checkpoint(lease.epoch, &cursor, &[]).await.unwrap(), Fenced::Held);
    assert_eq!(taken_for().await, None);
}

/// Goal: an operator sees whether another process would take over. Oracle: the sessions that the
/// case opens and ends, even for the longest name.
async fn processes_that_wait_for_the_lease_are_counted(db: &Database<sqlx::Postgres>) {
    let log = outbox_log::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    for name in [String::from("main"), "m".repeat(63)] {
        let name = outbox_log::RelayName::new(name).unwrap();
        let counted = async |wanted: u64| {
            // A dropped session ends shortly afterwards.
            while admin.relay(&name).await.unwrap().unwrap().standbys != Some(wanted) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let mut leader = log.checkpoint_store(&name, "a").await.unwrap();
        assert!(matches!(leader.acquire(TTL).await.unwrap(), Acquired::Granted { .. }));
        counted(0).await;
        let mut standby = log.checkpoint_store(&name, "b").await.unwrap();
        assert!(matches!(standby.acquire(TTL).await.unwrap(), Acquired::Busy { .. }));
        counted(1).await;
        let processes = admin.picture(&name).await.unwrap().processes.unwrap();
        let seen: Vec<(bool, &str)> = processes.iter().map(|it| (it.is_leader, &*it.version)).collect();
        assert_eq!(seen, [(true, env!("CARGO_PKG_VERSION")), (false, env!("CARGO_PKG_VERSION"))]);
        assert!(processes.iter().all(|process| process.since.is_some()), "the role sees its own sessions");
        drop(standby);
        counted(0).await;
    }
}

async fn the_transaction_that_holds_rows_back_is_named(db: &Database<sqlx::Postgres>) {
    // The sessions of other users are visible only with `pg_read_all_stats`.
    let admin = admin::open(&db.url, source(), LogOptions::default()).unwrap();
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    tx.enqueue(NewMessage::new("orders")).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(tx.connection()).await.unwrap();
    let blocker = admin.blocker().await.unwrap().unwrap();
    let Blocker::Session { state, .. } = &blocker else { panic!("{blocker:?}") };
    assert_eq!((blocker.pid(), state.as_deref()), (Some(pid), Some("idle in transaction")));
    assert!(blocker.age().is_some());
    // The relay's role does not see the age: it is unknown, not zero.
    let relay = admin::open(&tests::Role::Relay.url(&db.url).unwrap(), source(), LogOptions::default());
    let seen = relay.unwrap().blocker().await.unwrap().unwrap();
    assert_eq!((seen.pid(), seen.transaction()), (Some(pid), blocker.transaction()));
    assert!(matches!(seen, Blocker::Session { state: None, age: None, .. }), "{seen:?}");

    // Once committed, its row is the oldest that is not settled, although its id is below
    // the cursor.
    db.enqueue([NewMessage::new("orders")]).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 1);
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
    assert_eq!(admin.relays().await.unwrap().remove(0).backlog.oldest, None);
    tx.commit().await.unwrap();
    let backlog = admin.relays().await.unwrap().remove(0).backlog;
    assert_eq!((backlog.entries_max, backlog.oldest.unwrap().0), (2, EntryId(1)), "ids 1 and 2");
}

/// Goal: an orphan of two-phase commit, which belongs to no session, is named as the transaction
/// that holds rows back. Oracle: its gid and age, for an operator and for the role of the relay;
/// the older of it and an open transaction is named.
async fn a_prepared_transaction_that_holds_rows_back_is_named(db: &Database<sqlx::Postgres>) {
    let admin = admin::open(&db.url, source(), LogOptions::default()).unwrap();
    let relay = admin::open(&tests::Role::Relay.url(&db.url).unwrap(), source(), LogOptions::default());
    let relay = relay.unwrap();
    let gid = format!("orphan-{}", db.url.rsplit('/').next().unwrap());
    // Its transaction id is the smaller one, although it is prepared after the other has begun.
    let mut prepared = db.pool.acquire().await.unwrap();
    let begin = "BEGIN; INSERT INTO outbox_message (topic, payload) VALUES ('orders', '')";
    sqlx::raw_sql(begin).execute(&mut *prepared).await.unwrap();
    let mut open = db.outbox.begin(&db.pool).await.unwrap();
    open.enqueue(NewMessage::new("orders")).await.unwrap();
    let prepare = format!("PREPARE TRANSACTION '{gid}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut *prepared).await.unwrap();

    for who in [&admin, &relay] {
        let blocker = who.blocker().await.unwrap().unwrap();
        assert!(matches!(&blocker, Blocker::Prepared { name, .. } if name.contains(&gid)), "{blocker:?}");
    }
    let roll_back = format!("ROLLBACK PREPARED '{gid}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(roll_back)).execute(&mut *prepared).await.unwrap();
    let blocker = admin.blocker().await.unwrap().unwrap();
    let Blocker::Session { state, .. } = blocker else { panic!("{blocker:?}") };
    assert_eq!(state.as_deref(), Some("idle in transaction"));
    open.rollback().await.unwrap();
    assert_eq!(admin.blocker().await.unwrap(), None);
}
