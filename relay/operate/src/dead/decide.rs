//! Carries out decisions about dead messages and writes them to the audit. Entries of an outbox
//! share transactions of some hundred entries; dead letters are decided about one by one.

use std::num::NonZeroU32;

use inbox::{DeadLetterId, ManyDecided, RedriveOptions, Redriven, Requested};
use message::Headers;
use outbox_log::admin::{ChosenEntry, Confirmed, DECIDED_MAX, DecideError, Decision, OperatorDecision};
use serde::Serialize;
use uuid::Uuid;

use super::filter::MessageRef;
use super::message::{DeadMessage, DeadSource, Row};
use super::outcome::outcome;
use super::plan::Plan;
use crate::error::{OperateError, OperateErrorKind};
use crate::operator::Signed;
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::seconds;

/// Maximum number of audit records read to find an earlier decision about a position in the log
/// that no longer has a row.
pub(super) const LOOK_BACK: u32 = 1_000;

/// Maximum number of entries of a batch whose current state is looked up after another decision
/// came first. Each needs two queries.
const EXPLAINED_MAX: usize = 20;

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Try it again: the relay publishes it, or its consumer runs the handler once more.
    Requeue {
        /// Also apply a message older than the inbox remembers. Has no effect on an outbox.
        accept_late: bool,
    },
    /// Discard it: it is not sent again, or none of its copies takes effect. A broker may have an
    /// earlier attempt whose answer was lost.
    Discard,
    /// Replace its content. A dead message stays dead until it is requeued. Only for entries of
    /// outboxes.
    Edit {
        /// The new payload; `None` keeps the old one.
        payload: Option<Vec<u8>>,
        /// All new headers; `None` keeps the old ones.
        headers: Option<Headers>,
    },
}

impl Change {
    /// Returns the verb.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Requeue { .. } => "requeue",
            Self::Discard => "discard",
            Self::Edit { .. } => "edit",
        }
    }

    /// Returns whether it applies to an entry that is being retried.
    pub(crate) fn takes_retrying(&self) -> bool {
        !matches!(self, Self::Requeue { .. })
    }
}

/// The outcome of a decision about one message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decided {
    /// The kind of place where it waits.
    pub source: DeadSource,
    /// The pipeline or the consumer.
    pub owner: String,
    /// Its position in the log, or the id of the dead letter.
    pub id: String,
    /// Its message id.
    pub message_id: Option<String>,
    /// Its topic or queue.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Whether the message is now in the requested state.
    pub done: bool,
    /// Whether the outcome is unknown because the database's answer was lost. List the messages
    /// again.
    pub is_unknown: bool,
    /// `requeued`, `requested` (its consumer carries it out), `discarded`, `edited` or `requested
    /// before`. Otherwise the earlier decision, the reason why it was not done, or that this is
    /// unknown.
    pub outcome: String,
    /// The reason why it was not done.
    #[serde(skip)]
    pub(crate) error: Option<OperateError>,
}

/// The outcome of a decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The verb.
    pub action: &'static str,
    /// The id of the decision; `None` for a dry run.
    pub decision: Option<Uuid>,
    /// The filter, and the number of messages that it chose.
    pub selection: String,
    /// Whether this is only a dry run.
    pub dry_run: bool,
    /// One for each processed message, in the order of the plan.
    pub messages: Vec<Decided>,
    /// The first error; an outage takes precedence over a problem of one message.
    #[serde(skip)]
    pub error: Option<OperateError>,
}

impl Plan {
    /// Returns the messages of a decision as a report, without taking it.
    #[must_use]
    pub fn dry_run(self, change: &Change) -> Report {
        let outcome = format!("would {}", change.as_str());
        let messages = self.messages.iter().map(|message| {
            if self.follows(message, change) {
                Decided::following(message)
            } else {
                Decided::of(message, Ok(outcome.clone()))
            }
        });
        let messages = messages.collect();
        Report {
            action: change.as_str(),
            decision: None,
            selection: self.selection,
            dry_run: true,
            messages,
            error: None,
        }
    }

