//! Retention: which rows are removed, and above all which are not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::outbox::support::{Database, Follower, SMALL, TTL, TestDialect, granted, ids, relay, source};
use message::token::DriftWindow;
use outbox::{Enqueued, NewMessage, Outbox};
use outbox_log::admin::{self, ChosenEntry, Decision, OperatorDecision};
use outbox_log::entries::{EntryRef, Selection, Standing};
use outbox_log::read_only::ReadOnly;
use outbox_log::reconcile::{self, Rows, Stage};
use outbox_log::retention::{self, Expired, ForgetError, HeldBack, LogRetention, Segment};
use outbox_log::{
    CheckpointStore, Cursor, Entry, EntryId, ExceptionChange, ExceptionState, Fenced, HeldAsk, LogError,
    LogOptions, Mark, PageLimit, Parked, PauseScope, QueueName, RelayName,
};
use proxy::{Conditions, Flow, Pass, Proxy};
use sqlx::{Connection, Executor, PgConnection, Postgres, Sqlite};
use time::OffsetDateTime;

tests::cases! { "outbox/retention/{on}/{case}":
    every {
        what_every_relay_has_passed_goes_and_nothing_else,
        a_relay_that_is_behind_is_named_and_can_be_forgotten,
        what_is_parked_keeps_its_content_and_no_segment,
        a_derived_id_is_known_as_long_as_its_row,
        writers_a_reader_and_retention_at_once_lose_nothing,
        an_id_that_is_ahead_of_the_clock_hides_nothing,
        a_time_that_lies_ahead_keeps_no_history,
        what_was_discarded_counts_as_published_by_the_next_relay_of_its_name,
        a_decision_is_kept_while_its_message_can_leave_by_it,
    }
    on_postgres {
        a_checkpoint_copies_no_more_than_a_lease_has_time_for,
        a_transaction_that_is_open_while_its_segment_expires_loses_nothing,
        a_commit_while_the_segments_lock_is_waited_for_is_seen,
        a_row_that_is_written_into_an_emptied_segment_is_read,
        a_segment_expires_beside_open_transactions_of_others,
        a_restored_log_is_left_alone,
        a_cursor_of_another_history_has_passed_nothing,
        a_snapshot_of_before_is_refused,
        a_server_that_no_longer_answers_ends_a_pass_in_time,
        a_time_after_which_no_segment_would_be_emptied_is_refused,
    }
    on_sqlite { an_exception_without_a_copy_keeps_its_row }
    night every { a_month_of_scheduled_messages_keeps_no_segment }
}

const AT_ONCE: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn open<DB: TestDialect>(db: &Database<DB>) -> Arc<dyn LogRetention> {
    // Each call connects again, and the connect time on a busy machine is not under test.
    let options = LogOptions::default().connect_timeout(TTL);
    retention::open(db.relay_url().as_str(), source(), options).unwrap()
}

pub(super) fn messages(count: i32) -> impl Iterator<Item = NewMessage> {
    (0..count).map(|n| NewMessage::new("orders").key(format!("key-{n}")).json(&n))
}

/// A relay that reads and stores its cursor.
pub(super) struct Relay {
    pub(super) checkpoint_store: Box<dyn CheckpointStore>,
    pub(super) epoch: i64,
    pub(super) follower: Follower,
}

impl Relay {
    pub(super) async fn new<DB: TestDialect>(db: &Database<DB>, name: &RelayName) -> Self {
        let mut checkpoint_store = db.log.checkpoint_store(name, "a").await.unwrap();
        let (lease, cursor) = granted(&mut checkpoint_store).await;
        let follower = Follower::new(db.log.reader(name).await.unwrap(), cursor);
        Self { checkpoint_store, epoch: lease.epoch, follower }
    }

    /// Reads everything there is, and passes it.
    pub(super) async fn pass(&mut self, changes: &[ExceptionChange]) -> Vec<Entry> {
        let entries = self.follower.all().await;
        let cursor = self.follower.cursor();
        assert_eq!(
            self.checkpoint_store.checkpoint(self.epoch, &cursor, changes).await.unwrap(),
            Fenced::Held
        );
        entries
    }
}

/// Returns why segments with rows are held back.
pub(super) async fn held_back(retention: &Arc<dyn LogRetention>, keep: Duration) -> Vec<HeldBack> {
    let segments = retention.segments(keep).await.unwrap();
    let of = |segment: Segment| segment.held_back.filter(|reason| *reason != HeldBack::Empty);
    segments.into_iter().filter_map(of).collect()
}

