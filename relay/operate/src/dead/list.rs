//! Finds waiting messages.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::str::FromStr;

use inbox::{DeadLetter, DeadLetterId, DeadLetterQuery};
use outbox_log::entries::EntryRef;
use outbox_log::{EntryId, ExceptionState};
use time::OffsetDateTime;
use uuid::Uuid;

use super::decide::LOOK_BACK;
use super::filter::Filter;
use super::message::{DeadMessage, Row};
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::{InboxPlace, OutboxPlace, Places};

/// Entries of an outbox per read.
const PAGE_ENTRIES: u32 = 500;
/// Dead letters per read.
const PAGE_LETTERS: NonZeroU32 = NonZeroU32::MIN.saturating_add(499);

/// The states of messages to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum States {
    /// Messages that need an operator: dead entries and open dead letters.
    Dead,
    /// Entries of outboxes in one other state; no dead letters.
    Parked(ExceptionState),
    /// Open and closed dead letters.
    Closed,
    /// Everything that is parked, and closed dead letters.
    Any,
}

const ALL_STATES: [ExceptionState; 5] = [
    ExceptionState::Dead,
    ExceptionState::Held,
    ExceptionState::Retrying,
    ExceptionState::Scheduled,
    ExceptionState::Discarded,
];

impl States {
    fn of_outbox(self) -> Vec<ExceptionState> {
        match self {
            Self::Dead | Self::Closed => vec![ExceptionState::Dead],
            Self::Parked(state) => vec![state],
            Self::Any => ALL_STATES.to_vec(),
        }
    }

    /// Returns whether closed dead letters are included; `None` if there are no dead letters at
    /// all.
    fn of_inbox(self) -> Option<bool> {
        match self {
            Self::Dead => Some(false),
            Self::Parked(state) => (state == ExceptionState::Dead).then_some(false),
            Self::Closed | Self::Any => Some(true),
        }
    }
}

/// The messages found, and the places that do not answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The messages: those of outboxes in the order of the log, followed by dead letters in the
    /// order of their ids.
    pub messages: Vec<DeadMessage>,
    /// Whether there are more than requested.
    pub more: bool,
    /// The beginning of the next page; `None` after the last one.
    pub next: Option<Bookmark>,
    /// The errors of places that do not answer; their messages are missing.
    pub away: Vec<OperateError>,
}

/// Lists at most `limit` waiting messages. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view parked messages. [`Listed::away`] has the errors
/// of unreachable databases.
pub async fn list(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    states: States,
    limit: usize,
) -> Result<Listed, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut listed = find(places, filter, states, limit.saturating_add(1)).await;
    listed.more = listed.messages.len() > limit || listed.next.is_some();
    listed.messages.truncate(limit);
    Ok(listed)
}

/// Lists one page of at most `limit` waiting messages, starting at a bookmark. It reads a bounded
/// number of rows, so a page can have fewer messages, or none, and still have a next one.
/// Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view parked messages. [`Listed::away`] has the errors
/// of unreachable databases.
pub async fn page(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
    states: States,
    from: Option<Bookmark>,
    limit: usize,
) -> Result<Listed, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let mut reading = Reading::new(filter, states, limit.saturating_add(1), SCANNED_MAX);
    let mut listed = reading.all(places, from).await;
    if listed.messages.len() > limit {
        listed.messages.truncate(limit);
        listed.next = listed.messages.last().map(Bookmark::after);
    }
    listed.more = listed.next.is_some();
    Ok(listed)
}

/// Finds single messages in any state. Cancel-safe.
///
/// # Errors
/// [`OperateError`] names the messages that were not found, or the place that does not answer.
pub async fn show(
    places: &Places,
    operator: &Operator,
    filter: &Filter,
) -> Result<Vec<DeadMessage>, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let Listed { messages, away, .. } = find(places, filter, States::Any, usize::MAX).await;
    let missing: Vec<String> = filter
        .ids
        .iter()
        .filter(|id| !messages.iter().any(|message| id.names(message)))
        .map(ToString::to_string)
        .collect();
    match away.into_iter().next() {
        _ if missing.is_empty() => Ok(messages),
        Some(error) => Err(error),
        None => {
            let text = format!("not parked: {}", missing.join(", "));
            let help = "it was published, or was never here; `relay dead list` shows dead messages, and with --state other parked ones";
            Err(OperateError::refused(text, help))
        }
    }
}

/// Finds at most `limit` messages in all places. Given ids are looked up.
pub(crate) async fn find(places: &Places, filter: &Filter, states: States, limit: usize) -> Listed {
    Reading::new(filter, states, limit, usize::MAX).all(places, None).await
}

