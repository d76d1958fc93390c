//! Decisions about dead messages, each carried out in a transaction with its line in the audit.

use std::num::NonZeroU32;

use inbox::{DeadLetterId, RedriveOptions, Redriven, Requested};
use message::Headers;
use outbox::admin::{DecideError, Decision, OperatorDecision};
use outbox::log::EntryId;
use serde::Serialize;

use super::filter::MessageRef;
use super::message::{DeadMessage, DeadSource, Row};
use super::outcome::outcome;
use super::plan::Plan;
use crate::operate::error::{OperateError, OperateErrorKind};
use crate::operate::operator::Signed;
use crate::operate::places::{InboxPlace, OutboxPlace, Places};
use crate::operate::seconds;

/// How far back the audit is read to name who was faster.
pub(crate) const LOOK_BACK: u32 = 1_000;

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Try it again: the relay publishes it, or its consumer runs the handler once more.
    Requeue {
        /// Apply also what is older than the inbox remembers; says nothing to an outbox.
        accept_late: bool,
    },
    /// Give it up: it is never published, or none of its copies takes effect.
    Discard,
    /// Replace its content; it stays dead until it is requeued. For entries of outboxes only.
    Edit {
        /// The new payload; `None` leaves it.
        payload: Option<Vec<u8>>,
        /// The new headers, all of them; `None` leaves them.
        headers: Option<Headers>,
    },
}

impl Change {
    /// The verb, as people say it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Requeue { .. } => "requeue",
            Self::Discard => "discard",
            Self::Edit { .. } => "edit",
        }
    }
}

/// The outcome of a decision about one message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decided {
    /// Where it waits.
    pub source: DeadSource,
    /// The pipeline or the consumer.
    pub owner: String,
    /// Its place in the log, or the id of the dead letter.
    pub id: String,
    /// Its message id.
    pub message_id: Option<String>,
    /// Its topic or queue.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Whether it is as it was asked for now.
    pub done: bool,
    /// `requeued`, `requested` (its consumer carries it out), `discarded`, `edited`; `requested
    /// before`, who was faster, or why it was not done.
    pub outcome: String,
}

/// The outcome of a decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The verb.
    pub action: &'static str,
    /// The filter, and how many it chose.
    pub selection: String,
    /// Whether it was only asked what would happen.
    pub dry_run: bool,
    /// One for each message that was come to, in the order of the plan.
    pub messages: Vec<Decided>,
    /// The first error; an outage goes before what is the matter with one message.
    #[serde(skip)]
    pub error: Option<OperateError>,
}

impl Plan {
    /// The subject of a decision that is not taken, as a report.
    #[must_use]
    pub fn dry_run(self, change: &Change) -> Report {
        let outcome = format!("would {}", change.as_str());
        let messages = self.messages.iter().map(|message| match self.follows(message, change) {
            true => Decided::following(message),
            false => Decided::of(message, Ok(outcome.clone())),
        });
        let messages = messages.collect();
        Report { action: change.as_str(), selection: self.selection, dry_run: true, messages, error: None }
    }

    /// Carries the decision out, message by message: a discard from the last one of the plan to the
    /// first, anything else in the order of the plan. A message about which somebody else has
    /// decided meanwhile is left as it is and told; after an outage nothing more is decided. Not
    /// cancel-safe: list the messages again.
    ///
    /// # Errors
    /// [`OperateError`] when nothing may be decided; nothing was, then. What is the matter with
    /// single messages stands in [`Report::error`].
    pub async fn carry_out(
        self,
        places: &Places,
        signed: &Signed,
        change: &Change,
    ) -> Result<Report, OperateError> {
        signed.check(change.as_str())?;
        let is_edit = matches!(change, Change::Edit { .. });
        if let Some(letter) =
            self.messages.iter().find(|message| is_edit && message.source == DeadSource::Inbox)
        {
            let text = format!(
                "dead letter {} is of an inbox, which keeps what arrived: it cannot be edited",
                letter.id
            );
            let help = "discard it, and send the corrected message with an id of its own";
            return Err(OperateError::refused(text, help));
        }
        let mut order: Vec<&DeadMessage> = self.messages.iter().collect();
        // Each is a transaction of its own, and once the first one of a key is discarded, the next
        // one may take effect. From the last one on, none does that is to be discarded as well.
        let is_backwards = *change == Change::Discard;
        if is_backwards {
            order.reverse();
        }
        let (mut messages, mut error): (Vec<Decided>, Option<OperateError>) = (Vec::new(), None);
        for message in order {
            if self.follows(message, change) {
                messages.push(Decided::following(message));
                continue;
            }
            let outcome = decide(places, message, signed, change, &self.selection).await;
            let failed = outcome.as_ref().err().cloned();
            messages.push(Decided::of(message, outcome));
            if let Some(failed) = failed {
                let is_away = failed.kind() == OperateErrorKind::Unavailable;
                error = Some(error.filter(|_| !is_away).unwrap_or(failed));
                if is_away {
                    break;
                }
            }
        }
        if is_backwards {
            messages.reverse();
        }
        let error = error.map(|error| {
            let done = messages.iter().filter(|message| message.done).count();
            error.with_help(format_args!("{done} of {} were decided about", self.messages.len()))
        });
        Ok(Report { action: change.as_str(), selection: self.selection, dry_run: false, messages, error })
    }
}

