//! Reads the log.

use std::collections::BTreeMap;

use async_trait::async_trait;
use outbox_log::{
    Difference, DueKind, DuePage, DuePosition, Entry, EntryId, Exception, ExceptionState, ExceptionSummary,
    HeldAsk, HeldPage, HeldQueue, HeldQueues, LogError, LogReader, Mark, Page, PageLimit, Parked, QueueName,
    StuckPage,
};
use rand::Rng;
use tokio::time::Instant;

use super::connection::Connection;
use super::history::{commits_at, mark};
use super::tables::{OutboxTables, ParkedEntry, Row};
use crate::breakage::Breakage;
use crate::fault::{Call, Moment};
use crate::world::State;

/// A reader of the log. It reads only the history in which it began.
pub(super) struct Reader(pub(super) Connection);

impl Reader {
    async fn read<T: Send>(
        &mut self,
        call: Call,
        mark: Option<&Mark>,
        read: impl FnOnce(&mut State) -> T + Send,
    ) -> Result<T, LogError> {
        let history = self.0.history;
        let read = |state: &mut State| {
            state.check_history(history)?;
            mark.map_or(Ok(()), |mark| state.check_mark(mark))?;
            Ok(read(state))
        };
        self.0.call(call, read).await?
    }
}

#[async_trait]
impl LogReader for Reader {
    async fn begin(&mut self) -> Result<(), LogError> {
        self.0.history = self.0.call(Call::Stuck, |state| state.outbox.history).await?;
        Ok(())
    }

    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        self.read(Call::Poll, Some(base), |state| state.next_difference(base)).await
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        let process = self.0.process;
        let read = |state: &mut State| {
            let page = state.read_page(difference, after, limit);
            let ids: Vec<_> = page.entries.iter().map(|entry| entry.id.0).collect();
            state.note(format_args!("{process} reads {ids:?}"));
            page
        };
        let page = self.read(Call::Page, Some(&difference.base), read).await?;
        if !page.entries.is_empty() && self.0.world.lock().stall(process, Moment::Read) {
            tokio::task::yield_now().await;
        }
        Ok(page)
    }

    async fn read_due(
        &mut self,
        kind: DueKind,
        after: Option<DuePosition>,
        limit: PageLimit,
    ) -> Result<DuePage, LogError> {
        self.read(Call::Due, None, |state| state.read_due(kind, after, limit)).await
    }

    async fn read_first(&mut self, probes: &[EntryId], limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        self.read(Call::Due, None, |state| state.outbox.read_first(probes, limit)).await
    }

    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        self.read(Call::Held, None, |state| state.outbox.read_held(asks, limit)).await
    }

    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError> {
        // Few queues in one answer, otherwise a walk would never need a second answer.
        self.read(Call::Queues, None, |state| state.outbox.held_queues(after, queues_max.min(3))).await
    }

    async fn stuck(
        &mut self,
        after: EntryId,
        walked_max: usize,
        dead_blocks: bool,
    ) -> Result<StuckPage, LogError> {
        self.read(Call::Stuck, None, |state| state.outbox.stuck(after, walked_max, dead_blocks)).await
    }
}

impl OutboxTables {
    fn held(&self) -> impl Iterator<Item = (QueueName, EntryId, &ParkedEntry)> {
        let held = self.exceptions.iter().filter(|(_, aside)| aside.parked.state == ExceptionState::Held);
        held.map(|(id, aside)| (QueueName::of(&aside.parked.topic, aside.parked.key.as_deref()), *id, aside))
    }

    fn read_first(&self, probes: &[EntryId], limit: PageLimit) -> Vec<Exception> {
        let now = Instant::now();
        let is_first = |id: &EntryId, aside: &ParkedEntry| match aside.parked.state {
            ExceptionState::Retrying => probes.contains(id),
            state => state == ExceptionState::Discarded,
        };
        let is_due = |aside: &ParkedEntry| aside.due_at.is_some_and(|at| at <= now);
        let first = self.exceptions.iter().filter(|(id, aside)| is_first(id, aside) && is_due(aside));
        first.map(|(id, aside)| self.exception(*id, aside)).take(limit.entries_max).collect()
    }

    fn read_held(&self, asks: &[HeldAsk], limit: PageLimit) -> Vec<HeldPage> {
        let each = (limit.entries_max / asks.len().max(1)).max(1);
        let mut bytes = 0;
        let page = |ask: &HeldAsk| {
            let found = self.held().filter(|(queue, id, _)| *queue == ask.queue && *id >= ask.from);
            let mut page = HeldPage { exceptions: Vec::new(), exhausted: true };
            for (_, id, aside) in found {
                if page.exceptions.len() == each || (bytes >= limit.bytes_max && bytes > 0) {
                    page.exhausted = false;
                    break;
                }
                let exception = self.exception(id, aside);
                bytes += exception.entry.bytes();
                page.exceptions.push(exception);
            }
            page
        };
        asks.iter().map(page).collect()
    }

    fn held_queues(&self, after: Option<&QueueName>, queues_max: usize) -> HeldQueues {
        let mut first: BTreeMap<QueueName, (EntryId, &ParkedEntry)> = BTreeMap::new();
        for (queue, id, aside) in self.held().filter(|(queue, ..)| after.is_none_or(|after| queue > after)) {
            first.entry(queue).or_insert((id, aside));
        }
        let exhausted = first.len() < queues_max;
        let queue = |(name, (first, aside)): (QueueName, (EntryId, &ParkedEntry))| HeldQueue {
            name,
            first,
            topic: aside.parked.topic.clone(),
        };
        HeldQueues { queues: first.into_iter().take(queues_max).map(queue).collect(), exhausted }
    }

