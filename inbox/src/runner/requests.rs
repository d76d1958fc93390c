//! Carries out redrives that operators requested.

use tokio::time::Instant;

use super::bounded_handler::BoundedHandler;
use super::ended_owners::BEGINS_WITHIN;
use super::inbox_store::InboxStore;
use crate::dead_letters::{DeadLetter, Decision, Taken};
use crate::dialect::Dialect;
use crate::error_text::error_text;
use crate::store_error::StoreError;
use crate::within::within;

/// Number of consecutive requests that may fail transiently before the database counts as
/// unavailable.
const REDRIVES_FAILED_MAX: u32 = 3;

/// Maximum number of requests for redrives per read.
const REDRIVES: u32 = 100;

impl<DB: Dialect> InboxStore<DB> {
    /// Carries out requests after `after` until `ends_at`. Returns the last request handled if
    /// there may be more.
    pub(super) async fn carry_out_requests(
        &self,
        mut after: i64,
        ends_at: Instant,
    ) -> Result<Option<i64>, StoreError> {
        let mut failures = 0;
        loop {
            let look = self.inbox.redrive_requests(&self.consumer, after, REDRIVES);
            let requests = self.within("find requested redrives", look).await?;
            for request in &requests {
                if Instant::now() >= ends_at || self.draining.is_cancelled() {
                    return Ok(Some(after));
                }
                match self.carry_out(request).await {
                    Ok(()) => failures = 0,
                    // A failure does not block the requests behind it, unless it is transient and
                    // follows several others.
                    Err(error) if !error.is_transient() || failures < REDRIVES_FAILED_MAX => {
                        failures += u32::from(error.is_transient());
                        let dead_letter = request.subject.dead_letter;
                        let error = error_text(&error);
                        tracing::warn!(%dead_letter, error, "a requested redrive has to wait");
                    }
                    Err(error) => return Err(error),
                }
                // Also moves past requests that wait for another process.
                after = request.number;
            }
            if requests.len() < REDRIVES as usize {
                return Ok(None);
            }
        }
    }

    /// Carries out a requested redrive, and leaves a note for the next process meanwhile.
    async fn carry_out(&self, request: &Decision) -> Result<(), StoreError> {
        let mut ended = None;
        let noted = loop {
            let call = self.inbox.take_request(request, self.process, ended);
            match self.within("record the message to redrive", call).await? {
                Taken::Elsewhere => return Ok(()),
                Taken::Unnamed => break None,
                Taken::OfAnother(owner) => {
                    tokio::time::sleep(BEGINS_WITHIN).await;
                    ended = Some(owner);
                }
                Taken::Noted { letter, given_up: Some(error) } => {
                    return self.give_up(request, &letter, &error).await;
                }
                Taken::Noted { letter, given_up: None } => break Some(letter),
            }
        };
        let handler = BoundedHandler(self);
        let call = self.inbox.carry_out(&self.consumer, request, &handler, self.after_dead_letter);
        let done = self.unless_stopped(within(self.redrive_max(), "redrive", call)).await;
        if let Some(letter) = noted {
            match done {
                Some(Ok(false)) => self.leave_letter(letter.key()).await?,
                _ => self.put_letter_down(letter.key(), false).await?,
            }
        }
        done.unwrap_or(Ok(true)).map(drop)
    }

    /// Records why a requested redrive is not tried again.
    async fn give_up(&self, request: &Decision, letter: &DeadLetter, error: &str) -> Result<(), StoreError> {
        self.put_letter_down(letter.key(), true).await?;
        tracing::error!(dead_letter = %letter.id, error, "abandoning a requested redrive");
        self.within("store the outcome of a redrive", self.inbox.fail_request(request.number, error)).await
    }
}
