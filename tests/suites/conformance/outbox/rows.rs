//! Rows that are not valid messages, as plain SQL can write them. Each affects only its own key and
//! costs no memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use crate::outbox::support::{Database, Follower, SMALL, TestDialect, granted, relay, source};
use message::{Headers, SizeLimit};
use outbox::NewMessage;
use outbox_log::admin::{ChosenEntry, Decision, OperatorDecision};
use outbox_log::entries::{EntryRef, Selection, Standing};
use outbox_log::{
    BrokerTrouble, Cursor, DueKind, Entry, EntryId, Exception, ExceptionChange, ExceptionState, Fenced,
    HeldAsk, Lease, LogOptions, LogReader, PageLimit, Parked, QueueName, RowLimit,
};
use sqlx::{Postgres, Sqlite};
use tests::{Dialect as _, copies};

tests::cases! { "outbox/rows/{on}/{case}":
    every {
        a_row_that_is_too_large_is_refused_by_its_lengths,
        what_is_too_large_stays_unread_where_it_is_parked,
        an_edit_mends_a_row_that_is_too_large,
        headers_count_in_a_page_as_payloads_do,
        operators_see_rows_of_any_size,
    }
    on_postgres { headers_that_the_server_cannot_write_are_refused }
    on_sqlite {
        bytes_that_are_no_utf8_in_a_text,
        an_id_that_a_row_brings_along_is_refused,
    }
    postgres {
        bytes_that_are_no_utf8_in_a_database_without_encoding,
        an_error_is_stored_in_a_database_of_any_encoding,
    }
}

pub(super) const MIB: usize = 1 << 20;
pub(super) const LIMIT: PageLimit = PageLimit {
    row: RowLimit::of(SizeLimit { destination: "the test", message_bytes_max: MIB }),
    bytes_max: 2 * MIB,
    ..SMALL
};

/// Returns an SQL expression for a payload of zeros.
pub(super) fn zeros<DB: TestDialect>(bytes: usize) -> String {
    match DB::NAME {
        "SQLite" => format!("zeroblob({bytes})"),
        _ => format!("decode(repeat('00', {bytes}), 'hex')"),
    }
}

/// Returns an SQL expression for headers with one value of this length.
fn headers<DB: TestDialect>(bytes: usize) -> String {
    match DB::NAME {
        "SQLite" => format!("'{{\"h\":\"' || hex(zeroblob({})) || '\"}}'", bytes / 2),
        _ => format!("jsonb_build_object('h', repeat('0', {bytes}))"),
    }
}

pub(super) async fn insert<DB: TestDialect>(db: &Database<DB>, columns: &str, values: &str) {
    db.produce(&format!("INSERT INTO outbox_message ({columns}) VALUES ({values})")).await;
}

/// Writes six rows. Three are too large: one by its payload, one by its headers, and one by both,
/// with a payload far above the limit.
pub(super) async fn write_large<DB: TestDialect>(db: &Database<DB>) {
    let (small, few) = (zeros::<DB>(10), headers::<DB>(10));
    let (payload, long) = (zeros::<DB>(3 * MIB), headers::<DB>(3 * MIB));
    for (key, headers, payload) in [
        ("a", &few, &payload),
        ("b", &few, &small),
        ("c", &long, &small),
        ("d", &few, &small),
        ("a", &few, &small),
    ] {
        insert(db, "topic, key, headers, payload", &format!("'orders', '{key}', {headers}, {payload}")).await;
    }
    let huge = zeros::<DB>(40 * MIB);
    insert(db, "topic, key, headers, payload", &format!("'orders', 'e', {long}, {huge}")).await;
}

pub(super) fn problem(entry: &Entry) -> Option<&str> {
    entry.message.as_ref().err().map(|invalid| invalid.problem.as_str())
}

/// Checks the problem reported for each row of [`write_large`], by the row's id.
pub(super) fn check_large<'e>(entries: impl IntoIterator<Item = &'e Entry>) {
    let mut seen = 0;
    for entry in entries {
        seen += 1;
        let expected = match entry.id.0 {
            1 => "a payload of 3145728 bytes; the test takes at most 1048576",
            3 => "headers of 31457",
            6 => "a payload of 41943040 bytes; the test takes at most 1048576",
            _ => {
                assert!(entry.message.is_ok(), "{entry:?}");
                continue;
            }
        };
        let problem = problem(entry).unwrap_or_default();
        assert!(problem.contains(expected), "{}: {problem}", entry.id);
        assert!(entry.key().is_some() && entry.topic() == "orders");
        assert!(entry.bytes() < 2_000, "it takes {} bytes of memory", entry.bytes());
    }
    assert_eq!(seen, 6);
}

