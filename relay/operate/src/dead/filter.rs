//! Filters for messages.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use inbox::{ConsumerName, LetterFilter, Tenant};
use outbox_log::admin::ParkedFilter;
use time::OffsetDateTime;
use uuid::Uuid;

use super::message::{DeadMessage, DeadSource, cause_for_database, cause_for_people};
use crate::cause::{ERROR_CHARS_MAX, signature};
use crate::places::InboxPlace;
use crate::units::Time;

/// A message, by its position in the log, its message id, or the id of its dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRef(String);

impl MessageRef {
    /// Returns whether it names this message.
    #[must_use]
    pub fn names(&self, message: &DeadMessage) -> bool {
        self.is(&message.id, message.message_id.as_deref().unwrap_or_default())
    }

    /// Returns whether it equals this id or this message id.
    pub(crate) fn is(&self, id: &str, message_id: &str) -> bool {
        self.0 == id || self.0 == message_id
    }

    /// Returns whether it is a position in the log, or the id of a message or dead letter.
    #[must_use]
    pub fn is_an_id(&self) -> bool {
        self.place().is_some() || self.uuid().is_some()
    }

    /// Returns the position in the log, if it is a number.
    pub(crate) fn place(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// Returns the id of a message or dead letter, if it is a UUID.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        Uuid::parse_str(&self.0).ok()
    }
}

impl FromStr for MessageRef {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text.trim().is_empty() {
            return Err("it is empty: give a position in the log, a message id or the id of a dead letter");
        }
        // In the form of the tables: without leading zeros, with hyphens.
        Ok(Self(match (text.trim().parse::<i64>(), Uuid::parse_str(text.trim())) {
            (Ok(place), _) => place.to_string(),
            (Err(_), Ok(uuid)) => uuid.to_string(),
            (Err(_), Err(_)) => text.trim().to_lowercase(),
        }))
    }
}

impl fmt::Display for MessageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Conditions that a message must all meet; without any, all messages match.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only outboxes, or only inboxes.
    pub source: Option<DeadSource>,
    /// Only these messages; if empty, all.
    pub ids: Vec<MessageRef>,
    /// Only messages of this topic or queue.
    pub topic: Option<String>,
    /// Only messages with this ordering key.
    pub key: Option<String>,
    /// Only messages of this event type.
    pub kind: Option<String>,
    /// Only messages with this cause: see [`DeadMessage::cause`]. `operator`, the word of the
    /// database for `setup`, is accepted.
    pub cause: Option<String>,
    /// Only messages whose error contains this text, or whose [`signature`] does.
    pub error: Option<String>,
    /// Only messages whose error has the [`signature`] of this text: those of one cause.
    pub error_like: Option<String>,
    /// Only dead letters of this consumer.
    pub consumer: Option<ConsumerName>,
    /// Only dead letters of this tenant: others may use the same keys.
    pub scope: Option<Tenant>,
    /// Only messages that have waited longer than this.
    pub older_than: Option<Duration>,
    /// Only messages that have waited no longer than this.
    pub newer_than: Option<Duration>,
}

/// Maximum number of parts of an error that the database searches for.
const PARTS_MAX: usize = 20;

impl Filter {
    /// Returns the conditions that an outbox applies. It takes every message that this filter
    /// takes, and the few more that [`takes_error`](Self::takes_error) refuses.
    pub(crate) fn of_outbox(&self, as_of: Option<OffsetDateTime>) -> ParkedFilter {
        ParkedFilter {
            topic: self.topic.clone(),
            key: self.key.clone(),
            kind: self.kind.clone(),
            fault: self.cause.as_deref().map(|cause| cause_for_database(cause).to_owned()),
            error_parts: self.error_parts(),
            older_than: self.older_than,
            newer_than: self.newer_than,
            as_of,
        }
    }