/// Goal: the audit has an end, but no message is published because its decision was removed.
/// Oracle: the decisions that exist while the message is parked, while the log has it, and
/// afterwards; each names the error for which the message was dead.
async fn a_decision_is_kept_while_its_message_can_leave_by_it<DB: TestDialect>(db: &Database<DB>) {
    const KEEP: Duration = Duration::from_secs(400 * 86_400);
    let retention = open(db);
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    db.enqueue(messages(2)).await;
    let mut one = Relay::new(db, &relay()).await;
    let dead = |entry: &Entry| {
        ExceptionChange::Park(Parked {
            id: entry.id,
            message_id: entry.message_id(),
            topic: entry.topic().to_owned(),
            key: entry.key().map(str::to_owned),
            state: ExceptionState::Dead,
            attempts: 1,
            due_in: None,
            fault: Some(message::Fault::Message),
            error: Some(format!("no topic for {}", entry.id)),
        })
    };
    let entries = one.follower.all().await;
    let changes: Vec<_> = entries.iter().map(dead).collect();
    one.pass(&changes).await;
    let decree = OperatorDecision {
        decision: Decision::Discard,
        signature: outbox::Signature::new("ops", "sent by hand"),
    };
    let chosen =
        |entry: &Entry| ChosenEntry { id: entry.id, message_id: entry.message_id(), edited_at: None };
    let chosen: Vec<_> = entries.iter().map(chosen).collect();
    admin.decide(&relay(), &chosen, decree).await.unwrap();
    admin.pause(&relay(), &PauseScope::Pipeline, "ops", "a test").await.unwrap();
    let errors = async || {
        let records = admin.audit(&relay(), 10).await.unwrap();
        records.into_iter().map(|record| record.subject.error.unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(errors().await, ["no topic for 2", "no topic for 1"]);

    assert_eq!(retention.forget_decisions(KEEP).await.unwrap(), 0, "they are young");
    let earlier = match DB::DIALECT {
        migrations::Dialect::Sqlite => "at - 401 * 86400 * 1000000",
        migrations::Dialect::Postgres => "at - interval '401 days'",
    };
    db.run(&format!("UPDATE outbox_audit SET at = {earlier}")).await;
    db.run(&format!("UPDATE outbox_operation SET at = {earlier}")).await;
    assert_eq!(retention.forget_decisions(KEEP).await.unwrap(), 1, "the operation alone");
    one.pass(&[ExceptionChange::Resolve(EntryId(1))]).await;
    assert_eq!(retention.forget_decisions(KEEP).await.unwrap(), 0, "the log has both");
    db.run("DELETE FROM outbox_message").await;
    assert_eq!(retention.forget_decisions(KEEP).await.unwrap(), 1, "one is parked");
    assert_eq!(errors().await, ["no topic for 2"]);
    one.pass(&[ExceptionChange::Resolve(EntryId(2))]).await;
    assert_eq!(retention.forget_decisions(KEEP).await.unwrap(), 1);
    assert!(errors().await.is_empty() && admin.operations(&relay(), 10).await.unwrap().is_empty());
    if DB::DIALECT == migrations::Dialect::Postgres {
        let refused = retention.forget_decisions(HOUR).await.unwrap_err();
        assert!(format!("{refused:?}").contains("decisions cannot be kept for 01:00:00"), "{refused:?}");
    }
}

async fn what_every_relay_has_passed_goes_and_nothing_else<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    db.enqueue(messages(10)).await;
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Unread]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);

    let mut relay = Relay::new(db, &relay()).await;
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Relay(String::from("main"))]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    assert_eq!(db.rows().await, 10);

    assert_eq!(relay.pass(&[]).await.len(), 10);
    assert_eq!(held_back(&retention, HOUR).await, [HeldBack::Young]);
    assert_eq!(retention.expire(HOUR).await.unwrap().segments, 0);
    assert_eq!(db.rows().await, 10);

    db.enqueue(messages(5)).await;
    retention.expire(AT_ONCE).await.unwrap();
    assert!(db.rows().await >= 5, "what has not been passed stays");
    assert_eq!(relay.pass(&[]).await.len(), 5);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    assert_eq!(db.rows().await, 0);
    assert_eq!(held_back(&retention, AT_ONCE).await, []);

    // Ids continue without a visible gap.
    db.enqueue(messages(3)).await;
    let entries = relay.pass(&[]).await;
    assert_eq!(ids(&entries), [16, 17, 18]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    db.enqueue(messages(1)).await;
}