/// Goal: a row that is larger than the destination accepts becomes an invalid entry that states its
/// lengths. Oracle: its neighbours are read with their payloads, in pages of any size.
async fn a_row_that_is_too_large_is_refused_by_its_lengths<DB: TestDialect>(db: &Database<DB>) {
    write_large(db).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    for entries_max in [1, 2, 100] {
        let mut follower = Follower::new(db.reader().await, cursor.clone());
        follower.limit = PageLimit { entries_max, ..LIMIT };
        check_large(&follower.all().await);
    }
}

fn parked(entry: &Entry, state: ExceptionState) -> ExceptionChange {
    ExceptionChange::Park(Parked {
        id: entry.id,
        message_id: entry.message_id(),
        topic: entry.topic().to_owned(),
        key: entry.key().map(str::to_owned),
        state,
        attempts: 1,
        due_in: Some(Duration::ZERO),
        fault: None,
        error: problem(entry).map(str::to_owned),
    })
}

/// Parks the whole log and moves the cursor behind it.
pub(super) async fn park_all<DB: TestDialect>(
    db: &Database<DB>,
    state: impl Fn(&Entry) -> ExceptionState,
) -> (Lease, Cursor, Vec<Entry>) {
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit = PageLimit { entries_max: 100, ..LIMIT };
    let entries = follower.all().await;
    let changes: Vec<_> = entries.iter().map(|entry| parked(entry, state(entry))).collect();
    assert_eq!(store.checkpoint(lease.epoch, &follower.cursor(), &changes).await.unwrap(), Fenced::Held);
    (lease, follower.cursor(), entries)
}

/// Returns everything that is due, in the order of ids.
pub(super) async fn due(reader: &mut Box<dyn LogReader>, limit: PageLimit) -> Vec<Exception> {
    let mut exceptions = due_of(reader, DueKind::Scheduled, limit).await;
    exceptions.extend(due_of(reader, DueKind::Retrying, limit).await);
    exceptions.sort_by_key(|exception| exception.entry.id);
    exceptions
}

async fn due_of(reader: &mut Box<dyn LogReader>, kind: DueKind, limit: PageLimit) -> Vec<Exception> {
    let mut exceptions = Vec::new();
    let mut after = None;
    loop {
        let page = reader.read_due(kind, after, limit).await.unwrap();
        let bytes: usize = page.exceptions.iter().map(|exception| exception.entry.bytes()).sum();
        assert!(page.exceptions.len() == 1 || bytes < limit.bytes_max + 100_000, "a page of {bytes} bytes");
        exceptions.extend(page.exceptions);
        after = page.position;
        if page.exhausted {
            return exceptions;
        }
    }
}

pub(super) async fn held(reader: &mut Box<dyn LogReader>, keys: &[&str], limit: PageLimit) -> Vec<Exception> {
    let ask = |key: &&str| HeldAsk { queue: QueueName::of("orders", Some(key)), from: EntryId(0) };
    let mut asks: Vec<HeldAsk> = keys.iter().map(ask).collect();
    let mut exceptions = Vec::new();
    while !asks.is_empty() {
        let pages = reader.read_held(&asks, limit).await.unwrap();
        let bytes = pages.iter().flat_map(|page| &page.exceptions).map(|exception| exception.entry.bytes());
        let (count, bytes) = (bytes.clone().count(), bytes.sum::<usize>());
        assert!(count == 1 || bytes < limit.bytes_max + 100_000, "pages of {bytes} bytes");
        let mut rest = Vec::new();
        for (mut ask, page) in asks.into_iter().zip(pages) {
            if let Some(last) = page.exceptions.last() {
                ask.from = EntryId(last.entry.id.0 + 1);
            }
            if !page.exhausted {
                rest.push(ask);
            }
            exceptions.extend(page.exceptions);
        }
        asks = rest;
    }
    exceptions
}

