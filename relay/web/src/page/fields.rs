//! The fields of a form or of a query.

use std::str::FromStr;

use axum::Form;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::Deserialize;
use time::OffsetDateTime;

use super::answer::Problem;

/// Formats a time exactly, for links and forms. [`Fields::moment`] reads it.
pub(crate) fn moment(at: OffsetDateTime) -> String {
    at.unix_timestamp_nanos().to_string()
}

/// Names and values, in order; a name may occur several times.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Fields(Vec<(String, String)>);

/// Maximum size of a value in bytes: names have 255, reasons may be longer.
const VALUE_BYTES_MAX: usize = message::NOTE_BYTES_MAX;

/// Maximum number of fields of a form that the login may keep.
pub(crate) const FIELDS_MAX: usize = 2_000;
/// Number of fields that the login form has beside a form that it keeps.
const OWN_FIELDS: usize = 8;

/// A form of someone who is not logged in yet. It is parsed only if it has few fields: each becomes
/// two texts, and a body of separators alone would take many times its size.
#[derive(Debug)]
pub(crate) struct Unproven(pub(crate) Fields);

impl<S: Send + Sync> FromRequest<S> for Unproven {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (head, body) = request.into_parts();
        let body = Bytes::from_request(Request::from_parts(head.clone(), body), state).await;
        let body = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
        if !has_few_fields(&body) {
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the form has too many fields"));
        }
        let form = Form::from_request(Request::from_parts(head, Body::from(body)), state).await;
        form.map(|Form(fields)| Self(fields)).map_err(|error| Problem::new(error.status(), error.body_text()))
    }
}

/// Returns whether an encoded form is worth parsing.
pub(crate) fn has_few_fields(body: &[u8]) -> bool {
    body.iter().filter(|byte| **byte == b'&').count() < FIELDS_MAX + OWN_FIELDS
}

impl Fields {
    /// Returns the first value of a name unchanged: the value was not typed, so its spaces belong
    /// to it.
    pub(crate) fn exact(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str())
    }

    /// Returns the first value of a typed field without surrounding spaces; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.exact(name).trim()
    }

    /// Returns the first value of a name unchanged, if it is not empty. Names of messages are
    /// compared exactly, and may begin or end with a space.
    pub(crate) fn name(&self, name: &str) -> Option<String> {
        Some(self.exact(name)).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Returns the first value of a name, if it is not empty.
    pub(crate) fn given(&self, name: &str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Returns names and values, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns whether there is a field with this name, which may be empty.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.iter().any(|(known, _)| known == name)
    }

    /// Returns all values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Parses a value, if it is not empty.
    pub(crate) fn read<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.given(name) else { return Ok(None) };
        let problem = |error: T::Err| Problem::bad(format!("{name}: {}", error.to_string()));
        text.parse().map(Some).map_err(problem)
    }

    /// Parses a required value.
    pub(crate) fn need<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<T, Problem> {
        self.read(name)?.ok_or_else(|| Problem::bad(format!("the field {name} is missing")))
    }

    /// Returns a time, exactly as [`moment`] wrote it.
    pub(crate) fn moment(&self, name: &str) -> Result<Option<OffsetDateTime>, Problem> {
        let Some(nanos) = self.read::<i128>(name)? else { return Ok(None) };
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanos);
        at.map(Some).map_err(|error| Problem::bad(format!("{name}: {error}")))
    }

    /// Returns an error for values that no field accepts.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        self.check_except(&[])
    }

    /// Does the same as [`Fields::check`], except for the length of fields that have a limit of
    /// their own.
    pub(crate) fn check_except(&self, long: &[&str]) -> Result<(), Problem> {
        let is_wrong = |(name, value): &&(String, String)| {
            let is_too_long = value.len() > VALUE_BYTES_MAX && !long.contains(&name.as_str());
            is_too_long || value.contains('\0')
        };
        match self.0.iter().find(is_wrong) {
            Some((_, value)) if !value.contains('\0') => {
                let bytes = value.len();
                Err(Problem::bad(format!("a field has {bytes} bytes; the maximum is {VALUE_BYTES_MAX}")))
            }
            Some(_) => Err(Problem::bad(String::from("a field contains a NUL character"))),
            None => Ok(()),
        }
    }
}

impl FromIterator<(String, String)> for Fields {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

#[cfg(test)]
impl Fields {
    /// Makes the fields of a form.
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_types_is_taken_as_it_is() {
        let fields = Fields(vec![("key".into(), " order 7 ".into()), ("key".into(), "other".into())]);
        assert_eq!((fields.exact("key"), fields.text("key")), (" order 7 ", "order 7"));
        assert_eq!((fields.exact("none"), fields.text("none")), ("", ""));
        assert_eq!((fields.name("key").as_deref(), fields.name("none")), (Some(" order 7 "), None));
    }

    #[test]
    fn moments_come_back_exactly() {
        let at = OffsetDateTime::UNIX_EPOCH + time::Duration::nanoseconds(1_764_201_600_123_456_000);
        let fields = |text: &str| Fields(vec![("since".into(), text.into())]);
        assert_eq!(fields(&moment(at)).moment("since").ok(), Some(Some(at)));
        assert_eq!(fields("").moment("since").ok(), Some(None));
        for wrong in ["yesterday", "1e9", &i128::MAX.to_string()] {
            assert!(fields(wrong).moment("since").is_err(), "{wrong}");
        }
    }
}
