//! Carries out a decision about many messages: in parts, each in its own transaction, and with one
//! session for each database. The audit records everything under the id of the decision.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use inbox::{
    DISCARDED_MAX, ManyDecided, REQUESTED_MAX, RedriveError, RedriveOptions, Redriven, Requested, Resolution,
    SeenLetter,
};
use outbox_log::admin::{ChosenEntry, Confirmed, DECIDED_MAX, DecideError, Decision, OperatorDecision};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::decide::Change;
use super::filter::MessageRef;
use super::message::DeadSource;
use super::outcome::last_decision;
use super::select::{ChosenLetter, Selected, SelectedPart};
use crate::error::{OperateError, OperateErrorKind};
use crate::operator::Signed;
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::seconds;

/// Maximum refusals for which the audit is asked who decided first.
const EXPLAINED_MAX: usize = 10;
/// Maximum messages whose refusal is reported with its reason.
pub const REFUSALS_MAX: usize = 100;

/// A decision about the messages that were selected.
pub struct Bulk<'a> {
    /// The places that were selected from.
    pub places: &'a Places,
    /// The author, and the reason.
    pub signed: &'a Signed,
    /// The decision: not an edit.
    pub change: &'a Change,
    /// Its id, a UUIDv7. The same decision sent twice is one decision.
    pub id: Uuid,
    /// Stops it after the part that is being decided.
    pub stop: &'a CancellationToken,
}

/// The number of messages decided about so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of processed messages, with or without success.
    pub processed: u64,
    /// Number of chosen messages.
    pub chosen: u64,
}

/// A message that was not changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The kind of place.
    pub source: DeadSource,
    /// The pipeline or the consumer.
    pub owner: String,
    /// Its position in the log, or the id of the dead letter.
    pub id: String,
    /// The reason.
    pub why: String,
}

/// The outcome of a decision about many messages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkReport {
    /// The id of the decision; `None` for a dry run.
    pub decision: Option<Uuid>,
    /// The verb.
    pub action: &'static str,
    /// The filter, and the number of messages that it chose.
    pub selection: String,
    /// Number of chosen messages.
    pub chosen: u64,
    /// Number of messages that are now in the requested state.
    pub done: u64,
    /// Number of dead letters whose redrive was already requested.
    pub requested_before: u64,
    /// Number of messages that were left unchanged, because they had changed since.
    pub refused: u64,
    /// Number of messages that were confirmed, but had changed before they were chosen.
    pub changed: u64,
    /// Number of held messages that a requeue leaves out: they follow automatically.
    pub following: u64,
    /// Whether this is only a dry run.
    pub dry_run: bool,
    /// Number of messages whose outcome is unknown, because the database's answer was lost.
    pub unknown: u64,
    /// The other operators who decided about messages of this decision since these were chosen, as
    /// far as the first refusals show.
    pub decided_by: BTreeSet<String>,
    /// The first refusals, with their reasons.
    pub refusals: Vec<Refusal>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
    /// The problem that ended it early.
    #[serde(skip)]
    pub error: Option<OperateError>,
}

impl BulkReport {
    /// Returns the number of messages about which nothing was decided.
    #[must_use]
    pub fn left(&self) -> u64 {
        let processed = self.done + self.requested_before + self.refused + self.unknown;
        self.chosen.saturating_sub(processed)
    }

    fn processed(&self) -> u64 {
        self.chosen - self.left()
    }

    fn refuse(&mut self, part: &SelectedPart, id: String, why: String) {
        self.refused += 1;
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(Refusal { source: part.source(), owner: part.owner().to_owned(), id, why });
        }
    }
}

impl Selected {
    /// Returns these messages as a report, without a decision.
    #[must_use]
    pub fn dry_run(self, change: &Change) -> BulkReport {
        self.report(change)
    }

    fn report(&self, change: &Change) -> BulkReport {
        BulkReport {
            decision: None,
            action: change.as_str(),
            selection: self.selection.clone(),
            chosen: self.count(),
            done: 0,
            requested_before: 0,
            refused: 0,
            changed: self.changed,
            following: self.following,
            dry_run: true,
            unknown: 0,
            decided_by: BTreeSet::new(),
            refusals: Vec::new(),
            stopped: false,
            error: None,
        }
    }