pub(super) fn entries(exceptions: &[Exception]) -> impl Iterator<Item = &Entry> {
    exceptions.iter().map(|exception| &exception.entry)
}

/// Goal: a row that was too large in the log is also too large as a parked entry, and is not lost.
/// Oracle: the same reasons in the pages of due and held entries, even when the log no longer has
/// the rows; nothing is left of a resolved entry.
async fn what_is_too_large_stays_unread_where_it_is_parked<DB: TestDialect>(db: &Database<DB>) {
    write_large(db).await;
    let state = |entry: &Entry| {
        if entry.id.0 % 2 == 1 { ExceptionState::Retrying } else { ExceptionState::Held }
    };
    let (lease, cursor, _) = park_all(db, state).await;
    let retention = outbox_log::retention::open(db.url.as_str(), source(), LogOptions::default()).unwrap();
    retention.expire(Duration::ZERO).await.unwrap();
    let mut reader = db.reader().await;
    for entries_max in [1, 100] {
        let limit = PageLimit { entries_max, ..LIMIT };
        let mut found = due(&mut reader, limit).await;
        found.extend(held(&mut reader, &["b", "d", "e"], limit).await);
        check_large(entries(&found));
    }
    let resolved: Vec<_> = (1..=6).map(|id| ExceptionChange::Resolve(EntryId(id))).collect();
    let mut store = db.checkpoint_store("a").await;
    assert_eq!(store.checkpoint(lease.epoch, &cursor, &resolved).await.unwrap(), Fenced::Held);
    retention.expire(Duration::ZERO).await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, 0);
    if DB::NAME == "SQLite" {
        assert_eq!(db.rows().await, 0, "history goes when nothing is parked any more");
    }
}

/// Goal: an operator replaces content that is too large. Oracle: the entry is a message with the
/// new content, and the audit has its digest.
async fn an_edit_mends_a_row_that_is_too_large<DB: TestDialect>(db: &Database<DB>) {
    write_large(db).await;
    park_all(db, |_| ExceptionState::Dead).await;
    let (admin, _) = outbox_log::entries::open(db.url.as_str(), source(), LogOptions::default()).unwrap();
    let decide = async |id: i64, decision| {
        let (actor, note) = (String::from("ann"), String::from("a test"));
        let dead = admin.list(&relay(), ExceptionState::Dead, EntryId(id - 1), 1).await.unwrap();
        let decree = OperatorDecision { decision, signature: outbox::Signature::new(actor, note) };
        let verdicts = admin.decide(&relay(), &[ChosenEntry::from(&dead[0])], decree).await.unwrap();
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    };
    let listed = admin.list(&relay(), ExceptionState::Dead, EntryId(0), 100).await.unwrap();
    assert_eq!(listed.iter().map(|entry| entry.payload_bytes).max(), Some(40 << 20));
    decide(1, Decision::Edit { payload: Some("short".into()), headers: None, replaces: None }).await;
    decide(3, Decision::Edit { payload: None, headers: Some(Headers::new()), replaces: None }).await;
    for id in [1, 3, 6] {
        decide(id, Decision::Requeue).await;
    }
    let found = due(&mut db.reader().await, LIMIT).await;
    let message =
        |id| found.iter().find(|exception| exception.entry.id.0 == id).unwrap().entry.message.as_ref();
    assert_eq!(&message(1).unwrap().payload[..], b"short");
    assert_eq!((message(3).unwrap().payload.len(), message(3).unwrap().headers.len()), (10, 0));
    assert!(message(6).unwrap_err().problem.contains("41943040"));
    let audit = admin.audit(&relay(), 10).await.unwrap();
    let edits: Vec<_> = audit.iter().filter(|record| record.action == "edit").collect();
    assert!(
        edits.len() == 2 && edits.iter().all(|record| record.subject.digest_after.is_some()),
        "{edits:?}"
    );
}

