//! The foreign outbox table that `relay adopt` takes over.

use std::collections::BTreeMap;

use message::{ContentType, HeaderName, InvalidText, Topic};
use migrations::{Identifier, InvalidIdentifier};
use schemars::JsonSchema;
use serde::Deserialize;

use super::check::Problems;

/// The header with the old id where Debezium published before: the event router's own name.
const ID_HEADER_OF_DEBEZIUM: &str = "id";
/// The same for every other table.
const ID_HEADER: &str = "legacy-id";

/// The section `[pipeline.adopt]` as it is written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdoptSection {
    /// The old outbox table, with or without its schema.
    pub(crate) table: String,
    #[serde(default)]
    pub(crate) columns: ColumnsSection,
    /// One topic for all rows, for a table without a column of topics.
    pub(crate) topic: Option<String>,
    /// Stands before what the column of topics holds.
    pub(crate) topic_prefix: Option<String>,
    /// A column that tells whether a row waits: null, or a boolean that is not true.
    pub(crate) pending: Option<String>,
    /// The value of `pending` while a row waits, for a column of words.
    pub(crate) pending_value: Option<String>,
    /// The value of `pending` once the row was handed over.
    pub(crate) sent_value: Option<String>,
    /// The column by which waiting rows are ordered.
    pub(crate) order_by: Option<String>,
    /// The publication from which Debezium reads the table.
    pub(crate) publication: Option<String>,
    /// The header that carries the old id.
    pub(crate) id_header: Option<String>,
    /// Further headers: names, and the columns that they are taken from.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// The content type of all payloads; otherwise it follows from the column's type.
    pub(crate) content_type: Option<String>,
    #[serde(default)]
    pub(crate) null_payload: NullPayload,
}

/// The columns of the old table. Left out, they are those of Debezium's event router.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnsSection {
    pub(crate) id: Option<String>,
    pub(crate) topic: Option<String>,
    /// Empty for a table without keys.
    pub(crate) key: Option<String>,
    /// Empty for a table without kinds.
    pub(crate) kind: Option<String>,
    pub(crate) payload: Option<String>,
}

/// The fate of a row without a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NullPayload {
    /// The producer's `INSERT` fails.
    #[default]
    Refuse,
    /// It leaves as a message of zero bytes, which is no tombstone for Kafka.
    Empty,
}

/// The foreign outbox table that `relay adopt` takes over, and what its columns mean.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The table's schema; none leaves it to the `search_path`.
    pub schema: Option<Identifier>,
    /// The table.
    pub table: Identifier,
    /// The column of the old id.
    pub id: Identifier,
    /// Where the topic comes from.
    pub topic: AdoptedTopic,
    /// The column of the ordering key.
    pub key: Option<Identifier>,
    /// The column of the kind.
    pub kind: Option<Identifier>,
    /// The column of the payload.
    pub payload: Identifier,
    /// Which rows wait; none where the table does not tell.
    pub pending: Option<Pending>,
    /// The column by which waiting rows are ordered; the old id where none is given.
    pub order_by: Option<Identifier>,
    /// The publication that the table leaves.
    pub publication: Option<Identifier>,
    /// The header that carries the old id.
    pub id_header: HeaderName,
    /// Further headers and their columns.
    pub headers: Vec<(HeaderName, Identifier)>,
    /// The content type, where it does not follow from the column's type.
    pub content_type: Option<ContentType>,
    /// The fate of a row without a payload.
    pub null_payload: NullPayload,
}

/// Where the topic of a row comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptedTopic {
    /// All rows have this one.
    Fixed(Topic),
    /// A column, behind a prefix that may be empty.
    Column {
        /// The text before the column's.
        prefix: String,
        /// The column.
        column: Identifier,
    },
}

/// A column that tells whether a row waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The column.
    pub column: Identifier,
    /// Its values before and after the row was sent; without them it is null, or not true.
    pub values: Option<(String, String)>,
}