async fn a_relay_that_is_behind_is_named_and_can_be_forgotten<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    let audit = RelayName::new("audit").unwrap();
    db.enqueue(messages(10)).await;
    let mut main = Relay::new(db, &relay()).await;
    let mut gone = Relay::new(db, &audit).await;
    main.pass(&[]).await;
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Relay(String::from("audit"))]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    assert_eq!(db.rows().await, 10);

    let refused = async |discard| retention.forget(&audit, discard).await.unwrap_err();
    assert!(matches!(refused(true).await, ForgetError::Leading { holder, .. } if holder == "a"));
    let unknown = RelayName::new("nobody").unwrap();
    let error = retention.forget(&unknown, true).await.unwrap_err();
    assert!(matches!(error, ForgetError::Unknown { relay } if relay == "nobody"));

    gone.follower.next().await.unwrap();
    let park = [ExceptionChange::Park(parked(&entries(db).await[0], ExceptionState::Dead))];
    let cursor = gone.follower.cursor();
    assert_eq!(gone.checkpoint_store.checkpoint(gone.epoch, &cursor, &park).await.unwrap(), Fenced::Held);
    assert_eq!(gone.checkpoint_store.release(gone.epoch).await.unwrap(), Fenced::Held);
    assert!(matches!(refused(false).await, ForgetError::Parked { entries: 1, .. }));
    retention.forget(&audit, true).await.unwrap();
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    assert_eq!(db.rows().await, 0);
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, 0);
}

/// Reads all entries in the log, without a stored cursor.
async fn entries<DB: TestDialect>(db: &Database<DB>) -> Vec<Entry> {
    let name = RelayName::new("onlooker").unwrap();
    let mut onlooker = Relay::new(db, &name).await;
    let entries = onlooker.follower.all().await;
    assert_eq!(onlooker.checkpoint_store.release(onlooker.epoch).await.unwrap(), Fenced::Held);
    open(db).forget(&name, true).await.unwrap();
    entries
}

pub(super) fn parked(entry: &Entry, state: ExceptionState) -> Parked {
    Parked {
        id: entry.id,
        message_id: entry.message_id(),
        topic: entry.topic().to_owned(),
        key: entry.key().map(str::to_owned),
        state,
        attempts: 1,
        due_in: Some(HOUR),
        fault: Some(message::Fault::Message),
        error: None,
    }
}

async fn what_is_parked_keeps_its_content_and_no_segment<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    // More entries than an earlier version wrote back beside a segment.
    let count = 1_300;
    db.enqueue(messages(count)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    use ExceptionState::{Dead, Discarded, Held, Retrying, Scheduled};
    let states = [Scheduled, Retrying, Held, Dead, Discarded].into_iter().cycle();
    let changes: Vec<_> =
        states.zip(&entries).map(|(state, entry)| ExceptionChange::Park(parked(entry, state))).collect();
    assert_eq!(main.pass(&changes).await.len(), 0);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    assert_eq!(db.rows().await, 0);
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, i64::from(count));
    let ask = HeldAsk { queue: QueueName::of("orders", Some("key-2")), from: EntryId(1) };
    let held = db.reader().await.read_held(&[ask], SMALL).await.unwrap().remove(0);
    assert_eq!(held.exceptions.len(), 1);
    let entry = &held.exceptions[0].entry;
    assert_eq!(entry.message.as_ref().unwrap().payload, "2");

    let resolve = [ExceptionChange::Resolve(entry.id)];
    assert_eq!(main.pass(&resolve).await.len(), 0);
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, i64::from(count) - 1);
}

/// Goal: retention keeps the only content of an exception whose copy is missing, however small, and
/// nothing for one whose row is gone as well. Oracle: the rows that stay, and the content of the
/// exceptions. On PostgreSQL no checkpoint stores an exception without its copy: it copies in the
/// same statement, which `a_checkpoint_beside_a_detached_segment_names_it` tries to trick.
async fn an_exception_without_a_copy_keeps_its_row(db: &Database<Sqlite>) {
    let retention = open(db);
    db.enqueue(messages(6)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    use ExceptionState::{Dead, Held, Retrying, Scheduled};
    let changes: Vec<_> = [Held, Retrying, Dead, Scheduled, Dead]
        .into_iter()
        .zip(&entries)
        .map(|(state, entry)| ExceptionChange::Park(parked(entry, state)))
        .collect();
    main.pass(&changes).await;
    db.run("DELETE FROM outbox_parked WHERE id <> 2").await;
    db.run("DELETE FROM outbox_message WHERE id = 5").await;
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().rows, Some(2));
    assert_eq!(db.rows().await, 3);
    let ask = HeldAsk { queue: QueueName::of("orders", Some("key-0")), from: EntryId(1) };
    let held = db.reader().await.read_held(&[ask], SMALL).await.unwrap().remove(0);
    assert_eq!(held.exceptions[0].entry.message.as_ref().unwrap().payload, "0");

    let resolve = [1, 3, 4].map(|id| ExceptionChange::Resolve(EntryId(id)));
    main.pass(&resolve).await;
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().rows, Some(3));
    assert_eq!(db.rows().await, 0);
}

