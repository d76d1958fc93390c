//! The messages of a topic among rows of an audit. Audits do not store topics: the log and the
//! inbox do, as long as they keep the message.

use std::collections::HashSet;

use inbox::DeadLetterId;
use outbox::Signature;
use outbox_log::admin::AuditRecord;
use outbox_log::entries::{EntryName, SelectedEntry, Selection};
use outbox_log::{EntryId, LogError};
use uuid::Uuid;

use super::filter::names_topic;
use crate::error::OperateError;
use crate::places::{InboxPlace, OutboxPlace};

/// Messages of a topic.
#[derive(Debug, Default)]
pub(super) struct OfTopic {
    entries: HashSet<EntryName>,
    letters: HashSet<DeadLetterId>,
}

/// Returns whether the filter or the scope of a decision names the topic.
pub(super) fn is_named(signature: &Signature, topic: &str) -> bool {
    signature.selection.as_deref().is_some_and(|selection| names_topic(selection, topic))
}

/// Returns the name of a record's message; `None` without a valid id.
fn name(record: &AuditRecord) -> Option<EntryName> {
    Some(EntryName { id: record.subject.id, message_id: Uuid::parse_str(&record.subject.message_id).ok()? })
}

impl OfTopic {
    /// Looks up the messages of records whose decision does not name the topic itself.
    pub(super) async fn records(
        place: &OutboxPlace,
        records: &[AuditRecord],
        topic: &str,
    ) -> Result<Self, LogError> {
        let unnamed = records.iter().filter(|record| !is_named(&record.signature, topic));
        let named: HashSet<EntryName> = unnamed.filter_map(name).collect();
        let mut found = Self::default();
        if named.is_empty() {
            return Ok(found);
        }
        let extent = place.entries.extent(&place.pipeline).await?;
        let named = named.into_iter().collect();
        let selection = Selection { named, topic: Some(topic.to_owned()), ..Selection::default() };
        let mut after = EntryId::default();
        loop {
            let page = place.entries.select(&place.pipeline, &extent, &selection, after).await?;
            found.entries.extend(page.entries.iter().map(SelectedEntry::name));
            after = page.seen_to;
            if page.exhausted {
                return Ok(found);
            }
        }
    }

    /// Looks up dead letters of decisions that do not name the topic themselves.
    pub(super) async fn letters(
        place: &InboxPlace,
        decisions: &[inbox::Decision],
        topic: &str,
    ) -> Result<Self, OperateError> {
        let unnamed = decisions.iter().filter(|decision| !is_named(&decision.signature, topic));
        let letters: HashSet<DeadLetterId> = unnamed.map(|decision| decision.subject.dead_letter).collect();
        let mut found = Self::default();
        if !letters.is_empty() {
            let letters: Vec<DeadLetterId> = letters.into_iter().collect();
            found.letters.extend(place.database.letters_of_topic(&letters, topic).await?);
        }
        Ok(found)
    }

    /// Returns whether a record is about the topic.
    pub(super) fn has_record(&self, record: &AuditRecord, topic: &str) -> bool {
        is_named(&record.signature, topic) || name(record).is_some_and(|name| self.entries.contains(&name))
    }

    /// Returns whether a decision is about the topic.
    pub(super) fn has_letter(&self, decision: &inbox::Decision, topic: &str) -> bool {
        is_named(&decision.signature, topic) || self.letters.contains(&decision.subject.dead_letter)
    }
}
