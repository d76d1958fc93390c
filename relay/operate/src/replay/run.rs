//! Carries out a replay. The broker confirms each batch of the log before the next one is read.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use message::Message;
use outbox_log::entries::{SelectedEntry, Standing};
use outbox_log::{EntryId, Pause};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::form;
use super::plan::{ReplayPlan, check_pauses};
use super::session::{Session, Unconfirmed};
use crate::error::{OperateError, OperateErrorKind};
use crate::operator::Signed;
use crate::pace::Pace;
use crate::places::{OutboxPlace, Places};
use crate::seconds;

/// Maximum number of messages per batch.
const BATCH_ENTRIES: usize = 500;
/// Maximum bytes of payload and headers in memory, except for a single larger message.
const BATCH_BYTES: u64 = 8 << 20;
/// Interval of the queries for pauses while messages are sent: each opens a connection.
const PAUSES_EVERY: Duration = Duration::from_secs(1);

/// Options of a replay. Start from [`ReplayOptions::default`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// Maximum number of messages per second. Without it, they are sent as fast as the broker
    /// confirms.
    pub rate: Option<NonZeroU32>,
    /// Stops the replay after the batch in progress.
    pub stop: CancellationToken,
    /// The id of the form by which the replay begins, a UUID of version 7. The audit notes it: a
    /// form that is sent twice begins one replay, in any process.
    pub form: Option<Uuid>,
}

impl ReplayOptions {
    message::setters! {
        /// Sets the maximum number of messages per second.
        rate as Option<NonZeroU32>,
        /// Sets the token that stops the replay.
        stop: CancellationToken,
        /// Sets the form by which the replay begins.
        form as Option<Uuid>,
    }
}

/// The outcome of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// The pipeline.
    pub pipeline: String,
    /// The filter, and the number of messages that it chose.
    pub selection: String,
    /// Number of messages in the plan.
    pub chosen: u64,
    /// Number of messages that the broker has confirmed.
    pub published: u64,
    /// The position in the log up to which every selected message is confirmed; `None` when none
    /// is.
    pub confirmed_to: Option<i64>,
    /// The reason why it ended early.
    #[serde(skip)]
    pub error: Option<OperateError>,
}

impl ReplayPlan {
    /// Sends the messages, in the order of the log within each key. Writes to the audit at the
    /// beginning and at the end. Not cancel-safe: use [`ReplayOptions::stop`]. An interrupted
    /// replay can be repeated: a message sent twice keeps its id.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not replay, when a replay has begun by the same form,
    /// or when the audit could not be written; then this call has sent nothing. Later errors are in
    /// the report, with the messages sent so far.
    pub async fn carry_out(
        &self,
        places: &Places,
        signed: &Signed,
        options: &ReplayOptions,
        progress: impl Fn(u64) + Send + Sync,
    ) -> Result<ReplayReport, OperateError> {
        signed.check("replay")?;
        let place = places.only_outbox()?;
        let connector = place.connector().map_err(|error| error.about(&place.pipeline))?;
        self.note_begin(place, signed, options.form).await?;
        let mut report = ReplayReport {
            pipeline: self.pipeline.clone(),
            selection: self.selection.clone(),
            chosen: self.chosen,
            published: 0,
            confirmed_to: None,
            error: None,
        };
        let mut session = Session::new(connector);
        let sent = self.send(place, &mut session, options, &mut report, &progress).await;
        session.close().await;
        report.error = sent.err();
        let outcome = match report.confirmed_to {
            _ if report.error.is_none() => format!("{}, {} published", self.selection, report.published),
            Some(id) => format!("{}, {} published, up to {id}", self.selection, report.published),
            None => format!("{}, none published", self.selection),
        };
        if let Err(error) = self.note(place, signed, "replayed", &outcome).await {
            report.error.get_or_insert(error);
        }
        Ok(report)
    }

    /// Notes that the replay begins. Two processes may get one form at the same moment: each notes
    /// it first, then refuses if it is not the only one. At most one replays: the one that counts
    /// before the other one notes. The lower number could not decide it: numbers are given out
    /// before they are committed.
    async fn note_begin(
        &self,
        place: &OutboxPlace,
        signed: &Signed,
        form: Option<Uuid>,
    ) -> Result<(), OperateError> {
        let Some(form) = form else {
            return self.note(place, signed, "replay", &self.selection).await;
        };
        if form::begun(place, form).await? > 0 {
            return Err(form::sent_before());
        }
        let selection = format!("{}{}", self.selection, form::mark(form));
        self.note(place, signed, "replay", &selection).await?;
        if form::begun(place, form).await? > 1 {
            return Err(form::sent_together());
        }
        Ok(())
    }