/// Opens the outbox as `relay verify` reads it.
pub(super) async fn rows<DB: TestDialect>(db: &Database<DB>) -> Box<dyn Rows> {
    match ReadOnly::open(&db.url, true, "a test").await.unwrap() {
        ReadOnly::Postgres(connection) => reconcile::postgres(connection, None, &relay()).await.unwrap(),
        ReadOnly::Sqlite(connection) => reconcile::sqlite(connection, &relay()).await.unwrap(),
    }
}

/// A host whose clock was years ahead has enqueued a message, and retention has removed it.
async fn an_id_that_is_ahead_of_the_clock_hides_nothing<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    let payload = if DB::NAME == "SQLite" { "x'00'" } else { "'\\x00'" };
    db.produce(&format!(
        "INSERT INTO outbox_message (message_id, topic, payload) \
         VALUES ('0f90b5a2-0000-7000-8000-000000000001', 'orders', {payload})"
    ))
    .await;
    let mut main = Relay::new(db, &relay()).await;
    assert_eq!(main.pass(&[]).await.len(), 1);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    assert_eq!(db.rows().await, 0);
    // The next id must be of a later millisecond than the pass.
    tokio::time::sleep(Duration::from_millis(5)).await;
    db.enqueue(messages(1)).await;
    let later = main.pass(&[]).await.remove(0).message_id();
    let first = rows(db).await.first().await.unwrap();
    assert_eq!(first.map(|id| id.to_string()), Some(later), "of everything since then it can be told");
}

/// Goal: a row with a time far ahead, from plain SQL or a wrong clock, is kept no longer than
/// others. Oracle: the remaining rows. When the id is ahead as well, the next row shows the age.
/// Its id puts that row into a segment that retention examines first.
async fn a_time_that_lies_ahead_keeps_no_history<DB: TestDialect>(db: &Database<DB>) {
    const AHEAD: &str = "0f90b5a2-0000-7000-8000-000000000001";
    const OF_THE_FIRST_SEGMENT: &str = "01908000-0000-7000-8000-000000000002";
    let retention = open(db);
    let (payload, far) = match DB::NAME {
        "SQLite" => ("x'00'", "253402214400000000"),
        _ => ("'\\x00'", "'9999-12-31'"),
    };
    let mut main = Relay::new(db, &relay()).await;
    db.run(&format!(
        "INSERT INTO outbox_message (topic, payload, enqueued_at) VALUES ('orders', {payload}, {far})"
    ))
    .await;
    assert_eq!(main.pass(&[]).await.len(), 1);
    assert_eq!(held_back(&retention, HOUR).await, [HeldBack::Young], "its id is of this moment");
    retention.expire(HOUR).await.unwrap();
    assert_eq!(db.rows().await, 1);
    retention.expire(AT_ONCE).await.unwrap();
    assert_eq!(db.rows().await, 0);

    db.run(&format!(
        "INSERT INTO outbox_message (message_id, topic, payload, enqueued_at) \
         VALUES ('{AHEAD}', 'orders', {payload}, {far})"
    ))
    .await;
    assert_eq!(main.pass(&[]).await.len(), 1);
    retention.expire(AT_ONCE).await.unwrap();
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Young], "nothing tells its age yet");
    db.run(&format!(
        "INSERT INTO outbox_message (message_id, topic, payload) VALUES ('{OF_THE_FIRST_SEGMENT}', 'orders', {payload})"
    ))
    .await;
    assert_eq!(main.pass(&[]).await.len(), 1);
    retention.expire(HOUR).await.unwrap();
    assert_eq!(db.rows().await, 2);
    retention.expire(AT_ONCE).await.unwrap();
    assert_eq!(db.rows().await, 0);
}

