//! The messages of a decision about everything that a filter takes, without their contents.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use inbox::DeadLetterId;
use outbox_log::admin::{ChosenEntry, Desk, ParkedQuery};
use outbox_log::{EntryId, ExceptionState};
use time::OffsetDateTime;

use super::decide::Change;
use super::filter::Filter;
use super::message::{DeadMessage, DeadSource, Row};
use super::plan::plan;
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::{InboxPlace, Places};

/// Maximum messages of one decision.
pub const CHOSEN_MAX: usize = 250_000;

/// The moment for which an operator has confirmed a decision, of the clock of each database. A
/// message that died later is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AsOf(BTreeMap<PlaceKey, OffsetDateTime>);

/// A place, by its kind and the pipeline or consumer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceKey {
    source: DeadSource,
    owner: String,
}

/// The moment of one place. Its text is used in forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    place: PlaceKey,
    at: OffsetDateTime,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.unix_timestamp_nanos() / 1_000;
        write!(f, "{}/{micros}/{}", self.place.source, self.place.owner)
    }
}

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let read = || {
            let mut parts = text.splitn(3, '/');
            let source = parts.next()?.parse().ok()?;
            let micros: i64 = parts.next()?.parse().ok()?;
            let owner = parts.next()?.to_owned();
            let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).ok()?;
            Some(Self { place: PlaceKey { source, owner }, at })
        };
        read().ok_or("it is not a moment of a place: confirm the decision again")
    }
}

impl FromIterator<Moment> for AsOf {
    fn from_iter<T: IntoIterator<Item = Moment>>(moments: T) -> Self {
        Self(moments.into_iter().map(|moment| (moment.place, moment.at)).collect())
    }
}

/// A dead letter of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChosenLetter {
    pub(super) id: DeadLetterId,
    pub(super) seq: i64,
}

/// The messages of one place.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedPart {
    /// The place.
    key: PlaceKey,
    /// The moment of its clock for which the decision is taken.
    pub(super) as_of: OffsetDateTime,
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
        (self.entries.len() + self.letters.len()) as u64
    }

    /// Returns its moment.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { place: self.key.clone(), at: self.as_of }
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
    /// Number of held messages that a requeue leaves out: they follow by themselves once those
    /// before them took effect.
    pub following: u64,
    /// The errors of places that do not answer; their messages are not part of the decision.
    pub away: Vec<OperateError>,
}

impl Selected {
    /// Returns the number of messages.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.parts.iter().map(SelectedPart::count).sum()
    }
}

/// Chooses the messages of a decision: all dead ones that a filter takes, or those that it names by
/// id. With a confirmed moment, leaves out places without one, and messages that died later.
/// Changes nothing. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when no place answers, when a message that is named by id is not dead, or when
/// only a part of the dead letters of an inbox would be discarded. [`Selected::away`] has the
/// errors of unreachable databases.
pub async fn select(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    change: &Change,
    as_of: Option<&AsOf>,
) -> Result<Selected, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut choosing =
        Choosing { filter, change, as_of, parts: Vec::new(), chosen: 0, more: false, following: 0 };
    let mut away = Vec::new();
    if filter.ids.is_empty() {
        away = choosing.all(places).await;
        if choosing.parts.is_empty() && away.len() == places.count() {
            return OperateError::all_of(away).map_or_else(|| Ok(choosing.done(Vec::new())), Err);
        }
    } else {
        let plan = plan(places, operator, filter, change).await?;
        choosing.named(places, &plan.messages);
    }
    check_part(change, choosing.more, &choosing.parts)?;
    Ok(choosing.done(away))
}

/// Refuses to discard only these of the messages that a filter takes, if some are of an inbox: what
/// is held behind them would take effect, although it was to be discarded too.
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

struct Choosing<'a> {
    filter: &'a Filter,
    change: &'a Change,
    as_of: Option<&'a AsOf>,
    parts: Vec<SelectedPart>,
    chosen: usize,
    more: bool,
    following: u64,
}

