//! Decodes the tree of settings into typed ones. Errors carry the path and the place of the
//! problem.
//!
//! Texts are accepted where numbers, booleans or lists are expected, because an environment
//! variable can hold nothing else.

use std::fmt::{self, Display};

use serde::de::value::{SeqDeserializer, StringDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::tree::{Entry, Node, Origin, Value};
use crate::near::nearest;

/// A problem with one setting, and its place.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The path, such as `pipeline[0].kafka.linger_ms`; empty for the whole configuration.
    pub(crate) path: String,
    /// The problem. Never contains the content of a text, which may be a secret.
    pub(crate) message: String,
    /// Advice on what to write instead.
    pub(crate) help: Option<String>,
    pub(crate) origin: Option<Origin>,
}

/// Reads typed settings.
pub(crate) fn decode<T: DeserializeOwned>(tree: &Node) -> Result<T, Wrong> {
    T::deserialize(Decoder(tree)).map_err(|wrong| wrong.at("", &tree.origin))
}

impl Wrong {
    fn new(message: impl Into<String>) -> Self {
        Self { path: String::new(), message: message.into(), help: None, origin: None }
    }

    /// Adds the step that led here. The origin stays the innermost one.
    fn at(mut self, step: &str, origin: &Origin) -> Self {
        let dot =
            if self.path.is_empty() || self.path.starts_with('[') || step.is_empty() { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
        self.origin.get_or_insert_with(|| origin.clone());
        self
    }
}

impl Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for Wrong {}

impl Error for Wrong {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Bool(_) => "true or false",
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => "a whole number",
            Unexpected::Float(_) => "a number with a fraction",
            Unexpected::Seq => "a list",
            Unexpected::Map => "a section",
            _ => "a string",
        };
        Self::new(format!("is {found}; expected {expected}"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        match found {
            Unexpected::Signed(_) | Unexpected::Unsigned(_) | Unexpected::Float(_) => {
                Self::new(format!("{found} is out of bounds; expected {expected}"))
            }
            _ => Self::new(format!("is invalid; expected {expected}")),
        }
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let mut wrong = Self::new(format!("unknown setting `{field}`{}", meant(field, known)));
        wrong.help = Some(format!("valid settings: {}", known.join(", ")));
        wrong
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        let mut wrong = Self::new(format!("{variant:?} is not a valid value{}", meant(variant, known)));
        wrong.help = Some(format!("use one of {}", known.join(", ")));
        wrong
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("the setting `{field}` is missing"))
    }
}

/// Returns a question about the known word that a misspelt one may mean.
fn meant(word: &str, known: &'static [&'static str]) -> String {
    let nearest = nearest(word, known.iter().copied());
    nearest.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default()
}

#[derive(Clone, Copy)]
struct Decoder<'a>(&'a Node);

impl Decoder<'_> {
    /// Returns the text, if the value is one.
    fn text(&self) -> Option<&str> {
        match &self.0.value {
            Value::Text(text) => Some(text.trim()),
            _ => None,
        }
    }
}