    async fn note(
        &self,
        place: &OutboxPlace,
        signed: &Signed,
        action: &str,
        selection: &str,
    ) -> Result<(), OperateError> {
        let by = signed.signature(Some(selection.to_owned()));
        let noted = place.entries.note_operation(&place.pipeline, action, &by).await;
        noted.map_err(|error| OperateError::from(error).about(&place.pipeline))
    }

    async fn send(
        &self,
        place: &OutboxPlace,
        session: &mut Session,
        options: &ReplayOptions,
        report: &mut ReplayReport,
        progress: &(impl Fn(u64) + Send + Sync),
    ) -> Result<(), OperateError> {
        // Several batches a second keep the pace of a slow replay even.
        let batch_max =
            options.rate.map_or(BATCH_ENTRIES, |rate| (rate.get() as usize / 4).clamp(1, BATCH_ENTRIES));
        let mut pace = options.rate.map(Pace::new);
        let mut pauses = Pauses::default();
        let mut after = EntryId::default();
        loop {
            check_stop(options, report)?;
            let page = place.entries.select(&place.pipeline, &self.extent, &self.selected, after).await;
            let page = page.map_err(|error| resume(error.into(), report.confirmed_to))?;
            let is_chosen = |entry: &SelectedEntry| {
                entry.standing == Standing::Published
                    && !self.unpublished.contains(&entry.message_id)
                    && !place.leaves_out(&entry.topic, &entry.labels)
            };
            let chosen: Vec<SelectedEntry> = page.entries.into_iter().filter(is_chosen).collect();
            let mut rest = &chosen[..];
            while !rest.is_empty() {
                check_stop(options, report)?;
                let (batch, next) = rest.split_at(batch_len(rest, batch_max));
                rest = next;
                let free = pauses.check(place, batch).await;
                free.map_err(|error| resume(error, report.confirmed_to))?;
                publish(place, session, batch, report).await?;
                progress(report.published);
                if let Some(pace) = &mut pace {
                    tokio::select! {
                        () = pace.rows(batch.len()) => {}
                        () = options.stop.cancelled() => {}
                    }
                }
            }
            after = page.seen_to;
            if page.exhausted {
                break;
            }
        }
        self.check_whole(place, report).await
    }

    /// Returns an error if planned messages are no longer found: retention continues during a
    /// replay. Only planned messages are sent, so the numbers show it.
    async fn check_whole(&self, place: &OutboxPlace, report: &ReplayReport) -> Result<(), OperateError> {
        if report.published == self.chosen {
            return Ok(());
        }
        let now = place.entries.extent(&place.pipeline).await;
        let now = now.map_err(|error| resume(error.into(), report.confirmed_to))?;
        // A segment that was detached meanwhile comes back; nothing was deleted.
        now.check_whole().map_err(|error| resume(error.into(), report.confirmed_to))?;
        let removed = now.expired_through.map_or_else(|| String::from("unknown"), seconds::text);
        let missing = self.chosen.saturating_sub(report.published);
        let text = format!(
            "{missing} of {} planned messages left the log during the replay: retention deletes messages created until {removed}",
            self.chosen
        );
        Err(OperateError::refused(text, "the others were sent; raise the retention before you replay"))
    }
}

/// Returns an error once the replay was stopped.
fn check_stop(options: &ReplayOptions, report: &ReplayReport) -> Result<(), OperateError> {
    if !options.stop.is_cancelled() {
        return Ok(());
    }
    let error = OperateError::new(OperateErrorKind::Unavailable, "the replay was stopped");
    Err(resume(error, report.confirmed_to))
}

/// The pauses in force, read again while messages are sent.
#[derive(Default)]
struct Pauses {
    found: Vec<Pause>,
    looked_at: Option<Instant>,
}

