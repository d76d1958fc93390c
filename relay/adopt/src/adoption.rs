//! A foreign outbox table, and what its columns mean.

use message::{ContentType, HeaderName, Topic};
use migrations::ForeignIdentifier;
use schemars::JsonSchema;
use serde::Deserialize;

/// The treatment of a row without a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NullPayload {
    /// The producer's `INSERT` fails.
    #[default]
    Refuse,
    /// It is published as an empty message, which is not a Kafka tombstone.
    Empty,
}

/// The treatment of a row after its handover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenSent {
    /// It stays, and `pending` marks it as sent.
    #[default]
    Mark,
    /// It is deleted: every remaining row waits, unless `pending` marks it as sent.
    Delete,
}

/// The foreign outbox table for `relay adopt`, and the meaning of its columns.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The table's schema; `None` leaves it to the `search_path`.
    pub schema: Option<ForeignIdentifier>,
    /// The table.
    pub table: ForeignIdentifier,
    /// The old id.
    pub id: Field,
    /// The origin of the topic.
    pub topic: AdoptedTopic,
    /// The ordering key.
    pub key: Option<Field>,
    /// The kind.
    pub kind: Option<Field>,
    /// The payload.
    pub payload: Field,
    /// The rows to take over; `None` for all.
    pub only: Option<Only>,
    /// The column that marks waiting rows; `None` if there is none.
    pub pending: Option<Pending>,
    /// The treatment of a row after its handover.
    pub when_sent: WhenSent,
    /// The column that orders waiting rows; by default that of the old id.
    pub order_by: Option<ForeignIdentifier>,
    /// The publication that the table leaves.
    pub publication: Option<ForeignIdentifier>,
    /// The header that carries the old id.
    pub id_header: HeaderName,
    /// Further headers and the fields with their values.
    pub headers: Vec<(HeaderName, Field)>,
    /// The content type, if it does not follow from the column's type.
    pub content_type: Option<ContentType>,
    /// The treatment of a row without a payload.
    pub null_payload: NullPayload,
}

/// A value of a row: a column, or a value inside a JSON column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The column.
    pub column: ForeignIdentifier,
    /// Names of members, outermost first; empty for the column itself.
    pub path: Vec<String>,
}

/// The origin of a row's topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptedTopic {
    /// The same topic for all rows.
    Fixed(Topic),
    /// A value of the row after a prefix, which may be empty.
    Field {
        /// The text before the value.
        prefix: String,
        /// The value.
        field: Field,
    },
    /// The topic for a value of the row; a row with any other value has none.
    Named {
        /// The value.
        field: Field,
        /// Values and their topics.
        topics: Vec<(String, Topic)>,
    },
}

impl AdoptedTopic {
    /// Returns the field that determines the topic.
    #[must_use]
    pub fn field(&self) -> Option<&Field> {
        match self {
            Self::Fixed(_) => None,
            Self::Field { field, .. } | Self::Named { field, .. } => Some(field),
        }
    }
}

/// A condition on rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Only {
    /// The field to compare.
    pub field: Field,
    /// Its values in the selected rows.
    pub values: Vec<String>,
}

/// A column that shows whether a row waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The column.
    pub column: ForeignIdentifier,
    /// Its values while the row waits; if empty, the row waits while it is null or not true.
    pub before: Vec<String>,
    /// Its value after the handover, if rows are marked by a word.
    pub after: Option<String>,
}

impl Adoption {
    /// Returns the table's name as in the configuration.
    #[must_use]
    pub fn table_name(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.table),
            None => self.table.to_string(),
        }
    }
}

impl std::fmt::Display for Field {
    /// Writes the column, followed by the path.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.column)?;
        self.path.iter().try_for_each(|step| write!(f, " → {step}"))
    }
}
