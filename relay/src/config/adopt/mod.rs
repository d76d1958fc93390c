//! The section of the foreign outbox table that `relay adopt` takes over.
//!
//! | module | what it holds |
//! |---|---|
//! | `section` | the section as written in the file |
//! | `names` | the checks of its settings |

mod names;
mod section;

use adopt::{Adoption, WhenSent};
use message::HeaderName;

use super::problems::Problems;
use names::Names;
pub(crate) use section::AdoptSection;

/// The header with the old id in messages of Debezium: the name that its event router uses.
const ID_HEADER_OF_DEBEZIUM: &str = "id";
/// The header with the old id for every other table.
const ID_HEADER: &str = "legacy-id";

/// Returns the checked section. Adds its problems to `problems`.
pub(super) fn check(section: AdoptSection, path: &str, problems: &mut Problems) -> Option<Adoption> {
    let mut names = Names::new(format!("{path}.adopt"), problems);
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
    let topic = names.topic(section.topic, section.topic_prefix, section.topics, columns.topic);
    let only = names.only(section.only);
    let is_deleted = section.when_sent == WhenSent::Delete;
    if section.publication.is_some() && (section.pending.is_some() || is_deleted) {
        let setting = if section.pending.is_some() { "pending" } else { "when_sent" };
        let message =
            format!("publication and {setting} are both set: a waiting row would be published twice");
        let help = format!(
            "Debezium publishes the rows of its publication: remove {setting}. Or remove publication, if a poller reads the table"
        );
        names.problem("publication", message, Some(&help));
    }
    let pending =
        names.pending(section.pending, section.pending_value, section.sent_value, section.when_sent);
    let order_by = names.given("order_by", section.order_by);
    let default = if section.publication.is_some() { ID_HEADER_OF_DEBEZIUM } else { ID_HEADER };
    let id_header = section.id_header.unwrap_or_else(|| default.to_owned());
    let id_header = names.checked("id_header", HeaderName::new(id_header));
    let headers = names.headers(section.headers, id_header.as_ref());
    let content_type = names.content_type(section.content_type);
    Some(Adoption {
        schema: schema?,
        table: table?,
        id: id?,
        topic: topic?,
        key: key?,
        kind: kind?,
        payload: payload?,
        only: only?,
        pending: pending?,
        when_sent: section.when_sent,
        order_by: order_by?,
        publication: names.given("publication", section.publication)?,
        id_header: id_header?,
        headers: headers?,
        content_type: content_type?,
        null_payload: section.null_payload,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use adopt::AdoptedTopic;

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
        config.adoptions.remove(&config.pipelines[0].name).ok_or_else(|| String::from("no adoption"))
    }

    #[test]
    fn left_out_columns_are_those_of_debezium() {
        let adoption = read("table = 'public.outboxevent'\npublication = 'dbz'").unwrap();
        assert_eq!(adoption.table_name(), "public.outboxevent");
        assert_eq!((adoption.id.to_string(), adoption.payload.to_string()), ("id".into(), "payload".into()));
        assert_eq!(adoption.key.unwrap().to_string(), "aggregateid");
        assert_eq!(adoption.id_header.as_str(), "id");
        let AdoptedTopic::Field { prefix, field } = adoption.topic else { panic!("a column") };
        assert_eq!((prefix.as_str(), field.column.as_str()), ("", "aggregatetype"));
        let poller = read("table = 'jobs'\ntopic = 'orders'\ncolumns = { key = '' }").unwrap();
        assert_eq!((poller.key, poller.id_header.as_str()), (None, "legacy-id"));
        assert!(matches!(poller.topic, AdoptedTopic::Fixed(topic) if topic.as_str() == "orders"));
    }

    #[test]
    fn names_keep_their_case_and_values_may_lie_in_json() {
        let adoption = read(
            "table = 'cap.Published Events'\nwhen_sent = 'delete'\npending = 'StatusName'\n\
             pending_value = ['Scheduled', 'Failed']\ntopics = { 'urn:a' = 'orders', 'B' = 'bills' }\n\
             only = { column = 'Version', value = 'v1' }\n\
             [pipeline.adopt.columns]\nid = 'Id'\nkind = ''\ntopic = 'Name'\n\
             key = { column = 'Content', path = ['Headers', 'order-id'] }\n\
             payload = { column = 'Content', path = ['Value'] }\n\
             [pipeline.adopt.headers]\ncap-msg-id = { column = 'Content', path = ['Headers', 'cap-msg-id'] }",
        )
        .unwrap();
        assert_eq!(
            (adoption.table_name(), adoption.when_sent),
            ("cap.Published Events".into(), WhenSent::Delete)
        );
        assert_eq!(adoption.payload.path, ["Value"]);
        assert_eq!(adoption.key.unwrap().to_string(), "Content → Headers → order-id");
        assert_eq!(adoption.headers[0].1.path, ["Headers", "cap-msg-id"]);
        assert_eq!(adoption.pending.unwrap().before, ["Scheduled", "Failed"]);
        assert_eq!(adoption.only.unwrap().values, ["v1"]);
        let AdoptedTopic::Named { topics, .. } = adoption.topic else { panic!("named topics") };
        let topics: Vec<_> = topics.iter().map(|(value, topic)| (value.as_str(), topic.as_str())).collect();
        assert_eq!(topics, [("B", "bills"), ("urn:a", "orders")]);
    }

    #[test]
    fn what_contradicts_itself_or_is_no_name_is_refused() {
        for (section, setting, told) in [
            ("table = 'a.b.c'", "adopt.table", "\"b.c\" is not usable as a name"),
            ("table = '\"Outbox\"'", "adopt.table", "without quotes"),
            ("table = 'o\"; DROP TABLE x; --'", "adopt.table", "not usable"),
            ("table = 'o'\ncolumns = { id = '' }", "adopt.columns.id", "not usable"),
            ("table = 'o'\ncolumns = { key = ' a' }", "adopt.columns.key", "\" a\""),
            (
                "table = 'o'\ncolumns = { key = 5 }",
                "adopt.columns.key",
                "or { column = \"…\", path = [\"…\"] }",
            ),
            ("table = 'o'\ncolumns = { key = { path = ['a'] } }", "adopt.columns.key", "`column` is missing"),
            ("table = 'o'\ncolumns = { key = { column = 'a', pfad = [] } }", "adopt.columns.key", "`pfad`"),
            (
                "table = 'o'\ncolumns = { key = { column = 'a', path = [''] } }",
                "adopt.columns.key",
                "the path",
            ),
            ("table = 'o'\nonly = { column = 'a', value = [] }", "adopt.only.value", "the list is empty"),
            ("table = 'o'\nonly = { column = '$b$', value = 'x' }", "adopt.only.column", "\"$b$\""),
            ("table = 'o'\ntopics = { a = 'no spaces' }", "adopt.topics.a", "character"),
            (
                "table = 'o'\ntopic_prefix = 'x'\ntopics = { a = 't' }",
                "adopt.topic_prefix",
                "complete topics",
            ),
            ("table = 'o'\ntopic = 't'\ntopics = { a = 't' }", "adopt.topic", "cannot be combined"),
            ("table = 'o'\npublication = 'p'\npending = 'sent'", "adopt.publication", "twice"),
            ("table = 'o'\npublication = 'p'\nwhen_sent = 'delete'", "adopt.publication", "twice"),
            ("table = 'o'\ntopic = 't'\ntopic_prefix = 'x'", "adopt.topic", "cannot be combined"),
            ("table = 'o'\ntopic = 'no spaces'", "adopt.topic", "character"),
            ("table = 'o'\ntopic_prefix = \"it's\"", "adopt.topic_prefix", "character"),
            ("table = 'o'\npending_value = 'NEW'", "adopt.pending_value", "must be set together"),
            ("table = 'o'\nsent_value = 'SENT'", "adopt.pending_value", "must be set together"),
            ("table = 'o'\npending_value = 'N'\nwhen_sent = 'delete'", "adopt.pending_value", "no column"),
            ("table = 'o'\nsent_value = 'N'\nwhen_sent = 'delete'", "adopt.sent_value", "rows are deleted"),
            (
                "table = 'o'\npending = 's'\npending_value = ['O', 'N']\nsent_value = 'N'",
                "sent_value",
                "equals pending",
            ),
            ("table = 'o'\nid_header = 'ce_id'", "adopt.id_header", "reserved"),
            ("table = 'o'\nheaders = { legacy-id = 'id' }", "adopt.headers.legacy-id", "old id"),
            ("table = 'o'\nheaders = { t = 'Ten;ant' }", "adopt.headers.t", "\"Ten;ant\""),
            (
                "table = 'o'\ncontent_type = 'application/vnd.outbox.erased'",
                "adopt.content_type",
                "is reserved for messages that an operator has erased",
            ),
            ("table = 'o'\nnull_payload = 'drop'", "adopt.null_payload", "\"drop\" is not a valid value"),
            ("table = 'o'\nwhen_sent = 'archive'", "adopt.when_sent", "\"archive\" is not a valid value"),
            ("tabel = 'o'", "adopt", "unknown setting `tabel`"),
        ] {
            let error = read(section).unwrap_err();
            assert!(error.contains(setting) && error.contains(told), "{section}: {error}");
        }
    }
}