/// Maximum number of rows read for one page, however many match the filter.
const SCANNED_MAX: usize = 10_000;

/// Returns the start and the number of rows for reading the ids from `first` to `last`.
fn up_to(first: EntryId, last: EntryId) -> (EntryId, u32) {
    let rows = last.0.saturating_sub(first.0).saturating_add(1);
    (EntryId(first.0.saturating_sub(1)), u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, PAGE_ENTRIES))
}

/// A place in the list of waiting messages. Its text is used in addresses and forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bookmark(Row, ExceptionState);

impl Bookmark {
    fn after(message: &DeadMessage) -> Self {
        Self(message.row, message.state.parked().unwrap_or(ExceptionState::Dead))
    }
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Row::Outbox(place, id) => write!(f, "outbox-{place}-{}-{id}", self.1),
            Row::Inbox(place, id) => write!(f, "inbox-{place}-dead-{id}"),
        }
    }
}

impl FromStr for Bookmark {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let read = || {
            let mut parts = text.splitn(4, '-');
            let (source, place, state, id) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let place = place.parse().ok()?;
            let row = match source {
                "outbox" => Row::Outbox(place, EntryId(id.parse().ok()?)),
                "inbox" => Row::Inbox(place, id.parse().ok()?),
                _ => return None,
            };
            Some(Self(row, state.parse().ok()?))
        };
        read().ok_or("it is not a valid position in the list: start with the first page")
    }
}

/// One pass over all places.
struct Reading<'a> {
    filter: &'a Filter,
    now: OffsetDateTime,
    states: States,
    limit: usize,
    /// Number of rows that may still be read.
    budget: usize,
    found: Vec<DeadMessage>,
    next: Option<Bookmark>,
}

impl<'a> Reading<'a> {
    fn new(filter: &'a Filter, states: States, limit: usize, budget: usize) -> Self {
        let now = OffsetDateTime::now_utc();
        Self { filter, now, states, limit, budget, found: Vec::new(), next: None }
    }

    fn is_full(&self) -> bool {
        self.found.len() >= self.limit || self.budget == 0
    }

    /// Returns whether the page ends before this place in the list. If the budget of rows is used
    /// up, the next page begins there: more messages may follow, although none was seen.
    fn ends_before(&mut self, place: Bookmark) -> bool {
        if self.budget == 0 {
            self.next.get_or_insert(place);
        }
        self.is_full()
    }

    async fn all(&mut self, places: &Places, from: Option<Bookmark>) -> Listed {
        let mut away = places.away.clone();
        let filter = self.filter;
        let from_inbox = match from {
            Some(Bookmark(Row::Inbox(place, id), _)) => Some((place, id)),
            _ => None,
        };
        let outboxes = places.outboxes.iter().enumerate();
        for (number, place) in outboxes.filter(|_| filter.takes_outboxes() && from_inbox.is_none()) {
            if let Err(error) = self.outbox(number, place, from).await {
                away.push(error.about(&place.pipeline));
            }
        }
        let mut seen = HashSet::new();
        for (number, place) in places.inboxes.iter().enumerate().filter(|_| filter.takes_inboxes()) {
            let after = match from_inbox {
                Some((at, _)) if number < at => continue,
                Some((at, id)) if number == at => Some(id),
                _ => None,
            };
            let first = Bookmark(Row::Inbox(number, DeadLetterId(Uuid::nil())), ExceptionState::Dead);
            if self.states.of_inbox().is_some() && self.ends_before(first) {
                break;
            }
            if let Err(error) = self.inbox(number, place, after, &mut seen).await {
                let whose = place.consumer.as_ref().map(|consumer| format!("inbox of {consumer}"));
                away.push(error.about(whose.as_deref().unwrap_or("inbox")));
            }
        }
        Listed { messages: std::mem::take(&mut self.found), more: false, next: self.next.take(), away }
    }

