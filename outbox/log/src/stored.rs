//! The stored form of the cursor, with what only operators read beside it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cursor::Cursor;
use crate::error::{LogError, quoted};
use crate::trouble::BrokerTrouble;

#[derive(Serialize)]
struct Stored<'a> {
    #[serde(flatten)]
    cursor: &'a Cursor,
    #[serde(flatten)]
    beside: Beside<&'a BrokerTrouble>,
}

#[derive(Serialize, Deserialize)]
struct Beside<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<T>,
}

/// Writes the cursor as JSON.
pub(crate) fn write(cursor: &Cursor) -> Result<String, LogError> {
    write_beside(cursor, None)
}

/// Writes the cursor as JSON, with the error that keeps the relay from its broker.
pub(crate) fn write_beside(cursor: &Cursor, broker: Option<&BrokerTrouble>) -> Result<String, LogError> {
    json(&Stored { cursor, beside: Beside { broker } })
}

/// Reads the cursor from JSON.
pub(crate) fn read(json: &str) -> Result<Cursor, LogError> {
    serde_json::from_str(json)
        .map_err(|error| LogError::Corrupt { what: "cursor", problem: format!("{}: {error}", quoted(json)) })
}

/// Writes the broker's error as JSON that is merged into a stored cursor.
pub(crate) fn trouble(broker: Option<&BrokerTrouble>) -> Result<String, LogError> {
    json(&Beside { broker })
}

/// Reads the broker's error beside a stored cursor. An unreadable one is left out, because only
/// operators read it.
pub(crate) fn read_trouble(json: &str) -> Option<BrokerTrouble> {
    serde_json::from_str::<Beside<BrokerTrouble>>(json).ok()?.broker
}

#[derive(Deserialize)]
struct Taken {
    /// Seconds from the checkpoint until the lease was first taken after it.
    taken_after: f64,
}

/// Reads how old the checkpoint was when the lease was first taken after it; `None` if it was not.
pub(crate) fn read_taken_after(json: &str) -> Option<Duration> {
    let Taken { taken_after } = serde_json::from_str(json).ok()?;
    Duration::try_from_secs_f64(taken_after).ok()
}

fn json(value: &impl Serialize) -> Result<String, LogError> {
    serde_json::to_string(value)
        .map_err(|error| LogError::Corrupt { what: "cursor", problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::{BrokerTransaction, Mark};

    #[test]
    fn a_cursor_is_the_same_with_and_without_a_trouble_beside_it() {
        let transaction = BrokerTransaction { log: String::from("l"), number: 1, is_rebased: false };
        let cursor = Cursor { transaction: Some(transaction), ..Cursor::at(Mark::new("0")) };
        let plain = write(&cursor).unwrap();
        assert_eq!(plain, serde_json::to_string(&cursor).unwrap());
        assert_eq!((read(&plain).unwrap(), read_trouble(&plain)), (cursor.clone(), None));
        let text = "refused: \"transaction\": \0\u{1}".repeat(100);
        let trouble = BrokerTrouble::of(&text, true, OffsetDateTime::UNIX_EPOCH);
        assert!(trouble.error.len() <= 1_000 && !trouble.error.contains('\0'));
        let beside = write_beside(&cursor, Some(&trouble)).unwrap();
        assert_eq!((read(&beside).unwrap(), read_trouble(&beside)), (cursor, Some(trouble)));
        // The checkpoint statement searches for this text, so a quoted error must not look like a
        // broker transaction.
        assert_eq!(beside.matches("\"transaction\":").count(), 1, "{beside}");
        assert_eq!(read_trouble(r#"{"base":"0","progress":null,"broker":{"since":"?"}}"#), None);
        assert_eq!(read_taken_after(&plain), None);
        let taken = plain.replacen('{', r#"{"taken_after": 1.5, "#, 1);
        assert_eq!(read_taken_after(&taken), Some(Duration::from_millis(1_500)));
        assert_eq!(read(&taken).unwrap(), read(&plain).unwrap());
    }
}
