//! Erases results and dead letters.

use std::collections::BTreeSet;

use ::inbox::{
    DISCARDED_MAX, DeadLetterId, KeyedLetter, LettersOfKey, ManyDecided, Reason, RedriveError, Redriven,
};
use uuid::Uuid;

use super::report::ErasedPart;
use super::{Erasing, Goals, SELECTION};
use crate::error::OperateError;
use crate::operator::Signed;
use crate::places::InboxPlace;

/// Maximum messages or dead letters of one transaction.
const AT_ONCE: usize = 100;

/// The dead letters of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    /// Open ones that wait for another message.
    Held,
    All,
}

impl Chosen {
    fn has(self, letter: &KeyedLetter) -> bool {
        self == Self::All || letter.is_open && letter.seen.reason == Reason::Held
    }
}

/// Returns one place of each database: the configuration may name one for several consumers.
pub(super) fn databases<'a>(inboxes: impl IntoIterator<Item = &'a InboxPlace>) -> Vec<&'a InboxPlace> {
    let mut known = BTreeSet::new();
    inboxes.into_iter().filter(|place| known.insert(place.location.as_str())).collect()
}

impl Erasing<'_> {
    /// Erases the dead letters of the key in the inboxes that apply messages of the chosen
    /// pipelines, with the results of their messages.
    pub(super) async fn letters(&mut self, goals: &Goals<'_>) {
        let is_chosen =
            |inbox: &&InboxPlace| goals.pipelines.iter().any(|pipeline| inbox.is_of(pipeline.name.as_str()));
        for place in databases(goals.places.inboxes.iter().filter(is_chosen)) {
            let mut part = ErasedPart::new(&place.location, "dead letters");
            let mut results = ErasedPart::new(&place.location, "results");
            let mut walked = Ok(());
            if self.subject.discard && !self.is_look() {
                // Held messages first, over the whole inbox: discarding the one before them would
                // set them free.
                walked = self.walk_letters(place, Chosen::Held, &mut part, &mut results).await;
            }
            if walked.is_ok() {
                walked = self.walk_letters(place, Chosen::All, &mut part, &mut results).await;
            }
            self.report.add(part);
            self.report.add(results);
            if let Err(error) = walked {
                self.report.fail(error);
            }
        }
    }

    async fn walk_letters(
        &mut self,
        place: &InboxPlace,
        chosen: Chosen,
        part: &mut ErasedPart,
        results: &mut ErasedPart,
    ) -> Result<(), OperateError> {
        let of = LettersOfKey {
            key: self.subject.key.clone(),
            topic: self.subject.topic.clone(),
            tenant: self.subject.tenant.clone(),
        };
        let mut after = None;
        loop {
            let mut slice = place.database.letters_of_key(&of, after).await?;
            slice.letters.retain(|letter| chosen.has(letter));
            (self.progress)(slice.letters.len() as u64);
            // One may have been held since the first walk.
            let mut open: Vec<KeyedLetter> =
                slice.letters.iter().filter(|letter| letter.is_open).copied().collect();
            open.sort_by_key(|letter| letter.seen.reason != Reason::Held);
            let mut closed: Vec<KeyedLetter> =
                slice.letters.iter().filter(|letter| !letter.is_open).copied().collect();
            if self.subject.discard {
                closed.extend(self.discard_letters(place, &open, chosen, part).await?);
            } else {
                part.leave("open", open.len() as u64);
            }
            for letters in closed.chunks(AT_ONCE) {
                if self.stop.is_cancelled() {
                    return Ok(());
                }
                // A dead letter can name any id, so a result that it leads to is one of its
                // message.
                let messages: Vec<Uuid> = letters.iter().filter_map(|letter| letter.message_id).collect();
                results.erased += self.results(place, &messages).await?;
                if self.is_look() {
                    // The walk through the log finds the same results.
                    let counted = messages.iter().map(|message| (place.location.clone(), *message));
                    self.counted.extend(counted);
                }
                let ids: Vec<DeadLetterId> = letters.iter().map(|letter| letter.seen.id).collect();
                part.erased += if self.is_look() {
                    ids.len() as u64
                } else {
                    place.database.erase_letters(&ids).await?
                };
            }
            match slice.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Discards open dead letters. Returns those that are closed now.
    async fn discard_letters(
        &mut self,
        place: &InboxPlace,
        open: &[KeyedLetter],
        chosen: Chosen,
        part: &mut ErasedPart,
    ) -> Result<Vec<KeyedLetter>, OperateError> {
        let Some(signed) = self.signed else {
            part.discarded += open.len() as u64;
            return Ok(open.to_vec());
        };
        let decided = decided(signed, self.decision);
        let mut closed = Vec::new();
        for letters in open.chunks(DISCARDED_MAX) {
            if self.stop.is_cancelled() {
                break;
            }
            let seen: Vec<_> = letters.iter().map(|letter| letter.seen).collect();
            let answers = place.database.discard_all(&seen, &decided).await?;
            for (letter, answer) in letters.iter().zip(answers) {
                match answer {
                    Ok(Redriven::Now(_) | Redriven::Before { .. }) => {
                        part.discarded += 1;
                        closed.push(*letter);
                    }
                    // The second walk finds it again.
                    Ok(_) | Err(RedriveError::InHand { .. } | RedriveError::Changed { .. }) => {
                        part.leave("in use", u64::from(chosen == Chosen::All));
                    }
                    Err(error) => return Err(OperateError::from(error)),
                }
            }
        }
        Ok(closed)
    }

    /// Erases the results of messages in an inbox. Returns their number.
    pub(super) async fn results(&self, place: &InboxPlace, messages: &[Uuid]) -> Result<u64, OperateError> {
        let tenant = self.subject.tenant.as_ref();
        let mut erased = 0;
        let is_new = |id: &&Uuid| !self.counted.contains(&(place.location.clone(), **id));
        let messages: Vec<Uuid> = messages.iter().filter(is_new).copied().collect();
        for ids in messages.chunks(AT_ONCE) {
            erased += if self.is_look() {
                place.database.results_of(ids, tenant).await?
            } else {
                place.database.erase_results(ids, tenant).await?
            };
        }
        Ok(erased)
    }
}

fn decided(signed: &Signed, id: Uuid) -> ManyDecided {
    ManyDecided { signature: signed.signature(Some(SELECTION.to_owned())), id }
}
