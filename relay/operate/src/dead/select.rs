//! The messages of a decision about everything that a filter selects, without their contents.

use inbox::SeenLetter;
use outbox_log::admin::ChosenEntry;
use time::OffsetDateTime;

use super::choosing::Choosing;
use super::decide::Change;
use super::filter::Filter;
use super::message::DeadSource;
use super::moment::{AsOf, Matched, Moment, PlaceKey};
use super::plan::{need_all, plan};
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::Places;

/// Maximum messages of one decision.
pub const CHOSEN_MAX: usize = 250_000;

/// A dead letter of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChosenLetter {
    pub(super) seen: SeenLetter,
    pub(super) seq: i64,
}

/// The messages of one place.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedPart {
    /// The place.
    pub(super) key: PlaceKey,
    /// The time of its clock for which the decision is made, and the messages that matched then.
    pub(super) matched: Matched,
    /// The time since which its first message waits.
    pub oldest: Option<OffsetDateTime>,
    /// The index of its place.
    pub(super) place: usize,
    /// Entries of an outbox in the order of the log.
    pub(super) entries: Vec<ChosenEntry>,
    /// Dead letters of an inbox in the order of arrival.
    pub(super) letters: Vec<ChosenLetter>,
}

impl SelectedPart {
    pub(super) fn new(place: usize, key: PlaceKey, as_of: OffsetDateTime) -> Self {
        let matched = Matched::none(as_of);
        Self { key, matched, oldest: None, place, entries: Vec::new(), letters: Vec::new() }
    }

    /// Returns the kind of place.
    #[must_use]
    pub fn source(&self) -> DeadSource {
        self.key.source
    }

    /// Returns the pipeline or consumer.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.key.owner
    }

    /// Returns the number of its messages.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.matched.count
    }

    /// Returns the confirmation for this database.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { place: self.key.clone(), matched: self.matched }
    }

    pub(super) fn as_of(&self) -> OffsetDateTime {
        self.matched.at
    }

    pub(super) fn add_entry(&mut self, entry: ChosenEntry, since: OffsetDateTime) {
        self.matched.add_edited((entry.id.0, &entry.message_id), entry.edited_at);
        self.oldest = Some(self.oldest.unwrap_or(since).min(since));
        self.entries.push(entry);
    }

    /// Adds an entry that its relay retries without success until an operator acts. An entry that
    /// was dead when it was confirmed counts as another one.
    pub(super) fn add_waiting(&mut self, entry: ChosenEntry, since: OffsetDateTime) {
        self.matched.add_edited((entry.id.0, &entry.message_id, "retrying"), entry.edited_at);
        self.oldest = Some(self.oldest.unwrap_or(since).min(since));
        self.entries.push(entry);
    }

    pub(super) fn add_letter(&mut self, letter: ChosenLetter, since: OffsetDateTime) {
        let SeenLetter { id, reason, deliveries } = letter.seen;
        self.matched.add((id.0, reason.as_str(), deliveries));
        self.oldest = Some(self.oldest.unwrap_or(since).min(since));
        self.letters.push(letter);
    }
}

/// The messages of a decision, by their places.
#[derive(Debug, Clone, PartialEq)]
pub struct Selected {
    /// The filter, and the number of messages that it chose, for the audit.
    pub selection: String,
    /// The places with messages.
    pub parts: Vec<SelectedPart>,
    /// Whether the filter takes more than [`CHOSEN_MAX`] messages: these are the first ones.
    pub more: bool,
    /// Number of held messages that a requeue leaves out: they follow automatically once those
    /// before them have taken effect.
    pub following: u64,
    /// Number of confirmed messages that no longer match: another decision was faster, or they
    /// became dead again.
    pub changed: u64,
    /// The errors of places that do not answer; their messages are not part of the decision.
    pub away: Vec<OperateError>,
}

impl Selected {
    /// Returns the number of messages.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.parts.iter().map(SelectedPart::count).sum()
    }

    /// Returns these messages if every place has answered.
    ///
    /// # Errors
    /// [`OperateError`] names the places that do not answer.
    pub fn of_all(mut self, places: &Places) -> Result<Self, OperateError> {
        need_all(places, std::mem::take(&mut self.away)).map(|()| self)
    }
}

/// Chooses the messages of a decision: all dead ones that a filter matches, or those that it names
/// by id. With a confirmation, leaves out places without one, and messages that became dead later.
/// Changes nothing. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when no place answers, when a message that is named by id is not dead, or when
/// only a part of the dead letters of an inbox would be discarded. With a confirmation also when
/// one of its places does not answer, and when other messages match than were confirmed. A requeue
/// that does not accept late messages may find fewer: those are not compared with the confirmed
/// ones. [`Selected::away`] has the errors of unreachable databases.
pub async fn select(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    change: &Change,
    as_of: Option<&AsOf>,
) -> Result<Selected, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut choosing = Choosing::new(filter, change, as_of);
    let mut away = Vec::new();
    if filter.ids.is_empty() {
        away = choosing.all(places).await;
        if choosing.parts.is_empty() && away.len() == places.count() {
            return OperateError::all_of(away).map_or_else(|| Ok(choosing.done(Vec::new())), Err);
        }
        choosing.check_confirmed(&away)?;
    } else {
        let plan = plan(places, operator, filter, change).await?;
        choosing.named(places, &plan.messages);
        choosing.check_named()?;
    }
    check_part(change, choosing.more, &choosing.parts)?;
    Ok(choosing.done(away))
}

/// Refuses to discard only a part of the messages that a filter selects, if some are in an inbox:
/// messages held behind them would take effect, although they were to be discarded too.
fn check_part(change: &Change, more: bool, parts: &[SelectedPart]) -> Result<(), OperateError> {
    let is_safe = *change != Change::Discard || parts.iter().all(|part| part.letters.is_empty());
    if !more || is_safe {
        return Ok(());
    }
    let text = format!(
        "more than {CHOSEN_MAX} messages match, and some are dead letters of an inbox: messages held behind the first ones would take effect"
    );
    Err(OperateError::refused(text, "narrow the filter"))
}

#[cfg(test)]
mod tests {
    use inbox::{DeadLetterId, Reason};
    use outbox_log::EntryId;

    use super::*;

    #[test]
    fn no_part_of_what_may_hold_others_is_discarded() {
        let place = |source| PlaceKey { source, owner: String::from("orders") };
        let part = |source| SelectedPart::new(0, place(source), OffsetDateTime::UNIX_EPOCH);
        let since = OffsetDateTime::UNIX_EPOCH;
        let mut outbox = part(DeadSource::Outbox);
        outbox.add_entry(ChosenEntry { id: EntryId(1), message_id: String::new(), edited_at: None }, since);
        let mut inbox = part(DeadSource::Inbox);
        let seen = SeenLetter { id: DeadLetterId(uuid::Uuid::nil()), reason: Reason::Poison, deliveries: 1 };
        inbox.add_letter(ChosenLetter { seen, seq: 1 }, since);
        let requeue = Change::Requeue { accept_late: false };
        let both = [outbox.clone(), inbox];
        assert!(check_part(&Change::Discard, true, &[outbox]).is_ok());
        assert!(check_part(&requeue, true, &both).is_ok());
        assert!(check_part(&Change::Discard, false, &both).is_ok());
        let refused = check_part(&Change::Discard, true, &both).unwrap_err().to_string();
        assert!(refused.contains("more than 250000 messages match"), "{refused}");
    }
}
