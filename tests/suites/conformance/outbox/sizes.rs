//! Sizes that a producer may pass: zero, the limit, one byte more, and a hundred times the limit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use message::{
    EventType, HEADER_VALUE_BYTES_MAX, HEADERS_MAX, Message, SizeLimit, Source, TEXT_BYTES_MAX, Topic,
};
use outbox::{EnqueueError, NewMessage, Outbox};
use outbox_log::Entry;

use crate::outbox::support::{Database, Follower, SMALL, TestDialect, granted};

tests::cases! { "outbox/sizes/{on}/{case}":
    every {
        a_part_of_any_size_is_stored_whole_or_refused_unsent,
        a_batch_of_any_length_is_stored_whole_and_in_order,
    }
    night every { a_call_with_half_a_million_messages_is_stored_whole_and_in_order }
}

/// A small limit, so that a test of a hundred times the limit is fast.
const LIMIT: SizeLimit = SizeLimit { destination: "the test", message_bytes_max: 32 << 10 };
/// Messages that one statement stores: `STATEMENT_ROWS_MAX` of the outbox.
const STATEMENT_ROWS: usize = 5_000;

/// The parts of a message.
#[derive(Debug, Clone)]
struct Parts {
    topic: String,
    key: Option<String>,
    kind: String,
    content_type: String,
    headers: Vec<(String, String)>,
    payload: String,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            topic: String::from("orders"),
            key: None,
            kind: String::from("order.placed"),
            content_type: String::from("text/plain"),
            headers: Vec::new(),
            payload: String::new(),
        }
    }
}

impl Parts {
    fn message(&self) -> NewMessage {
        let Self { topic, key, kind, content_type, headers, payload } = self.clone();
        let mut message = NewMessage::new(topic).kind(kind).content_type(content_type).payload(payload);
        for (name, value) in headers {
            message = message.header(name, value);
        }
        match key {
            Some(key) => message.key(key),
            None => message,
        }
    }

    /// Asserts that an entry of the log is this message, and that every relay with this limit
    /// accepts it.
    fn arrived_as(&self, entry: &Entry) {
        let message = entry.message.as_ref().unwrap();
        let headers: Vec<_> =
            message.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(message.topic.as_str(), self.topic);
        assert_eq!(message.key.as_ref().map(|key| key.as_str().to_owned()), self.key);
        assert_eq!(
            (message.kind.as_str(), message.content_type.as_str()),
            (&*self.kind, &*self.content_type)
        );
        assert_eq!(headers, self.headers);
        assert!(message.payload == self.payload, "{} bytes", message.payload.len());
        LIMIT.check(&of_longest_source(message.clone())).unwrap();
    }
}

/// Sets the longest source, because a relay adds its own source of up to 255 bytes.
fn of_longest_source(mut message: Message) -> Message {
    message.source = Source::new("s".repeat(TEXT_BYTES_MAX)).unwrap();
    message
}

/// A message, and the text of its refusal, or `None` for a message that is stored.
type Row = (Parts, Option<String>);

/// Returns messages in which each part is empty, at its limit, one byte above it, and a hundred
/// times as long.
fn rows() -> Vec<Row> {
    let text = |bytes: usize| "x".repeat(bytes);
    let too_long = |bytes: usize, max: usize| format!("has {bytes} bytes; the limit is {max}");
    let base = Parts::default;
    let mut rows = Vec::new();

    let empty = Message::new(Topic::new("orders").unwrap(), EventType::new("order.placed").unwrap(), "");
    let empty = empty.with_content_type(message::ContentType::new("text/plain").unwrap());
    let envelope = of_longest_source(empty).wire_bytes();
    let largest = LIMIT.message_bytes_max - envelope;
    for bytes in [0, largest, largest + 1, 100 * LIMIT.message_bytes_max] {
        let refused = (bytes > largest).then(|| {
            format!("has {} bytes with its envelope; the test takes at most 32768", bytes + envelope)
        });
        rows.push((Parts { payload: text(bytes), ..base() }, refused));
    }
    for bytes in [0, HEADER_VALUE_BYTES_MAX, HEADER_VALUE_BYTES_MAX + 1, 100 * HEADER_VALUE_BYTES_MAX] {
        let refused = (bytes > HEADER_VALUE_BYTES_MAX).then(|| too_long(bytes, HEADER_VALUE_BYTES_MAX));
        rows.push((Parts { headers: vec![(text(1), text(bytes))], ..base() }, refused));
    }
    for count in [0, HEADERS_MAX, HEADERS_MAX + 1, 100 * HEADERS_MAX] {
        let headers = (0..count).map(|n| (format!("{n:05x}"), String::new())).collect();
        let refused = (count > HEADERS_MAX).then(|| format!("more than {HEADERS_MAX} headers"));
        rows.push((Parts { headers, ..base() }, refused));
    }
    for bytes in [0, TEXT_BYTES_MAX, TEXT_BYTES_MAX + 1, 100 * TEXT_BYTES_MAX] {
        let refused = match bytes {
            0 => Some(String::from("is empty; give it 1 to 255 bytes")),
            TEXT_BYTES_MAX => None,
            _ => Some(too_long(bytes, TEXT_BYTES_MAX)),
        };
        for parts in [
            Parts { topic: text(bytes), ..base() },
            Parts { key: Some(text(bytes)), ..base() },
            Parts { kind: text(bytes), ..base() },
            Parts { content_type: text(bytes), ..base() },
            Parts { headers: vec![(text(bytes), text(1))], ..base() },
        ] {
            rows.push((parts, refused.clone()));
        }
    }
    rows
}

