//! Reads the log ahead of the publisher, on its own connection.

use std::sync::Arc;

use message::crash_points::reached;
use outbox_log::{
    Cursor, Difference, DueKind, DuePage, DuePosition, EntryId, Exception, HeldAsk, HeldPage, HeldQueues,
    LogError, LogReader, Page, PageLimit, QueueName,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::crash_points;
use crate::options::EngineOptions;
use crate::paused::Paused;
use crate::wake::Pace;

/// A read that the driver requests. Batches of the log arrive without a request.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Exceptions of a kind that are due, after this position.
    Due(DueKind, Option<DuePosition>),
    /// Retrying exceptions for which many others may wait: these probes, and what operators have
    /// requeued.
    First(Vec<EntryId>),
    /// Held exceptions, at most this many together, and one of each queue.
    Held { asks: Vec<HeldAsk>, entries_max: usize },
    /// Queues with held exceptions, after this one.
    Names(Option<QueueName>),
    /// The pauses that operators have set.
    Pauses,
}

/// A page of the log, and the difference that it belongs to.
#[derive(Debug)]
pub(crate) struct ReadPage {
    pub(crate) difference: Arc<Difference>,
    pub(crate) page: Page,
}

/// The answer to an [`Ask`].
#[derive(Debug)]
pub(crate) enum Answer {
    /// Exceptions of a kind that are due.
    Due(DueKind, DuePage),
    /// Retrying exceptions that come before the others.
    First(Vec<Exception>),
    /// A page for each requested queue.
    Held(Vec<HeldAsk>, Vec<HeldPage>),
    /// Queues with held exceptions.
    Names(HeldQueues),
    /// The pauses that operators have set.
    Pauses(Paused),
}

/// Maximum queues in one page of names.
const NAMES: usize = 1_000;

/// The reader's end of its channels.
pub(crate) struct Reader {
    pub(crate) log: Box<dyn LogReader>,
    /// Holds one page of prefetch, which is read while the previous page is in flight.
    pub(crate) pages: mpsc::Sender<ReadPage>,
    pub(crate) asks: mpsc::Receiver<Ask>,
    pub(crate) answers: mpsc::Sender<Answer>,
    /// Fired by producers of the same process after their commit.
    pub(crate) hint: Arc<Notify>,
    pub(crate) limit: PageLimit,
    pub(crate) pace: Pace,
}

impl Reader {
    pub(crate) fn limit(settings: &EngineOptions) -> PageLimit {
        PageLimit {
            entries_max: settings.page_entries,
            bytes_max: settings.page_bytes,
            row: settings.row_limit(),
        }
    }

    /// Reads from the cursor on until the driver is dropped (`Ok`) or the database fails.
    pub(crate) async fn run(mut self, cursor: Cursor) -> Result<(), LogError> {
        let mut base = cursor.base.clone();
        let mut open = cursor.open().map(|(difference, after)| (Arc::new(difference), after));
        let mut poll_at = Instant::now();
        let pages = self.pages.clone();
        loop {
            tokio::select! {
                biased;
                ask = self.asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await?,
                    None => return Ok(()),
                },
                permit = pages.reserve(), if open.is_some() => {
                    let (Ok(permit), Some((difference, after))) = (permit, open.take()) else { return Ok(()) };
                    let page = self.log.read_page(&difference, after, self.limit).await?;
                    if !page.entries.is_empty() {
                        reached(crash_points::AFTER_READ);
                    }
                    if page.exhausted {
                        base = difference.head.clone();
                    } else {
                        let after = page.entries.last().map_or(after, |entry| entry.id);
                        open = Some((Arc::clone(&difference), after));
                    }
                    permit.send(ReadPage { difference, page });
                }
                () = wait(poll_at, &self.hint), if open.is_none() => {
                    match self.log.next_difference(&base).await? {
                        Some(difference) => {
                            self.pace.found();
                            poll_at = Instant::now();
                            open = Some((Arc::new(difference), EntryId::default()));
                        }
                        None => poll_at = Instant::now() + self.pace.empty(),
                    }
                }
            }
        }
    }

    async fn answer(&mut self, ask: Ask) -> Result<(), LogError> {
        let answer = match ask {
            Ask::Due(kind, after) => Answer::Due(kind, self.log.read_due(kind, after, self.limit).await?),
            Ask::First(probes) => Answer::First(self.log.read_first(&probes, self.limit).await?),
            Ask::Held { asks, entries_max } => {
                let entries_max = self.limit.entries_max.min(entries_max);
                let pages = self.log.read_held(&asks, PageLimit { entries_max, ..self.limit }).await?;
                Answer::Held(asks, pages)
            }
            Ask::Names(after) => Answer::Names(self.log.held_queues(after.as_ref(), NAMES).await?),
            Ask::Pauses => Answer::Pauses(Paused::of(self.log.paused_scopes().await?)),
        };
        // The driver sends one query at a time, so there is room. If the driver has ended, the
        // answer is not needed.
        let _ = self.answers.send(answer).await;
        Ok(())
    }
}

async fn wait(until: Instant, hint: &Notify) {
    tokio::select! {
        biased;
        () = tokio::time::sleep_until(until) => {}
        () = hint.notified() => {}
    }
}
