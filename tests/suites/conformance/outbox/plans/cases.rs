//! The arguments of each statement, and the number of rows that it concerns.

use std::fmt::Display;
use std::ops::RangeInclusive;

use message::MessageId;
use sqlx::{AssertSqlSafe, Postgres};

use crate::outbox::support::Database;

/// Number of rows in the log, 1,000 in each transaction.
pub(super) const LOG: i64 = 30_000;
/// Number of those rows that are parked, and of decisions about them.
pub(super) const PARKED: i64 = LOG / 2;
/// Number of rows in a checkpoint, or in a batch.
const MANY: i64 = 1_000;

/// Statements without a case, because no plan makes them more expensive, each with its reason.
pub(super) const EXCLUDED: [(&str, &str); 5] = [
    ("rebase.lock", "takes a lock"),
    ("rebase.rows", "refused on the server that has written the log; rewrites all rows otherwise"),
    ("rebase.waited_for", "reads the locks of the server, which other tests hold as well"),
    ("enqueue.RUNNING", "reads the locks of the server, which other tests hold as well"),
    ("admin.BLOCKER", "reads the locks of the server, which other tests hold as well"),
];

/// The planner settings of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Session {
    /// The settings of a reader, a checkpoint store, or an operator's question or decision.
    Relay,
    /// The defaults of the server: for a producer, or a pause.
    Plain,
}

/// A statement with its arguments.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) session: Session,
    pub(super) statement: &'static str,
    /// Distinguishes cases of the same statement.
    pub(super) about: &'static str,
    pub(super) arguments: String,
    /// Number of rows that it concerns: each is looked up separately.
    pub(super) rows: i64,
    /// Number of rows that any plan may read once, because no index leads to the rows that it
    /// concerns.
    pub(super) passed: i64,
}

/// The rows that the arguments name.
pub(super) struct Fixture {
    /// Message ids of the rows 4,001 to 5,000, which are parked.
    parked: Vec<String>,
    /// Message ids of the rows 24,001 to 25,000, which are not parked.
    unread: Vec<String>,
    /// The transaction that was in flight at the base, with the rows 6,001 to 7,000.
    flight: i64,
    /// The xmax of the base: the first transaction after those that are parked.
    xmax: i64,
    /// The present snapshot.
    now: String,
}

impl Fixture {
    pub(super) async fn read(db: &Database<Postgres>) -> Self {
        let message_ids = async |first: i64| {
            let last = first + MANY - 1;
            let sql = format!(
                "SELECT message_id::text FROM outbox_message WHERE id BETWEEN {first} AND {last} ORDER BY id"
            );
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&db.admin).await.unwrap()
        };
        let xid = async |id: i64| {
            let sql =
                format!("SELECT coalesce((SELECT xid::text::bigint FROM outbox_message WHERE id = {id}), 3)");
            db.number(&sql).await
        };
        let now =
            sqlx::query_scalar("SELECT pg_current_snapshot()::text").fetch_one(&db.admin).await.unwrap();
        Self {
            parked: message_ids(4_001).await,
            unread: message_ids(24_001).await,
            flight: xid(6_001).await,
            xmax: xid(PARKED + 1).await.max(5),
            now,
        }
    }

    /// Returns the base: all parked rows are before it, except those of one transaction in flight.
    fn base(&self) -> String {
        format!("'{}:{}:{}'", self.flight, self.xmax, self.flight)
    }

    fn flight(&self) -> String {
        format!("'{{{}}}'", self.flight)
    }

    /// Returns relay and cursor in the form that statements of operators take, $1 to $5.
    fn cursor(&self) -> String {
        format!("'main',{},{PARKED},'{}',{}", self.base(), self.now, PARKED + MANY)
    }
}

fn array(values: impl IntoIterator<Item = impl Display>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("'{{{}}}'", values.join(","))
}

fn repeated(value: &str, times: i64) -> String {
    array((0..times).map(|_| value))
}