    /// Carries out a decision about these messages: a discard from the last message to the first,
    /// so that no message takes effect that is still to be discarded; a requeue from the first.
    /// Calls `progress` after each part. Ends early after a problem of a database, and when it is
    /// stopped: what is left can be decided about again. Not cancel-safe: query the
    /// [`decision`](super::decision()).
    ///
    /// # Errors
    /// [`OperateError`] when no decision is permitted; then none was taken. A problem of a database
    /// is in [`BulkReport::error`].
    pub async fn carry_out(
        self,
        bulk: &Bulk<'_>,
        mut progress: impl FnMut(Progress),
    ) -> Result<BulkReport, OperateError> {
        bulk.signed.check(bulk.change.as_str())?;
        if matches!(bulk.change, Change::Edit { .. }) {
            return Err(OperateError::new(OperateErrorKind::Refused, "messages are edited one by one"));
        }
        let chosen = self.count();
        let report = BulkReport { decision: Some(bulk.id), dry_run: false, ..self.report(bulk.change) };
        let mut run = Run { bulk, report, explained: 0 };
        let mut told = |report: &BulkReport| progress(Progress { processed: report.processed(), chosen });
        told(&run.report);
        let is_backwards = *bulk.change == Change::Discard;
        let mut parts = self.parts;
        if is_backwards {
            parts.reverse();
        }
        for mut part in parts {
            if is_backwards {
                part.entries.reverse();
                part.letters.reverse();
            }
            let done = match part.source() {
                DeadSource::Outbox => Box::pin(run.outbox(&part, &mut told)).await,
                DeadSource::Inbox => Box::pin(run.inbox(&part, &mut told)).await,
            };
            match done {
                Ok(()) if run.report.stopped => break,
                Ok(()) => {}
                Err(error) => {
                    run.report.error = Some(error.about(part.owner()));
                    break;
                }
            }
        }
        Ok(run.report)
    }
}

struct Run<'a> {
    bulk: &'a Bulk<'a>,
    report: BulkReport,
    /// Number of refusals for which the audit was asked.
    explained: usize,
}

impl Run<'_> {
    /// Returns whether it was stopped before the next part.
    fn is_stopped(&mut self) -> bool {
        self.report.stopped = self.bulk.stop.is_cancelled();
        self.report.stopped
    }

    async fn outbox(
        &mut self,
        part: &SelectedPart,
        told: &mut impl FnMut(&BulkReport),
    ) -> Result<(), OperateError> {
        let Some(place) = self.bulk.places.outboxes.get(part.place) else { return Err(of_other_places()) };
        let decree = OperatorDecision {
            decision: match self.bulk.change {
                Change::Discard => Decision::Discard,
                _ => Decision::Requeue,
            },
            signature: self.bulk.signed.signature(Some(self.report.selection.clone())),
        };
        let mut desk = place.desk().await;
        let confirmed = Some(Confirmed { id: self.bulk.id, as_of: part.as_of() });
        for entries in part.entries.chunks(DECIDED_MAX) {
            if self.is_stopped() {
                return Ok(());
            }
            let verdicts = match desk.decide(entries, &decree, confirmed).await {
                Ok(verdicts) => verdicts,
                Err(error) => {
                    if matches!(error, DecideError::Unknown(_)) {
                        self.report.unknown += entries.len() as u64;
                    }
                    return Err(error.into());
                }
            };
            for (entry, verdict) in entries.iter().zip(verdicts) {
                match verdict {
                    Ok(()) => self.report.done += 1,
                    Err(error) => {
                        let why = self.explained(place, part, entry, error).await;
                        self.report.refuse(part, entry.id.to_string(), why);
                    }
                }
            }
            told(&self.report);
        }
        Ok(())
    }

    /// Returns the reason of a refusal: the decision that came first, if there is one.
    async fn explained(
        &mut self,
        place: &OutboxPlace,
        part: &SelectedPart,
        entry: &ChosenEntry,
        error: DecideError,
    ) -> String {
        let named = entry.message_id.parse::<MessageRef>().ok().filter(|_| self.explained < EXPLAINED_MAX);
        let Some(named) = named else { return error.to_string() };
        self.explained += 1;
        match last_decision(place, &named).await {
            Ok(Some(last)) if last.at >= part.as_of() => {
                self.came_first(last.actor);
                last.text
            }
            _ => error.to_string(),
        }
    }

    /// Records the author of a decision that came first.
    fn came_first(&mut self, actor: String) {
        if actor != self.bulk.signed.operator.name() {
            self.report.decided_by.insert(actor);
        }
    }

    /// Records who decided about a dead letter before.
    async fn ask_who(&mut self, place: &InboxPlace, part: &SelectedPart, letter: SeenLetter) {
        if self.explained >= EXPLAINED_MAX {
            return;
        }
        self.explained += 1;
        let last = place.database.decisions_of(&[letter.id], NonZeroU32::MIN).await;
        if let Some(last) = last.ok().and_then(|decisions| decisions.into_iter().next())
            && last.at >= part.as_of()
        {
            self.came_first(last.signature.actor);
        }
    }

    async fn inbox(
        &mut self,
        part: &SelectedPart,
        told: &mut impl FnMut(&BulkReport),
    ) -> Result<(), OperateError> {
        let signature = self.bulk.signed.signature(Some(self.report.selection.clone()));
        let decided = ManyDecided { signature, id: self.bulk.id };
        let at_once = if *self.bulk.change == Change::Discard { DISCARDED_MAX } else { REQUESTED_MAX };
        for letters in part.letters.chunks(at_once) {
            if self.is_stopped() {
                return Ok(());
            }
            let done = self.letters(part, letters, &decided).await;
            told(&self.report);
            done?;
        }
        Ok(())
    }

    /// Decides about some dead letters, until the database has a problem.
    async fn letters(
        &mut self,
        part: &SelectedPart,
        letters: &[ChosenLetter],
        decided: &ManyDecided,
    ) -> Result<(), OperateError> {
        let Some(place) = self.bulk.places.inboxes.get(part.place) else { return Err(of_other_places()) };
        let seen: Vec<SeenLetter> = letters.iter().map(|letter| letter.seen).collect();
        let outcomes = match outcomes(place, &seen, self.bulk.change, decided).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                if error.is_unknown() {
                    self.report.unknown += seen.len() as u64;
                }
                return Err(error);
            }
        };
        let mut problem = None;
        for (letter, outcome) in seen.iter().zip(outcomes) {
            let id = letter.id.to_string();
            match outcome.map_err(OperateError::from) {
                Ok(Outcome::Done) => self.report.done += 1,
                Ok(Outcome::Before) => {
                    self.report.requested_before += 1;
                    self.ask_who(place, part, *letter).await;
                }
                Ok(Outcome::Refused(why)) => {
                    self.report.refuse(part, id, why);
                    self.ask_who(place, part, *letter).await;
                }
                Err(error) if error.kind() == OperateErrorKind::Unavailable => {
                    self.report.unknown += u64::from(error.is_unknown());
                    problem.get_or_insert(error);
                }
                Err(error) => self.report.refuse(part, id, error.to_string()),
            }
        }
        problem.map_or(Ok(()), Err)
    }
}

