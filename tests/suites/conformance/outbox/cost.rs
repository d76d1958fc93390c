//! The cost of reading, in PostgreSQL buffers that the server counts for the reader's whole
//! session.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::support::{Database, Follower, SMALL, granted, relay, source};
use outbox::NewMessage;
use outbox_log::{DueKind, EntryId, Fenced, HeldAsk, LogOptions, LogReader, Mark, PageLimit, QueueName};
use sqlx::Postgres;

// At night only: when other suites change tables at the same time, the server discards the
// session's cached index metadata and reads it again at each poll. Measured: six times as many
// buffers.
tests::cases! { "outbox/cost/{on}/{case}":
    night on_postgres {
        polls_and_pages_cost_the_same_however_long_the_backlog_is,
        rows_of_an_open_transaction_cost_neither_a_grant_nor_a_mark,
        what_is_due_costs_the_same_however_much_waits,
        held_entries_of_a_key_cost_the_same_however_much_another_key_holds,
        questions_about_an_open_difference_read_nothing_that_has_left,
    }
}

/// Buffers of the outbox's table, its indexes and its sequence, as far as finished sessions have
/// reported them.
const BUFFERS: &str = "SELECT (SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))::bigint \
    FROM pg_statio_user_tables WHERE relname ~ '^outbox_message') + (SELECT blks_hit + blks_read \
    FROM pg_statio_user_sequences WHERE relname = 'outbox_message_id_seq')";
const READERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'relay main%' \
    AND datname = current_database()";

/// Measurements of one figure. Reports of other sessions and of the server itself can only increase
/// it.
const ROUNDS: usize = 3;

/// Returns how many buffers a reader touches while `work` uses it: the minimum of several rounds,
/// each with its own reader.
async fn buffers(db: &Database<Postgres>, mut work: impl AsyncFnMut(&mut Box<dyn LogReader>)) -> i64 {
    let mut least = i64::MAX;
    for _ in 0..ROUNDS {
        least = least.min(buffers_once(db, &mut work).await);
    }
    least
}

async fn buffers_once(db: &Database<Postgres>, work: &mut impl AsyncFnMut(&mut Box<dyn LogReader>)) -> i64 {
    let before = db.number(BUFFERS).await;
    let mut reader = db.reader().await;
    work(&mut reader).await;
    drop(reader);
    while db.number(READERS).await > 0 {
        tokio::task::yield_now().await;
    }
    db.number(BUFFERS).await - before
}

/// Runs SQL whose own cost is reported before this returns.
async fn prepare(db: &Database<Postgres>, sql: &str) {
    db.run(&format!("{sql}; SELECT pg_stat_force_next_flush()")).await;
}

/// Buffers that planning reads when a plan names the log but does not read it: one for each of 24
/// indexes, and a few spare.
const PLANNED: i64 = 30;

