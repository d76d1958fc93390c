//! Values that the relay reads back from the database, and rows that plain SQL may have left there.

use message::Source;
use outbox_log::fuzzing::{Columns, cursor, entry, postgres_mark, sqlite_mark};

use crate::{bounded, record};

/// Reads a mark of PostgreSQL or SQLite, or a stored cursor.
pub fn marks(input: &[u8]) {
    let text = &*String::from_utf8_lossy(input);
    for rewrite in [postgres_mark, sqlite_mark, cursor] {
        match rewrite(text) {
            Ok(written) => {
                let again = rewrite(&written).expect("what was written can be read");
                assert_eq!(again, written);
            }
            Err(error) => bounded(&error.to_string()),
        }
    }
    if postgres_mark(text).is_ok() {
        in_flight(text);
    }
}

/// Demands that transactions in flight ascend and lie within the snapshot: the reader does a binary
/// search in them.
fn in_flight(text: &str) {
    let mut parts = text.split(['@', ':']).skip(1);
    let mut bound = || parts.next().and_then(|part| part.parse::<u64>().ok()).expect("a bound");
    let (xmin, xmax) = (bound(), bound());
    let list = parts.next().unwrap_or_default();
    let xids: Vec<u64> = list.split(',').filter_map(|xid| xid.parse().ok()).collect();
    assert!(xids.is_sorted_by(|one, next| one < next), "{text}");
    assert!(xids.iter().all(|xid| (xmin..xmax).contains(xid)), "{text}");
}

/// Reads a row of the outbox; the headers of a record are its columns.
pub fn rows(input: &[u8]) {
    let record = record::read(input);
    let topic = record.topic.as_bytes();
    let payload_bytes = record.payload.len();
    let mut columns: Columns = record.headers.into_iter().collect();
    columns.remove("key");
    columns.extend(record.key.map(|key| (String::from("key"), key)));
    columns.insert(String::from("topic"), topic.to_vec());
    columns.insert(String::from("payload"), record.payload);
    let source = Source::new("/orders").expect("a constant");
    let entry = entry(&columns, &source);
    assert!(entry.deliver_in.is_none_or(|wait| !wait.is_zero()));
    match &entry.message {
        Ok(message) => {
            assert_eq!(message.topic.as_str().as_bytes(), topic);
            assert!(message.wire_bytes() >= payload_bytes);
            // Consumers will need its time.
            assert!(message.id.generated_at().unix_timestamp() >= 0);
        }
        Err(invalid) => bounded(&invalid.problem),
    }
}
