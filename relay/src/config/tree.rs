//! The settings as a tree. Each key and value remembers where it came from.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The place where a key or value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A range of bytes in the file.
    File(Range<usize>),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(&'static str),
    /// Nowhere: the value is a default.
    Default,
}

/// A value and its place. Has no `Debug`: it may hold a secret.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// A value.
#[derive(Clone)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Node>),
    Table(Table),
}

/// A section.
pub(crate) type Table = BTreeMap<String, Entry>;

/// A key, its place, and its value.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) key_origin: Origin,
    pub(crate) node: Node,
}

/// The error for a file that is not TOML.
pub(crate) struct NotToml {
    pub(crate) message: String,
    pub(crate) span: Option<Range<usize>>,
}

impl Node {
    /// Parses a TOML text.
    pub(crate) fn parse(text: &str) -> Result<Self, NotToml> {
        let error =
            |error: toml::de::Error| NotToml { message: error.message().to_owned(), span: error.span() };
        let document = DeTable::parse(text).map_err(error)?;
        let origin = Origin::File(document.span());
        Ok(Self { value: Value::Table(table(document.into_inner())?), origin })
    }

    /// Returns the value at a path such as `pipeline[1].kafka.tls`, or the nearest existing section
    /// above it.
    pub(crate) fn nearest(&self, path: &str) -> &Self {
        self.below(path).unwrap_or(self)
    }

    /// Returns the value nearest to a path; `None` if its first step leads nowhere.
    fn below(&self, path: &str) -> Option<&Self> {
        match &self.value {
            Value::Table(table) => {
                let path = path.strip_prefix('.').unwrap_or(path);
                let keys = table.keys().filter(|key| after(path, key).is_some());
                let key = keys.max_by_key(|key| key.len())?;
                Some(table.get(key)?.node.nearest(after(path, key)?))
            }
            Value::List(list) => {
                let path = path.strip_prefix('[')?;
                let index = path.split(']').next()?;
                let item = list.get(index.parse::<usize>().ok()?)?;
                Some(item.nearest(path.get(index.len() + 1..)?))
            }
            _ => None,
        }
    }

    /// Returns the kind of value, in an operator's words.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a string",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number with a fraction",
            Value::Bool(_) => "true or false",
            Value::List(_) => "a list",
            Value::Table(_) => "a section",
        }
    }
}

/// Returns what follows a key at the beginning of a path; `None` if the path does not begin with
/// it. A key may have dots: a host, a topic.
fn after<'a>(path: &'a str, key: &str) -> Option<&'a str> {
    path.strip_prefix(key).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn table(table: DeTable<'_>) -> Result<Table, NotToml> {
    table
        .into_iter()
        .map(|(key, value)| {
            let key_origin = Origin::File(key.span());
            Ok((key.into_inner().into_owned(), Entry { key_origin, node: node(value)? }))
        })
        .collect()
}

fn node(value: Spanned<DeValue<'_>>) -> Result<Node, NotToml> {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Boolean(bool) => Value::Bool(bool),
        DeValue::Datetime(datetime) => Value::Text(datetime.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => {
                let message = format!("{number} is too large for an integer");
                return Err(NotToml { message, span: Some(span) });
            }
        },
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => Value::Float(number),
            Err(_) => {
                let message = format!("{number} is not a number");
                return Err(NotToml { message, span: Some(span) });
            }
        },
        DeValue::Array(list) => Value::List(list.into_iter().map(node).collect::<Result<_, _>>()?),
        DeValue::Table(inner) => Value::Table(table(inner)?),
    };
    Ok(Node { value, origin: Origin::File(span) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_place() {
        let text = "[[pipeline]]\nname = 'a'\nport = 0x10\n[pipeline.kafka]\nlinger_ms = 5\n";
        let tree = Node::parse(text).ok().unwrap();
        let place = |path: &str| match &tree.nearest(path).origin {
            Origin::File(span) => &text[span.clone()],
            _ => "",
        };
        assert_eq!(place("pipeline[0].name"), "'a'");
        assert_eq!(place("pipeline[0].kafka.linger_ms"), "5");
        assert!(matches!(tree.nearest("pipeline[0].port").value, Value::Integer(16)));
        // For a missing setting, the nearest section is shown.
        assert!(place("pipeline[0].kafka.tls.ca_file").starts_with("[pipeline.kafka]"));
    }

    #[test]
    fn a_key_with_dots_has_its_own_place() {
        let text = "[hosts.\"a.example\"]\nn = 1\n[hosts.\"*.a.example\"]\nn = 2\n[hosts.a]\nexample = 3\n\
                    [hosts.\"[::1]:80\"]\nn = 4\n";
        let tree = Node::parse(text).ok().unwrap();
        for (path, place) in [
            ("hosts.a.example", "[hosts.\"a.example\"]"),
            ("hosts.a.example.n", "1"),
            ("hosts.*.a.example", "[hosts.\"*.a.example\"]"),
            ("hosts.*.a.example.n", "2"),
            ("hosts.*.a.example.m[0]", "[hosts.\"*.a.example\"]"),
            ("hosts.a.other", "[hosts.a]"),
            ("hosts.[::1]:80.n", "4"),
        ] {
            let Origin::File(span) = &tree.nearest(path).origin else { panic!("{path}: no place") };
            assert!(text[span.clone()].starts_with(place), "{path}: {}", &text[span.clone()]);
        }
    }

    #[test]
    fn a_text_that_is_not_toml_names_the_place() {
        let error = Node::parse("[log]\nlevel = \n").err().unwrap();
        assert!(error.span.is_some() && !error.message.is_empty());
    }
}
