//! Carries out redrives that operators requested.

use uuid::Uuid;

use super::decision::{DecidedLetter, Decision, Redriven};
use super::in_hand::Hand;
use super::options::{AfterDeadLetter, RedriveOptions};
use super::record::DeadLetter;
use crate::dialect::Dialect;
use crate::error::{AdmitError, OpenError, RedriveError};
use crate::error_text::error_text;
use crate::handler::Handler;
use crate::ids::{ConsumerName, DeadLetterId};
use crate::inbox::Inbox;
use crate::store_error::StoreError;

/// The outcome of starting a requested redrive.
pub(crate) enum Taken {
    /// Another process has it, or has carried it out.
    Elsewhere,
    /// The dead letter is closed, missing, or has no message id.
    Unnamed,
    /// The database records that another process has the message in hand.
    OfAnother(Uuid),
    /// The database now records that the process has the message in hand.
    Noted {
        /// Its dead letter.
        letter: Box<DeadLetter>,
        /// Why it is dead-lettered without another attempt.
        given_up: Option<String>,
    },
}

impl<DB: Dialect> Inbox<DB> {
    /// Records, before the handler runs, that a process carries out a requested redrive. If the
    /// handler ends the process, the next process finds the note. `ended` is a process that has
    /// ended: its note is taken over.
    pub(crate) async fn take_request(
        &self,
        request: &Decision,
        process: Uuid,
        ended: Option<Uuid>,
    ) -> Result<Taken, StoreError> {
        let failed = StoreError::during;
        let what = "record the message to redrive";
        let mut tx = self.begin_raw(what).await?;
        if !self.tables().is_requested(&mut tx, request.number).await.map_err(failed(what))? {
            return Ok(Taken::Elsewhere);
        }
        let letter = self
            .tables()
            .dead_letter(&mut tx, request.subject.dead_letter, false)
            .await
            .map_err(failed(what))?;
        // Without a message id there is no handler to run.
        let named = letter.filter(|letter| letter.resolved.is_none() && letter.message_id.is_some());
        let Some(letter) = named else { return Ok(Taken::Unnamed) };
        let given_up = match self.take_letter(&mut tx, &letter, process, ended).await? {
            Hand::Own { given_up } => given_up,
            Hand::OfAnother(owner) => return Ok(Taken::OfAnother(owner)),
        };
        tx.commit().await.map_err(failed(what))?;
        Ok(Taken::Noted { letter: Box::new(letter), given_up })
    }

    /// Carries out a requested redrive and notes its outcome. Returns false when another process
    /// carries it out, or has done so.
    pub(crate) async fn carry_out(
        &self,
        consumer: &ConsumerName,
        request: &Decision,
        handler: &dyn Handler<DB>,
        after_dead_letter: AfterDeadLetter,
    ) -> Result<bool, StoreError> {
        let number = request.number;
        let DecidedLetter { dead_letter: id, accept_late, .. } = request.subject;
        let options = RedriveOptions { accept_late, after_dead_letter };
        let outcome = match self.redrive_as(consumer, id, handler, options, Some(number)).await {
            Ok(Redriven::Now(_)) => return Ok(true),
            Ok(Redriven::Elsewhere) => return Ok(false),
            Ok(Redriven::Before { resolution, .. }) => resolution.to_string(),
            Err(error) => match lasting_failure(id, error)? {
                Some(outcome) => outcome,
                None => return Ok(true),
            },
        };
        tracing::warn!(dead_letter = %id, outcome, "a requested redrive had no effect");
        self.fail_request(number, &outcome).await.map(|()| true)
    }
}

/// Returns why a redrive is not tried again. Returns `None` if its request stays open.
///
/// # Errors
/// The database is unavailable.
fn lasting_failure(id: DeadLetterId, error: RedriveError) -> Result<Option<String>, StoreError> {
    match error {
        // The next attempt finds whatever was committed.
        RedriveError::Commit(error) if !error.is_rolled_back() => {
            tracing::warn!(dead_letter = %id, error = error_text(&error), "the outcome of a redrive is unknown");
        }
        RedriveError::Commit(error) if error.is_innocent() => {
            tracing::info!(dead_letter = %id, error = error_text(&error), "retrying a redrive");
        }
        error @ RedriveError::UnknownKind { .. } => {
            tracing::info!(dead_letter = %id, %error, "a redrive waits for a process with a handler for the message's kind");
        }
        error @ RedriveError::Admit(AdmitError::Expired { .. }) => {
            tracing::info!(dead_letter = %id, %error, "retrying a redrive");
        }
        RedriveError::Store(error)
        | RedriveError::Admit(AdmitError::Store(error) | AdmitError::Day(OpenError::Store(error)))
            if error.is_transient() =>
        {
            return Err(error);
        }
        error => return Ok(Some(error.report())),
    }
    Ok(None)
}
