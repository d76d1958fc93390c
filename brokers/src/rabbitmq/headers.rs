//! Headers in the types of AMQP.

use lapin::types::AMQPValue;

/// The spellings of the prefix that are read; the first one is written.
pub(super) const PREFIXES: [&str; 2] = ["cloudEvents_", "cloudEvents:"];

/// Returns a header value as text; `None` for nested tables, arrays and bytes, such as the broker's
/// own `x-death`.
pub(super) fn header_text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        _ => return None,
    })
}

/// Depth at which the bytes of nested tables and arrays are no longer counted: the sender chooses
/// the depth, and each level takes stack. What is below is not kept either.
pub(super) const DEPTH_MAX: usize = 16;

/// Returns the bytes of a header value. Numbers count as 8.
pub(super) fn value_bytes(value: &AMQPValue) -> usize {
    bytes_within(value, 0)
}

fn bytes_within(value: &AMQPValue, depth: usize) -> usize {
    match value {
        _ if depth > DEPTH_MAX => 8,
        AMQPValue::LongString(text) => text.as_bytes().len(),
        AMQPValue::ShortString(text) => text.as_str().len(),
        AMQPValue::ByteArray(bytes) => bytes.as_slice().len(),
        AMQPValue::FieldArray(array) => {
            array.as_slice().iter().map(|value| bytes_within(value, depth + 1)).sum()
        }
        AMQPValue::FieldTable(table) => {
            let entries = table.inner().iter();
            entries.map(|(name, value)| name.as_str().len() + bytes_within(value, depth + 1)).sum()
        }
        _ => 8,
    }
}