/// Turns autovacuum off, which would read the tables at any time.
async fn without_autovacuum(db: &Database<Postgres>) {
    let segments = (0..8).map(|number| format!("outbox_message_{number}"));
    for table in segments.chain(["outbox_exception", "outbox_parked"].map(String::from)) {
        db.run(&format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await;
    }
}

async fn fill(db: &Database<Postgres>, rows: i64) {
    let insert = format!(
        "INSERT INTO outbox_message (topic, key, payload) SELECT 'orders', 'key-' || n % 100, \
         decode(repeat('00', 256), 'hex') FROM generate_series(1, {rows}) AS n"
    );
    prepare(db, &insert).await;
}

async fn polls_and_pages_cost_the_same_however_long_the_backlog_is(db: &Database<Postgres>) {
    without_autovacuum(db).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    fill(db, 2_000).await;
    let limit = PageLimit { entries_max: 1_000, bytes_max: 1 << 30, ..SMALL };
    let mut pages = Vec::new();
    for more in [0, 98_000] {
        fill(db, more).await;
        let base = cursor.base.clone();
        pages.push(
            buffers(db, async |reader| {
                let difference = reader.next_difference(&base).await.unwrap().unwrap();
                for _ in 0..10 {
                    let middle = EntryId(difference.ceiling / 2);
                    let page = reader.read_page(&difference, middle, limit).await.unwrap();
                    assert_eq!(page.entries.len(), 1_000);
                }
            })
            .await
                / 10,
        );
    }
    eprintln!("buffers per page of 1,000 of 2,000 and of 100,000: {pages:?}");
    // This includes a tenth of a mark, which looks into all eight segments.
    assert!(pages.iter().all(|page| *page < 90), "{pages:?}");

    let mut head = Mark::new("");
    let setup = buffers(db, async |reader| {
        head = reader.next_difference(&cursor.base).await.unwrap().unwrap().head;
    })
    .await;
    let polls = buffers(db, async |reader| {
        for _ in 0..1_000 {
            assert_eq!(reader.next_difference(&head).await.unwrap(), None);
        }
    })
    .await;
    eprintln!("buffers of one mark: {setup}, of 1,000 empty polls: {polls}");
    assert!(polls <= 5_000, "{polls}");

    // A long transaction that keeps writing does not increase the cost.
    let mut slow = db.outbox.begin(&db.pool).await.unwrap();
    slow.enqueue_batch((0..20_000).map(|_| NewMessage::new("orders"))).await.unwrap();
    let polls = buffers(db, async |reader| {
        for _ in 0..1_000 {
            assert_eq!(reader.next_difference(&head).await.unwrap(), None);
        }
    })
    .await;
    eprintln!("buffers of 1,000 empty polls beside 20,000 uncommitted rows: {polls}");
    assert!(polls <= 10_000, "{polls}");
    slow.rollback().await.unwrap();
}

/// Goal: a row that commits late is found without walking the rows beside it. Oracle: the server's
/// count, on a separate server: a reader also checks each other transaction in flight, which costs
/// some 160 buffers.
pub(super) async fn a_late_row_costs_no_walk(db: &Database<Postgres>) {
    without_autovacuum(db).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    fill(db, 50_000).await;
    let mut slow = db.outbox.begin(&db.pool).await.unwrap();
    slow.enqueue(NewMessage::new("slow")).await.unwrap();
    fill(db, 50_000).await;
    let head = db.reader().await.next_difference(&cursor.base).await.unwrap().unwrap().head;
    // Flush this session's own reads and writes now, so that they are not reported while the reader
    // is measured.
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(slow.connection()).await.unwrap();
    slow.commit().await.unwrap();
    // Statistics of two large transactions tempt the planner to search the row by its id.
    prepare(db, "ANALYZE outbox_message").await;
    let cost = buffers(db, async |reader| {
        let difference = reader.next_difference(&head).await.unwrap().unwrap();
        let limit = PageLimit { entries_max: 1_000, bytes_max: 1 << 30, ..SMALL };
        let page = reader.read_page(&difference, EntryId(0), limit).await.unwrap();
        assert_eq!((page.entries.len(), page.entries[0].topic(), page.exhausted), (1, "slow", true));
    })
    .await;
    eprintln!("buffers of one late row of 100,000: {cost}");
    // A new session plans each statement of the poll and the page, which reads a buffer of each of
    // 24 indexes; 217 buffers in all were seen. A walk would cost some 1,600 more.
    assert!(cost < 400, "{cost}");
}

/// Goal: a transaction that writes for hours does not keep a relay from taking its lease, and an id
/// that is assigned again behind it is still found. Oracle: the server's count, and the refusal.
async fn rows_of_an_open_transaction_cost_neither_a_grant_nor_a_mark(db: &Database<Postgres>) {
    without_autovacuum(db).await;
    let mut first = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut first).await;
    db.run("SELECT setval('outbox_message_id_seq', 1000)").await;
    fill(db, 100).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.all().await;
    let cursor = follower.cursor();
    assert_eq!(first.checkpoint(lease.epoch, &cursor, &[]).await.unwrap(), Fenced::Held);
    assert_eq!(first.release(lease.epoch).await.unwrap(), Fenced::Held);
    drop((first, follower));

    fill(db, 100).await;
    let mut slow = db.outbox.begin(&db.pool).await.unwrap();
    for statement in [
        "INSERT INTO outbox_message (topic, payload) SELECT 'orders', '' FROM generate_series(1, 100000)",
        "SELECT pg_stat_force_next_flush()",
    ] {
        sqlx::query(statement).execute(slow.connection()).await.unwrap();
    }
    fill(db, 100).await;
    let grant = buffers(db, async |_| {
        let mut checkpoint_store = db.checkpoint_store("a").await;
        let (lease, granted) = granted(&mut checkpoint_store).await;
        assert_eq!(granted.base, cursor.base);
        assert_eq!(checkpoint_store.release(lease.epoch).await.unwrap(), Fenced::Held);
    })
    .await;
    let mark = buffers(db, async |reader| {
        assert!(reader.next_difference(&cursor.base).await.unwrap().is_some());
    })
    .await;
    eprintln!("buffers of a grant and of a mark beside 100,000 uncommitted rows: {grant}, {mark}");
    // A walk of the uncommitted rows takes some 2,000. Any other transactions of the cluster
    // are skipped as well.
    assert!(grant < 600 && mark < 600, "{grant}, {mark}");

    db.run("SELECT setval('outbox_message_id_seq', 500)").await;
    fill(db, 1).await;
    db.run("SELECT setval('outbox_message_id_seq', 200000)").await;
    let refused = db.reader().await.next_difference(&cursor.base).await.unwrap_err().to_string();
    assert!(refused.contains("the row 501 ") && refused.contains("set back"), "{refused}");
    slow.rollback().await.unwrap();
}

