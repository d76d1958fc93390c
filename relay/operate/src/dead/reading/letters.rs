//! The dead letters of a list.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use inbox::{DeadLetter, DeadLetterId, DeadLetterQuery, LETTERS_LOOKED_AT_MAX};
use outbox_log::ExceptionState;

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
            let requested = requested(place, &slice.letters).await;
            for letter in slice.letters {
                let id = letter.id;
                let mut message = DeadMessage::of_letter(number, letter);
                message.redrive_requested_by = requested.get(&id).cloned();
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
        let mut take = |letter: DeadLetter, requested: &HashMap<DeadLetterId, String>| {
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
            let letter = place.database.letter(DeadLetterId(uuid)).await?;
            let mut letters: Vec<DeadLetter> = letter.into_iter().collect();
            if letters.is_empty() {
                letters = place.database.letters_of(uuid, consumer.as_ref()).await?;
                letters.sort_by_key(|letter| letter.id);
            }
            let requested = requested(place, &letters).await;
            for letter in letters {
                take(letter, &requested);
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
            let requested = requested(place, &page).await;
            for letter in page {
                if take(letter, &requested) >= self.limit {
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

/// Returns the authors of the redrives of these dead letters that no consumer has carried out yet;
/// empty if the decisions cannot be read.
async fn requested(place: &InboxPlace, letters: &[DeadLetter]) -> HashMap<DeadLetterId, String> {
    if letters.is_empty() {
        return HashMap::new();
    }
    let ids: Vec<DeadLetterId> = letters.iter().map(|letter| letter.id).collect();
    let decisions = place.database.decisions_of(&ids, REQUESTS_AMONG).await.unwrap_or_default();
    let open = decisions.into_iter().filter(|decision| decision.subject.outcome.is_none());
    open.map(|decision| (decision.subject.dead_letter, decision.signature.actor)).collect()
}
