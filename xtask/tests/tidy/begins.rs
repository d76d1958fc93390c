//! Transactions on sessions of a pool begin by `outbox::begin_on` alone.
//!
//! A `begin` of sqlx that is dropped before its answer leaves the session inside the transaction,
//! and sqlx hands it on: what its next user writes is lost. A time limit drops it as a caller does
//! that goes away, also within `message::shield`. Pools of the toolkit clean such a session, others
//! do not.

use super::{assert_none, comment, texts};

/// The folders of code that begins transactions.
const FOLDERS: [&str; 8] = [
    "idempotency/src/",
    "inbox/src/",
    "migrations/src/",
    "outbox/log/src/",
    "outbox/src/",
    "relay/adopt/src/",
    "relay/operate/src/",
    "saga/src/",
];

const HANDED: &str = "handed to `begin_on` by its callers";
const NO_POOL: &str = "its connection belongs to no pool, and a call that is dropped ends it";
const SQLITE: &str = "SQLite rolls back what it begins for a caller that is gone";

/// The places that send a BEGIN: the file, how many there are, and why no call that is dropped
/// leaves a session of a pool inside the transaction.
const BEGINS: [(&str, usize, &str); 27] = [
    ("idempotency/src/hold.rs", 1, HANDED),
    ("idempotency/src/postgres/store.rs", 3, HANDED),
    ("idempotency/src/sqlite/store.rs", 2, HANDED),
    ("inbox/src/dialect/guard.rs", 1, HANDED),
    ("inbox/src/postgres/guard.rs", 2, HANDED),
    ("inbox/src/postgres/lookup.rs", 1, NO_POOL),
    ("inbox/src/sqlite/guard.rs", 1, HANDED),
    ("migrations/src/postgres.rs", 4, "`begin_marked` is handed to `begin_on`; migrations run to their end"),
    ("migrations/src/sqlite.rs", 3, SQLITE),
    ("outbox/log/src/postgres/admin/decisions.rs", 2, NO_POOL),
    ("outbox/log/src/postgres/entries/mod.rs", 1, NO_POOL),
    ("outbox/log/src/postgres/rebase/mod.rs", 1, NO_POOL),
    ("outbox/log/src/read_only.rs", 1, NO_POOL),
    ("outbox/log/src/sqlite/admin/decisions.rs", 2, SQLITE),
    ("outbox/log/src/sqlite/checkpoint_store.rs", 1, SQLITE),
    ("outbox/log/src/sqlite/entries/mod.rs", 1, SQLITE),
    ("outbox/log/src/sqlite/properties.rs", 1, SQLITE),
    ("outbox/log/src/sqlite/reconcile.rs", 1, SQLITE),
    ("outbox/log/src/sqlite/retention.rs", 4, SQLITE),
    ("outbox/log/src/tables.rs", 2, NO_POOL),
    ("outbox/src/begin.rs", 1, "a test"),
    ("relay/adopt/src/takeover/call.rs", 1, NO_POOL),
    ("relay/adopt/src/takeover/slots.rs", 1, NO_POOL),
    ("relay/operate/src/verify/spool.rs", 2, SQLITE),
    ("saga/src/postgres/store.rs", 1, HANDED),
    ("saga/src/sqlite/store.rs", 3, SQLITE),
    ("saga/src/tables.rs", 2, HANDED),
];

/// Calls that send a BEGIN, or make the future that does.
const CALLS: [&str; 10] = [
    ".begin_with(",
    "pool.begin()",
    "pool().begin()",
    "connection.begin()",
    "Transaction::begin(",
    "begin_durable(connection",
    "begin_marked(connection",
    "begin_plain(connection",
    "begin_writing(connection",
    "begin_holding(connection",
];

/// Calls that wait up to a limit, and then drop what they wait for.
const LIMITS: [&str; 6] = ["within(", "in_time(", "timeout(", ".call(", ".any(", "run_until_cancelled("];

/// Returns a text without its comments.
fn code(text: &str) -> String {
    let lines = text.lines().filter(|line| comment(line).is_none());
    lines.filter(|line| !line.trim_start().starts_with("note =")).collect::<Vec<_>>().join("\n")
}

/// Returns the number of places that send a BEGIN.
fn begins(text: &str) -> usize {
    let code = code(text);
    let is_call = |at: usize| !code[..at].ends_with("fn ");
    let places = |call| code.match_indices(call).filter(|(at, _)| is_call(*at)).count();
    CALLS.into_iter().map(places).sum()
}

/// Returns the arguments of a call, from behind its opening parenthesis.
fn arguments(code: &str) -> &str {
    let mut depth = 1;
    let end = code.find(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    &code[..end.unwrap_or(code.len())]
}

/// Returns the limits that would drop a BEGIN. One around `begin_on` or `Bounded::begin` may, for
/// these hold the shield.
fn dropped_begins(text: &str) -> Vec<String> {
    let code = code(text);
    let mut found = Vec::new();
    for limit in LIMITS {
        for (at, _) in code.match_indices(limit) {
            let inside = arguments(&code[at + limit.len()..]);
            if begins(inside) > 0 || inside.contains("DB::begin_") && !inside.contains(".begin(") {
                let number = code[..at].lines().count();
                found.push(format!("{limit}…) around a BEGIN (line {number} without comments)"));
            }
        }
    }
    found
}

/// A new place hands its BEGIN to `outbox::Bounded::begin` or `outbox::begin_on`, and is listed
/// above.
#[test]
fn a_dropped_call_leaves_no_session_inside_a_transaction() {
    assert_eq!(begins("let tx = pool.begin().await?;\n// pool.begin()\nDB::begin_marked(connection)"), 2);
    assert_eq!(begins("async fn begin_plain(connection: PoolConnection<Self>)"), 0);
    assert_eq!(begins("db.begin(DB::begin_marked).await?; self.begin_durable(what)"), 0);
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        if !FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let known = BEGINS.iter().find(|(file, ..)| *file == path).map_or(0, |(_, count, _)| *count);
        let here = begins(&text);
        if here != known {
            found.push(format!("{path}: transactions begin at {here} places, {known} are known"));
        }
    }
    let is_there = |file: &str| texts(&[".rs"]).iter().any(|(path, _)| path == file);
    found.extend(BEGINS.iter().filter(|(file, ..)| !is_there(file)).map(|(file, ..)| format!("no {file}")));
    assert_none(&found);
}

/// The limit stands outside and the shield inside.
#[test]
fn no_time_limit_drops_a_begin() {
    let wrong = [
        "shield(within(limit, what, async move { DB::begin_writing(inbox.pool()).await })).await",
        "shield(async move { sagas.db.any(pool.begin()).await }).await",
        "db.call(async {\n    let tx = DB::begin_holding(connection, &ask).await?;\n    Ok(tx)\n}).await",
        "match db.call(DB::begin_plain(db.pool())).await {",
        "tokio::time::timeout(limit, Transaction::begin(connection, None)).await",
    ];
    for wrong in wrong {
        assert_eq!(dropped_begins(wrong).len(), 1, "{wrong}");
    }
    assert_eq!(dropped_begins("db.begin(DB::begin_plain).await; db.call(hold(&mut tx)).await"), [""; 0]);
    assert_eq!(dropped_begins("db.call(async { db.begin(DB::begin_plain).await }).await"), [""; 0]);
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        // A session that belongs to no pool ends with the call that is dropped.
        let is_own = BEGINS.iter().any(|(file, _, why)| *file == path && *why == NO_POOL);
        if !is_own && FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            found.extend(dropped_begins(&text).iter().map(|fault| format!("{path}: {fault}")));
        }
    }
    assert_none(&found);
}