impl Choosing<'_> {
    /// Chooses by the filter. Returns the errors of places that do not answer.
    async fn all(&mut self, places: &Places) -> Vec<OperateError> {
        let mut away = places.away.clone();
        let filter = self.filter;
        for (number, place) in places.outboxes.iter().enumerate().filter(|_| filter.takes_outboxes()) {
            let key = PlaceKey { source: DeadSource::Outbox, owner: place.pipeline.to_string() };
            let mut desk = place.log.desk(&place.pipeline);
            if let Err(error) = self.outbox(number, key, &mut *desk).await {
                away.push(error.about(&place.pipeline));
            }
        }
        for (number, place) in places.inboxes.iter().enumerate() {
            if !filter.takes_inboxes() || !filter.takes_place(place) {
                continue;
            }
            if let Err(error) = self.inbox(number, places).await {
                away.push(error.about(place.name()));
            }
        }
        away
    }

    async fn outbox(&mut self, place: usize, key: PlaceKey, desk: &mut dyn Desk) -> Result<(), OperateError> {
        let at = match self.as_of {
            Some(as_of) => match as_of.0.get(&key) {
                Some(at) => *at,
                None => return Ok(()),
            },
            None => desk.now().await?,
        };
        let mut part = SelectedPart::new(place, key, at);
        let (state, filter) = (ExceptionState::Dead, self.filter.of_outbox(Some(at)));
        let mut query = ParkedQuery { state, after: EntryId::default(), entries_max: 0, filter };
        loop {
            let slice = desk.choose(&query).await?;
            for found in slice.entries {
                if !self.filter.takes_error(found.error.as_deref()) {
                    continue;
                }
                if self.is_full() {
                    self.add(part);
                    return Ok(());
                }
                part.oldest = Some(part.oldest.unwrap_or(found.created_at).min(found.created_at));
                part.entries.push(found.chosen);
            }
            match slice.next {
                Some(next) => query.after = next,
                None => {
                    self.add(part);
                    return Ok(());
                }
            }
        }
    }

    async fn inbox(&mut self, number: usize, places: &Places) -> Result<(), OperateError> {
        let Some(place) = places.inboxes.get(number) else { return Ok(()) };
        let key = inbox_key(places, number);
        let at = match self.as_of {
            Some(as_of) => match as_of.0.get(&key) {
                Some(at) => *at,
                None => return Ok(()),
            },
            None => place.database.survey(&self.filter.of_inbox(place, None)).await?.at,
        };
        let mut part = SelectedPart::new(number, key, at);
        let filter = self.filter.of_inbox(place, Some(at));
        let mut after = None;
        loop {
            let slice = place.database.choose_letters(&filter, after).await?;
            for found in slice.letters {
                if !self.filter.takes_error(found.error.as_deref()) {
                    continue;
                }
                if found.reason == inbox::Reason::Held && matches!(self.change, Change::Requeue { .. }) {
                    self.following += 1;
                    continue;
                }
                if self.is_full() {
                    self.add(part);
                    return Ok(());
                }
                part.oldest = Some(part.oldest.unwrap_or(found.dead_at).min(found.dead_at));
                part.letters.push(ChosenLetter { id: found.id, seq: found.seq });
            }
            match slice.next {
                Some(next) => after = Some(next),
                None => {
                    self.add(part);
                    return Ok(());
                }
            }
        }
    }

    /// Chooses messages that were named by their ids. Their moment is that of their last change.
    fn named(&mut self, places: &Places, messages: &[DeadMessage]) {
        for message in messages {
            let key = match message.row {
                Row::Outbox(..) => PlaceKey { source: message.source, owner: message.owner().to_owned() },
                Row::Inbox(place, _) => inbox_key(places, place),
            };
            let confirmed = self.as_of.map(|as_of| as_of.0.get(&key).copied());
            let Some(at) = confirmed.unwrap_or(Some(message.changed_at)) else { continue };
            let index = match self.parts.iter().position(|part| part.key == key) {
                Some(index) => index,
                None => {
                    let (Row::Outbox(place, _) | Row::Inbox(place, _)) = message.row;
                    self.parts.push(SelectedPart::new(place, key, at));
                    self.parts.len() - 1
                }
            };
            let part = &mut self.parts[index];
            part.as_of = part.as_of.max(at);
            part.oldest = Some(part.oldest.unwrap_or(message.since).min(message.since));
            match message.row {
                Row::Outbox(_, id) => part
                    .entries
                    .push(ChosenEntry { id, message_id: message.message_id.clone().unwrap_or_default() }),
                Row::Inbox(_, id) => part.letters.push(ChosenLetter { id, seq: message.seq }),
            }
        }
    }

    fn is_full(&mut self) -> bool {
        self.more |= self.chosen >= CHOSEN_MAX;
        self.chosen = self.chosen.saturating_add(1);
        self.more
    }

    fn add(&mut self, part: SelectedPart) {
        if part.count() > 0 {
            self.parts.push(part);
        }
    }

    fn done(mut self, away: Vec<OperateError>) -> Selected {
        for part in &mut self.parts {
            part.letters.sort_by_key(|letter| letter.seq);
        }
        let chosen: u64 = self.parts.iter().map(SelectedPart::count).sum();
        let first = if self.more { "the first " } else { "" };
        let selection = format!("{}: {first}{chosen} chosen", self.filter);
        Selected { selection, parts: self.parts, more: self.more, following: self.following, away }
    }
}

