//! The section `[pipeline.adopt]` as written in the file.

use std::collections::BTreeMap;
use std::fmt;

use adopt::{NullPayload, WhenSent};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The section `[pipeline.adopt]`.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdoptSection {
    /// The old outbox table, with or without its schema. Names are written as in the catalog, with
    /// the same case and without quotes.
    pub(crate) table: String,
    #[serde(default)]
    pub(crate) columns: ColumnsSection,
    /// One topic for all rows, for a table without a column of topics.
    pub(crate) topic: Option<String>,
    /// The prefix for values of the topic column.
    pub(crate) topic_prefix: Option<String>,
    /// The topic for each value of the topic column, if the column holds something else, such as an
    /// event type.
    #[serde(default)]
    pub(crate) topics: BTreeMap<String, String>,
    /// The rows to take over, if the table also has others.
    pub(crate) only: Option<OnlySection>,
    /// A column that marks waiting rows: it is null, or a boolean that is not true.
    pub(crate) pending: Option<String>,
    /// The value of `pending` while a row waits, for a column of words; or several values.
    pub(crate) pending_value: Option<Words>,
    /// The value of `pending` after the handover.
    pub(crate) sent_value: Option<String>,
    #[serde(default)]
    pub(crate) when_sent: WhenSent,
    /// The column that orders waiting rows.
    pub(crate) order_by: Option<String>,
    /// The publication from which Debezium reads the table.
    pub(crate) publication: Option<String>,
    /// The header that carries the old id.
    pub(crate) id_header: Option<String>,
    /// Further headers: names, and the fields with their values.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, FieldSection>,
    /// The content type of all payloads. By default it follows from the column's type.
    pub(crate) content_type: Option<String>,
    #[serde(default)]
    pub(crate) null_payload: NullPayload,
}

/// The columns of the old table. By default they are those of Debezium's event router.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnsSection {
    pub(crate) id: Option<FieldSection>,
    pub(crate) topic: Option<FieldSection>,
    /// Empty for a table without keys.
    pub(crate) key: Option<FieldSection>,
    /// Empty for a table without kinds.
    pub(crate) kind: Option<FieldSection>,
    pub(crate) payload: Option<FieldSection>,
}

/// A condition on rows.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnlySection {
    pub(crate) column: String,
    /// A path into the JSON of the column.
    #[serde(default)]
    pub(crate) path: Vec<String>,
    /// The value in the selected rows; or several values.
    pub(crate) value: Words,
}

/// A column, or a path into a column that holds JSON.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum FieldSection {
    Column(String),
    Path(PathSection),
}

/// A path into a column that holds JSON.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathSection {
    pub(crate) column: String,
    /// Names of members, outermost first. A number is an index into a list, from 0.
    #[serde(default)]
    pub(crate) path: Vec<String>,
}

/// One word or several.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum Words {
    One(String),
    Several(Vec<String>),
}

impl FieldSection {
    pub(super) fn into_parts(self) -> (String, Vec<String>) {
        match self {
            Self::Column(column) => (column, Vec::new()),
            Self::Path(PathSection { column, path }) => (column, path),
        }
    }
}

impl Words {
    pub(super) fn into_list(self) -> Vec<String> {
        match self {
            Self::One(word) => vec![word],
            Self::Several(words) => words,
        }
    }
}

impl<'de> Deserialize<'de> for FieldSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Field;

        impl<'de> Visitor<'de> for Field {
            type Value = FieldSection;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column, or { column = \"…\", path = [\"…\"] }")
            }

            fn visit_str<E: Error>(self, column: &str) -> Result<FieldSection, E> {
                Ok(FieldSection::Column(column.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldSection, A::Error> {
                PathSection::deserialize(MapAccessDeserializer::new(map)).map(FieldSection::Path)
            }
        }

        deserializer.deserialize_any(Field)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;

        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a list of strings")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Words, E> {
                Ok(Words::One(word.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Words::Several(words))
            }
        }

        deserializer.deserialize_any(OneOrSeveral)
    }
}