    /// Carries out the decision: a discard from the last message of the plan to the first, other
    /// changes in the order of the plan. Calls `progress` after each part with the number of
    /// processed messages. A message about which another decision was made meanwhile, or that
    /// became dead again, is left unchanged and reported. After an outage it stops. Not
    /// cancel-safe: list the messages again.
    ///
    /// # Errors
    /// [`OperateError`] when no decision is permitted; then none was taken. Problems of single
    /// messages are in [`Report::error`].
    pub async fn carry_out(
        self,
        places: &Places,
        signed: &Signed,
        change: &Change,
        mut progress: impl FnMut(usize),
    ) -> Result<Report, OperateError> {
        signed.check(change.as_str())?;
        let is_edit = matches!(change, Change::Edit { .. });
        if let Some(letter) =
            self.messages.iter().find(|message| is_edit && message.source == DeadSource::Inbox)
        {
            let text = format!(
                "dead letter {} is in an inbox, which keeps messages as they arrived: it cannot be edited",
                letter.id
            );
            let help = "discard it, and send the corrected message with a new id";
            return Err(OperateError::refused(text, help));
        }
        let decided =
            ManyDecided { signature: signed.signature(Some(self.selection.clone())), id: Uuid::now_v7() };
        let mut order: Vec<&DeadMessage> = self.messages.iter().collect();
        // Each part is a separate transaction, and after the first message of a key is discarded,
        // the next one may take effect. When they are discarded from the last one backwards, no
        // message that is still to be discarded takes effect.
        let is_backwards = *change == Change::Discard;
        if is_backwards {
            order.reverse();
        }
        let (mut messages, mut error): (Vec<Decided>, Option<OperateError>) = (Vec::new(), None);
        for part in parts(&order) {
            let outcomes = self.decide(places, part, &decided, change).await;
            let is_away = |error: &&OperateError| error.kind() == OperateErrorKind::Unavailable;
            let away = outcomes.iter().find_map(|decided| decided.error.as_ref().filter(is_away));
            let first = away.or_else(|| outcomes.iter().find_map(|decided| decided.error.as_ref()));
            let (is_over, first) = (away.is_some(), first.cloned());
            messages.extend(outcomes);
            progress(messages.len());
            error = if is_over { first } else { error.or(first) };
            if is_over {
                break;
            }
        }
        if is_backwards {
            messages.reverse();
        }
        let error = error.map(|error| {
            let done = messages.iter().filter(|message| message.done).count();
            let unknown = messages.iter().filter(|message| message.is_unknown).count();
            let of = self.messages.len();
            error.with_help(match unknown {
                0 => format!("{done} of {of} messages were changed"),
                _ => format!(
                    "{done} of {of} messages were changed; for {unknown} the outcome is unknown: list the messages again"
                ),
            })
        });
        let decision = Some(decided.id);
        Ok(Report {
            action: change.as_str(),
            decision,
            selection: self.selection,
            dry_run: false,
            messages,
            error,
        })
    }

    /// Decides about one part.
    async fn decide(
        &self,
        places: &Places,
        part: &[&DeadMessage],
        decided: &ManyDecided,
        change: &Change,
    ) -> Vec<Decided> {
        let unknown =
            || OperateError::new(OperateErrorKind::Refused, "the plan was made for other databases");
        let Some(first) = part.first() else { return Vec::new() };
        let outcomes = match first.row {
            Row::Inbox(..) if self.follows(first, change) => return vec![Decided::following(first)],
            Row::Inbox(place, id) => match places.inboxes.get(place).ok_or_else(unknown) {
                Ok(place) => vec![decide_letter(place, id, first, decided, change).await],
                Err(error) => vec![Err(error)],
            },
            Row::Outbox(place, _) => {
                let decided = match places.outboxes.get(place).ok_or_else(unknown) {
                    Ok(place) => decide_entries(place, part, decided, change).await,
                    Err(error) => Err(error),
                };
                decided.unwrap_or_else(|error| part.iter().map(|_| Err(error.clone())).collect())
            }
        };
        part.iter().zip(outcomes).map(|(message, outcome)| Decided::of(message, outcome)).collect()
    }
}

/// Splits a list into transactions: consecutive entries of one outbox go together.
fn parts<'a, 'b>(order: &'a [&'b DeadMessage]) -> impl Iterator<Item = &'a [&'b DeadMessage]> {
    let together = |one: &&DeadMessage, other: &&DeadMessage| match (one.row, other.row) {
        (Row::Outbox(one, _), Row::Outbox(other, _)) => one == other,
        _ => false,
    };
    order.chunk_by(together).flat_map(|run| run.chunks(DECIDED_MAX))
}

impl Plan {
    /// Returns whether a message follows automatically once those before it have taken effect. A
    /// filter that chooses it, for example by topic, does not make it follow sooner. Naming it by
    /// id is refused.
    fn follows(&self, message: &DeadMessage, change: &Change) -> bool {
        let is_held = message.source == DeadSource::Inbox && message.cause.as_deref() == Some("held");
        is_held && !self.is_named && matches!(change, Change::Requeue { .. })
    }
}

impl Decided {
    /// Returns the outcome of a message about which nothing is decided.
    fn following(message: &DeadMessage) -> Self {
        let told = String::from("held: follows automatically once the messages before it have taken effect");
        Self { done: false, outcome: told, ..Self::of(message, Ok(String::new())) }
    }

    fn of(message: &DeadMessage, outcome: Result<String, OperateError>) -> Self {
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            // The error's own text states this.
            Err(error) if error.is_unknown() => (error.to_string(), Some(error)),
            Err(error) => (format!("not done: {error}"), Some(error)),
        };
        Self {
            source: message.source,
            owner: message.owner().to_owned(),
            id: message.id.clone(),
            message_id: message.message_id.clone(),
            topic: message.topic.clone(),
            key: message.key.clone(),
            done: error.is_none(),
            is_unknown: error.as_ref().is_some_and(OperateError::is_unknown),
            outcome,
            error,
        }
    }
}

