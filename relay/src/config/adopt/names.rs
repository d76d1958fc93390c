//! Checks settings of the section. A setting with a problem becomes `None`.

use std::collections::BTreeMap;

use adopt::{AdoptedTopic, Field, Only, Pending, WhenSent};
use message::{ContentType, ERASED_CONTENT_TYPE, HeaderName, InvalidText, Topic};
use migrations::ForeignIdentifier;

use super::super::problems::Problems;
use super::section::{FieldSection, OnlySection, Words};

/// Maximum number of steps of a path, and maximum length of a step in bytes.
const STEPS_MAX: usize = 16;
const STEP_BYTES_MAX: usize = 255;

/// The path of the section, and its problems so far.
pub(super) struct Names<'a> {
    path: String,
    problems: &'a mut Problems,
}

impl<'a> Names<'a> {
    pub(super) fn new(path: String, problems: &'a mut Problems) -> Self {
        Self { path, problems }
    }

    pub(super) fn problem(&mut self, setting: &str, message: impl Into<String>, help: Option<&str>) {
        self.problems.add(format!("{}.{setting}", self.path), message, help);
    }

    pub(super) fn checked<T>(&mut self, setting: &str, value: Result<T, InvalidText>) -> Option<T> {
        value.map_err(|error| self.problem(setting, error.to_string(), None)).ok()
    }

    pub(super) fn content_type(&mut self, given: Option<String>) -> Option<Option<ContentType>> {
        let Some(given) = given else { return Some(None) };
        let content_type = self.checked("content_type", ContentType::new(given))?;
        if content_type.as_str() == ERASED_CONTENT_TYPE {
            let message = format!(
                "content type {ERASED_CONTENT_TYPE} is reserved for messages that an operator has erased"
            );
            self.problem("content_type", message, Some("give the type of the payload"));
            return None;
        }
        Some(Some(content_type))
    }

    pub(super) fn identifier(&mut self, setting: &str, name: &str) -> Option<ForeignIdentifier> {
        ForeignIdentifier::new(name).map_err(|error| self.problem(setting, error.to_string(), None)).ok()
    }

    pub(super) fn given(&mut self, setting: &str, name: Option<String>) -> Option<Option<ForeignIdentifier>> {
        match name {
            Some(name) => self.identifier(setting, &name).map(Some),
            None => Some(None),
        }
    }

    fn field(&mut self, setting: &str, column: &str, path: Vec<String>) -> Option<Field> {
        let column = self.identifier(setting, column);
        let is_step = |step: &String| (1..=STEP_BYTES_MAX).contains(&step.len()) && !step.contains('\0');
        if path.len() > STEPS_MAX || !path.iter().all(is_step) {
            let message = format!("the path has {} steps, or an invalid step", path.len());
            let help =
                format!("a path has at most {STEPS_MAX} member names of 1 to {STEP_BYTES_MAX} bytes each");
            self.problem(setting, message, Some(&help));
            return None;
        }
        Some(Field { column: column?, path })
    }

    pub(super) fn column(&mut self, what: &str, given: Option<FieldSection>, default: &str) -> Option<Field> {
        let (column, path) = given.map_or_else(|| (default.to_owned(), Vec::new()), FieldSection::into_parts);
        self.field(&format!("columns.{what}"), &column, path)
    }

    /// Checks a column that is optional: an empty name means that the table lacks it.
    pub(super) fn optional_column(
        &mut self,
        what: &str,
        given: Option<FieldSection>,
        default: &str,
    ) -> Option<Option<Field>> {
        match given {
            Some(FieldSection::Column(name)) if name.is_empty() => Some(None),
            given => self.column(what, given, default).map(Some),
        }
    }