/// Buffers of the tables of parked entries, as far as finished sessions have reported them.
const PARKED_READS: &str = "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint \
    FROM pg_statio_user_tables WHERE relname IN ('outbox_exception', 'outbox_parked')";

/// Returns the buffers that a reader touches in the tables of parked entries, and in the log.
async fn parked_reads(
    db: &Database<Postgres>,
    mut work: impl AsyncFnMut(&mut Box<dyn LogReader>),
) -> (i64, i64) {
    let before = db.number(PARKED_READS).await;
    let messages = buffers_once(db, &mut work).await;
    (db.number(PARKED_READS).await - before, messages)
}

const COPY: &str = "INSERT INTO outbox_parked (relay, id, content_type, payload, enqueued_at) \
    SELECT 'main', id, content_type, payload, enqueued_at FROM outbox_message";

async fn what_is_due_costs_the_same_however_much_waits(db: &Database<Postgres>) {
    without_autovacuum(db).await;
    fill(db, 100_000).await;
    prepare(
        db,
        "INSERT INTO outbox_exception (relay, id, message_id, topic, state, due_at) SELECT 'main', id, message_id, \
         topic, 'scheduled', now() + CASE WHEN id IN (5, 70000) THEN '-1 hour' ELSE '1 hour' END::interval \
         FROM outbox_message",
    )
    .await;
    prepare(db, COPY).await;
    let (exceptions, messages) = parked_reads(db, async |reader| {
        let limit = PageLimit { entries_max: 1_000, bytes_max: 1 << 30, ..SMALL };
        let due = reader.read_due(DueKind::Scheduled, None, limit).await.unwrap();
        assert_eq!(due.exceptions.iter().map(|e| e.entry.id.0).collect::<Vec<_>>(), [5, 70_000]);
        let first =
            reader.read_due(DueKind::Scheduled, None, PageLimit { entries_max: 1, ..limit }).await.unwrap();
        assert_eq!(
            reader.read_due(DueKind::Scheduled, first.position, limit).await.unwrap().exceptions.len(),
            1
        );
    })
    .await;
    eprintln!("buffers of 2, of 1 and of 1 due among 100,000: {exceptions} + {messages} of the log");
    assert!(exceptions < 80 && messages < PLANNED, "{exceptions} {messages}");
    // Retries that are overdue delay nothing that is scheduled. The rows are written anew: those
    // that a change leaves behind are read once more, until the server has cleaned them up.
    db.run("TRUNCATE outbox_exception").await;
    prepare(
        db,
        "INSERT INTO outbox_exception (relay, id, message_id, topic, state, due_at) SELECT 'main', id, message_id, \
         topic, CASE WHEN id IN (5, 70000) THEN 'scheduled' ELSE 'retrying' END, \
         now() - CASE WHEN id IN (5, 70000) THEN '1 hour' ELSE '2 hours' END::interval FROM outbox_message",
    )
    .await;
    let (exceptions, messages) = parked_reads(db, async |reader| {
        let limit = PageLimit { entries_max: 1_000, bytes_max: 1 << 30, ..SMALL };
        let due = reader.read_due(DueKind::Scheduled, None, limit).await.unwrap();
        assert_eq!(due.exceptions.iter().map(|e| e.entry.id.0).collect::<Vec<_>>(), [5, 70_000]);
    })
    .await;
    eprintln!(
        "buffers of 2 scheduled ones beside 100,000 overdue retries: {exceptions} + {messages} of the log"
    );
    assert!(exceptions < 80 && messages < PLANNED, "{exceptions} {messages}");
}