impl Adoption {
    /// The checked section; what is wrong goes into `problems`.
    pub(super) fn check(section: AdoptSection, path: &str, problems: &mut Problems) -> Option<Self> {
        let mut names = Names { path: format!("{path}.adopt"), problems };
        let (schema, table) = match section.table.split_once('.') {
            Some((schema, table)) => {
                (names.identifier("table", schema).map(Some), names.identifier("table", table))
            }
            None => (Some(None), names.identifier("table", &section.table)),
        };
        let columns = section.columns;
        let id = names.column("id", columns.id, "id");
        let payload = names.column("payload", columns.payload, "payload");
        let key = names.optional_column("key", columns.key, "aggregateid");
        let kind = names.optional_column("kind", columns.kind, "type");
        let topic = names.topic(section.topic, section.topic_prefix, columns.topic);
        if section.publication.is_some() && section.pending.is_some() {
            let message = "publication and pending are given: a row that waits would leave twice";
            let help = "Debezium publishes what its publication has: remove pending. \
                        A table that a poller reads needs no publication";
            names.problem("publication", message, Some(help));
        }
        let pending = names.pending(section.pending, section.pending_value, section.sent_value);
        let order_by = names.given("order_by", section.order_by);
        let default = if section.publication.is_some() { ID_HEADER_OF_DEBEZIUM } else { ID_HEADER };
        let id_header = section.id_header.unwrap_or_else(|| default.to_owned());
        let id_header = names.checked("id_header", HeaderName::new(id_header));
        let headers = names.headers(section.headers, id_header.as_ref());
        let content_type = section.content_type.map(ContentType::new).transpose();
        Some(Self {
            schema: schema?,
            table: table?,
            id: id?,
            topic: topic?,
            key: key?,
            kind: kind?,
            payload: payload?,
            pending: pending?,
            order_by: order_by?,
            publication: names.given("publication", section.publication)?,
            id_header: id_header?,
            headers: headers?,
            content_type: names.checked("content_type", content_type)?,
            null_payload: section.null_payload,
        })
    }

    /// The table as the configuration names it.
    #[must_use]
    pub fn table_name(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.table),
            None => self.table.to_string(),
        }
    }
}

/// Checks settings of the section; each is `None` when it is wrong.
struct Names<'a> {
    path: String,
    problems: &'a mut Problems,
}