impl Plan {
    /// Whether a message takes effect by itself, once those before it have: to choose it by its
    /// topic, say, does not hurry it. By its id, it is refused.
    fn follows(&self, message: &DeadMessage, change: &Change) -> bool {
        let is_held = message.source == DeadSource::Inbox && message.cause.as_deref() == Some("held");
        is_held && !self.is_named && matches!(change, Change::Requeue { .. })
    }
}

impl Decided {
    /// Nothing is decided about it.
    fn following(message: &DeadMessage) -> Self {
        let told = String::from("held: follows by itself once those before it took effect");
        Self { done: false, outcome: told, ..Self::of(message, Ok(String::new())) }
    }

    fn of(message: &DeadMessage, outcome: Result<String, OperateError>) -> Self {
        Self {
            source: message.source,
            owner: message.owner().to_owned(),
            id: message.id.clone(),
            message_id: message.message_id.clone(),
            topic: message.topic.clone(),
            key: message.key.clone(),
            done: outcome.is_ok(),
            outcome: outcome.unwrap_or_else(|error| format!("not done: {error}")),
        }
    }
}

async fn decide(
    places: &Places,
    message: &DeadMessage,
    signed: &Signed,
    change: &Change,
    selection: &str,
) -> Result<String, OperateError> {
    let unknown = || OperateError::new(OperateErrorKind::Refused, "the plan was made for other places");
    match message.row {
        Row::Outbox(place, id) => {
            let place = places.outboxes.get(place).ok_or_else(unknown)?;
            let named = message.message_id.as_deref().unwrap_or(&message.id);
            let named = named.parse().map_err(|problem| OperateError::refused(problem, ""))?;
            decide_entry(place, (id, &named), signed, change, selection).await
        }
        Row::Inbox(place, id) => {
            let place = places.inboxes.get(place).ok_or_else(unknown)?;
            decide_letter(place, id, signed, change, selection).await
        }
    }
}

async fn decide_entry(
    place: &OutboxPlace,
    (id, named): (EntryId, &MessageRef),
    signed: &Signed,
    change: &Change,
    selection: &str,
) -> Result<String, OperateError> {
    let (decision, done) = match change {
        Change::Requeue { .. } => (Decision::Requeue, "requeued"),
        Change::Discard => (Decision::Discard, "discarded"),
        Change::Edit { payload, headers } => {
            (Decision::Edit { payload: payload.clone().map(Into::into), headers: headers.clone() }, "edited")
        }
    };
    let decision = OperatorDecision {
        decision,
        actor: signed.operator.name().to_owned(),
        note: signed.reason.clone(),
        selection: Some(selection.to_owned()),
    };
    match place.log.decide(&place.pipeline, id, decision).await {
        Ok(()) => Ok(done.to_owned()),
        Err(error @ (DecideError::NotDead { .. } | DecideError::NoSuchEntry { .. })) => {
            let error = OperateError::from(error);
            Err(match outcome(place, named).await? {
                Some(outcome) => OperateError::new(error.kind(), outcome),
                None => error,
            })
        }
        Err(error) => Err(error.into()),
    }
}

async fn decide_letter(
    place: &InboxPlace,
    id: DeadLetterId,
    signed: &Signed,
    change: &Change,
    selection: &str,
) -> Result<String, OperateError> {
    let signature = signed.signature(Some(selection.to_owned()));
    let closed = match change {
        Change::Requeue { accept_late } => {
            let options = RedriveOptions { accept_late: *accept_late, ..RedriveOptions::default() };
            match place.database.request_redrive(id, options, &signature).await? {
                Requested::Now => return Ok(String::from("requested")),
                Requested::Closed(closed) => closed,
                _ => return Ok(format!("requested before{}", by_whom(place, id).await?)),
            }
        }
        Change::Discard => place.database.discard(id, &signature).await?,
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
            "somebody else is deciding about it: look again",
        )),
    }
}

/// Who decided about a dead letter last; empty when the audit does not say.
async fn by_whom(place: &InboxPlace, id: DeadLetterId) -> Result<String, OperateError> {
    let look_back = NonZeroU32::new(LOOK_BACK).unwrap_or(NonZeroU32::MIN);
    let decisions = place.database.decisions(look_back).await?;
    let last = decisions.iter().find(|decision| decision.dead_letter == id);
    Ok(last.map(|last| format!(" by {}", last.signature.actor)).unwrap_or_default())
}