/// Goal: a loss is not mistaken for a discard from before the relay was forgotten. Oracle: the
/// stage of the row, which the second relay of the name has published.
async fn what_was_discarded_counts_as_published_by_the_next_relay_of_its_name<DB: TestDialect>(
    db: &Database<DB>,
) {
    db.enqueue(messages(1)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entry = main.follower.all().await.remove(0);
    main.pass(&[ExceptionChange::Park(parked(&entry, ExceptionState::Dead))]).await;
    let (admin, entries) =
        outbox_log::entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let decree = OperatorDecision {
        decision: Decision::Discard,
        signature: outbox::Signature::new("ops", "sent by hand"),
    };
    let listed = admin.list(&relay(), ExceptionState::Dead, EntryId(0), 10).await.unwrap();
    let chosen: Vec<_> = listed.iter().map(ChosenEntry::from).collect();
    admin.decide(&relay(), &chosen, decree).await.unwrap().remove(0).unwrap();
    main.pass(&[ExceptionChange::Resolve(entry.id)]).await;
    let id = [uuid::Uuid::parse_str(&entry.message_id()).unwrap()];
    let stage = async || rows(db).await.find(&id).await.unwrap().remove(0).stage;
    // The queries of a message's history and of a replay.
    let is_discarded = async || {
        let found = entries.find(&relay(), EntryRef::Id(entry.id)).await.unwrap().remove(0);
        let extent = entries.extent(&relay()).await.unwrap();
        let page = entries.select(&relay(), &extent, &Selection::default(), EntryId(0)).await.unwrap();
        (found.is_discarded, page.entries[0].standing == Standing::Discarded)
    };
    assert_eq!(stage().await, Stage::Discarded);
    assert_eq!(is_discarded().await, (true, true));

    assert_eq!(main.checkpoint_store.release(main.epoch).await.unwrap(), Fenced::Held);
    open(db).forget(&relay(), false).await.unwrap();
    let mut next = Relay::new(db, &relay()).await;
    assert_eq!(stage().await, Stage::Ahead);
    assert_eq!(next.pass(&[]).await.len(), 1);
    assert_eq!(stage().await, Stage::Passed);
    assert_eq!(is_discarded().await, (false, false));
    let told = admin.audit(&relay(), 1).await.unwrap().remove(0);
    assert_eq!((told.action.as_str(), &*told.signature.actor), ("requeue", "relay forget"));
}

/// Goal: a checkpoint copies no row of more than 16 MiB, and at most 64 MiB in all. Rows that it
/// does not copy are read from the log, which keeps them. Oracle: the lengths of copies and of the
/// entries that are read, the answer of retention, and an edit of the headers alone, which keeps
/// the trace.
async fn a_checkpoint_copies_no_more_than_a_lease_has_time_for(db: &Database<Postgres>) {
    const MIB: [usize; 7] = [17, 15, 15, 15, 15, 15, 1];
    const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for mib in MIB {
        db.produce(&format!(
            "INSERT INTO outbox_message (topic, key, payload, traceparent, tracestate) \
             VALUES ('orders', 'k', repeat('x', {mib} * 1048576)::bytea, '{TRACEPARENT}', 'vendor=1')"
        ))
        .await;
    }
    let mut main = Relay::new(db, &relay()).await;
    main.follower.limit.bytes_max = 256 << 20;
    let entries = main.follower.all().await;
    let park = |entry| ExceptionChange::Park(parked(entry, ExceptionState::Held));
    main.pass(&entries.iter().map(park).collect::<Vec<_>>()).await;
    let copied: Vec<Option<i32>> =
        sqlx::query_scalar("SELECT octet_length(payload) / 1048576 FROM outbox_parked ORDER BY id")
            .fetch_all(&db.admin)
            .await
            .unwrap();
    assert_eq!(copied, [None, Some(15), Some(15), Some(15), Some(15), None, None]);

    let retention = open(db);
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Parked(String::from("main"))]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    let ask = HeldAsk { queue: QueueName::of("orders", Some("k")), from: EntryId(1) };
    let limit = PageLimit { bytes_max: 256 << 20, ..SMALL };
    let read =
        async || db.reader().await.read_held(std::slice::from_ref(&ask), limit).await.unwrap().remove(0);
    let lengths: Vec<usize> = read()
        .await
        .exceptions
        .iter()
        .map(|it| it.entry.message.as_ref().unwrap().payload.len() >> 20)
        .collect();
    assert_eq!(lengths, MIB);

    main.pass(&[ExceptionChange::Park(parked(&entries[6], ExceptionState::Dead))]).await;
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let listed = admin.list(&relay(), ExceptionState::Dead, EntryId(0), 10).await.unwrap();
    assert_eq!(listed[0].payload_bytes, 1 << 20);
    let mut headers = message::Headers::new();
    headers.insert("repaired", "yes").unwrap();
    let decision = Decision::Edit { payload: None, headers: Some(headers), replaces: None };
    let decree = OperatorDecision { decision, signature: outbox::Signature::new("ops", "a test") };
    let chosen = [ChosenEntry::from(&listed[0])];
    admin.decide(&relay(), &chosen, decree).await.unwrap().remove(0).unwrap();
    main.pass(&[ExceptionChange::Park(parked(&entries[6], ExceptionState::Held))]).await;
    let edited = read().await.exceptions.remove(6).entry.message.unwrap();
    assert_eq!((edited.payload.len(), edited.headers.get("repaired")), (1 << 20, Some("yes")));
    let trace = edited.trace.unwrap();
    assert_eq!((trace.parent(), trace.state()), (TRACEPARENT, Some("vendor=1")));

    let resolve: Vec<_> = entries.iter().map(|entry| ExceptionChange::Resolve(entry.id)).collect();
    main.pass(&resolve).await;
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
}