impl Names<'_> {
    fn problem(&mut self, setting: &str, message: impl Into<String>, help: Option<&str>) {
        self.problems.add(format!("{}.{setting}", self.path), message, help);
    }

    fn checked<T>(&mut self, setting: &str, value: Result<T, InvalidText>) -> Option<T> {
        value.map_err(|error| self.problem(setting, error.to_string(), None)).ok()
    }

    fn identifier(&mut self, setting: &str, name: &str) -> Option<Identifier> {
        Identifier::new(name)
            .map_err(|error: InvalidIdentifier| self.problem(setting, error.to_string(), None))
            .ok()
    }

    fn given(&mut self, setting: &str, name: Option<String>) -> Option<Option<Identifier>> {
        match name {
            Some(name) => self.identifier(setting, &name).map(Some),
            None => Some(None),
        }
    }

    fn column(&mut self, what: &str, name: Option<String>, default: &str) -> Option<Identifier> {
        self.identifier(&format!("columns.{what}"), name.as_deref().unwrap_or(default))
    }

    /// A column that the table may lack: an empty name says so.
    fn optional_column(
        &mut self,
        what: &str,
        name: Option<String>,
        default: &str,
    ) -> Option<Option<Identifier>> {
        match name {
            Some(name) if name.is_empty() => Some(None),
            name => self.column(what, name, default).map(Some),
        }
    }

    fn topic(
        &mut self,
        fixed: Option<String>,
        prefix: Option<String>,
        column: Option<String>,
    ) -> Option<AdoptedTopic> {
        let Some(topic) = fixed else {
            let column = self.column("topic", column, "aggregatetype");
            let prefix = prefix.unwrap_or_default();
            if !prefix.is_empty() {
                self.checked("topic_prefix", Topic::new(prefix.clone()))?;
            }
            return Some(AdoptedTopic::Column { prefix, column: column? });
        };
        if prefix.is_some() || column.is_some() {
            let help = "topic is for a table without a column of topics: remove it, or the others";
            self.problem("topic", "topic is given beside topic_prefix or columns.topic", Some(help));
        }
        self.checked("topic", Topic::new(topic)).map(AdoptedTopic::Fixed)
    }

    fn pending(
        &mut self,
        column: Option<String>,
        before: Option<String>,
        after: Option<String>,
    ) -> Option<Option<Pending>> {
        let help = "pending = \"status\", pending_value = \"NEW\", sent_value = \"SENT\"";
        let values = match (before, after) {
            (None, None) => None,
            (Some(before), Some(after)) if before != after => Some((before, after)),
            (Some(_), Some(_)) => {
                self.problem("sent_value", "sent_value is pending_value", Some(help));
                return None;
            }
            _ => {
                self.problem("pending_value", "pending_value and sent_value go together", Some(help));
                return None;
            }
        };
        let Some(column) = column else {
            if values.is_some() {
                self.problem("pending_value", "there is no column: pending is missing", Some(help));
                return None;
            }
            return Some(None);
        };
        Some(Some(Pending { column: self.identifier("pending", &column)?, values }))
    }

    fn headers(
        &mut self,
        given: BTreeMap<String, String>,
        id_header: Option<&HeaderName>,
    ) -> Option<Vec<(HeaderName, Identifier)>> {
        let mut headers = Vec::new();
        let mut is_right = true;
        for (name, column) in given {
            let setting = format!("headers.{name}");
            let header = self.checked(&setting, HeaderName::new(name));
            if header.is_some() && header.as_ref() == id_header {
                let message = "this header carries the old id; choose another id_header";
                self.problem(&setting, message, None);
                is_right = false;
            }
            match (header, self.identifier(&setting, &column)) {
                (Some(header), Some(column)) => headers.push((header, column)),
                _ => is_right = false,
            }
        }
        is_right.then_some(headers)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, Overrides};
    use super::*;

    fn read(section: &str) -> Result<Adoption, String> {
        let text = format!(
            "[[pipeline]]\nname = 'orders'\n[pipeline.database]\nurl = 'postgres://u@127.0.0.1/d'\n\
             [pipeline.sqs]\n[pipeline.adopt]\n{section}"
        );
        let read = Config::read(Path::new("relay.toml"), &text, &Overrides::default());
        let (mut config, _) = read.map_err(|error| {
            let each = miette::Diagnostic::related(&error).into_iter().flatten();
            each.map(ToString::to_string).chain([error.to_string()]).collect::<Vec<_>>().join("\n")
        })?;
        config.pipelines.remove(0).adopt.ok_or_else(|| String::from("no adoption"))
    }

    #[test]
    fn left_out_columns_are_those_of_debezium() {
        let adoption = read("table = 'public.outboxevent'\npublication = 'dbz'").unwrap();
        assert_eq!(adoption.table_name(), "public.outboxevent");
        assert_eq!((adoption.id.as_str(), adoption.payload.as_str()), ("id", "payload"));
        assert_eq!(adoption.key.unwrap().as_str(), "aggregateid");
        assert_eq!(adoption.id_header.as_str(), "id");
        let AdoptedTopic::Column { prefix, column } = adoption.topic else { panic!("a column") };
        assert_eq!((prefix.as_str(), column.as_str()), ("", "aggregatetype"));
        let poller = read("table = 'jobs'\ntopic = 'orders'\ncolumns = { key = '' }").unwrap();
        assert_eq!((poller.key, poller.id_header.as_str()), (None, "legacy-id"));
        assert!(matches!(poller.topic, AdoptedTopic::Fixed(topic) if topic.as_str() == "orders"));
    }

    #[test]
    fn what_contradicts_itself_or_is_no_name_is_refused() {
        for (section, setting, told) in [
            ("table = 'a.b.c'", "adopt.table", "\"b.c\" is not usable as a name"),
            ("table = 'Outbox'", "adopt.table", "\"Outbox\""),
            ("table = 'o\"; DROP TABLE x; --'", "adopt.table", "not usable"),
            ("table = 'o'\ncolumns = { id = '' }", "adopt.columns.id", "not usable"),
            ("table = 'o'\ncolumns = { key = 'a b' }", "adopt.columns.key", "\"a b\""),
            ("table = 'o'\npublication = 'p'\npending = 'sent'", "adopt.publication", "twice"),
            ("table = 'o'\ntopic = 't'\ntopic_prefix = 'x'", "adopt.topic", "beside"),
            ("table = 'o'\ntopic = 'no spaces'", "adopt.topic", "character"),
            ("table = 'o'\ntopic_prefix = \"it's\"", "adopt.topic_prefix", "character"),
            ("table = 'o'\npending_value = 'NEW'", "adopt.pending_value", "go together"),
            ("table = 'o'\npending = 's'\npending_value = 'N'\nsent_value = 'N'", "sent_value", "is pending"),
            ("table = 'o'\nid_header = 'ce_id'", "adopt.id_header", "reserved"),
            ("table = 'o'\nheaders = { legacy-id = 'id' }", "adopt.headers.legacy-id", "old id"),
            ("table = 'o'\nheaders = { t = 'Tenant' }", "adopt.headers.t", "\"Tenant\""),
            ("table = 'o'\nnull_payload = 'drop'", "adopt.null_payload", "\"drop\" is not known"),
            ("tabel = 'o'", "adopt", "unknown setting `tabel`"),
        ] {
            let error = read(section).unwrap_err();
            assert!(error.contains(setting) && error.contains(told), "{section}: {error}");
        }
    }
}