/// Goal: long headers of small messages fill a page as long payloads do. Oracle: no page of the
/// log, of due or of held entries exceeds its limit, and together the pages return every entry.
async fn headers_count_in_a_page_as_payloads_do<DB: TestDialect>(db: &Database<DB>) {
    const COUNT: usize = 24;
    let long = |n: usize| {
        let message = NewMessage::new("orders").key(format!("key-{}", n % 2)).payload(vec![0; n]);
        (0..50).fold(message, |message, header| message.header(format!("h{header}"), "x".repeat(8_000)))
    };
    db.enqueue((0..COUNT).map(long)).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit = PageLimit { entries_max: 1_000, ..LIMIT };
    let mut count = 0;
    while let Some(page) = follower.next().await {
        let bytes: usize = page.iter().map(Entry::bytes).sum();
        assert!(bytes <= LIMIT.bytes_max, "{} entries of {bytes} bytes in one page", page.len());
        assert!(page.iter().all(|entry| entry.message.is_ok()));
        count += page.len();
    }
    assert_eq!(count, COUNT);
    let (_, _, all) = park_all(db, |entry| match entry.key() {
        Some("key-0") => ExceptionState::Retrying,
        _ => ExceptionState::Held,
    })
    .await;
    assert_eq!(all.len(), COUNT);
    let limit = PageLimit { entries_max: 1_000, ..LIMIT };
    let mut reader = db.reader().await;
    let mut found = due(&mut reader, limit).await;
    found.extend(held(&mut reader, &["key-1"], limit).await);
    assert_eq!(entries(&found).filter(|entry| entry.message.is_ok()).count(), COUNT);
}

/// Goal: commands show rows of any size, in answers of bounded size. Oracle: the sizes of the rows;
/// their contents within the limit, and a reason beyond it.
async fn operators_see_rows_of_any_size<DB: TestDialect>(db: &Database<DB>) {
    write_large(db).await;
    let long = |n: usize| {
        let message = NewMessage::new("orders").payload(vec![0; n]);
        (0..100).fold(message, |message, header| message.header(format!("h{header}"), "x".repeat(8_000)))
    };
    db.enqueue((0..20).map(long)).await;
    let (_, entries) = outbox_log::entries::open(db.url.as_str(), source(), LogOptions::default()).unwrap();
    let extent = entries.extent(&relay()).await.unwrap();
    let mut found = Vec::new();
    let mut after = EntryId(0);
    loop {
        let page = entries.select(&relay(), &extent, &Selection::default(), after).await.unwrap();
        let bytes: u64 = page.entries.iter().map(|entry| entry.labels.bytes()).sum();
        assert!(bytes < 9 << 20, "{} entries with {bytes} bytes of headers", page.entries.len());
        found.extend(page.entries);
        after = page.seen_to;
        if page.exhausted {
            break;
        }
    }
    assert_eq!(found.len(), 26);
    assert!(found.iter().all(|entry| entry.standing == Standing::Waiting));
    assert_eq!(found[5].payload_bytes, 40 << 20);
    let story = entries.find(&relay(), EntryRef::Id(EntryId(6))).await.unwrap();
    assert_eq!((story.len(), story[0].payload_bytes), (1, Some(40 << 20)));
    let ids: Vec<_> = found.iter().take(6).map(|entry| (entry.id, entry.message_id)).collect();
    check_large(&entries.contents(&ids, LIMIT.row).await.unwrap());
}

/// Goal: headers whose text is longer than the server can produce (1 GiB) do not fail the page.
/// Oracle: the entry and its neighbour, in the log and parked; an edit repairs it.
async fn headers_that_the_server_cannot_write_are_refused(db: &Database<Postgres>) {
    let headers = r"jsonb_build_object('h', repeat(E'\x01', 200000000))";
    insert(db, "topic, key, headers, payload", &format!("'orders', 'a', {headers}, '1'")).await;
    insert(db, "topic, key, payload", "'orders', 'b', '2'").await;
    let (_, _, entries) = park_all(db, |_| ExceptionState::Dead).await;
    assert!(problem(&entries[0]).unwrap().contains("headers of more than 134217728 bytes"), "{entries:?}");
    assert!(entries[1].message.is_ok());
    let (admin, log) = outbox_log::entries::open(db.url.as_str(), source(), LogOptions::default()).unwrap();
    assert_eq!(log.find(&relay(), EntryRef::Id(EntryId(1))).await.unwrap().len(), 1);
    for decision in
        [Decision::Requeue, Decision::Edit { payload: None, headers: Some(Headers::new()), replaces: None }]
    {
        let is_edit = decision != Decision::Requeue;
        if is_edit {
            assert!(problem(&due(&mut db.reader().await, LIMIT).await[0].entry).is_some());
            db.run("UPDATE outbox_exception SET state = 'dead' WHERE id = 1").await;
        }
        let (actor, note) = (String::from("ann"), String::from("a test"));
        let decree = OperatorDecision { decision, signature: outbox::Signature::new(actor, note) };
        let dead = admin.list(&relay(), ExceptionState::Dead, EntryId(0), 1).await.unwrap();
        let verdicts = admin.decide(&relay(), &[ChosenEntry::from(&dead[0])], decree).await.unwrap();
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    }
}