    fn stuck(&self, after: EntryId, walked_max: usize, dead_blocks: bool) -> StuckPage {
        let stuck = [ExceptionState::Retrying, ExceptionState::Dead];
        let behind =
            self.exceptions.iter().filter(|(id, aside)| **id > after && stuck.contains(&aside.parked.state));
        let walked: Vec<(&EntryId, &ParkedEntry)> = behind.take(walked_max).collect();
        let next = walked.last().filter(|_| walked.len() == walked_max).map(|(id, _)| **id);
        let blocks =
            |parked: &Parked| parked.key.is_some() && (parked.state != ExceptionState::Dead || dead_blocks);
        let blocking = walked.into_iter().filter(|(_, aside)| blocks(&aside.parked));
        let summary = |(id, aside): (&EntryId, &ParkedEntry)| ExceptionSummary {
            id: *id,
            key: aside.parked.key.clone(),
            state: aside.parked.state,
        };
        StuckPage { exceptions: blocking.map(summary).collect(), next }
    }
}

impl State {
    fn read_due(&mut self, kind: DueKind, after: Option<DuePosition>, limit: PageLimit) -> DuePage {
        let now = Instant::now();
        let start = self.start;
        let place = |id: EntryId, at: Instant| DuePosition {
            at_micros: i64::try_from(at.duration_since(start).as_micros()).unwrap_or(i64::MAX),
            id,
        };
        let timed = self.outbox.exceptions.iter().filter_map(|(id, aside)| {
            let is_of_kind = match aside.parked.state {
                ExceptionState::Scheduled | ExceptionState::Discarded => kind == DueKind::Scheduled,
                ExceptionState::Retrying => kind == DueKind::Retrying,
                ExceptionState::Held | ExceptionState::Dead => false,
            };
            aside.due_at.filter(|_| is_of_kind).map(|at| (place(*id, at), at, aside))
        });
        let mut timed: Vec<_> =
            timed.filter(|(place, ..)| after.is_none_or(|after| *place > after)).collect();
        timed.sort_by_key(|(place, ..)| *place);
        let due = timed.iter().take_while(|(_, at, _)| *at <= now).count();
        let mut exceptions = Vec::new();
        let mut bytes = 0;
        for (place, _, aside) in timed.iter().take(due.min(limit.entries_max)) {
            if bytes >= limit.bytes_max && bytes > 0 {
                break;
            }
            let exception = self.outbox.exception(place.id, aside);
            bytes += exception.entry.bytes();
            exceptions.push(exception);
        }
        let taken = &timed[..exceptions.len()];
        DuePage {
            position: taken.last().map(|(place, ..)| *place).or(after),
            exhausted: taken.len() == due,
            exceptions,
            next_in: timed.get(due).map(|(_, at, _)| *at - now),
        }
    }

    fn is_visible(&self, row: &Row, id: i64, difference: &Difference) -> bool {
        let (base, head) = (commits_at(&difference.base), commits_at(&difference.head));
        if self.is_broken(Breakage::CursorById) {
            // Marks are ids under this breakage.
            return row.commit.is_some()
                && (base..=head).contains(&id.unsigned_abs())
                && id.unsigned_abs() > base;
        }
        match row.commit {
            Some(commit) => base < commit && commit <= head,
            // The row stays read even if its transaction is rolled back.
            None => self.is_broken(Breakage::DirtyRead),
        }
    }

    fn next_difference(&mut self, base: &Mark) -> Option<Difference> {
        if self.is_broken(Breakage::CursorById) {
            let committed = self.outbox.rows.iter().rev().find(|(_, row)| row.commit.is_some());
            let last = committed.map(|(id, _)| *id).filter(|id| id.unsigned_abs() > commits_at(base))?;
            return Some(Difference {
                base: base.clone(),
                head: mark(self.outbox.history, last.unsigned_abs()),
                ceiling: last,
            });
        }
        let head = self.outbox.commits;
        let from = commits_at(base);
        let new = self.outbox.rows.iter().filter_map(|(id, row)| {
            let is_new = row.commit.is_some_and(|commit| from < commit && commit <= head);
            is_new.then_some((*id, row.commit.unwrap_or_default()))
        });
        let (ids, commits): (Vec<_>, Vec<_>) = new.unzip();
        let ceiling = ids.into_iter().max()?;
        // The commits between the base and the first new one have no new rows, so a later base is
        // as good.
        let first = commits.into_iter().min().unwrap_or(head);
        let history = self.outbox.history;
        let base = if self.rng.random() { mark(history, first - 1) } else { base.clone() };
        Some(Difference { base, head: mark(history, head), ceiling })
    }

    fn read_page(&mut self, difference: &Difference, after: EntryId, limit: PageLimit) -> Page {
        let mut page = Page { entries: Vec::new(), exhausted: true };
        let mut bytes = 0;
        let rows = self.outbox.rows.range(after.0 + 1..=difference.ceiling.max(after.0 + 1));
        for (id, row) in rows {
            if row.is_removed || !self.is_visible(row, *id, difference) {
                continue;
            }
            if page.entries.len() >= limit.entries_max || bytes >= limit.bytes_max {
                page.exhausted = false;
                break;
            }
            let now = Instant::now();
            let deliver_in = row.deliver_at.filter(|at| *at > now).map(|at| at - now);
            let entry = Entry { id: EntryId(*id), message: Ok(row.message.clone()), deliver_in };
            bytes += entry.bytes();
            page.entries.push(entry);
        }
        if let Some(last) = page.entries.last() {
            self.outbox.read_to = self.outbox.read_to.max(last.id.0);
        }
        page
    }
}