async fn a_month_of_scheduled_messages_keeps_no_segment<DB: TestDialect>(db: &Database<DB>) {
    // 1,500 messages a day; retention runs every six days.
    const MESSAGES: i32 = 9_000;
    const PASSES: i32 = 5;
    let retention = open(db);
    let mut main = Relay::new(db, &relay()).await;
    main.follower.limit.entries_max = 1_000;
    let next_month = OffsetDateTime::now_utc() + 30 * 24 * HOUR;
    let wide = Outbox::<DB>::builder().ids_accepted(DriftWindow::WIDEST).build();
    for pass in 1..=PASSES {
        let mut tx = wide.begin(&db.pool).await.unwrap();
        let scheduled = messages(MESSAGES).map(|message| message.deliver_at(next_month));
        tx.enqueue_batch(scheduled).await.unwrap();
        tx.commit().await.unwrap();
        let entries = main.follower.all().await;
        assert!(entries.iter().all(|entry| entry.deliver_in > Some(HOUR)));
        let park = |entry| ExceptionChange::Park(parked(entry, ExceptionState::Scheduled));
        // As many at once as the relay stores.
        for some in entries.chunks(1_000) {
            assert_eq!(main.pass(&some.iter().map(park).collect::<Vec<_>>()).await.len(), 0);
        }
        assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1, "pass {pass}");
        assert_eq!(db.rows().await, 0, "pass {pass}");
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, i64::from(MESSAGES * PASSES));
}

async fn a_derived_id_is_known_as_long_as_its_row<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    // The id carries a business time of some days ago, so it is in another segment than messages of
    // the present.
    let at = OffsetDateTime::now_utc() - 3 * 24 * HOUR;
    let id = message::MessageId::derived(at, ["order-7", "place"]).unwrap();
    let again = async || {
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        let enqueued = tx.enqueue(NewMessage::new("orders").json(&7).id(id)).await.unwrap();
        tx.commit().await.unwrap();
        enqueued
    };
    assert_eq!(again().await, Enqueued::Stored(id));
    db.enqueue(messages(3)).await;
    assert_eq!(again().await, Enqueued::Duplicate(id));
    Relay::new(db, &relay()).await.pass(&[]).await;
    assert_eq!(again().await, Enqueued::Duplicate(id));
    retention.expire(AT_ONCE).await.unwrap();
    assert_eq!(db.rows().await, 0);
    assert_eq!(again().await, Enqueued::Stored(id));
}

const WRITERS: usize = 6;
const TRANSACTIONS: usize = 40;

async fn writers_a_reader_and_retention_at_once_lose_nothing<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    let writing = |writer: usize| {
        let (outbox, pool) = (db.outbox.clone(), db.pool.clone());
        async move {
            for n in 0..TRANSACTIONS {
                let mut tx = outbox.begin(&pool).await.unwrap();
                for step in 0..3 {
                    let message = NewMessage::new("orders").key(format!("{writer}")).json(&(n, step));
                    tx.enqueue(message).await.unwrap();
                    for _ in 0..(n * 7 + writer) % 13 {
                        tokio::task::yield_now().await;
                    }
                }
                if n % 5 == 4 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
            }
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(writing(writer))).collect();
    let done = Arc::new(AtomicBool::new(false));
    let expiring = tokio::spawn({
        let (retention, done) = (Arc::clone(&retention), Arc::clone(&done));
        async move {
            let mut sum = Expired::default();
            while !done.load(Ordering::Relaxed) {
                sum.segments += retention.expire(AT_ONCE).await.unwrap().segments;
            }
            sum.segments
        }
    });
    let mut main = Relay::new(db, &relay()).await;
    let mut read: Vec<i64> = Vec::new();
    while writers.iter().any(|writer| !writer.is_finished()) {
        read.extend(ids(&main.pass(&[]).await));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    read.extend(ids(&main.pass(&[]).await));
    done.store(true, Ordering::Relaxed);
    let expired = expiring.await.unwrap();
    eprintln!("expired {expired} times beside {} entries", read.len());
    read.sort_unstable();
    read.dedup();
    assert_eq!(read.len(), WRITERS * TRANSACTIONS * 3 * 4 / 5);
    retention.expire(AT_ONCE).await.unwrap();
    assert_eq!(db.rows().await, 0);
}

async fn a_transaction_that_is_open_while_its_segment_expires_loses_nothing(db: &Database<Postgres>) {
    let retention = open(db);
    let mut main = Relay::new(db, &relay()).await;
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    db.enqueue(messages(5)).await;
    assert_eq!(main.pass(&[]).await.len(), 5);
    // All visible rows are passed; the open transaction holds back its segment.
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    assert_eq!(db.rows().await, 5);
    late.commit().await.unwrap();
    // Its id is below the cursor's floor, but its transaction was in flight.
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Relay(String::from("main"))]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    let entries = main.pass(&[]).await;
    assert_eq!((ids(&entries), entries[0].key()), (vec![1], Some("late")));
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
}

