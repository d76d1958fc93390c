//! Envelopes that are a JSON object in the body.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::unmapped::Unmapped;
use crate::structured::Members;

/// The members of a JSON object, each as its own text.
pub(super) struct Object<'a> {
    /// Its name in errors: `SNS notification`.
    what: &'static str,
    members: Members<&'a RawValue>,
}

impl<'a> Object<'a> {
    /// Reads the body as an object with these members; `None` if it is anything else.
    ///
    /// # Errors
    /// [`Unmapped::Invalid`]: there are too many members, or one occurs twice.
    pub(super) fn with(
        what: &'static str,
        body: &'a [u8],
        members: &[&str],
    ) -> Result<Option<Self>, Unmapped> {
        // Most bodies have another form, and need not be parsed.
        if !members.iter().all(|name| contains(body, format!("\"{name}\"").as_bytes())) {
            return Ok(None);
        }
        let object = Self::unchecked(what, body);
        let object = object.filter(|object| members.iter().all(|name| object.raw(name).is_some()));
        object.map(Self::checked).transpose()
    }

    /// Reads a text as an object; `None` if it is anything else.
    ///
    /// # Errors
    /// [`Unmapped::Invalid`] as for [`with`](Self::with).
    pub(super) fn read(what: &'static str, body: &'a [u8]) -> Result<Option<Self>, Unmapped> {
        Self::unchecked(what, body).map(Self::checked).transpose()
    }

    /// Reads a text as an object, whose members may be missing or occur twice; `None` if it is
    /// anything else. To be [`checked`](Self::checked) once its form is known.
    pub(super) fn unchecked(what: &'static str, body: &'a [u8]) -> Option<Self> {
        let members = serde_json::from_slice(body).ok()?;
        Some(Self { what, members })
    }

    /// Returns the object if all its members were read, and each occurs once.
    ///
    /// # Errors
    /// [`Unmapped::Invalid`] as for [`with`](Self::with).
    pub(super) fn checked(self) -> Result<Self, Unmapped> {
        let what = self.what;
        self.members.check().map_err(|problem| Unmapped::invalid(format!("{what}: {problem}")))?;
        Ok(self)
    }

    /// Returns a member as JSON; `None` also for null.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        self.members.kept.get(name).map(|raw| raw.get()).filter(|json| *json != "null")
    }

    /// Returns all members as JSON, sorted by name.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.members.kept.iter().map(|(name, raw)| (name.as_str(), raw.get()))
    }

    /// Returns a member that is a string, a number or a boolean, as text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        plain(self.raw(name)?)
    }

    /// Returns a member that must be there as text.
    ///
    /// # Errors
    /// [`Unmapped::Invalid`] with the name of the member.
    pub(super) fn required(&self, name: &str) -> Result<String, Unmapped> {
        self.text(name)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| Unmapped::invalid(format!("the {} has no text in {name}", self.what)))
    }

    /// Returns a member that is an object.
    ///
    /// # Errors
    /// [`Unmapped::Invalid`] as for [`with`](Self::with).
    pub(super) fn object(&self, name: &str) -> Result<Option<Object<'a>>, Unmapped> {
        match self.raw(name) {
            Some(json) => Object::read(self.what, json.as_bytes()),
            None => Ok(None),
        }
    }

    /// Returns a member as a payload: its JSON, byte for byte.
    pub(super) fn payload(&self, name: &str) -> Option<Bytes> {
        self.raw(name).map(|json| Bytes::copy_from_slice(json.as_bytes()))
    }
}

/// Returns a string, number or boolean in JSON as text; `None` for anything else.
pub(super) fn plain(json: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Plain {
        Text(String),
        Flag(bool),
    }
    match serde_json::from_str::<Plain>(json) {
        Ok(Plain::Text(text)) => Some(text),
        Ok(Plain::Flag(flag)) => Some(flag.to_string()),
        // The digits of a number as they are: a parser could round them.
        Err(_) => {
            json.starts_with(|first: char| first == '-' || first.is_ascii_digit()).then(|| json.to_owned())
        }
    }
}

pub(super) fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_value_is_its_text_and_no_digit_is_lost() {
        for (json, text) in [
            (r#""a\"b""#, Some("a\"b")),
            ("9007199254740993123456", Some("9007199254740993123456")),
            ("-1.50", Some("-1.50")),
            ("true", Some("true")),
            ("[1]", None),
            ("{}", None),
        ] {
            assert_eq!(plain(json).as_deref(), text, "{json}");
        }
    }

    #[test]
    fn an_object_is_known_by_its_member_and_has_each_once() {
        assert!(Object::with("x", br#"{"a":{"b":1}}"#, &["b"]).unwrap().is_none());
        assert!(Object::with("x", br#"["a"]"#, &["a"]).unwrap().is_none());
        assert!(Object::with("x", br#"{"a":null}"#, &["a"]).unwrap().is_none());
        assert_eq!(Object::with("x", br#"{"a": 1 }"#, &["a"]).unwrap().unwrap().raw("a"), Some("1"));
        assert!(Object::with("x", br#"{"a":1,"a":2}"#, &["a", "b"]).unwrap().is_none());
        let Err(twice) = Object::with("x", br#"{"a":1,"a":2}"#, &["a"]) else { panic!("an a is lost") };
        assert!(!twice.is_other_form() && twice.to_string().contains("\"a\""), "{twice}");
    }
}