    /// Returns the conditions that an inbox applies, as [`of_outbox`](Self::of_outbox) does.
    pub(crate) fn of_inbox(&self, place: &InboxPlace, as_of: Option<OffsetDateTime>) -> LetterFilter {
        LetterFilter {
            consumer: place.consumer.as_ref().or(self.consumer.as_ref()).cloned(),
            tenant: place.scope.as_ref().or(self.scope.as_ref()).cloned(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            kind: self.kind.clone(),
            reason: self.cause.clone(),
            error_parts: self.error_parts(),
            older_than: self.older_than,
            newer_than: self.newer_than,
            as_of,
        }
    }

    /// Returns whether a place can have messages that match: an inbox of another consumer or tenant
    /// has none.
    pub(crate) fn takes_place(&self, place: &InboxPlace) -> bool {
        can_be(self.consumer.as_ref(), place.consumer.as_ref())
            && can_be(self.scope.as_ref(), place.scope.as_ref())
    }

    /// Returns the parts of the error between its numbers and white space: every error with the
    /// requested text or [`signature`] has them in this order. Without a condition on the error,
    /// there are none; otherwise at least one, so that the database returns the error for
    /// [`takes_error`](Self::takes_error).
    fn error_parts(&self) -> Vec<String> {
        let Some(text) = self.error_like.as_deref().map(signature).or_else(|| self.error.clone()) else {
            return Vec::new();
        };
        let parts = text.split(|c: char| c == '#' || c.is_whitespace()).filter(|part| !part.is_empty());
        let parts: Vec<String> = parts.take(PARTS_MAX).map(str::to_owned).collect();
        if parts.is_empty() { vec![String::new()] } else { parts }
    }

    /// Returns whether the error matches.
    pub(crate) fn takes_error(&self, error: Option<&str>) -> bool {
        let has =
            |part: &str| error.is_some_and(|error| error.contains(part) || signature(error).contains(part));
        self.error.as_deref().is_none_or(has) && self.takes_signature(error)
    }

    /// Does the same for the beginning of an error, as the databases group them. The database has
    /// already compared the rest.
    pub(crate) fn takes_beginning(&self, error: Option<&str>) -> bool {
        let is_cut = error.is_some_and(|error| error.chars().count() >= ERROR_CHARS_MAX);
        if is_cut { self.takes_signature(error) } else { self.takes_error(error) }
    }

    fn takes_signature(&self, error: Option<&str>) -> bool {
        let is_like = |like: &str| error.is_some_and(|error| signature(error) == signature(like));
        self.error_like.as_deref().is_none_or(is_like)
    }

    /// Returns whether messages of outboxes can match.
    #[must_use]
    pub fn takes_outboxes(&self) -> bool {
        self.source != Some(DeadSource::Inbox) && self.consumer.is_none() && self.scope.is_none()
    }

    /// Returns whether messages of inboxes can match.
    #[must_use]
    pub fn takes_inboxes(&self) -> bool {
        self.source != Some(DeadSource::Outbox)
    }

    /// Returns whether the message matches.
    pub(crate) fn takes(&self, message: &DeadMessage, now: OffsetDateTime) -> bool {
        let age = Duration::try_from(now - message.since).unwrap_or_default();
        let is = |asked: &Option<String>, value: Option<&str>| {
            asked.as_deref().is_none_or(|asked| value == Some(asked))
        };
        self.source.is_none_or(|source| source == message.source)
            && (self.ids.is_empty() || self.ids.iter().any(|id| id.names(message)))
            && is(&self.topic, Some(&message.topic))
            && is(&self.key, message.key.as_deref())
            && is(&self.kind, message.kind.as_deref())
            && is(&self.cause.as_deref().map(|it| cause_for_people(it).to_owned()), message.cause.as_deref())
            && self.takes_error(message.error.as_deref())
            && self
                .consumer
                .as_ref()
                .is_none_or(|consumer| message.consumer.as_deref() == Some(consumer.as_str()))
            && is(&self.scope.as_ref().map(|scope| scope.as_str().to_owned()), message.scope.as_deref())
            && self.older_than.is_none_or(|bound| age > bound)
            && self.newer_than.is_none_or(|bound| age <= bound)
    }
}

/// Returns whether two names can be the same; without a name, all are meant.
fn can_be<T: PartialEq>(asked: Option<&T>, of_place: Option<&T>) -> bool {
    asked.is_none_or(|asked| of_place.is_none_or(|name| name == asked))
}

/// Number of ids that the text of a filter names; of the others it has the number.
const NAMED_MAX: usize = 3;
/// Maximum length of the text of a filter in bytes: every message of a decision has it in its row
/// of the audit.
const TEXT_BYTES_MAX: usize = 2_000;

/// Formats ids: the first ones, and the number of the others.
fn named(ids: &[MessageRef]) -> Option<String> {
    let first: Vec<&str> = ids.iter().take(NAMED_MAX).map(|id| id.0.as_str()).collect();
    let more = match ids.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!ids.is_empty()).then(|| format!("{}{more}", first.join(",")))
}