async fn bytes_that_are_no_utf8_in_a_text(db: &Database<Sqlite>) {
    no_utf8(db, |hex| format!("CAST(x'{hex}' AS TEXT)")).await;
}

/// Goal: no row gets an id that relays have passed, and none uses up the ids. Oracle: the refusals,
/// and the entries that a relay reads.
async fn an_id_that_a_row_brings_along_is_refused(db: &Database<Sqlite>) {
    let copied = async |id: i64| {
        let sql = format!("INSERT INTO outbox_message (id, topic, payload) VALUES ({id}, 'orders', x'00')");
        Sqlite::execute(&mut db.admin.acquire().await.unwrap(), &sql).await.map_err(|error| error.to_string())
    };
    for id in [i64::MIN, -1, 0, i64::MAX] {
        let refused = copied(id).await.unwrap_err();
        assert!(refused.contains("leave the column out"), "{id}: {refused}");
    }
    insert(db, "topic, payload", "'orders', x'00'), ('orders', x'01'), ('orders', x'02'").await;
    db.run("DELETE FROM outbox_message WHERE id = 2").await;
    assert!(copied(2).await.is_err(), "retention has removed the row with this id");
    assert_eq!(copied(4).await, Ok(1), "the sequence of a restored file can be behind its rows");
    insert(db, "topic, payload", "'orders', x'03'").await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let entries = Follower::new(db.reader().await, cursor).all().await;
    assert_eq!(entries.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), [1, 3, 4, 5]);
}

async fn bytes_that_are_no_utf8_in_a_database_without_encoding() {
    let how = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    let db = Database::<Postgres>::at(copies::postgres(how).await.unwrap()).await;
    no_utf8(&db, |hex| format!("convert_from('\\x{hex}', 'SQL_ASCII')")).await;
    db.close().await;
}

const COLUMNS: [&str; 5] = ["topic", "key", "kind", "content_type", "headers"];