impl SelectedPart {
    fn new(place: usize, key: PlaceKey, as_of: OffsetDateTime) -> Self {
        Self { key, as_of, oldest: None, place, entries: Vec::new(), letters: Vec::new() }
    }
}

/// Returns the key of an inbox. A consumer can have several databases, each with its own clock.
fn inbox_key(places: &Places, number: usize) -> PlaceKey {
    let name = |place: &InboxPlace| place.name();
    let owner = places.inboxes.get(number).map(name).unwrap_or_default();
    let is_shared = places.inboxes.iter().filter(|place| name(place) == owner).count() > 1;
    let location = places.inboxes.get(number).map(|place| place.location.as_str()).filter(|_| is_shared);
    let owner = location.map_or_else(|| owner.clone(), |location| format!("{owner} at {location}"));
    PlaceKey { source: DeadSource::Inbox, owner }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_what_may_hold_others_is_discarded() {
        let place = |source| PlaceKey { source, owner: String::from("orders") };
        let part = |source| SelectedPart::new(0, place(source), OffsetDateTime::UNIX_EPOCH);
        let mut outbox = part(DeadSource::Outbox);
        outbox.entries.push(ChosenEntry { id: EntryId(1), message_id: String::new() });
        let mut inbox = part(DeadSource::Inbox);
        inbox.letters.push(ChosenLetter { id: DeadLetterId(uuid::Uuid::nil()), seq: 1 });
        let requeue = Change::Requeue { accept_late: false };
        let both = [outbox.clone(), inbox];
        assert!(check_part(&Change::Discard, true, &[outbox]).is_ok());
        assert!(check_part(&requeue, true, &both).is_ok());
        assert!(check_part(&Change::Discard, false, &both).is_ok());
        let refused = check_part(&Change::Discard, true, &both).unwrap_err().to_string();
        assert!(refused.contains("more than 250000 messages match"), "{refused}");
    }

    #[test]
    fn a_moment_goes_through_a_form() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        let place = PlaceKey { source: DeadSource::Outbox, owner: String::from("a/b orders") };
        let moment = Moment { place, at };
        assert_eq!(moment.to_string(), "outbox/1700000000123456/a/b orders");
        assert_eq!(moment.to_string().parse(), Ok(moment));
        for broken in
            ["", "outbox", "outbox/x/orders", "nowhere/1/orders", "outbox/1", "outbox/9223372036854775807/x"]
        {
            assert!(broken.parse::<Moment>().is_err(), "{broken}");
        }
    }
}
