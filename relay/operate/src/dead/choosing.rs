//! Chooses the messages of a decision, place by place.

use std::collections::BTreeSet;

use inbox::{Reason, SeenLetter};
use outbox_log::admin::{ChosenEntry, ParkedQuery};
use outbox_log::{EntryId, ExceptionState, RelayName};
use time::OffsetDateTime;

use super::decide::Change;
use super::filter::Filter;
use super::message::{DeadMessage, DeadSource, Row};
use super::moment::{AsOf, Matched, PlaceKey};
use super::select::{CHOSEN_MAX, ChosenLetter, Selected, SelectedPart};
use crate::error::{OperateError, OperateErrorKind};
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::turns::in_turns;

/// One pass over the places of a decision.
pub(super) struct Choosing<'a> {
    filter: &'a Filter,
    change: &'a Change,
    as_of: Option<&'a AsOf>,
    pub(super) parts: Vec<SelectedPart>,
    /// The places that have answered.
    answered: BTreeSet<PlaceKey>,
    chosen: usize,
    pub(super) more: bool,
    following: u64,
    changed: u64,
}

impl<'a> Choosing<'a> {
    pub(super) fn new(filter: &'a Filter, change: &'a Change, as_of: Option<&'a AsOf>) -> Self {
        Self {
            filter,
            change,
            as_of,
            parts: Vec::new(),
            answered: BTreeSet::new(),
            chosen: 0,
            more: false,
            following: 0,
            changed: 0,
        }
    }

    /// Chooses by the filter. Returns the errors of places that do not answer.
    pub(super) async fn all(&mut self, places: &Places) -> Vec<OperateError> {
        let mut away = places.away.clone();
        let filter = self.filter;
        let is_asked = |key: &PlaceKey| self.as_of.is_none_or(|as_of| as_of.0.contains_key(key));
        // All places are asked for their time first, so that the waits for those that do not answer
        // overlap. The rest is read one after the other, because of the limit over all.
        let outboxes = places.outboxes.iter().enumerate().filter(|_| filter.takes_outboxes());
        let outboxes: Vec<_> = outboxes.filter(|(_, place)| is_asked(&outbox_key(&place.pipeline))).collect();
        let takes = |place: &InboxPlace| filter.takes_inboxes() && filter.takes_place(place);
        let inboxes = places.distinct_inboxes().filter(|(_, place)| takes(place));
        let inboxes: Vec<_> = inboxes.filter(|(number, _)| is_asked(&inbox_key(places, *number))).collect();
        let looks = outboxes.iter().map(|(_, place)| place.now()).collect();
        for ((number, place), now) in outboxes.iter().zip(in_turns(looks).await) {
            let chosen = match now {
                Ok(now) => self.outbox(*number, place, now).await,
                Err(error) => Err(error),
            };
            if let Err(error) = chosen {
                away.push(error.about(&place.pipeline));
            }
        }
        let looks = inboxes.iter().map(|(_, place)| place.database.now()).collect();
        for ((number, place), now) in inboxes.iter().zip(in_turns(looks).await) {
            let chosen = match now {
                Ok(now) => self.inbox(*number, places, now).await,
                Err(error) => Err(error),
            };
            if let Err(error) = chosen {
                away.push(error.about(place.name()));
            }
        }
        away
    }