/// Goal: bytes that are not UTF-8 stop only their own row, whichever column has them. Oracle: the
/// rows in between are messages; the reason names the column; the row can be parked and found by
/// its key, but is still not a message afterwards.
async fn no_utf8<DB: TestDialect>(db: &Database<DB>, text: impl Fn(&str) -> String) {
    let (payload, cast) = if DB::NAME == "SQLite" { ("x'7b7d'", "") } else { ("'{}'", "::jsonb") };
    for column in COLUMNS {
        // {"a":"\xff"}
        let value = text("7b2261223a22ff227d");
        match column {
            "topic" => insert(db, "topic, payload", &format!("{value}, {payload}")).await,
            "headers" => {
                insert(db, "topic, headers, payload", &format!("'orders', {value}{cast}, {payload}")).await;
            }
            _ => {
                insert(db, &format!("topic, {column}, payload"), &format!("'orders', {value}, {payload}"))
                    .await;
            }
        }
        db.enqueue([NewMessage::new("orders").key("caf\u{e9}").json(&1)]).await;
    }
    let state = |entry: &Entry| {
        let is_invalid = entry.message.is_err();
        if is_invalid && entry.key().is_some() { ExceptionState::Held } else { ExceptionState::Retrying }
    };
    let (_, _, all) = park_all(db, state).await;
    let valid: Vec<_> = all.iter().filter_map(|entry| entry.message.as_ref().ok()).collect();
    assert_eq!(valid.len(), COLUMNS.len());
    assert!(valid.iter().all(|message| message.key.as_ref().unwrap().as_str() == "caf\u{e9}"));
    let problems: Vec<_> = all.iter().filter_map(problem).collect();
    assert_eq!(problems.len(), COLUMNS.len());
    for (column, problem) in COLUMNS.iter().zip(&problems) {
        let name = column.replace('_', " ");
        assert!(problem.contains(&name) && problem.contains("not UTF-8 at byte"), "{column}: {problem}");
        assert!(*column == "headers" || problem.contains(r"\xff"), "{column}: {problem}");
    }

    let mut reader = db.reader().await;
    let queues = reader.held_queues(None, 10).await.unwrap().queues;
    assert_eq!(queues.len(), 1, "{queues:?}");
    let ask = HeldAsk { queue: queues[0].name.clone(), from: queues[0].first };
    let pages = reader.read_held(&[ask], LIMIT).await.unwrap();
    assert_eq!(pages[0].exceptions.len(), 1);
    assert!(problem(&pages[0].exceptions[0].entry).unwrap().contains("not UTF-8"));
    let due = due(&mut reader, LIMIT).await;
    assert_eq!(due.len(), 2 * COLUMNS.len() - 1);
    assert_eq!(entries(&due).filter(|entry| entry.message.is_ok()).count(), COLUMNS.len());

    let (admin, log) = outbox_log::entries::open(db.url.as_str(), source(), LogOptions::default()).unwrap();
    let extent = log.extent(&relay()).await.unwrap();
    let page = log.select(&relay(), &extent, &Selection::default(), EntryId(0)).await.unwrap();
    assert_eq!(page.entries.len(), 2 * COLUMNS.len());
    let ids: Vec<_> = page.entries.iter().map(|entry| (entry.id, entry.message_id)).collect();
    let contents = log.contents(&ids, LIMIT.row).await.unwrap();
    assert_eq!(contents.iter().filter(|entry| entry.message.is_ok()).count(), COLUMNS.len());
    for entry in &all {
        assert_eq!(log.find(&relay(), EntryRef::Id(entry.id)).await.unwrap().len(), 1);
    }
    assert_eq!(log.lag(&relay()).await.unwrap().len(), 2, "two topics");
    let listed = admin.list(&relay(), ExceptionState::Retrying, EntryId(0), 100).await.unwrap();
    assert_eq!(listed.len(), due.len());
    // The relay has carried out a discard of each: only their rows are left.
    db.run("DELETE FROM outbox_parked").await;
    db.run("DELETE FROM outbox_exception").await;
    db.run(
        "INSERT INTO outbox_audit (actor, relay, id, message_id, action, note) \
         SELECT 'ops', 'main', id, message_id, 'discard', 'unusable' FROM outbox_message",
    )
    .await;
    let discarded = admin.list(&relay(), ExceptionState::Discarded, EntryId(0), 100).await.unwrap();
    assert_eq!(discarded.len(), 2 * COLUMNS.len());
}

/// Goal: an error text with any character does not stop a checkpoint. Oracle: it is stored, with
/// escapes.
async fn an_error_is_stored_in_a_database_of_any_encoding() {
    let how = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    let db = Database::<Postgres>::at(copies::postgres(how).await.unwrap()).await;
    let headers = "jsonb_build_object('h', repeat('x', 9000))";
    insert(&db, "topic, key, headers, payload", &format!("'orders', chr(233), {headers}, ''")).await;
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    let entries = follower.all().await;
    assert_eq!(entries[0].key(), Some("\u{e9}"));
    let ExceptionChange::Park(mut change) = parked(&entries[0], ExceptionState::Dead) else { unreachable!() };
    change.error = Some(String::from("h: \u{2026} has 9000 bytes"));
    let changes = [ExceptionChange::Park(change)];
    assert_eq!(store.checkpoint(lease.epoch, &follower.cursor(), &changes).await.unwrap(), Fenced::Held);
    let trouble = BrokerTrouble::of("no \u{2026}", true, time::OffsetDateTime::UNIX_EPOCH);
    store.note_trouble(lease.epoch, Some(trouble)).await.unwrap();
    let (admin, _) = outbox_log::entries::open(db.url.as_str(), source(), LogOptions::default()).unwrap();
    let noted = admin.relay(&relay()).await.unwrap().unwrap().broker_trouble.unwrap();
    assert_eq!(noted.error, r"no \u{2026}");
    let listed = admin.list(&relay(), ExceptionState::Dead, EntryId(0), 10).await.unwrap();
    assert_eq!(listed[0].key.as_deref(), Some("\u{e9}"));
    assert_eq!(listed[0].error.as_deref(), Some(r"h: \u{2026} has 9000 bytes"));
    db.close().await;
}
