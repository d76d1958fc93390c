//! The dead letters of a list.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use inbox::{Action, DeadLetter, DeadLetterId, DeadLetterQuery, Decision, LETTERS_LOOKED_AT_MAX};
use outbox_log::ExceptionState;
use time::OffsetDateTime;

use super::super::list::Bookmark;
use super::super::message::{DeadMessage, Row};
use super::Reading;
use crate::error::OperateError;
use crate::places::InboxPlace;

/// Dead letters per read.
const PAGE_LETTERS: NonZeroU32 = NonZeroU32::MIN.saturating_add(499);

impl Reading<'_> {
    /// Reads the open dead letters that match.
    async fn open_letters(
        &mut self,
        number: usize,
        place: &InboxPlace,
        mut after: Option<DeadLetterId>,
        seen: &mut HashSet<DeadLetterId>,
    ) -> Result<(), OperateError> {
        if !self.filter.takes_place(place) {
            return Ok(());
        }
        let conditions = self.filter.of_inbox(place, None);
        loop {
            let wanted = self.limit.saturating_sub(self.found.len());
            let limit = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, PAGE_LETTERS.get());
            let slice = place.database.open_letters(&conditions, after, limit).await?;
            let is_cut = slice.letters.len() >= limit as usize;
            let looked_at = if is_cut || slice.next.is_none() {
                slice.letters.len()
            } else {
                LETTERS_LOOKED_AT_MAX as usize
            };
            self.budget = self.budget.saturating_sub(looked_at);
            let requeued = requeued(place, &slice.letters).await;
            for letter in slice.letters {
                let id = letter.id;
                let message = requeued.tell(DeadMessage::of_letter(number, letter), id);
                // The configuration may name one database several times.
                if self.filter.takes_error(message.error.as_deref()) && seen.insert(id) {
                    self.found.push(message);
                }
            }
            let Some(next) = slice.next else { return Ok(()) };
            if self.found.len() >= self.limit {
                return Ok(());
            }
            if self.budget == 0 {
                self.next = Some(Bookmark(Row::Inbox(number, next), ExceptionState::Dead));
                return Ok(());
            }
            after = Some(next);
        }
    }

    pub(super) async fn inbox(
        &mut self,
        number: usize,
        place: &InboxPlace,
        after: Option<DeadLetterId>,
        seen: &mut HashSet<DeadLetterId>,
    ) -> Result<(), OperateError> {
        let Some(resolved_too) = self.states.of_inbox() else { return Ok(()) };
        if self.filter.ids.is_empty() && !resolved_too {
            return self.open_letters(number, place, after, seen).await;
        }
        let (filter, now) = (self.filter, self.now);
        let consumer = place.consumer.as_ref().or(filter.consumer.as_ref()).cloned();
        let found = &mut self.found;
        let mut take = |letter: DeadLetter, requeued: &Requeued| {
            let is_here = consumer.as_ref().is_none_or(|consumer| consumer.as_str() == letter.consumer)
                && place.scope.as_ref().is_none_or(|scope| scope.as_str() == letter.tenant)
                && (resolved_too || letter.resolved.is_none());
            let id = letter.id;
            let message = requeued.tell(DeadMessage::of_letter(number, letter), id);
            // The configuration may name one database several times.
            if is_here && filter.takes(&message, now) && seen.insert(id) {
                found.push(message);
            }
            found.len()
        };
        for id in &filter.ids {
            // Ids in an inbox are never numbers.
            let Some(uuid) = id.uuid() else { continue };
            let letter = place.database.letter(DeadLetterId(uuid)).await?;
            let mut letters: Vec<DeadLetter> = letter.into_iter().collect();
            if letters.is_empty() {
                letters = place.database.letters_of(uuid, consumer.as_ref()).await?;
                letters.sort_by_key(|letter| letter.id);
            }
            let requeued = requeued(place, &letters).await;
            for letter in letters {
                take(letter, &requeued);
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
            let requeued = requeued(place, &page).await;
            for letter in page {
                if take(letter, &requeued) >= self.limit {
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

/// Decisions read about each dead letter to find its open request, which is among the latest.
const REQUESTS_AMONG: NonZeroU32 = NonZeroU32::MIN.saturating_add(19);

/// Requests of operators for dead letters, and their outcomes.
#[derive(Default)]
struct Requeued {
    /// The authors of requests that no consumer has carried out yet.
    waiting: HashMap<DeadLetterId, String>,
    /// When the last request that was carried out ended. A letter that is open nevertheless has
    /// failed again.
    ended: HashMap<DeadLetterId, OffsetDateTime>,
}

impl Requeued {
    /// Takes the decisions about letters, latest first.
    fn of(decisions: Vec<Decision>) -> Self {
        let mut requeued = Self::default();
        for decision in decisions {
            let letter = decision.subject.dead_letter;
            match decision.subject.outcome {
                None => _ = requeued.waiting.insert(letter, decision.signature.actor),
                Some(_) if decision.action == Action::Redrive && !decision.subject.is_replaced() => {
                    let at = decision.subject.done_at.unwrap_or(decision.at);
                    requeued.ended.entry(letter).or_insert(at);
                }
                Some(_) => {}
            }
        }
        requeued
    }

    /// Adds what is known of a letter. About a closed one, nothing waits or has failed.
    fn tell(&self, message: DeadMessage, id: DeadLetterId) -> DeadMessage {
        if !message.is_dead() {
            return message;
        }
        let ended = self.ended.get(&id).copied();
        DeadMessage {
            requeue_requested_by: self.waiting.get(&id).cloned(),
            died_again: ended.is_some(),
            changed_at: ended.map_or(message.changed_at, |ended| ended.max(message.changed_at)),
            ..message
        }
    }
}

/// Returns what operators have asked for these dead letters; nothing if the decisions cannot be
/// read.
async fn requeued(place: &InboxPlace, letters: &[DeadLetter]) -> Requeued {
    if letters.is_empty() {
        return Requeued::default();
    }
    let ids: Vec<DeadLetterId> = letters.iter().map(|letter| letter.id).collect();
    Requeued::of(place.database.decisions_of(&ids, REQUESTS_AMONG).await.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use inbox::Signature;
    use time::Duration;

    use super::super::super::sample::entry;
    use super::*;
    use crate::message_state::MessageState;

    fn decision(id: u128, action: Action, done: Option<i64>) -> Decision {
        Decision {
            number: 1,
            at: OffsetDateTime::UNIX_EPOCH,
            signature: Signature::new("ann", "prices are back"),
            action,
            subject: inbox::DecidedLetter {
                dead_letter: DeadLetterId(uuid::Uuid::from_u128(id)),
                consumer: String::from("billing"),
                accept_late: false,
                outcome: done.map(|_| String::from("Reject(no such price)")),
                done_at: done.map(|seconds| OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds)),
                decision: None,
            },
        }
    }

    /// Goal: an operator sees that a requeue of dead letters did not help, and when. Oracle: what
    /// the list says of letters whose request failed, waits, was never made, or was replaced before
    /// a handler ran, and of a closed one.
    #[test]
    fn a_requeue_that_failed_shows_in_the_list() {
        let mut replaced = decision(5, Action::Redrive, Some(80));
        replaced.subject.outcome = Some(String::from("replaced by a request that accepts late messages"));
        let decisions = vec![
            decision(1, Action::Redrive, Some(90)),
            decision(1, Action::Redrive, Some(30)),
            decision(2, Action::Redrive, None),
            decision(2, Action::Redrive, Some(60)),
            decision(4, Action::Redrive, Some(60)),
            replaced,
        ];
        let requeued = Requeued::of(decisions);
        let of = |id: u128, state| {
            let message = DeadMessage { state, ..entry(7) };
            requeued.tell(message, DeadLetterId(uuid::Uuid::from_u128(id)))
        };
        let failed = of(1, MessageState::Dead);
        assert_eq!(failed.state_told(), "dead again");
        assert_eq!(failed.changed_at, OffsetDateTime::UNIX_EPOCH + Duration::seconds(90));
        let waits = of(2, MessageState::Dead);
        assert_eq!(waits.state_told(), "dead again, requeue requested by ann");
        assert_eq!(of(3, MessageState::Dead).state_told(), "dead");
        let replaced = of(5, MessageState::Dead);
        assert_eq!((replaced.state_told().as_str(), replaced.died_again), ("dead", false));
        assert_eq!(replaced.changed_at, OffsetDateTime::UNIX_EPOCH);
        let closed = of(4, MessageState::Applied);
        assert_eq!((closed.state_told().as_str(), closed.died_again), ("applied", false));
    }
}