macro_rules! numbers {
    ($($method:ident => $type:ty, $visit:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
            match self.text() {
                Some(text) => match text.parse::<$type>() {
                    Ok(number) => visitor.$visit(number),
                    Err(error) => Err(Wrong::new(format!("is not a valid number: {error}"))),
                },
                None => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Decoder<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match &self.0.value {
            Value::Text(text) => visitor.visit_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Bool(bool) => visitor.visit_bool(*bool),
            Value::List(list) => visitor.visit_seq(List { items: list.iter(), index: 0 }),
            Value::Table(table) => visitor.visit_map(Section { entries: table.iter(), open: None }),
        }
    }

    numbers! {
        deserialize_i32 => i32, visit_i32;
        deserialize_i64 => i64, visit_i64;
        deserialize_u8 => u8, visit_u8;
        deserialize_u16 => u16, visit_u16;
        deserialize_u32 => u32, visit_u32;
        deserialize_u64 => u64, visit_u64;
        deserialize_f64 => f64, visit_f64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.text() {
            Some("true") => visitor.visit_bool(true),
            Some("false") => visitor.visit_bool(false),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    /// Accepts a text as a list whose items are separated by commas.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.text() {
            Some(text) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                visitor.visit_seq(SeqDeserializer::new(items.map(str::to_owned)))
            }
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match &self.0.value {
            // A derived visitor would accept a list as a struct.
            Value::Table(_) => self.deserialize_any(visitor),
            _ => Err(Wrong::new(format!("is {}; expected a section", self.0.kind()))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match &self.0.value {
            Value::Text(word) => {
                let word: StringDeserializer<Wrong> = word.clone().into_deserializer();
                visitor.visit_enum(word)
            }
            _ => Err(Wrong::new(format!("is {}; expected a string", self.0.kind()))),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u128 f32 char str string bytes byte_buf unit unit_struct tuple tuple_struct map identifier
        ignored_any
    }
}

/// The items of a list.
struct List<'a> {
    items: std::slice::Iter<'a, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for List<'_> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let step = format!("[{}]", self.index);
        self.index += 1;
        seed.deserialize(Decoder(node)).map(Some).map_err(|wrong| wrong.at(&step, &node.origin))
    }
}

/// The entries of a section.
struct Section<'a> {
    entries: std::collections::btree_map::Iter<'a, String, Entry>,
    open: Option<(&'a String, &'a Entry)>,
}

impl<'de> MapAccess<'de> for Section<'_> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        self.open = self.entries.next();
        let Some((key, entry)) = self.open else { return Ok(None) };
        let key: StringDeserializer<Wrong> = key.clone().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|wrong| wrong.at("", &entry.key_origin))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let Some((key, entry)) = self.open.take() else {
            return Err(Wrong::new("a value was requested before its key"));
        };
        seed.deserialize(Decoder(&entry.node)).map_err(|wrong| wrong.at(key, &entry.node.origin))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        port: u16,
        #[serde(default)]
        on: bool,
        #[serde(default)]
        hosts: Vec<String>,
        mode: Option<Mode>,
        #[serde(default)]
        rest: BTreeMap<String, i64>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Fast,
    }

    fn read(toml: &str) -> Result<Sample, Wrong> {
        decode(&Node::parse(toml).ok().unwrap())
    }

    #[test]
    fn texts_stand_for_what_is_expected() {
        let typed = read("port = 1\non = true\nhosts = ['a', 'b']\nmode = 'fast'\nrest = { x = 1 }").unwrap();
        let texts =
            read("port = '1'\non = 'true'\nhosts = 'a, b'\nmode = 'fast'\nrest = { x = '1' }").unwrap();
        assert_eq!(typed, texts);
    }

    #[test]
    fn every_error_names_path_place_and_remedy_but_no_text() {
        for (toml, path, message, place) in [
            ("port = 70000", "port", "out of bounds", "70000"),
            ("port = 's3cret'", "port", "not a valid number", "'s3cret'"),
            ("port = 1\non = 's3cret'", "on", "is a string; expected a boolean", "'s3cret'"),
            ("port = 1\nhosts = ['a', 5]", "hosts[1]", "is a whole number; expected a string", "5"),
            ("port = 1\nprot = 2", "", "unknown setting `prot`; did you mean `port`?", "prot"),
            (
                "port = 1\nmode = 'fats'",
                "mode",
                "\"fats\" is not a valid value; did you mean `fast`?",
                "'fats'",
            ),
            ("port = 1\nmode = 'slow'", "mode", "\"slow\" is not a valid value", "'slow'"),
            ("on = true", "", "the setting `port` is missing", ""),
        ] {
            let wrong = read(toml).unwrap_err();
            assert_eq!(wrong.path, path, "{toml}");
            assert!(wrong.message.contains(message) && !wrong.message.contains("s3cret"), "{wrong}");
            let Some(Origin::File(span)) = wrong.origin else { panic!("{toml}: no place") };
            assert_eq!(&toml[span], place);
        }
        assert!(read("port = 1\nprot = 2").unwrap_err().help.unwrap().contains("port, on, hosts"));
    }
}