async fn held_entries_of_a_key_cost_the_same_however_much_another_key_holds(db: &Database<Postgres>) {
    without_autovacuum(db).await;
    fill(db, 100_000).await;
    prepare(
        db,
        "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state) SELECT 'main', id, message_id, \
         topic, CASE WHEN id % 10000 = 0 THEN 'small' ELSE 'large' END, 'held' FROM outbox_message",
    )
    .await;
    prepare(db, COPY).await;
    let limit = PageLimit { entries_max: 1_000, bytes_max: 1 << 30, ..SMALL };
    let (exceptions, messages) = parked_reads(db, async |reader| {
        let queue = QueueName::of("orders", Some("small"));
        let ask = HeldAsk { queue, from: EntryId(10_001) };
        let pages = reader.read_held(&[ask], limit).await.unwrap();
        assert_eq!((pages[0].exceptions.len(), pages[0].exhausted), (9, true));
    })
    .await;
    eprintln!("buffers of 9 held entries among 100,000: {exceptions} + {messages} of the log");
    assert!(exceptions < 100 && messages < PLANNED, "{exceptions} {messages}");
    let (names, _) = parked_reads(db, async |reader| {
        let page = reader.held_queues(None, 100).await.unwrap();
        let names: Vec<&str> = page.queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!((names, page.exhausted), (vec!["klarge", "ksmall"], true));
    })
    .await;
    eprintln!("buffers of the names of two queues with 100,000 entries: {names}");
    assert!(names < 100, "{names}");
}

const QUESTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay admin' \
    AND datname = current_database()";

/// Returns how many buffers an operator's query touches: the minimum of several rounds.
async fn asked(db: &Database<Postgres>, mut question: impl AsyncFnMut()) -> i64 {
    let mut least = i64::MAX;
    for _ in 0..ROUNDS {
        let before = db.number(BUFFERS).await;
        question().await;
        while db.number(QUESTIONS).await > 0 {
            tokio::task::yield_now().await;
        }
        least = least.min(db.number(BUFFERS).await - before);
    }
    least
}

/// Goal: an operator's queries about a relay that has read most of a long difference cost only what
/// they return, and miss no row of a transaction that was open at its head. Oracle: the server's
/// count, and the waiting and the published messages.
async fn questions_about_an_open_difference_read_nothing_that_has_left(db: &Database<Postgres>) {
    without_autovacuum(db).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut slow = db.outbox.begin(&db.pool).await.unwrap();
    slow.enqueue(NewMessage::new("slow")).await.unwrap();
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(slow.connection()).await.unwrap();
    fill(db, 50_000).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let mut pass = async |entries: usize| {
        follower.limit = PageLimit { entries_max: entries, bytes_max: 1 << 30, ..SMALL };
        assert_eq!(follower.next().await.unwrap().len(), entries);
        let stored = checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await;
        assert_eq!(stored.unwrap(), Fenced::Held);
    };
    let (_, entries) =
        outbox_log::entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    pass(100).await;
    let before = entries.extent(&relay()).await.unwrap();
    pass(100).await;
    let now = entries.extent(&relay()).await.unwrap();
    let begun = asked(db, async || {
        let page = entries.passed_between(&relay(), &before, &now, EntryId(0)).await.unwrap();
        assert_eq!((page.entries.len(), page.exhausted), (100, true));
        let page = entries.passed_between(&relay(), &now, &now, EntryId(0)).await.unwrap();
        assert_eq!((page.entries.len(), page.exhausted), (0, true));
    })
    .await;
    pass(49_600).await;
    slow.commit().await.unwrap();
    prepare(db, "ANALYZE outbox_message").await;

    let lag = asked(db, async || {
        let lag = entries.lag(&relay()).await.unwrap();
        let waiting: Vec<_> = lag.iter().map(|topic| (topic.topic.as_str(), topic.unread)).collect();
        assert_eq!(waiting, [("orders", 200), ("slow", 1)]);
    })
    .await;
    let before = entries.extent(&relay()).await.unwrap();
    pass(100).await;
    let now = entries.extent(&relay()).await.unwrap();
    let tail = asked(db, async || {
        let page = entries.passed_between(&relay(), &before, &now, EntryId(0)).await.unwrap();
        assert_eq!((page.entries.len(), page.exhausted), (100, true));
    })
    .await;
    eprintln!("buffers of what waits and of what has left, behind 49,800 entries: {lag}, {tail}");
    eprintln!("buffers of what has left, in front of 49,800 entries: {begun}");
    // A walk of the difference takes some 2,000.
    assert!(lag < 600 && tail < 600 && begun < 600, "{lag}, {tail}, {begun}");
}