/// Goal: every call refuses a part that is too large, with its length and the limit, before it
/// sends anything. All other messages are stored whole and fit a relay with the same limit,
/// whatever its source. Oracle: the errors while the table is missing, because any statement would
/// report that; the entries that the log's reader returns.
async fn a_part_of_any_size_is_stored_whole_or_refused_unsent<DB: TestDialect>(db: &Database<DB>) {
    let outbox = Outbox::<DB>::builder().limit(LIMIT).build();
    let (refused, stored): (Vec<Row>, Vec<Row>) = rows().into_iter().partition(|(_, text)| text.is_some());
    db.run("ALTER TABLE outbox_message RENAME TO elsewhere").await;
    for (parts, text) in &refused {
        let mut tx = outbox.begin(&db.pool).await.unwrap();
        let staged = tx.stage(parts.message()).unwrap_err();
        tx.rollback().await.unwrap();
        let mut tx = db.pool.begin().await.unwrap();
        let one = outbox.enqueue(&mut tx, parts.message()).await.unwrap_err();
        let batch = [NewMessage::new("orders"), parts.message()];
        let in_batch = outbox.enqueue_batch(&mut tx, batch).await.unwrap_err();
        for error in [staged, one, in_batch] {
            assert!(matches!(error, EnqueueError::Invalid(_) | EnqueueError::Oversize(_)), "{error}");
            assert_eq!(error.fault(), message::Fault::Message);
            let error = error.to_string();
            assert!(error.contains(text.as_deref().unwrap()), "{error}, and not {text:?}");
            assert!(error.len() < 500, "{error}");
        }
    }
    db.run("ALTER TABLE elsewhere RENAME TO outbox_message").await;

    let mut tx = outbox.begin(&db.pool).await.unwrap();
    for (parts, _) in &stored {
        tx.enqueue(parts.message()).await.unwrap();
        tx.stage(parts.message()).unwrap();
    }
    tx.commit().await.unwrap();
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit.row = outbox_log::RowLimit::of(LIMIT);
    let entries = follower.all().await;
    assert_eq!(entries.len(), 2 * stored.len());
    // The staged messages follow the others.
    for ((parts, _), entry) in stored.iter().chain(&stored).zip(&entries) {
        parts.arrived_as(entry);
    }
}

/// Asserts that the log holds exactly these messages, in this order.
async fn holds<DB: TestDialect>(db: &Database<DB>, ids: &[String]) {
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    follower.limit = outbox_log::PageLimit { entries_max: 1_000, bytes_max: 8 << 20, ..SMALL };
    let mut place = 0;
    while let Some(page) = follower.next().await {
        for entry in page {
            assert_eq!(Some(&entry.message_id()), ids.get(place).as_ref().copied(), "at {place}");
            place += 1;
        }
    }
    assert_eq!(place, ids.len());
}

/// Enqueues `count` messages by one call. Returns their ids.
async fn enqueue<DB: TestDialect>(tx: &mut outbox::OutboxTransaction<DB>, count: usize) -> Vec<String> {
    let orders = std::iter::repeat_with(|| NewMessage::new("orders").payload("x")).take(count);
    let answers = tx.enqueue_batch(orders).await.unwrap();
    assert_eq!(answers.len(), count);
    answers.into_iter().map(|answer| answer.message_id().to_string()).collect()
}

/// Goal: one call stores a batch of any length, even if one statement cannot hold its messages or
/// bytes. Oracle: the answers, and the entries that the log's reader returns, in order.
async fn a_batch_of_any_length_is_stored_whole_and_in_order<DB: TestDialect>(db: &Database<DB>) {
    let mut ids = Vec::new();
    for count in [0, 1, STATEMENT_ROWS, STATEMENT_ROWS + 1] {
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        ids.extend(enqueue(&mut tx, count).await);
        tx.commit().await.unwrap();
    }
    // More bytes than the 32 MiB that one statement holds.
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    let payload = "x".repeat(900_000);
    let large = std::iter::repeat_with(|| NewMessage::new("orders").payload(payload.clone())).take(40);
    let answers = tx.enqueue_batch(large).await.unwrap();
    tx.commit().await.unwrap();
    ids.extend(answers.into_iter().map(|answer| answer.message_id().to_string()));
    holds(db, &ids).await;
    let largest = "SELECT count(*) FROM outbox_message WHERE length(payload) = 900000";
    assert_eq!(db.number(largest).await, 40);
}

/// Goal: one call stores a hundred times as much as one statement holds. Oracle: as above.
async fn a_call_with_half_a_million_messages_is_stored_whole_and_in_order<DB: TestDialect>(
    db: &Database<DB>,
) {
    let mut tx = db.outbox.begin(&db.pool).await.unwrap();
    if DB::NAME != "SQLite" {
        // The session is idle while half a million messages are made.
        DB::execute(tx.connection(), "SET LOCAL idle_in_transaction_session_timeout = 0").await.unwrap();
    }
    let ids = enqueue(&mut tx, 100 * STATEMENT_ROWS).await;
    tx.commit().await.unwrap();
    holds(db, &ids).await;
}