    pub(super) fn topic(
        &mut self,
        fixed: Option<String>,
        prefix: Option<String>,
        topics: BTreeMap<String, String>,
        column: Option<FieldSection>,
    ) -> Option<AdoptedTopic> {
        if let Some(topic) = fixed {
            if prefix.is_some() || column.is_some() || !topics.is_empty() {
                let message = "topic cannot be combined with topic_prefix, topics or columns.topic";
                let help = "topic is for a table without a topic column: remove it, or the others";
                self.problem("topic", message, Some(help));
            }
            return self.checked("topic", Topic::new(topic)).map(AdoptedTopic::Fixed);
        }
        let field = self.column("topic", column, "aggregatetype");
        let prefix = prefix.unwrap_or_default();
        if topics.is_empty() {
            if !prefix.is_empty() {
                self.checked("topic_prefix", Topic::new(prefix.clone()))?;
            }
            return Some(AdoptedTopic::Field { prefix, field: field? });
        }
        if !prefix.is_empty() {
            let message = "topic_prefix cannot be combined with topics, which contain complete topics";
            self.problem(
                "topic_prefix",
                message,
                Some("remove topic_prefix, and write the prefix in front of each topic"),
            );
        }
        let mut named = Some(Vec::new());
        for (value, topic) in topics {
            let topic = self.checked(&format!("topics.{value}"), Topic::new(topic));
            named = named.zip(topic).map(|(mut named, topic)| {
                named.push((value, topic));
                named
            });
        }
        Some(AdoptedTopic::Named { field: field?, topics: named? })
    }

    pub(super) fn only(&mut self, given: Option<OnlySection>) -> Option<Option<Only>> {
        let Some(OnlySection { column, path, value }) = given else { return Some(None) };
        let field = self.field("only.column", &column, path);
        let values = self.words("only.value", value);
        Some(Some(Only { field: field?, values: values? }))
    }

    fn words(&mut self, setting: &str, words: Words) -> Option<Vec<String>> {
        let words = words.into_list();
        if words.is_empty() || words.iter().any(|word| word.contains('\0')) {
            self.problem(setting, "the list is empty, or a value contains a zero byte", None);
            return None;
        }
        Some(words)
    }

    pub(super) fn pending(
        &mut self,
        column: Option<String>,
        before: Option<Words>,
        after: Option<String>,
        when_sent: WhenSent,
    ) -> Option<Option<Pending>> {
        let help = "pending = \"status\", pending_value = \"NEW\", sent_value = \"SENT\"";
        let before = match before {
            Some(words) => self.words("pending_value", words)?,
            None => Vec::new(),
        };
        let problem = match (&after, when_sent) {
            (Some(_), WhenSent::Delete) => {
                Some(("sent_value", "sent_value is set, although rows are deleted"))
            }
            (None, WhenSent::Mark) if !before.is_empty() => {
                Some(("pending_value", "pending_value and sent_value must be set together"))
            }
            (Some(_), WhenSent::Mark) if before.is_empty() => {
                Some(("pending_value", "pending_value and sent_value must be set together"))
            }
            (Some(after), WhenSent::Mark) if before.contains(after) => {
                Some(("sent_value", "sent_value equals pending_value"))
            }
            _ if column.is_none() && !before.is_empty() => {
                Some(("pending_value", "pending is missing, so there is no column to compare"))
            }
            _ => None,
        };
        if let Some((setting, message)) = problem {
            self.problem(setting, message, Some(help));
            return None;
        }
        let Some(column) = column else { return Some(None) };
        Some(Some(Pending { column: self.identifier("pending", &column)?, before, after }))
    }

    pub(super) fn headers(
        &mut self,
        given: BTreeMap<String, FieldSection>,
        id_header: Option<&HeaderName>,
    ) -> Option<Vec<(HeaderName, Field)>> {
        let mut headers = Vec::new();
        let mut is_right = true;
        for (name, field) in given {
            let setting = format!("headers.{name}");
            let header = self.checked(&setting, HeaderName::new(name));
            if header.is_some() && header.as_ref() == id_header {
                let message = "this header contains the old id; choose another id_header";
                self.problem(&setting, message, None);
                is_right = false;
            }
            let (column, path) = field.into_parts();
            match (header, self.field(&setting, &column, path)) {
                (Some(header), Some(field)) => headers.push((header, field)),
                _ => is_right = false,
            }
        }
        is_right.then_some(headers)
    }
}