async fn a_commit_while_the_segments_lock_is_waited_for_is_seen(db: &Database<Postgres>) {
    db.run("ALTER FUNCTION outbox_expire_segment SET lock_timeout = '1min'").await;
    let retention = open(db);
    let mut main = Relay::new(db, &relay()).await;
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    db.enqueue(messages(5)).await;
    assert_eq!(main.pass(&[]).await.len(), 5);
    let expiring = tokio::spawn({
        let retention = Arc::clone(&retention);
        async move { retention.expire(AT_ONCE).await.unwrap().segments }
    });
    let waiting = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
        WHERE d.datname = current_database() AND l.mode = 'AccessExclusiveLock' AND NOT l.granted";
    while db.number(waiting).await == 0 {
        tokio::task::yield_now().await;
    }
    late.commit().await.unwrap();
    assert_eq!(expiring.await.unwrap(), 0);
    let entries = main.pass(&[]).await;
    assert_eq!((ids(&entries), entries[0].key()), (vec![1], Some("late")));
}

async fn a_row_that_is_written_into_an_emptied_segment_is_read(db: &Database<Postgres>) {
    let retention = open(db);
    let mut main = Relay::new(db, &relay()).await;
    let mut gate = PgConnection::connect(&db.url).await.unwrap();
    gate.execute("SELECT pg_advisory_lock(43)").await.unwrap();
    // The payload is computed after xid and id are assigned, while no segment is locked yet.
    let pool = db.pool.clone();
    let late = tokio::spawn(async move {
        let insert = "INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'late', \
            CASE WHEN pg_advisory_xact_lock_shared(43)::text = '' THEN '\\x00'::bytea END)";
        sqlx::query(insert).execute(&pool).await.unwrap();
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 43";
    while db.number(waiting).await == 0 {
        tokio::task::yield_now().await;
    }
    db.enqueue(messages(5)).await;
    assert_eq!(ids(&main.pass(&[]).await), [2, 3, 4, 5, 6]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    assert_eq!(db.rows().await, 0);
    gate.execute("SELECT pg_advisory_unlock(43)").await.unwrap();
    late.await.unwrap();
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    let entries = main.pass(&[]).await;
    assert_eq!((ids(&entries), entries[0].key()), (vec![1], Some("late")));
    gate.close().await.unwrap();
}

async fn a_segment_expires_beside_open_transactions_of_others(db: &Database<Postgres>) {
    let retention = open(db);
    let at = OffsetDateTime::now_utc() - 3 * 24 * HOUR;
    let old =
        |n: i32| NewMessage::new("orders").id(message::MessageId::derived(at, [n.to_string()]).unwrap());
    db.enqueue((0..1_000).map(old)).await;
    let mut main = Relay::new(db, &relay()).await;
    assert_eq!(main.pass(&[]).await.len(), 1_000);
    // A producer of today is in the middle of its transaction.
    let mut producer = db.outbox.begin(&db.pool).await.unwrap();
    producer.enqueue(NewMessage::new("orders")).await.unwrap();
    let before = db.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await;
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
    let wal = db.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await - before;
    eprintln!("bytes of WAL for 1,000 rows (and whatever else the server did): {wal}");
    producer.enqueue(NewMessage::new("orders")).await.unwrap();
    producer.commit().await.unwrap();
    assert_eq!(main.pass(&[]).await.len(), 2);
}

async fn a_restored_log_is_left_alone(db: &Database<Postgres>) {
    let retention = open(db);
    db.enqueue(messages(5)).await;
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    db.run("UPDATE outbox_identity SET system_identifier = '1'").await;
    assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Restored]);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
    assert_eq!(db.rows().await, 5);
}

async fn a_cursor_of_another_history_has_passed_nothing(db: &Database<Postgres>) {
    let retention = open(db);
    let mut main = Relay::new(db, &relay()).await;
    db.enqueue(messages(10)).await;
    assert_eq!(main.pass(&[]).await.len(), 10);
    let sound = main.follower.cursor();
    // No relay has read this row, although each of these cursors seems to have passed it.
    db.enqueue(messages(1)).await;
    let seen: String =
        sqlx::query_scalar("SELECT pg_current_snapshot()::text").fetch_one(&db.admin).await.unwrap();
    let there = "1/1/00000000-0000-4000-8000-000000000000";
    for base in [format!("11@{seen}@{there}"), String::from("11@9000000000:9000000000:")] {
        let foreign = Cursor::at(Mark::new(base.as_str()));
        assert_eq!(main.checkpoint_store.checkpoint(main.epoch, &foreign, &[]).await.unwrap(), Fenced::Held);
        assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0, "{base}");
        assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Relay(String::from("main"))]);
    }
    // First with ids below the cursor, then with every id up to the floor assigned again.
    assert_eq!(main.checkpoint_store.checkpoint(main.epoch, &sound, &[]).await.unwrap(), Fenced::Held);
    db.run("TRUNCATE outbox_message RESTART IDENTITY").await;
    for count in [5, 5] {
        db.enqueue(messages(count)).await;
        assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 0);
        assert_eq!(held_back(&retention, AT_ONCE).await, [HeldBack::Relay(String::from("main"))]);
    }
    // The relay repairs its cursor and reads them, and then they can be removed.
    let mut main = Relay::new(db, &relay()).await;
    assert_eq!(main.pass(&[]).await.len(), 10);
    assert_eq!(retention.expire(AT_ONCE).await.unwrap().segments, 1);
}

