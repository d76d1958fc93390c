//! A breach of a promise, with everything that was observed about its subject.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use super::{Event, Violation};

/// The subject of a breach. Parts that do not apply are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// Messages. If two are compared, the wrong one comes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<Uuid>,
    /// A business row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<Arc<str>>,
    /// An operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Arc<str>>,
    /// An ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// A consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<Arc<str>>,
    /// A scope of that consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Arc<str>>,
    /// A lease, or a resource that is still held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Arc<str>>,
    /// The part in which copies differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
}

impl Subject {
    /// Returns a subject with one message.
    #[must_use]
    pub fn message(id: Uuid) -> Self {
        Self { ids: vec![id], ..Self::default() }
    }

    /// Returns a subject with one business row.
    #[must_use]
    pub fn row(row: &Arc<str>) -> Self {
        Self { row: Some(Arc::clone(row)), ..Self::default() }
    }
}

/// A breach of a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Breach {
    /// The kind of violation.
    pub violation: Violation,
    /// The subject of the breach.
    #[serde(flatten)]
    pub subject: Subject,
    /// Everything that was observed about the subject, in order: the shortest history that shows
    /// the breach.
    pub events: Vec<Event>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { ids, row, operation, key, consumer, scope, held, part } = &self.subject;
        match (operation, row, ids.first(), held) {
            (Some(operation), ..) => write!(f, "operation {operation}: ")?,
            (_, _, Some(id), _) => write!(f, "message {id}: ")?,
            (_, Some(row), ..) => write!(f, "row {row}: ")?,
            (.., Some(held)) => write!(f, "{held}: ")?,
            _ => {}
        }
        f.write_str(self.violation.text())?;
        if let Some(part) = part {
            write!(f, ": the {part} differs")?;
        }
        if let Some(other) = ids.get(1).filter(|_| operation.is_none()) {
            write!(f, ", which is {other}")?;
        }
        if let Some(key) = key {
            write!(f, " (key {key:?})")?;
        }
        if let Some(consumer) = consumer {
            write!(f, " (consumer {consumer:?}")?;
            if let Some(scope) = scope.as_ref().filter(|scope| !scope.is_empty()) {
                write!(f, ", scope {scope:?}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}