/// Returns the arguments of a checkpoint that parks the rows `parked` and resolves the rows
/// `resolved`.
fn checkpoint(parked: RangeInclusive<i64>, message_ids: &[String], resolved: RangeInclusive<i64>) -> String {
    let count = parked.clone().count() as i64;
    let columns =
        ["orders", "key-1", "held", "0", "NULL", "NULL", "NULL"].map(|value| repeated(value, count));
    format!(
        "'main',1,'{{}}',{},{},{},{},NULL,'a'",
        array(parked),
        array(message_ids),
        columns.join(","),
        array(resolved)
    )
}

/// Returns the arguments of an insert.
fn messages(count: i64) -> String {
    let ids = (0..count).map(|_| MessageId::new().as_uuid());
    let columns =
        ["orders", "key-1", "kind", "text/plain", "NULL", "NULL", "NULL"].map(|value| repeated(value, count));
    format!(
        "{},{},{},{},true",
        array(ids),
        columns.join(","),
        repeated("\"\\\\x00\"", count),
        repeated("NULL", count)
    )
}

#[rustfmt::skip]
pub(super) fn cases(f: &Fixture) -> Vec<Case> {
    use Session::{Plain, Relay};
    #[expect(clippy::reversed_empty_ranges, reason = "no ids")]
    const NOTHING: RangeInclusive<i64> = 1..=0;
    let (base, flight, cursor, now) = (f.base(), f.flight(), f.cursor(), format!("'{}'", f.now));
    let (parked, unread, xmax) = (array(&f.parked), array(&f.unread), f.xmax);
    let some = |ids: &[String]| array(ids.iter().take(100));
    let one = format!("'{}'", f.parked.first().map_or("0190b5a2-0000-7000-8000-000000000001", String::as_str));
    let (first, last) = ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'");
    let mut cases = Vec::new();
    let mut add = |session, statement, about, rows, passed, arguments: String| {
        cases.push(Case { session, statement, about, arguments, rows, passed });
    };
    let s = |text: &str| text.to_owned();

    add(Relay, "statements.mark_floor", "", 1, 0, s(""));
    add(Relay, "statements.mark_snapshot", "", MANY, 0, format!("'{xmax}',{},{MANY}", LOG - MANY / 2));
    add(Relay, "statements.poll", "rows above", 1, 0, format!("{PARKED},{base},{flight},NULL,1000"));
    add(Relay, "statements.poll", "rows of a transaction that ended", 1, 0, format!("{LOG},{base},{flight},NULL,1000"));
    add(Relay, "statements.poll", "nothing new", 1, 0, format!("{LOG},{now},'{{}}',NULL,1000"));
    add(Relay, "statements.run", "", 1, 0, s(""));
    add(Relay, "statements.page", "", MANY, 0, format!("{MANY},8192,{},{LOG},{base},{now},NULL", PARKED + MANY));
    add(Relay, "statements.next_id", "", 1, 0, format!("{PARKED},{LOG}"));
    add(Relay, "statements.contents", "", MANY, 0, format!("{},{unread}", array(24_001..=25_000)));
    add(Relay, "statements.copies", "", MANY, 0, format!("{},{parked},'main'", array(4_001..=5_000)));
    add(Relay, "statements.stragglers", "", MANY, 0, format!("{MANY},1000000000,0,{PARKED},{flight},NULL"));
    add(Relay, "statements.due", "", 10, 0, format!("{MANY},1000000,'main','1970-01-01',0,NULL"));
    add(Relay, "statements.next_due", "", 1, 0, s("'main','1970-01-01',0"));
    add(Relay, "statements.retried", "", 10, 0, format!("{MANY},1000000,'main','1970-01-01',0,NULL"));
    add(Relay, "statements.first", "", 200, 0, format!("{MANY},1000000,'main',{},NULL", array(1..=100)));
    add(Relay, "statements.next_retried", "", 1, 0, s("'main','1970-01-01',0"));
    add(Relay, "statements.held", "", MANY, 0, s("500,1000000,'main','{kkey-3,kkey-4}','{5,6}',NULL"));
    add(Relay, "statements.held", "nothing", 2, 0, format!("500,1000000,'main','{{kkey-35,kkey-3a}}','{{{LOG},1}}',NULL"));
    add(Relay, "statements.held_queues", "", 40, 0, s("'main','',100,NULL"));
    add(Relay, "statements.stuck", "", 100, 0, s("'main',0,100,NULL,true"));
    // It walks over as many rows, and does not go on until it has found as many.
    add(Relay, "statements.stuck", "dead entries block nothing", 100, 0, s("'main',0,100,NULL,false"));
    add(Relay, "statements.acquire", "", 1, 0, s("'main','b',30,'{}',NULL,NULL,'b'"));
    add(Relay, "statements.holder", "", 1, 0, s("'main'"));
    add(Relay, "statements.left_relays", "", 10, 0, s("'main'"));
    add(Relay, "statements.renew", "", 1, 0, s("'main',1,30,NULL,'a'"));
    // No index leads from a message id to its parked entry, so this is a walk. It happens once in a
    // term, and only when the log no longer has the row.
    add(Relay, "statements.is_here", "in the log", 1, 0, one.clone());
    add(Relay, "statements.is_here", "nowhere", 1, PARKED, s("'0190b5a2-0000-7000-8000-000000000001'"));
    add(Relay, "statements.checkpoint", "", 1, 0, s("'main',1,'{}',NULL,'a'"));
    add(Relay, "statements.note", "", 1, 0, s("'main',1,'{}','a'"));
    add(Relay, "statements.checkpoint_with_changes", "inserts", MANY, 0, checkpoint(24_001..=25_000, &f.unread, NOTHING));
    add(Relay, "statements.checkpoint_with_changes", "updates", MANY, 0, checkpoint(4_001..=5_000, &f.parked, NOTHING));
    add(Relay, "statements.checkpoint_with_changes", "resolves", MANY, 0, checkpoint(NOTHING, &[], 4_001..=5_000));
    add(Relay, "statements.release", "", 1, 0, s("'main',1,'a'"));
    add(Relay, "statements.left_out", "", MANY, 0, format!("'main',{parked}"));
    add(Relay, "statements.forget_left_out", "", PARKED, 0, s("'main',1,'a'"));

    add(Relay, "facts.begin_run", "", 1, 0, s(""));
    add(Relay, "facts.unlogged", "", 1, 0, s(""));
    add(Relay, "facts.server", "", 1, 0, s(""));
    add(Relay, "facts.missing", "", 1, 0, s(""));
    add(Relay, "facts.young", "", MANY, 0, format!("'{xmax}',0,{PARKED},{MANY},'{xmax}',{PARKED}"));

    add(Relay, "rebase.cursors", "", 1, 0, s(""));
    // The largest id that any relay has parked, for which there is no index.
    add(Relay, "rebase.advance", "", 1, PARKED, s(""));
    // The smallest id of young rows: each of them is read.
    add(Relay, "rebase.unseen", "", 1, LOG, format!("{PARKED},'{xmax}'"));
    add(Relay, "rebase.in_flight", "", 1, 0, format!("{PARKED},{flight}"));
    // Rows by the time at which they were written, for which there is no index.
    add(Relay, "rebase.own", "", 1, LOG, PARKED.to_string());
    add(Relay, "rebase.first", "", 1, 0, PARKED.to_string());
    // All decisions are read, and each discarded message is looked up.
    add(Relay, "rebase.beside", "", PARKED / 3, 2 * PARKED, format!("'main',0,{},'{{}}'", PARKED - 100));
    add(Relay, "rebase.store", "", 1, 0, s("'main',0,'{}'"));
    // Rows below the base, and then the rows that are counted.
    add(Relay, "rebase.settled", "", MANY, LOG, format!("{},{base},{now},{MANY}", PARKED + MANY));
    add(Relay, "rebase.above", "", MANY, 0, format!("{PARKED},{MANY}"));
    add(Relay, "rebase.newest", "", 1, 0, s(""));
    // The rows with the ids of parked messages, as for `shared`, and rows that the base does not
    // see.
    add(Relay, "rebase.renumber_rows", "", PARKED, LOG, format!("{base},{PARKED}"));
    add(Relay, "rebase.has_moved", "", 1, 0, format!("{},{base}", LOG - 10));
    add(Relay, "rebase.fence", "", 1, 0, s("'main',0"));
    add(Relay, "rebase.renumbered", "", 1, 0, PARKED.to_string());
    add(Relay, "rebase.shared", "", PARKED, 0, s(""));

    add(Plain, "enqueue.append", "", 100, 0, messages(100));
    add(Plain, "enqueue.append_one", "", 1, 0, format!("'{}','orders','key-1','kind','text/plain',NULL,NULL,NULL,'\\x00',NULL,true", MessageId::new().as_uuid()));
    add(Plain, "enqueue.insert", "", 100, 0, messages(100));
    add(Plain, "enqueue.stored", "", MANY, 0, parked.clone());
    add(Plain, "enqueue.fate", "", MANY, 0, format!("{parked},'{}'", f.flight));
    add(Plain, "enqueue.take_node", "", 1, 0, s("'h',30"));
    add(Plain, "enqueue.renew_node", "", 1, 0, s("1,1,'h',30"));
    add(Plain, "enqueue.release_node", "", 1, 0, s("1,1,'h'"));
    add(Plain, "transaction_ids.TAKE", "", 1, 0, s("5"));

    add(Relay, "admin.RELAYS", "all", 1, 0, s("NULL"));
    add(Relay, "admin.RELAYS", "one", 1, 0, s("'main'"));
    add(Relay, "admin.PROCESSES", "", 1, 0, s("'main'"));
    add(Relay, "admin.PRESENT", "", 1, 0, s(""));
    add(Relay, "tables.counts", "", MANY, 0, format!("'main',{MANY}"));
    add(Relay, "tables.parked_age", "", 1, 0, s("'main',4000"));
    // The rows of the transaction in flight are read.
    add(Relay, "admin.BACKLOG", "", 1, MANY, format!("{PARKED},{base},{now},{},{flight}", PARKED + MANY));
    // From both ends.
    add(Relay, "tables.errors", "", 200, 0, s("'main','dead',100"));
    add(Relay, "tables.list", "", 100, 0, s("'main','held',0,100"));
    add(Relay, "tables.list_stuck", "", 100, 0, s("'main','dead',0,100"));
    add(Relay, "tables.list_held", "", 100, 0, s("'main',100"));
    add(Relay, "tables.held_len", "", MANY, 0, format!("'main',{MANY}"));
    add(Relay, "tables.list_few_held", "", MANY, 0, format!("'main',0,100,{MANY}"));
    // All decisions are read, in the order of their messages, and each discarded entry is looked
    // up.
    add(Relay, "tables.list_discarded", "", PARKED / 3, 5 * PARKED, s("'main',0,100"));
    let conditions = "NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL";
    let all = "'orders','key-3','message','x','kind',0,3000000000000000,'2200-01-01'";
    add(Relay, "tables.parked", "", 100, 0, format!("'main','held',0,100,{conditions},50"));
    add(Relay, "tables.parked_few_held", "", MANY, 0, format!("'main','held',0,{MANY},{conditions},50"));
    for (about, conditions) in [("", conditions), ("with every condition", all)] {
        add(Relay, "tables.parked_stuck", about, 100, 0, format!("'main','dead',0,100,{conditions},50"));
        add(Relay, "tables.choose", about, 100, 0, format!("'main','dead',0,100,{conditions}"));
        add(Relay, "tables.total", about, 100, 0, format!("'main','dead',0,100,{conditions}"));
        add(Relay, "tables.groups", about, 200, 0, format!("'main','dead',0,100,{conditions}"));
    }
    add(Relay, "tables.now", "", 1, 0, s(""));
    let decision = "'0190b5a2-0000-7000-8000-0000000000d1'";
    add(Relay, "tables.decision_head", "", 100, 0, format!("'main',{decision},100"));
    add(Relay, "tables.decision_now", "", 100, 0, format!("'main',{decision},100"));
    add(Relay, "tables.discarded_of", "", 100, 0, format!("'main',{}", some(&f.parked)));
    add(Relay, "admin.digest", "", 1, 0, s("'main',4000"));
    for statement in ["admin.LOOK_AT_ENTRIES", "admin.REQUEUE", "admin.DISCARD"] {
        add(Relay, statement, "", 100, 0, format!("'main',{}", array(4_001..=4_100)));
    }
    add(Relay, "admin.SET_DUE", "", 100, 0, format!("'main',{},NULL", array(4_001..=4_100)));
    let unedited = "array_fill(NULL::timestamptz, ARRAY[100])";
    for (about, as_of) in [("", "NULL"), ("confirmed", "'2200-01-01'")] {
        add(Relay, "admin.LOCK_ENTRIES", about, 100, 0, format!("'main',{},NULL,{as_of}", array(4_001..=4_100)));
        let chosen = array(4_001..=4_100);
        let waiting = format!("'main',{chosen},20,{as_of},{unedited},true");
        add(Relay, "admin.LOCK_WAITING", about, 100, 0, waiting);
    }
    add(Relay, "admin.EDITED_SINCE", "", 100, 0, format!("'main',{},{unedited}", array(4_001..=4_100)));
    add(Relay, "admin.OVERDUE", "", 1, 0, s("ARRAY[1],ARRAY['2020-01-01']"));
    add(Relay, "admin.edit", "", 1, 0, s("'main',4000,'\\x01',NULL"));
    add(Relay, "admin.AUDIT", "", 1, 0, format!("'ann','main','discard','test',NULL,ARRAY[4000],ARRAY[{one}],NULL,NULL,NULL,NULL,NULL"));
    add(Relay, "tables.content", "", 1, 0, format!("'main',4000,{one}"));
    add(Relay, "tables.edit", "", 1, 0, s("'main',1"));
    // Backwards from the last decision, by an index of the relay or of all.
    add(Relay, "tables.decisions", "", 100, PARKED, format!("'main',100,{}", i64::MAX));
    add(Relay, "tables.audited", "", 100, 2 * PARKED, format!("'main',100,{},NULL,NULL,50", i64::MAX));
    add(Relay, "tables.decisions_of", "", 100, 0, format!("'main',{one},100"));
    add(Relay, "tables.operations", "", 100, PARKED, format!("'main',100,{}", i64::MAX));
    for (about, action) in [("", "pause"), ("without a row", "login"), ("with few rows", "revoke")] {
        add(Relay, "tables.operations_of", about, 100, 0, format!("'main',100,{},'{action}'", i64::MAX));
    }
    add(Plain, "tables.note", "", 1, 0, s("'ann','test','topic','pause','main'"));
    add(Relay, "tables.pauses", "", 1, 0, s("'main'"));
    add(Relay, "tables.paused_scopes", "", 1, 0, s("'main'"));
    add(Plain, "tables.pauses_len", "", 1, 0, s("'main',10001"));
    add(Plain, "tables.pause", "", 1, 0, s("'main','topic','x','ann','test'"));
    add(Plain, "tables.resume", "", 1, 0, s("'main','topic','x',NULL"));

    add(Relay, "entries.extent", "", 1, 0, s("'main'"));
    add(Relay, "entries.find", "by its id", 1, 0, format!("{cursor},4001,NULL"));
    // The search for the one that stops it covers all that may stop others, by key and by topic.
    add(Relay, "entries.find", "a held one", 1, 2 * PARKED, format!("{cursor},4010,NULL"));
    add(Relay, "entries.find", "by its message id", 1, PARKED, format!("{cursor},NULL,{one}"));
    add(Relay, "entries.select", "unread", 100, 0, format!("{cursor},{PARKED},{LOG},NULL,NULL,NULL,NULL,NULL,100,NULL"));
    add(Relay, "entries.select", "parked", 100, 0, format!("{cursor},0,{LOG},NULL,NULL,NULL,NULL,NULL,100,NULL"));
    add(Relay, "entries.select", "by ids", 100, 0, format!("{cursor},0,{LOG},{},NULL,NULL,NULL,NULL,100,{}", array(4_001..=4_100), some(&f.parked)));
    // From the newest entry back, however long the log is.
    add(Relay, "entries.span", "", MANY, 0, format!("{},{},{MANY}", i64::MAX, i64::MIN));
    add(Relay, "entries.span", "among parked ones", MANY, 0, format!("{PARKED},{},{MANY}", i64::MIN));
    let part = |condition: &str| format!("{cursor},{LOG},{},{condition},100", LOG - MANY);
    add(Relay, "entries.search", "all", 100, 0, part("NULL,NULL,NULL,NULL"));
    add(Relay, "entries.search", "by a key that no message has", MANY, 0, part("'orders','none',NULL,NULL"));
    add(Relay, "entries.search", "by a header that no message has", MANY, 0, part("NULL,NULL,'tenant','acme'"));
    add(Relay, "entries.search", "parked ones", 100, 0, format!("{cursor},{PARKED},{},NULL,NULL,NULL,NULL,100", PARKED - MANY));
    add(Relay, "entries.passed_between", "", 100, LOG, format!("{cursor},{base},{},{flight},NULL,0,{},100,{},{}", PARKED - MANY, PARKED - MANY, PARKED - MANY, i64::MAX));
    add(Relay, "entries.passed_between", "an open difference that is almost read", MANY, 0, format!("'main',{base},{PARKED},{now},{LOG},{base},{PARKED},{flight},{now},{},0,100,{},{LOG}", LOG - 100, LOG - 100));
    // The difference has a backlog of thousands, and few of them were passed since.
    add(Relay, "entries.passed_between", "an open difference that has begun", 100, 0, format!("'main',{base},{PARKED},{now},{},{base},{PARKED},'{{}}',{now},{PARKED},0,1000,{PARKED},{}", PARKED + 100, PARKED + 100));
    add(Relay, "entries.contents", "", 100, 0, format!("{},{},1000000,1000000", array(4_001..=4_100), some(&f.parked)));
    let segment = |ids: &[String]| {
        let first = ids.first().map_or("0190b5a2-0000-7000-8000-000000000001", String::as_str);
        format!("(get_byte(uuid_send('{first}'::uuid), 2) >> 2) & 7")
    };
    add(Relay, "entries.erase", "", 100, 0, format!("{},{},'x',{}", array(24_001..=24_100), some(&f.unread), segment(&f.unread)));
    add(Relay, "entries.erase", "parked ones", 100, 0, format!("{},{},'x',{}", array(4_001..=4_100), some(&f.parked), segment(&f.parked)));
    add(Relay, "entries.erase_copies", "", 100, 0, format!("{},{},'x'", array(4_001..=4_100), some(&f.parked)));
    add(Relay, "entries.erase_decisions", "", 100, 0, some(&f.parked));
    add(Relay, "entries.note_erased", "", 100, 0, format!("{},{},'ann','test','x',{decision}", array((4_001..=4_100).take(f.parked.len())), some(&f.parked)));
    add(Relay, "tables.payload", "", 1, 0, format!("'main',4001,{one},1000000"));
    add(Relay, "entries.lag", "", MANY, 0, format!("{cursor},{flight},{MANY},{MANY},{}", PARKED + MANY));
    add(Relay, "entries.lag", "an open difference that is almost read", MANY, 0, format!("'main',{base},{PARKED},{now},{},{flight},{MANY},{MANY},{}", LOG - 100, LOG - 100));
    add(Relay, "entries.FIRSTS", "", 10, 0, array(f.parked.iter().take(10)));
    add(Relay, "entries.IDENTITY", "", 1, 0, s(""));
    add(Relay, "reconcile.page", "", MANY, 0, format!("{cursor},{first},{last},{MANY}"));
    add(Relay, "reconcile.find", "", MANY, 0, format!("{cursor},{parked}"));
    add(Relay, "reconcile.cursor", "", 1, 0, s("'main'"));
    add(Relay, "reconcile.first", "", 1, 0, s(""));

    // The latest 10,000 messages.
    add(Plain, "doctor.topics", "", 10_000, 0, s(""));
    add(Plain, "doctor.unread", "", 1, 0, s(""));

    add(Plain, "retention.LIST", "", 8, 0, s("60"));
    add(Plain, "retention.FORGET_DECISIONS", "", 1, 0, s("34560000,1000"));
    add(Plain, "retention.EXPIRE", "", 8, 0, s("0,604800"));
    add(Plain, "retention.HOLDER", "", 1, 0, s("'main'"));
    // Counts the parked entries.
    add(Plain, "retention.FORGET", "", 1, PARKED, s("'main',false,NULL,NULL"));
    cases
}