async fn a_snapshot_of_before_is_refused(db: &Database<Postgres>) {
    let mut relay = PgConnection::connect(&db.relay_url()).await.unwrap();
    relay.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let expire = "SELECT outbox_expire_segment(0, '0')";
    let error = relay.execute(expire).await.unwrap_err().to_string();
    assert!(error.contains("repeatable read"), "{error}");
    relay.execute("ROLLBACK").await.unwrap();
    for wrong in ["8, '0'", "-1, '0'", "NULL, '0'", "0, NULL", "0, '-1 s'"] {
        let expire = format!("SELECT outbox_expire_segment({wrong})");
        let error = relay.execute(sqlx::AssertSqlSafe(expire)).await.unwrap_err().to_string();
        assert!(error.contains("cannot be kept"), "{wrong}: {error}");
    }
    relay.close().await.unwrap();
}

/// Goal: a service that maintains its log itself gets an error for a time that is longer than the
/// ring of segments. Oracle: the error names the time and the maximum, and the maximum itself is
/// accepted.
async fn a_time_after_which_no_segment_would_be_emptied_is_refused(db: &Database<Postgres>) {
    let max = retention::KEEP_MESSAGES.max;
    let retention = open(db);
    assert_eq!(retention.expire(max).await.unwrap().segments, 0);
    let told = retention.expire(max + Duration::from_secs(1)).await.unwrap_err().to_string();
    assert!(told.contains("cannot be kept for 5d1s") && told.contains("at most 5d"), "{told}");
}

/// The connection is half open: the server's own timeout ends the statement, but the client does
/// not hear of it.
async fn a_server_that_no_longer_answers_ends_a_pass_in_time(db: &Database<Postgres>) {
    let url = db.relay_url();
    let (server, _) = url.rsplit_once('@').unwrap().1.split_once('/').unwrap();
    let proxy = Proxy::start(0, server).await.unwrap();
    let limit = Duration::from_secs(5);
    let options = LogOptions::default().connect_timeout(TTL).call_timeout(limit);
    let url = url.replace(server, &proxy.address().to_string());
    let log = retention::open(url.as_str(), source(), options).unwrap();
    let mut lock = db.admin.begin().await.unwrap();
    lock.execute("LOCK TABLE outbox_message IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let begun = tokio::time::Instant::now();
    let pass = tokio::spawn(async move { log.expire(AT_ONCE).await });
    while db
        .number(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database \
        WHERE datname = current_database())",
        )
        .await
        == 0
    {
        tokio::task::yield_now().await;
    }
    proxy.set(Conditions { answers: Flow { pass: Pass::Lose, ..Flow::default() }, ..Conditions::default() });
    let ended = tokio::time::timeout(TTL + 2 * limit, pass).await;
    let Ok(Ok(ended)) = ended else { panic!("the pass hangs, or broke down: {ended:?}") };
    assert!(matches!(ended, Err(LogError::Timeout { .. })), "{ended:?} after {:?}", begun.elapsed());
    lock.rollback().await.unwrap();
}