/// Decides about entries of one outbox in one transaction. Returns an outcome for each. An entry
/// that has changed since it was read is not decided about: what selected it may not hold anymore.
async fn decide_entries(
    place: &OutboxPlace,
    messages: &[&DeadMessage],
    decided: &ManyDecided,
    change: &Change,
) -> Result<Vec<Result<String, OperateError>>, OperateError> {
    let (decision, done) = match change {
        Change::Requeue { .. } => (Decision::Requeue, "requeued"),
        Change::Discard => (Decision::Discard, "discarded"),
        Change::Edit { payload, headers } => (
            Decision::Edit {
                payload: payload.clone().map(Into::into),
                headers: headers.clone(),
                replaces: None,
            },
            "edited",
        ),
    };
    let decision = OperatorDecision { decision, signature: decided.signature.clone() };
    // A later change of one of them is later than the last change of all that was read.
    let as_of = messages.iter().map(|message| message.changed_at).max();
    let confirmed = as_of.map(|as_of| Confirmed { id: decided.id, as_of });
    let entries: Vec<ChosenEntry> = messages.iter().filter_map(|message| chosen(message)).collect();
    let verdicts = place.desk().await.decide(&entries, &decision, confirmed).await?;
    let mut outcomes = Vec::with_capacity(verdicts.len());
    let mut explained = 0;
    for (entry, verdict) in entries.iter().zip(verdicts) {
        outcomes.push(match verdict {
            Ok(()) => Ok(done.to_owned()),
            Err(
                error @ (DecideError::NotDead { .. }
                | DecideError::NoSuchEntry { .. }
                | DecideError::Edited { .. }
                | DecideError::Trying { .. }),
            ) if explained < EXPLAINED_MAX => {
                explained += 1;
                Err(explain(place, entry, error).await)
            }
            Err(error) => Err(error.into()),
        });
    }
    Ok(outcomes)
}

/// Returns the entry in the form that a decision takes; `None` for a dead letter.
fn chosen(message: &DeadMessage) -> Option<ChosenEntry> {
    let Row::Outbox(_, id) = message.row else { return None };
    let message_id = message.message_id.clone().unwrap_or_default();
    Some(ChosenEntry { id, message_id, edited_at: message.edited_at })
}

/// Returns the earlier decision and the entry's state, if the database has them; otherwise the
/// error itself.
async fn explain(place: &OutboxPlace, entry: &ChosenEntry, error: DecideError) -> OperateError {
    // A decision about it is still possible, and the error states when.
    let is_open = matches!(error, DecideError::Trying { .. });
    let error = OperateError::from(error);
    let Ok(named) = entry.message_id.parse::<MessageRef>() else { return error };
    match outcome(place, &named).await {
        Ok(Some(outcome)) if is_open => OperateError::new(error.kind(), format!("{outcome}; {error}")),
        Ok(Some(outcome)) => OperateError::new(error.kind(), outcome),
        _ => error,
    }
}

async fn decide_letter(
    place: &InboxPlace,
    id: DeadLetterId,
    message: &DeadMessage,
    decided: &ManyDecided,
    change: &Change,
) -> Result<String, OperateError> {
    let Some(seen) = message.seen() else {
        let text = format!("dead letter {id} has a reason that this program does not know");
        return Err(OperateError::new(OperateErrorKind::Refused, text));
    };
    let letter = [seen];
    let none = || OperateError::new(OperateErrorKind::Unavailable, "the inbox gave no answer");
    let closed = match change {
        Change::Requeue { accept_late } => {
            let options = RedriveOptions::default().accept_late(*accept_late);
            let mut answers = place.database.request_redrives(&letter, options, decided).await?;
            match answers.pop().ok_or_else(none)?? {
                Requested::Now => return Ok(String::from("requested")),
                Requested::Closed(closed) => closed,
                _ => return Ok(format!("already requested{}", by_whom(place, id).await?)),
            }
        }
        Change::Discard => {
            let mut answers = place.database.discard_all(&letter, decided).await?;
            answers.pop().ok_or_else(none)??
        }
        Change::Edit { .. } => {
            let text = format!("dead letter {id} cannot be edited");
            return Err(OperateError::new(OperateErrorKind::Refused, text));
        }
    };
    match closed {
        Redriven::Now(resolution) => Ok(resolution.to_string()),
        Redriven::Before { resolution, at } => {
            let by = by_whom(place, id).await?;
            let text = format!("closed as {resolution} at {}{by}", seconds::text(at));
            Err(OperateError::new(OperateErrorKind::Conflict, text))
        }
        _ => Err(OperateError::new(
            OperateErrorKind::Conflict,
            "another operator is deciding about it: list the messages again",
        )),
    }
}

/// Returns the author of the last decision about a dead letter; empty if the audit does not have
/// it.
async fn by_whom(place: &InboxPlace, id: DeadLetterId) -> Result<String, OperateError> {
    let last = place.database.decisions_of(&[id], NonZeroU32::MIN).await?;
    Ok(last.first().map(|last| format!(" by {}", last.signature.actor)).unwrap_or_default())
}