    async fn outbox(
        &mut self,
        number: usize,
        place: &OutboxPlace,
        now: OffsetDateTime,
    ) -> Result<(), OperateError> {
        let key = outbox_key(&place.pipeline);
        let mut desk = place.desk().await;
        let at = match self.as_of {
            Some(as_of) => match as_of.0.get(&key) {
                Some(matched) => matched.at,
                None => return Ok(()),
            },
            None => now,
        };
        let mut part = SelectedPart::new(number, key, at);
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
                part.add_entry(found.chosen, found.created_at);
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

    async fn inbox(
        &mut self,
        number: usize,
        places: &Places,
        now: OffsetDateTime,
    ) -> Result<(), OperateError> {
        let Some(place) = places.inboxes.get(number) else { return Ok(()) };
        let key = inbox_key(places, number);
        let at = match self.as_of {
            Some(as_of) => match as_of.0.get(&key) {
                Some(matched) => matched.at,
                None => return Ok(()),
            },
            None => now,
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
                if found.reason == Reason::Held && matches!(self.change, Change::Requeue { .. }) {
                    self.following += 1;
                    continue;
                }
                if self.is_full() {
                    self.add(part);
                    return Ok(());
                }
                let seen = SeenLetter { id: found.id, reason: found.reason, deliveries: found.deliveries };
                part.add_letter(ChosenLetter { seen, seq: found.seq }, found.dead_at);
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

    /// Chooses messages that were named by their ids: every place has answered. Their moment is
    /// that of their last change.
    pub(super) fn named(&mut self, places: &Places, messages: &[DeadMessage]) {
        self.answered.extend(places.outboxes.iter().map(|place| outbox_key(&place.pipeline)));
        self.answered.extend((0..places.inboxes.len()).map(|number| inbox_key(places, number)));
        for message in messages {
            let key = match message.row {
                Row::Outbox(..) => PlaceKey { source: message.source, owner: message.owner().to_owned() },
                Row::Inbox(place, _) => inbox_key(places, place),
            };
            let at = match self.as_of {
                Some(as_of) => match as_of.0.get(&key) {
                    Some(matched) => matched.at,
                    None => continue,
                },
                None => message.changed_at,
            };
            self.answered.insert(key.clone());
            let index = match self.parts.iter().position(|part| part.key == key) {
                Some(index) => index,
                None => {
                    let (Row::Outbox(place, _) | Row::Inbox(place, _)) = message.row;
                    self.parts.push(SelectedPart::new(place, key, at));
                    self.parts.len() - 1
                }
            };
            let part = &mut self.parts[index];
            part.matched.at = part.matched.at.max(at);
            match message.row {
                Row::Outbox(_, id) => {
                    let message_id = message.message_id.clone().unwrap_or_default();
                    let entry = ChosenEntry { id, message_id, edited_at: message.edited_at };
                    if message.is_dead() {
                        part.add_entry(entry, message.since);
                    } else {
                        part.add_waiting(entry, message.since);
                    }
                }
                Row::Inbox(..) => {
                    let Some(seen) = message.seen() else { continue };
                    part.add_letter(ChosenLetter { seen, seq: message.seq }, message.since);
                }
            }
        }
    }

    /// Compares with the confirmation. A message may match now that did not when the operator
    /// looked, although it is old enough: it was held and has failed since, or the transaction in
    /// which it died had not been committed. Messages that the operator has not seen are not
    /// decided about, with one exception: if a requeue finds fewer messages than were confirmed,
    /// only their edits are compared. A late one can take effect twice, so a requeue that accepts
    /// late ones must find them all.
    pub(super) fn check_confirmed(&mut self, away: &[OperateError]) -> Result<(), OperateError> {
        let Some(as_of) = self.as_of else { return Ok(()) };
        for (key, confirmed) in &as_of.0 {
            if !self.answered.contains(key) {
                let why: Vec<String> = away.iter().map(ToString::to_string).collect();
                let text = format!("{} {} does not answer: {}", key.source, key.owner, why.join("; "));
                let error = OperateError::new(OperateErrorKind::Unavailable, text);
                return Err(error.with_help("nothing was changed: list the messages again"));
            }
            self.check_place(key, confirmed)?;
        }
        Ok(())
    }

    /// Compares messages that were named by their ids with the confirmation. It may also cover
    /// other databases, whose messages are chosen separately.
    pub(super) fn check_named(&mut self) -> Result<(), OperateError> {
        let Some(as_of) = self.as_of else { return Ok(()) };
        for (key, confirmed) in &as_of.0 {
            if self.answered.contains(key) {
                self.check_place(key, confirmed)?;
            }
        }
        Ok(())
    }

    fn check_place(&mut self, key: &PlaceKey, confirmed: &Matched) -> Result<(), OperateError> {
        let part = self.parts.iter().find(|part| part.key == *key);
        let now = part.map_or(Matched::none(confirmed.at), |part| part.matched);
        let may_be_fewer = *self.change == Change::Requeue { accept_late: false };
        let is_fewer = may_be_fewer && now.count < confirmed.count && now.has_no_other_edit(confirmed);
        if !is_fewer && now != *confirmed {
            let text = format!(
                "the messages of {} {} have changed since they were shown: {} were confirmed, {} match now",
                key.source, key.owner, confirmed.count, now.count
            );
            let error = OperateError::new(OperateErrorKind::Conflict, text);
            return Err(error.with_help("nothing was changed: confirm the decision again"));
        }
        self.changed += confirmed.count - now.count;
        Ok(())
    }

    fn is_full(&mut self) -> bool {
        self.more |= self.chosen >= CHOSEN_MAX;
        self.chosen = self.chosen.saturating_add(1);
        self.more
    }

    fn add(&mut self, part: SelectedPart) {
        self.answered.insert(part.key.clone());
        if part.count() > 0 {
            self.parts.push(part);
        }
    }

    pub(super) fn done(mut self, away: Vec<OperateError>) -> Selected {
        for part in &mut self.parts {
            part.letters.sort_by_key(|letter| letter.seq);
        }
        let chosen: u64 = self.parts.iter().map(SelectedPart::count).sum();
        let first = if self.more { "the first " } else { "" };
        let selection = format!("{}: {first}{chosen} chosen", self.filter);
        let Self { parts, more, following, changed, .. } = self;
        Selected { selection, parts, more, following, changed, away }
    }
}

fn outbox_key(pipeline: &RelayName) -> PlaceKey {
    PlaceKey { source: DeadSource::Outbox, owner: pipeline.to_string() }
}

/// Returns the key of an inbox. A consumer can have several databases, each with its own clock, and
/// one for each tenant.
fn inbox_key(places: &Places, number: usize) -> PlaceKey {
    let name = |place: &InboxPlace| place.name();
    let owner = places.inboxes.get(number).map(name).unwrap_or_default();
    let is_shared = places.inboxes.iter().filter(|place| name(place) == owner).count() > 1;
    let Some(place) = places.inboxes.get(number).filter(|_| is_shared) else {
        return PlaceKey { source: DeadSource::Inbox, owner };
    };
    let tenant = place.scope.as_ref().map(|tenant| format!(", tenant {}", tenant.as_str()));
    let owner = format!("{owner} at {}{}", place.location, tenant.unwrap_or_default());
    PlaceKey { source: DeadSource::Inbox, owner }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::dead::moment::Moment;
    use crate::dead::sample::entry;
    use crate::message_state::MessageState;

    #[test]
    fn messages_that_were_ticked_are_compared_with_what_was_shown() {
        let places = Places::new();
        let (filter, discard) = (Filter::default(), Change::Discard);
        let of = |shown: &[DeadMessage], now: &[DeadMessage]| {
            let mut choosing = Choosing::new(&filter, &discard, None);
            choosing.named(&places, shown);
            choosing.check_named().unwrap();
            let elsewhere = Moment {
                place: PlaceKey { source: DeadSource::Outbox, owner: String::from("bills") },
                matched: Matched::none(OffsetDateTime::UNIX_EPOCH),
            };
            let moments = choosing.parts.iter().map(SelectedPart::moment).chain([elsewhere]);
            let confirmed: AsOf = moments.collect();
            let mut choosing = Choosing::new(&filter, &discard, Some(&confirmed));
            choosing.named(&places, now);
            choosing.check_named().map(|()| choosing.parts[0].count())
        };
        let waiting = |id| DeadMessage { state: MessageState::Retrying, ..entry(id) };
        assert_eq!(of(&[entry(1), waiting(2)], &[waiting(2), entry(1)]).unwrap(), 2);
        let requeued = of(&[entry(1), entry(2)], &[entry(1), waiting(2)]).unwrap_err();
        assert_eq!(requeued.kind(), OperateErrorKind::Conflict);
        let another = DeadMessage { message_id: Some("another".into()), ..entry(2) };
        assert!(of(&[entry(1), entry(2)], &[entry(1), another]).is_err());
        assert!(of(&[entry(1)], &[entry(1), entry(2)]).is_err());
    }

    /// Returns the messages of an outbox, the first one edited at this time.
    fn found(ids: &[i64], first_edited_at: Option<OffsetDateTime>) -> SelectedPart {
        let key = PlaceKey { source: DeadSource::Outbox, owner: String::from("orders") };
        let mut part = SelectedPart::new(0, key, OffsetDateTime::UNIX_EPOCH);
        for (place, id) in ids.iter().enumerate() {
            let edited_at = first_edited_at.filter(|_| place == 0);
            let entry = ChosenEntry { id: EntryId(*id), message_id: String::new(), edited_at };
            part.add_entry(entry, OffsetDateTime::UNIX_EPOCH);
        }
        part
    }

    /// The commit of an edit can take so long that the edit is older than a confirmation that has
    /// not seen it.
    #[test]
    fn an_edit_that_was_not_seen_is_a_change_however_old_it_is() {
        let at = |second| Some(OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(second));
        let filter = Filter::default();
        let check = |change: &Change, shown: SelectedPart, now: SelectedPart| {
            let confirmed: AsOf = [shown.moment()].into_iter().collect();
            let mut choosing = Choosing::new(&filter, change, Some(&confirmed));
            choosing.add(now);
            choosing.check_confirmed(&[]).map(|()| choosing.changed)
        };
        let requeue = Change::Requeue { accept_late: false };
        for change in [&requeue, &Change::Discard] {
            assert_eq!(check(change, found(&[1, 2, 3], at(-9)), found(&[1, 2, 3], at(-9))).unwrap(), 0);
            for now in [found(&[1, 2, 3], at(-9)), found(&[1, 2], at(-9)), found(&[2], at(-9))] {
                for seen in [None, at(-99)] {
                    let refused = check(change, found(&[1, 2, 3], seen), now.clone()).unwrap_err();
                    assert_eq!(refused.kind(), OperateErrorKind::Conflict, "{now:?}");
                }
            }
        }
        // Fewer are requeued, if the edits among them were seen, or none is edited.
        assert_eq!(check(&requeue, found(&[1, 2, 3], at(-9)), found(&[1, 2], at(-9))).unwrap(), 1);
        assert_eq!(check(&requeue, found(&[1, 2, 3], at(-9)), found(&[2, 3], None)).unwrap(), 1);
    }

    #[test]
    fn what_an_operator_has_not_seen_is_not_decided_about() {
        let found = |ids: &[i64]| found(ids, None);
        let confirmed: AsOf = [found(&[1, 2, 3]).moment()].into_iter().collect();
        let filter = Filter::default();
        let checked = |change: &Change, now: &[i64]| {
            let mut choosing = Choosing::new(&filter, change, Some(&confirmed));
            choosing.add(found(now));
            choosing.check_confirmed(&[]).map(|()| choosing.changed)
        };
        let requeue = Change::Requeue { accept_late: false };
        let late = Change::Requeue { accept_late: true };
        for change in [&requeue, &late, &Change::Discard] {
            assert_eq!(checked(change, &[3, 1, 2]).unwrap(), 0);
            let refused = checked(change, &[1, 2, 4]).unwrap_err();
            assert_eq!(refused.kind(), OperateErrorKind::Conflict);
            let refused = checked(change, &[1, 2, 3, 4]).unwrap_err().to_string();
            assert!(refused.contains("3 were confirmed, 4 match now"), "{refused}");
        }
        assert_eq!(checked(&requeue, &[2]).unwrap(), 2);
        assert_eq!(checked(&requeue, &[2, 4]).unwrap(), 1, "fewer are not compared");
        for change in [&late, &Change::Discard] {
            assert!(checked(change, &[2]).is_err(), "it cannot be undone");
            assert!(checked(change, &[2, 4]).is_err());
        }
        let mut silent = Choosing::new(&filter, &requeue, Some(&confirmed));
        let away = OperateError::new(OperateErrorKind::Unavailable, "connection refused");
        let refused = silent.check_confirmed(&[away]).unwrap_err();
        assert_eq!(refused.kind(), OperateErrorKind::Unavailable);
        assert!(refused.to_string().contains("outbox orders does not answer: connection refused"));
    }
}