/// Decides about dead letters. There are fewer outcomes if the database has a problem: the last one
/// is the problem.
async fn outcomes(
    place: &InboxPlace,
    seen: &[SeenLetter],
    change: &Change,
    decided: &ManyDecided,
) -> Result<Vec<Result<Outcome, RedriveError>>, OperateError> {
    if let Change::Requeue { accept_late } = change {
        let options = RedriveOptions::default().accept_late(*accept_late);
        let requested = place.database.request_redrives(seen, options, decided).await?;
        return Ok(requested.into_iter().map(|answer| answer.map(Outcome::of_request)).collect());
    }
    let discarded = place.database.discard_all(seen, decided).await?;
    Ok(discarded.into_iter().map(|answer| answer.map(Outcome::of_discard)).collect())
}

/// The outcome for one dead letter.
enum Outcome {
    Done,
    /// It was already requested.
    Before,
    Refused(String),
}

impl Outcome {
    fn of_request(requested: Requested) -> Self {
        match requested {
            Requested::Now => Self::Done,
            Requested::Closed(closed) => Self::closed(closed),
            _ => Self::Before,
        }
    }

    fn of_discard(discarded: Redriven) -> Self {
        match discarded {
            // It had taken effect, so there is nothing to discard: the audit has the decision.
            Redriven::Now(Resolution::Discarded | Resolution::Duplicate) => Self::Done,
            closed => Self::closed(closed),
        }
    }

    fn closed(closed: Redriven) -> Self {
        match closed {
            Redriven::Before { resolution, at } => {
                Self::Refused(format!("closed as {resolution} at {}", seconds::text(at)))
            }
            _ => {
                Self::Refused(String::from("another operator is deciding about it: list the messages again"))
            }
        }
    }
}

fn of_other_places() -> OperateError {
    OperateError::new(OperateErrorKind::Refused, "the messages were selected in other databases")
}