/// Cuts a text to [`TEXT_BYTES_MAX`].
fn cut(mut text: String) -> String {
    const END: &str = "…";
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX - END.len()));
        text.push_str(END);
    }
    text
}

impl fmt::Display for Filter {
    /// Formats it for the audit: `topic=orders older_than=1h`; `all` without any condition. A long
    /// text is cut, and ids after the first ones are only counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = |age: Option<Duration>| age.map(|age| Time(age).to_string());
        let parts = [
            ("source", self.source.map(|source| source.to_string())),
            ("id", named(&self.ids)),
            ("topic", self.topic.clone()),
            ("key", self.key.clone()),
            ("kind", self.kind.clone()),
            ("cause", self.cause.clone()),
            ("error", self.error.clone()),
            ("error_like", self.error_like.clone()),
            ("consumer", self.consumer.as_ref().map(|consumer| consumer.as_str().to_owned())),
            ("scope", self.scope.as_ref().map(|scope| scope.as_str().to_owned())),
            ("older_than", age(self.older_than)),
            ("newer_than", age(self.newer_than)),
        ];
        let told: Vec<String> =
            parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
        f.write_str(if told.is_empty() { "all" } else { "" })?;
        f.write_str(&cut(told.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::entry;
    use super::*;

    fn takes(filter: Filter) -> bool {
        let message = DeadMessage { error: Some("it has 17 bytes".into()), ..entry(7) };
        filter.takes(&message, OffsetDateTime::UNIX_EPOCH + Duration::from_secs(3_600))
    }

    #[test]
    fn every_condition_counts() {
        let all = Filter::default;
        let text = |text: &str| Some(text.to_owned());
        let ids = |text: &str| vec![text.parse().unwrap()];
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for meant in [
            all(),
            Filter { ids: ids("7"), ..all() },
            Filter { ids: ids("007"), ..all() },
            Filter { ids: ids("0190aaaa000070008000000000000001"), ..all() },
            Filter { ids: ids("0190AAAA-0000-7000-8000-000000000001"), ..all() },
            Filter { topic: text("orders"), key: text("order-7"), ..all() },
            Filter { kind: text("order.placed"), cause: text("message"), ..all() },
            Filter { error: text("17 bytes"), ..all() },
            Filter { error: text("has # bytes"), ..all() },
            Filter { error_like: text("it has # bytes"), ..all() },
            Filter { error_like: text("it has 18 bytes"), error: text("17"), ..all() },
            Filter { source: Some(DeadSource::Outbox), older_than: seconds(3_599), ..all() },
            Filter { newer_than: seconds(3_600), ..all() },
        ] {
            assert!(takes(meant.clone()), "{meant}");
        }
        for other in [
            Filter { ids: ids("8"), ..all() },
            Filter { topic: text("orders"), key: text("order-8"), ..all() },
            Filter { kind: text("order.paid"), ..all() },
            Filter { cause: text("broker"), ..all() },
            Filter { error: text("no route"), ..all() },
            Filter { error_like: text("has # bytes"), ..all() },
            Filter { error_like: text("it has # bytes"), error: text("18"), ..all() },
            Filter { consumer: Some(ConsumerName::new("billing").unwrap()), ..all() },
            Filter { scope: Some(Tenant::new("acme").unwrap()), ..all() },
            Filter { source: Some(DeadSource::Inbox), ..all() },
            Filter { older_than: seconds(3_600), ..all() },
            Filter { newer_than: seconds(3_599), ..all() },
        ] {
            assert!(!takes(other.clone()), "{other}");
        }
    }

    /// Goal: a decision about a key of one tenant is not about the same key of another one. Oracle:
    /// the message of each tenant.
    #[test]
    fn a_tenant_is_a_condition() {
        let of = |tenant: &str| DeadMessage { scope: Some(tenant.to_owned()), ..entry(7) };
        let acme = Filter { scope: Some(Tenant::new("acme").unwrap()), ..Filter::default() };
        let takes = |message| acme.takes(&message, OffsetDateTime::UNIX_EPOCH);
        assert!(takes(of("acme")) && !takes(of("globex")) && !takes(of("")) && !takes(entry(7)));
        assert!(!acme.takes_outboxes() && acme.takes_inboxes());
        assert_eq!(acme.to_string(), "scope=acme");
        let (one, other) = (Tenant::new("acme").unwrap(), Tenant::new("globex").unwrap());
        assert!(can_be(Some(&one), Some(&one)) && can_be(Some(&one), None) && can_be(None, Some(&one)));
        assert!(!can_be(Some(&one), Some(&other)));
    }

    #[test]
    fn the_database_looks_for_the_parts_of_an_error() {
        let error = |text: &str| Filter { error: Some(text.to_owned()), ..Filter::default() };
        let parts = |text: &str| error(text).error_parts().join("|");
        assert_eq!(parts("larger than # takes: # bytes,"), "larger|than|takes:|bytes,");
        assert_eq!(parts("Key (id)=(#) 17"), "Key|(id)=(|)|17");
        assert_eq!((parts(" # "), error(" # ").error_parts().len()), (String::new(), 1));
        assert!(Filter::default().error_parts().is_empty());
        let like = Filter { error_like: Some(String::from("row 17 is gone")), ..error("gone") };
        assert_eq!(like.error_parts().join("|"), "row|is|gone");
        let told = "row 17 of 5f2a90c1bb\n is gone";
        for part in ["17 of", "row # of", "# is gone", "of 5f2a90c1bb"] {
            assert!(error(part).takes_error(Some(told)), "{part}");
            let mut rest = told;
            for part in error(part).error_parts() {
                rest = &rest[rest.find(&part).unwrap() + part.len()..];
            }
        }
        assert!(!error("row 17").takes_error(None) && !error("row 18").takes_error(Some(told)));
        // Of a long error, only the beginning is known where errors are counted.
        let long = "x".repeat(ERROR_CHARS_MAX);
        assert!(error("is gone").takes_beginning(Some(&long)));
        assert!(!error("is gone").takes_beginning(Some("x")));
        assert!(!Filter { error_like: Some(String::from("x")), ..error("x") }.takes_beginning(Some(&long)));
    }

    #[test]
    fn the_audit_reads_as_what_was_asked() {
        assert_eq!(Filter::default().to_string(), "all");
        let filter = Filter {
            topic: Some("orders".into()),
            older_than: Some(Duration::from_secs(3_600)),
            ..Filter::default()
        };
        assert_eq!(filter.to_string(), "topic=orders older_than=1h");
    }

    /// Goal: the audit of a decision by many ids does not store all of them in the row of each.
    /// Oracle: the text, and its length.
    #[test]
    fn the_audit_names_a_few_of_many_ids() {
        let of = |ids: std::ops::RangeInclusive<u32>| Filter {
            ids: ids.map(|id| id.to_string().parse().unwrap()).collect(),
            ..Filter::default()
        };
        assert_eq!(of(1..=3).to_string(), "id=1,2,3");
        assert_eq!(of(1..=5_000).to_string(), "id=1,2,3 and 4997 more");
        let long = Filter { error: Some("ü".repeat(3_000)), ..of(1..=2) }.to_string();
        assert!(long.len() <= TEXT_BYTES_MAX && long.len() > TEXT_BYTES_MAX - 4, "{}", long.len());
        assert!(long.starts_with("id=1,2 error=ü") && long.ends_with('…'));
    }
}