    async fn outbox(
        &mut self,
        number: usize,
        place: &OutboxPlace,
        from: Option<Bookmark>,
    ) -> Result<(), OperateError> {
        if !self.filter.ids.is_empty() {
            return self.named(number, place).await;
        }
        let mut states = self.states.of_outbox();
        let mut after = EntryId::default();
        if let Some(Bookmark(Row::Outbox(at, id), state)) = from {
            match number.cmp(&at) {
                Ordering::Less => return Ok(()),
                Ordering::Equal => {
                    let done = states.iter().position(|one| *one == state).unwrap_or_default();
                    states.drain(..done);
                    after = id;
                }
                Ordering::Greater => {}
            }
        }
        for state in states {
            if self.ends_before(Bookmark(Row::Outbox(number, after), state)) {
                return Ok(());
            }
            while !self.is_full() {
                let page = place.log.list(&place.pipeline, state, after, PAGE_ENTRIES).await?;
                let Some(last) = page.last() else { break };
                after = last.id;
                let is_last = page.len() < PAGE_ENTRIES as usize;
                self.budget = self.budget.saturating_sub(page.len());
                let messages = page
                    .into_iter()
                    .map(|entry| DeadMessage::of_entry(number, place.pipeline.as_str(), state, entry));
                let (filter, now) = (self.filter, self.now);
                self.found.extend(messages.filter(|message| filter.takes(message, now)));
                if is_last {
                    break;
                }
                if self.budget == 0 {
                    self.next = Some(Bookmark(Row::Outbox(number, after), state));
                }
            }
            after = EntryId::default();
        }
        Ok(())
    }

    /// Looks up the entries that the filter names, without reading the rows between distant ones.
    async fn named(&mut self, number: usize, place: &OutboxPlace) -> Result<(), OperateError> {
        let mut wanted = BTreeSet::new();
        let mut message_ids = BTreeSet::new();
        let has_discarded = self.states.of_outbox().contains(&ExceptionState::Discarded);
        for id in &self.filter.ids {
            let at = id.place().map(EntryId);
            wanted.extend(at);
            let by_place = at.filter(|_| has_discarded).map(EntryRef::Id);
            let Some(which) = id.uuid().map(EntryRef::MessageId).or(by_place) else { continue };
            for entry in place.entries.find(&place.pipeline, which).await? {
                wanted.insert(entry.id);
                message_ids.extend(Uuid::parse_str(&entry.message_id));
            }
        }
        let Some(last) = wanted.last().copied() else { return Ok(()) };
        for state in self.states.of_outbox() {
            if state == ExceptionState::Discarded {
                let message_ids: Vec<Uuid> = message_ids.iter().copied().collect();
                let entries = place.log.discarded(&place.pipeline, &message_ids).await?;
                let messages = entries
                    .into_iter()
                    .map(|entry| DeadMessage::of_entry(number, place.pipeline.as_str(), state, entry));
                let (filter, now) = (self.filter, self.now);
                self.found.extend(messages.filter(|message| filter.takes(message, now)));
                continue;
            }
            let mut next = wanted.first().copied();
            while let Some(first) = next.filter(|_| !self.is_full()) {
                let (before, limit) = up_to(first, last);
                let page = place.log.list(&place.pipeline, state, before, limit).await?;
                let is_last = page.len() < limit as usize;
                next = page.last().filter(|_| !is_last).and_then(|seen| {
                    wanted.range((Bound::Excluded(seen.id), Bound::Unbounded)).next().copied()
                });
                let messages = page
                    .into_iter()
                    .map(|entry| DeadMessage::of_entry(number, place.pipeline.as_str(), state, entry));
                let (filter, now) = (self.filter, self.now);
                self.found.extend(messages.filter(|message| filter.takes(message, now)));
            }
        }
        Ok(())
    }

