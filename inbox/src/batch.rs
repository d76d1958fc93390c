//! Admitting hundreds of messages in one transaction and one round trip.

use std::collections::HashMap;

use message::crash_points::reached;
use message::{Message, MessageId};
use sqlx::Transaction;

use crate::comparison::{Content, PayloadComparison, Stored};
use crate::crash_points;
use crate::day::Day;
use crate::dialect::{Dialect, Inserted, Mark, NewRow};
use crate::error::AdmitError;
use crate::guard::{Admission, Guard};
use crate::ids::{ConsumerName, Key, Tenant, key};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::telemetry;

/// A message of a batch and its tenant.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// The tenant or account.
    pub tenant: Tenant,
    /// The message.
    pub message: &'a Message,
}

/// The candidates that are sent to the database: the first of each key.
struct Plan<'a> {
    rows: Vec<NewRow<'a>>,
    /// For each candidate: the index of its row, and whether this candidate inserted the row.
    places: Vec<Result<(usize, bool), Refusal>>,
}

fn plan<'a>(
    consumer: &'a ConsumerName,
    candidates: &'a [Candidate<'a>],
    refusals: &mut HashMap<MessageId, Refusal>,
    payloads: PayloadComparison,
) -> Plan<'a> {
    let mut rows: Vec<NewRow<'a>> = Vec::with_capacity(candidates.len());
    let mut known: HashMap<Key<'a>, usize> = HashMap::with_capacity(candidates.len());
    let places = candidates
        .iter()
        .map(|Candidate { tenant, message }| {
            if let Some(refusal) = Refusal::of_fragment(message) {
                return Err(refusal);
            }
            if let Some(refusal) = refusals.get(&message.id) {
                return Err(refusal.clone());
            }
            let key = key(consumer, tenant, message.id);
            let next = rows.len();
            let row = *known.entry(key).or_insert(next);
            if row == next {
                rows.push(NewRow { key, content: Content::of(message, payloads) });
            }
            Ok((row, row == next))
        })
        .collect();
    Plan { rows, places }
}

impl<DB: Dialect> Inbox<DB> {
    /// Admits many messages in the caller's transaction. Returns one result per message, in their
    /// order. When a message is in the batch twice, the first copy is fresh; the second is its
    /// duplicate, or is refused if it differs.
    ///
    /// On PostgreSQL this takes one round trip for every 200 messages, and two more when there are
    /// duplicates. The commit waits for the disk, as with [`admit`](Self::admit), and on SQLite the
    /// same transactions are refused.
    ///
    /// # Errors
    /// [`AdmitError`], never a refusal: refusals are in the results. Roll the transaction back. Not
    /// cancel-safe.
    pub async fn admit_batch(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Result<Admission<DB>, Refusal>>, AdmitError> {
        self.check_it_waits(tx).await?;
        let admissions = self.admit_batch_uncounted(tx, consumer, candidates, Mark::No).await?;
        count_refusals(consumer, &admissions);
        Ok(admissions)
    }

    /// Does the same as [`admit_batch`](Self::admit_batch) without counting refusals. The runner
    /// uses it, because it handles refused messages again one by one.
    pub(crate) async fn admit_batch_uncounted(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
        mark: Mark,
    ) -> Result<Vec<Result<Admission<DB>, Refusal>>, AdmitError> {
        let mut refusals = self.validate_batch(tx, candidates).await?;
        let Plan { rows, places } = plan(consumer, candidates, &mut refusals, self.options().payloads);
        let inserted = DB::insert_batch(tx, self.tables(), &rows, mark)
            .await
            .map_err(StoreError::during("admit a batch"))?;
        if inserted.iter().any(|row| matches!(row, Inserted::New { .. })) {
            reached(crash_points::AFTER_ADMIT);
        }
        let mut admissions = Vec::with_capacity(candidates.len());
        for (Candidate { tenant, message }, place) in candidates.iter().zip(places) {
            let (row, is_first) = match place {
                Ok(place) => place,
                Err(refusal) => {
                    admissions.push(Err(refusal));
                    continue;
                }
            };
            let stored = match &inserted[row] {
                Inserted::New { session, .. } if is_first => {
                    let guard = Guard::new(self, consumer, tenant, message, *session);
                    admissions.push(Ok(Admission::Fresh(guard)));
                    continue;
                }
                Inserted::New { processed_at, .. } => Stored {
                    fingerprint: rows[row].content.fingerprint,
                    source: Some(rows[row].content.source.to_owned()),
                    result: None,
                    processed_at: *processed_at,
                    dead_letter: None,
                },
                Inserted::Exists(stored) => stored.clone(),
                Inserted::Forgotten => match self.forgotten(tx, message.id).await? {
                    AdmitError::Refused(refusal) => {
                        admissions.push(Err(refusal));
                        continue;
                    }
                    error => return Err(error),
                },
            };
            let key = key(consumer, tenant, message.id);
            let compared = self.duplicate(tx, stored, consumer, key, message).await?;
            admissions.push(compared.map(Admission::Duplicate));
        }
        Ok(admissions)
    }

    /// Validates the time of each id once, and makes sure that every accepted day can be stored.
    async fn validate_batch(
        &self,
        tx: &mut Transaction<'_, DB>,
        candidates: &[Candidate<'_>],
    ) -> Result<HashMap<MessageId, Refusal>, AdmitError> {
        let refused = |inbox: &Self| -> HashMap<MessageId, Refusal> {
            let window = inbox.window();
            let validated = candidates.iter().map(|c| (c.message.id, window.validate(c.message.id)));
            validated.filter_map(|(id, validated)| Some((id, validated.err()?))).collect()
        };
        let mut refusals = refused(self);
        if !refusals.is_empty() {
            self.refresh_on(tx).await?;
            refusals = refused(self);
        }
        let accepted = candidates.iter().filter(|c| !refusals.contains_key(&c.message.id));
        let mut missing: Vec<_> = accepted.map(|c| Day::of_id(c.message.id)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing.retain(|day| !self.knows_day(*day));
        if !missing.is_empty() {
            for day in missing {
                self.ensure_day(day).await?;
            }
            refusals = refused(self);
        }
        Ok(refusals)
    }
}

pub(crate) fn count_refusals<T>(consumer: &ConsumerName, admissions: &[Result<T, Refusal>]) {
    for refusal in admissions.iter().filter_map(|admission| admission.as_ref().err()) {
        telemetry::refused(consumer, refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{EventType, Topic};

    fn message(payload: &'static str) -> Message {
        Message::new(Topic::new("t").unwrap(), EventType::new("k").unwrap(), payload)
    }

    #[test]
    fn each_key_is_sent_once_and_scopes_are_apart() {
        let consumer = ConsumerName::new("billing").unwrap();
        let (one, two, old) = (message("a"), message("b"), message("c"));
        let candidate = |message, tenant| Candidate { tenant: Tenant::new(tenant).unwrap(), message };
        let candidates = [
            candidate(&one, "x"),
            candidate(&two, "x"),
            candidate(&one, "x"),
            candidate(&one, "y"),
            candidate(&old, "x"),
        ];
        let at = one.time;
        let refusal = Refusal::TooOld { id: old.id, generated_at: at, oldest_accepted_at: at };
        let mut refusals = HashMap::from([(old.id, refusal.clone())]);
        let plan = plan(&consumer, &candidates, &mut refusals, PayloadComparison::Bytes);
        assert_eq!(plan.rows.len(), 3);
        let expected = [Ok((0, true)), Ok((1, true)), Ok((0, false)), Ok((2, true)), Err(refusal)];
        assert_eq!(plan.places, expected);
    }
}
