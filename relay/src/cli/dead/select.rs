//! Which parked messages are meant.

use std::fmt;
use std::str::FromStr;

use outbox::admin::{ListedEntry, LogAdmin};
use outbox::log::{EntryId, ExceptionState, LogError, RelayName};

use super::super::exit::Exit;
use super::super::failure::Failure;

/// Entries read at once.
const PAGE_ENTRIES: u32 = 500;

/// A message, by its place in the log or by its message id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Id {
    /// Its place.
    Entry(i64),
    /// Its message id.
    Message(String),
}

impl FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if text.trim().is_empty() {
            return Err("it is empty: give the place in the log or the message id");
        }
        Ok(text.parse().map_or_else(|_| Self::Message(text.to_lowercase()), Self::Entry))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(id) => id.fmt(f),
            Self::Message(id) => id.fmt(f),
        }
    }
}

/// Which messages are meant; without any condition, all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) ids: Vec<Id>,
    pub(crate) topic: Option<String>,
    pub(crate) key: Option<String>,
}

impl Selection {
    fn takes(&self, entry: &ListedEntry) -> bool {
        (self.ids.is_empty() || self.ids.iter().any(|id| names(id, entry)))
            && self.topic.as_ref().is_none_or(|topic| *topic == entry.topic)
            && self.key.as_ref().is_none_or(|key| entry.key.as_ref() == Some(key))
    }

    /// The messages meant in one state, in the order of the log, at most `limit`.
    pub(crate) async fn read(
        &self,
        log: &dyn LogAdmin,
        relay: &RelayName,
        state: ExceptionState,
        limit: usize,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let mut found = Vec::new();
        let mut after = EntryId::default();
        while found.len() < limit {
            let page = log.list(relay, state, after, PAGE_ENTRIES).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            let full = page.len() >= PAGE_ENTRIES as usize;
            found.extend(page.into_iter().filter(|entry| self.takes(entry)));
            if !full {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Checks that every single message asked for was found.
    pub(crate) fn check_found<'a>(
        &self,
        found: impl Iterator<Item = &'a ListedEntry> + Clone,
        what: &str,
    ) -> Result<(), Failure> {
        let missing: Vec<String> = self
            .ids
            .iter()
            .filter(|id| !found.clone().any(|entry| names(id, entry)))
            .map(Id::to_string)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let help = "`relay dead list` shows what is dead, with --state what else is parked";
        Err(Failure::with_help(Exit::Usage, format_args!("not {what}: {}", missing.join(", ")), help))
    }
}

fn names(id: &Id, entry: &ListedEntry) -> bool {
    match id {
        Id::Entry(id) => entry.id.0 == *id,
        Id::Message(id) => entry.message_id == *id,
    }
}

#[cfg(test)]
mod tests {
    use outbox::log::EntryId;
    use time::OffsetDateTime;

    use super::*;

    fn entry() -> ListedEntry {
        ListedEntry {
            id: EntryId(7),
            message_id: String::from("0190aaaa-0000-7000-8000-000000000001"),
            topic: String::from("orders"),
            key: Some(String::from("order-7")),
            attempts: 10,
            due_in: None,
            fault: None,
            error: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
            updated_at: OffsetDateTime::UNIX_EPOCH,
            payload_bytes: 2,
            edited: false,
        }
    }

    fn id(text: &str) -> Id {
        text.parse().unwrap()
    }

    #[test]
    fn a_message_is_found_by_place_id_topic_and_key() {
        let all = Selection::default;
        assert!(all().takes(&entry()));
        assert!(Selection { ids: vec![id("7")], ..all() }.takes(&entry()));
        assert!(Selection { ids: vec![id("0190AAAA-0000-7000-8000-000000000001")], ..all() }.takes(&entry()));
        assert!(!Selection { ids: vec![id("8")], ..all() }.takes(&entry()));
        assert!(
            Selection { topic: Some("orders".into()), key: Some("order-7".into()), ..all() }.takes(&entry())
        );
        assert!(
            !Selection { topic: Some("orders".into()), key: Some("order-8".into()), ..all() }.takes(&entry())
        );
    }

    #[test]
    fn what_was_not_found_is_named() {
        let selection = Selection { ids: vec![id("7"), id("9")], ..Selection::default() };
        let failure = selection.check_found([entry()].iter(), "dead").unwrap_err();
        assert_eq!((failure.exit(), failure.to_string().as_str()), (Exit::Usage, "not dead: 9"));
    }
}