    async fn inbox(
        &mut self,
        number: usize,
        place: &InboxPlace,
        after: Option<DeadLetterId>,
        seen: &mut HashSet<DeadLetterId>,
    ) -> Result<(), OperateError> {
        let Some(resolved_too) = self.states.of_inbox() else { return Ok(()) };
        let (filter, now) = (self.filter, self.now);
        let consumer = place.consumer.as_ref().or(filter.consumer.as_ref()).cloned();
        let requested = requested(place).await;
        let found = &mut self.found;
        let mut take = |letter: DeadLetter| {
            let is_here = consumer.as_ref().is_none_or(|consumer| consumer.as_str() == letter.consumer)
                && place.scope.as_ref().is_none_or(|scope| scope.as_str() == letter.tenant)
                && (resolved_too || letter.resolved.is_none());
            let id = letter.id;
            let mut message = DeadMessage::of_letter(number, letter);
            message.redrive_requested_by = requested.get(&id).cloned().filter(|_| message.is_dead());
            // The configuration may name one database several times.
            if is_here && filter.takes(&message, now) && seen.insert(id) {
                found.push(message);
            }
            found.len()
        };
        for id in &filter.ids {
            // Ids in an inbox are never numbers.
            let Some(uuid) = id.uuid() else { continue };
            if let Some(letter) = place.database.letter(DeadLetterId(uuid)).await? {
                take(letter);
                continue;
            }
            let mut letters = place.database.letters_of(uuid, consumer.as_ref()).await?;
            letters.sort_by_key(|letter| letter.id);
            for letter in letters {
                take(letter);
            }
        }
        if !filter.ids.is_empty() {
            return Ok(());
        }
        let mut query = DeadLetterQuery {
            consumer: consumer.clone(),
            resolved_too,
            after,
            limit: PAGE_LETTERS,
            with_payloads: false,
        };
        loop {
            let page = place.database.dead_letters(&query).await?;
            let Some(last) = page.last().map(|letter| letter.id) else { return Ok(()) };
            query.after = Some(last);
            let is_last = page.len() < PAGE_LETTERS.get() as usize;
            self.budget = self.budget.saturating_sub(page.len());
            for letter in page {
                if take(letter) >= self.limit {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
            if self.budget == 0 {
                self.next = Some(Bookmark(Row::Inbox(number, last), ExceptionState::Dead));
                return Ok(());
            }
        }
    }
}

/// Returns the authors of redrives that no consumer has carried out yet; empty if the decisions
/// cannot be read.
async fn requested(place: &InboxPlace) -> HashMap<DeadLetterId, String> {
    let look_back = NonZeroU32::new(LOOK_BACK).unwrap_or(NonZeroU32::MIN);
    let decisions = place.database.decisions(look_back).await.unwrap_or_default();
    let open = decisions.into_iter().filter(|decision| decision.outcome.is_none());
    open.map(|decision| (decision.dead_letter, decision.signature.actor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_has_looked_enough_begins_again_at_the_next_place() {
        let filter = Filter::default();
        let mut reading = Reading::new(&filter, States::Dead, 50, 10);
        let [other, inbox] = [
            Bookmark(Row::Outbox(1, EntryId::default()), ExceptionState::Dead),
            Bookmark(Row::Inbox(0, DeadLetterId(Uuid::nil())), ExceptionState::Dead),
        ];
        assert!(!reading.ends_before(other));
        assert_eq!(reading.next, None);
        // The last page of a place uses up the budget.
        reading.budget = 0;
        assert!(reading.ends_before(other) && reading.ends_before(inbox));
        assert_eq!(reading.next, Some(other), "the first place that was not looked at");
        assert_eq!(inbox.to_string().parse(), Ok(inbox));
    }

    #[test]
    fn ids_are_looked_up_and_not_read_up_to() {
        assert_eq!(up_to(EntryId(900_000), EntryId(900_000)), (EntryId(899_999), 1));
        assert_eq!(up_to(EntryId(3), EntryId(7)), (EntryId(2), 5));
        assert_eq!(up_to(EntryId(1), EntryId(i64::MAX)), (EntryId(0), PAGE_ENTRIES));
    }

    #[cfg(feature = "sqs")]
    #[tokio::test]
    async fn no_place_is_skipped_when_the_rows_of_a_page_are_used_up() {
        use brokers::Secret;
        use engine::EngineOptions;
        use message::Source;
        use outbox_log::{LogOptions, RelayName};

        use crate::settings::{Broker, Database, PipelineConfig, Retention};

        let sqs = brokers::sqs::Config::default().region("eu-central-1").endpoint_url("http://127.0.0.1:1");
        let pipeline = PipelineConfig {
            name: RelayName::new("orders").unwrap(),
            source: Source::new("/orders").unwrap(),
            database: Database::new(Secret::Text("sqlite:nowhere.db".into()), LogOptions::default()),
            retention: Retention::default(),
            audit_retention: Retention::Off,
            broker: Broker::Sqs(Box::new(sqs)),
            settings: EngineOptions::default(),
        };
        let places = Places::new().outbox(&pipeline);
        let filter = Filter::default();
        let listed = Reading::new(&filter, States::Dead, 50, 0).all(&places, None).await;
        let first = Bookmark(Row::Outbox(0, EntryId::default()), ExceptionState::Dead);
        assert_eq!((listed.next, listed.away.len()), (Some(first), 0));
    }

    #[test]
    fn a_bookmark_goes_through_an_address() {
        let letter = "0190aaaa-0000-7000-8000-000000000001".parse().unwrap();
        for bookmark in [
            Bookmark(Row::Outbox(2, EntryId(77)), ExceptionState::Held),
            Bookmark(Row::Inbox(0, letter), ExceptionState::Dead),
        ] {
            assert_eq!(bookmark.to_string().parse(), Ok(bookmark));
        }
        for broken in ["", "outbox", "outbox-1-dead-x", "outbox-1-x-1", "inbox-1-dead-1", "x-1-dead-1"] {
            assert!(broken.parse::<Bookmark>().is_err(), "{broken}");
        }
    }
}