impl Pauses {
    /// Returns an error for a batch with a message that an operator has paused meanwhile.
    async fn check(&mut self, place: &OutboxPlace, batch: &[SelectedEntry]) -> Result<(), OperateError> {
        if self.looked_at.is_none_or(|at| at.elapsed() >= PAUSES_EVERY) {
            self.found = place.log.pauses(&place.pipeline).await?;
            self.looked_at = Some(Instant::now());
        }
        batch.iter().try_for_each(|entry| check_pauses(entry, &self.found))
    }
}

/// Returns the number of next messages in one batch. An interrupted replay continues above an id,
/// so no batch ends between two messages of one id.
fn batch_len(entries: &[SelectedEntry], entries_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&SelectedEntry| {
        bytes += entry.payload_bytes + entry.labels.bytes();
        bytes <= BATCH_BYTES
    };
    let len = entries.iter().take(entries_max).take_while(fits).count().max(1);
    let last = entries.get(len - 1).map(|entry| entry.id);
    len + entries[len..].iter().take_while(|entry| Some(entry.id) == last).count()
}

async fn publish(
    place: &OutboxPlace,
    session: &mut Session,
    batch: &[SelectedEntry],
    report: &mut ReplayReport,
) -> Result<(), OperateError> {
    let ids: Vec<_> = batch.iter().map(|entry| (entry.id, entry.message_id)).collect();
    let entries = place.entries.contents(&ids, place.row_limit).await;
    let entries = entries.map_err(|error| resume(error.into(), report.confirmed_to))?;
    let mut messages: Vec<Arc<Message>> = Vec::with_capacity(entries.len());
    let mut places = Vec::with_capacity(entries.len());
    for entry in entries {
        let id = entry.id;
        let message = entry.message.map_err(|invalid| {
            let text = format!("{id} is no longer a valid message: {}", invalid.problem);
            resume(OperateError::new(OperateErrorKind::Refused, text), report.confirmed_to)
        })?;
        places.push(id);
        messages.push(Arc::new(message));
    }
    let sent = session.publish(&messages).await;
    let unconfirmed = sent.as_ref().err().map_or(0, |unconfirmed| unconfirmed.places.len());
    report.published += (messages.len() - unconfirmed) as u64;
    let first_left = sent.as_ref().err().and_then(|unconfirmed| unconfirmed.places.first());
    let first_left = first_left.and_then(|first| places.get(*first)).copied();
    let confirmed = places.iter().rev().find(|id| first_left.is_none_or(|first| **id < first));
    report.confirmed_to = confirmed.map(|id| id.0).or(report.confirmed_to);
    let Err(Unconfirmed { places: left, error }) = sent else { return Ok(()) };
    let at = left.first().and_then(|at| places.get(*at)).copied().unwrap_or_default();
    let error = OperateError::by_fault(error.fault(), format_args!("at {at}: {error}"));
    Err(resume(error, report.confirmed_to))
}

/// Adds advice on how to continue, after the error's own help.
fn resume(error: OperateError, confirmed_to: Option<i64>) -> OperateError {
    let first = error.help().map(|help| format!("{help}; ")).unwrap_or_default();
    match confirmed_to {
        Some(id) => error.with_help(format_args!(
            "{first}all messages up to {id} are confirmed: continue with --from-id {}, or repeat the whole command",
            id.saturating_add(1)
        )),
        None => error.with_help(format_args!("{first}no message is confirmed: repeat the command")),
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn a_batch_is_bounded_by_messages_and_bytes() {
        let entry = |id, payload_bytes| SelectedEntry {
            id: EntryId(id),
            message_id: Uuid::nil(),
            topic: String::from("orders"),
            key: None,
            labels: outbox_log::entries::Labels::default(),
            payload_bytes,
            enqueued_at: OffsetDateTime::UNIX_EPOCH,
            standing: Standing::Published,
        };
        let small: Vec<_> = (0..700).map(|id| entry(id, 100)).collect();
        assert_eq!(batch_len(&small, BATCH_ENTRIES), 500);
        let large: Vec<_> = (0..9).map(|id| entry(id, 3 << 20)).collect();
        assert_eq!(batch_len(&large, BATCH_ENTRIES), 2);
        assert_eq!(batch_len(&[entry(1, 64 << 20)], BATCH_ENTRIES), 1);
        let shared = [1, 2, 2, 2, 3].map(|id| entry(id, 100));
        assert_eq!(batch_len(&shared, 2), 4, "messages of one id stay together");
    }
}
