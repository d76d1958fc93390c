//! One pass over all places, for a list.

mod letters;

use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;

use inbox::DeadLetterId;
use outbox_log::admin::{Desk, LOOKED_AT_MAX, ParkedQuery};
use outbox_log::entries::EntryRef;
use outbox_log::{EntryId, ExceptionState};
use time::OffsetDateTime;
use uuid::Uuid;

use super::filter::Filter;
use super::list::{Bookmark, Listed, States};
use super::message::{DeadMessage, Row};
use crate::error::OperateError;
use crate::places::{OutboxPlace, Places};
use crate::turns::in_turns;

/// Entries of an outbox per read.
const PAGE_ENTRIES: u32 = 500;

/// Returns the start and the number of rows for reading the ids from `first` to `last`.
fn up_to(first: EntryId, last: EntryId) -> (EntryId, u32) {
    let rows = last.0.saturating_sub(first.0).saturating_add(1);
    (EntryId(first.0.saturating_sub(1)), u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, PAGE_ENTRIES))
}

/// One pass over all places.
pub(super) struct Reading<'a> {
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
    pub(super) fn new(filter: &'a Filter, states: States, limit: usize, budget: usize) -> Self {
        let now = OffsetDateTime::now_utc();
        Self { filter, now, states, limit, budget, found: Vec::new(), next: None }
    }

    fn is_full(&self) -> bool {
        self.found.len() >= self.limit || self.budget == 0
    }

    /// Returns whether the page ends before this position in the list. If the budget of rows is
    /// used up, the next page begins there: more messages may follow, although none was read.
    fn ends_before(&mut self, place: Bookmark) -> bool {
        if self.budget == 0 {
            self.next.get_or_insert(place);
        }
        self.is_full()
    }

    pub(super) async fn all(&mut self, places: &Places, from: Option<Bookmark>) -> Listed {
        let mut away = places.away.clone();
        let filter = self.filter;
        let from_inbox = match from {
            Some(Bookmark(Row::Inbox(place, id), _)) => Some((place, id)),
            _ => None,
        };
        let first = match from {
            Some(Bookmark(Row::Outbox(at, _), _)) => at,
            _ => 0,
        };
        let outboxes = places.outboxes.iter().enumerate().skip(first);
        let outboxes: Vec<_> = outboxes.filter(|_| filter.takes_outboxes() && from_inbox.is_none()).collect();
        // They are asked for their time first, so that the waits for those that do not answer
        // overlap. The rest is read one after the other, because of the limits over all.
        let looks = outboxes.iter().map(|(_, place)| place.now()).collect();
        for ((number, place), now) in outboxes.iter().zip(in_turns(looks).await) {
            if let Err(error) = self.outbox(*number, place, from, now).await {
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
        now: Result<OffsetDateTime, OperateError>,
    ) -> Result<(), OperateError> {
        if !self.filter.ids.is_empty() {
            now?;
            return self.named(number, place).await;
        }
        let mut states = self.states.of_outbox();
        let mut after = EntryId::default();
        if let Some(Bookmark(Row::Outbox(at, id), state)) = from
            && number == at
        {
            let done = states.iter().position(|one| *one == state).unwrap_or_default();
            states.drain(..done);
            after = id;
        }
        let Some(state) = states.first() else { return Ok(()) };
        if self.ends_before(Bookmark(Row::Outbox(number, after), *state)) {
            return Ok(());
        }
        now?;
        let mut desk = place.desk().await;
        for state in states {
            if self.ends_before(Bookmark(Row::Outbox(number, after), state)) {
                return Ok(());
            }
            while !self.is_full() {
                let next = match state {
                    ExceptionState::Discarded => self.discarded(number, place, after).await?,
                    _ => self.parked(number, place, state, after, &mut **desk).await?,
                };
                let Some(next) = next else { break };
                after = next;
                if self.budget == 0 {
                    self.next = Some(Bookmark(Row::Outbox(number, after), state));
                }
            }
            after = EntryId::default();
        }
        Ok(())
    }

    /// Reads the next entries of a state that match. Returns where the rest begins.
    async fn parked(
        &mut self,
        number: usize,
        place: &OutboxPlace,
        state: ExceptionState,
        after: EntryId,
        desk: &mut dyn Desk,
    ) -> Result<Option<EntryId>, OperateError> {
        let wanted = self.limit.saturating_sub(self.found.len());
        let entries_max = u32::try_from(wanted).unwrap_or(u32::MAX).min(PAGE_ENTRIES);
        let query = ParkedQuery { state, after, entries_max, filter: self.filter.of_outbox(None) };
        let slice = desk.parked(&query).await?;
        let is_cut = slice.entries.len() >= entries_max as usize;
        let looked_at =
            if is_cut || slice.next.is_none() { slice.entries.len() } else { LOOKED_AT_MAX as usize };
        self.budget = self.budget.saturating_sub(looked_at);
        let filter = self.filter;
        let messages = slice
            .entries
            .into_iter()
            .map(|entry| DeadMessage::of_entry(number, place.pipeline.as_str(), state, entry));
        self.found.extend(messages.filter(|message| filter.takes_error(message.error.as_deref())));
        Ok(slice.next)
    }

    /// Reads the next discarded entries. Returns where the rest begins.
    async fn discarded(
        &mut self,
        number: usize,
        place: &OutboxPlace,
        after: EntryId,
    ) -> Result<Option<EntryId>, OperateError> {
        let state = ExceptionState::Discarded;
        let page = place.log.list(&place.pipeline, state, after, PAGE_ENTRIES).await?;
        self.budget = self.budget.saturating_sub(page.len());
        let next = page.last().filter(|_| page.len() >= PAGE_ENTRIES as usize).map(|last| last.id);
        let messages = page
            .into_iter()
            .map(|entry| DeadMessage::of_entry(number, place.pipeline.as_str(), state, entry));
        let (filter, now) = (self.filter, self.now);
        self.found.extend(messages.filter(|message| filter.takes(message, now)));
        Ok(next)
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
}
