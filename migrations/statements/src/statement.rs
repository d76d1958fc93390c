//! Statements for a driver to send, and the rows that it reads.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::error::Refused;

/// One statement for PostgreSQL, which answers with at most one row.
#[derive(Clone)]
pub struct Statement {
    text: &'static str,
    values: Vec<Value>,
}

/// The value of a parameter. The statement casts it to what it needs, so every driver binds one of
/// two types.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// A `text`, or null.
    Text(Option<String>),
    /// A `bytea`.
    Bytes(Bytes),
}

/// The row with which a statement answered.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// The column `answer`, of type `text`: the first one.
    pub answer: Option<String>,
    /// The column `payload`, of type `bytea`: the second and last one.
    pub payload: Option<Vec<u8>>,
}

impl Statement {
    pub(crate) fn new(text: &'static str, values: impl IntoIterator<Item = Value>) -> Self {
        Self { text, values: values.into_iter().collect() }
    }

    /// Returns the text, with the parameters `$1`, `$2` and so on. It is one of a few constants, so
    /// a driver can keep it prepared.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Returns the values of the parameters, in their order.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }
}

impl Value {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Some(text.into()))
    }

    pub(crate) fn optional(text: Option<impl Into<String>>) -> Self {
        Self::Text(text.map(Into::into))
    }
}

impl Row {
    /// Reads the answer of an operation.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        let answer = self.answer.as_deref().unwrap_or_default();
        serde_json::from_str(answer).map_err(|error| Refused::Answer { problem: error.to_string() })
    }
}

impl fmt::Debug for Statement {
    /// Prints the text and the number of values: they contain payloads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.len();
        f.debug_struct("Statement").field("text", &self.text).field("values", &values).finish()
    }
}

impl fmt::Debug for Value {
    /// Prints the size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(None) => f.write_str("null"),
            Self::Text(Some(text)) => write!(f, "<text of {} bytes>", text.len()),
            Self::Bytes(bytes) => write!(f, "<{} bytes>", bytes.len()),
        }
    }
}

impl fmt::Debug for Row {
    /// Prints the sizes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = self.answer.as_ref().map(String::len);
        let payload = self.payload.as_ref().map(Vec::len);
        f.debug_struct("Row").field("answer_bytes", &answer).field("payload_bytes", &payload).finish()
    }
}
