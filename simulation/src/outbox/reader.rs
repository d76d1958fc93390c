//! Reads the log.

use async_trait::async_trait;
use outbox::log::{
    Difference, Entry, EntryId, Exception, ExceptionState, LogError, LogReader, Mark, Page, PageLimit,
};
use rand::Rng;
use tokio::time::Instant;

use super::connection::Connection;
use super::tables::{Aside, OutboxTables, Row, commits_at};
use crate::breakage::Breakage;
use crate::fault::{Call, Moment};
use crate::world::State;

pub(super) struct Reader(pub(super) Connection);

#[async_trait]
impl LogReader for Reader {
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        self.0.call(Call::Poll, |state| state.next_difference(base)).await
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        let process = self.0.process;
        let page = self
            .0
            .call(Call::Page, |state| {
                let page = state.read_page(difference, after, limit);
                let ids: Vec<_> = page.entries.iter().map(|entry| entry.id.0).collect();
                state.note(format_args!("{process} reads {ids:?}"));
                page
            })
            .await?;
        if !page.entries.is_empty() && self.0.world.lock().stall(process, Moment::Read) {
            tokio::task::yield_now().await;
        }
        Ok(page)
    }

    async fn read_due(&mut self, after: EntryId, limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        let now = Instant::now();
        let is_due = move |aside: &Aside| {
            let state = aside.parked.state;
            let is_timed = matches!(
                state,
                ExceptionState::Scheduled | ExceptionState::Retrying | ExceptionState::Discarded
            );
            is_timed && aside.due_at.is_some_and(|at| at <= now)
        };
        self.0.call(Call::Due, |state| state.outbox.exceptions(after, limit, is_due)).await
    }

    async fn read_held(&mut self, after: EntryId, limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        let is_held = |aside: &Aside| aside.parked.state == ExceptionState::Held;
        self.0.call(Call::Held, |state| state.outbox.exceptions(after, limit, is_held)).await
    }
}

impl OutboxTables {
    fn exceptions(
        &self,
        after: EntryId,
        limit: PageLimit,
        wanted: impl Fn(&Aside) -> bool,
    ) -> Vec<Exception> {
        let behind = self.exceptions.iter().filter(|(id, aside)| **id > after && wanted(aside));
        behind.take(limit.entries_max).map(|(id, aside)| self.exception(*id, aside)).collect()
    }
}

impl State {
    fn is_visible(&self, row: &Row, id: i64, difference: &Difference) -> bool {
        let (base, head) = (commits_at(&difference.base), commits_at(&difference.head));
        if self.is_broken(Breakage::CursorById) {
            // Marks are ids then.
            return row.commit.is_some()
                && (base..=head).contains(&id.unsigned_abs())
                && id.unsigned_abs() > base;
        }
        match row.commit {
            Some(commit) => base < commit && commit <= head,
            // Once the row is read, its transaction's end makes no difference.
            None => self.is_broken(Breakage::DirtyRead),
        }
    }

    fn next_difference(&mut self, base: &Mark) -> Option<Difference> {
        if self.is_broken(Breakage::CursorById) {
            let committed = self.outbox.rows.iter().rev().find(|(_, row)| row.commit.is_some());
            let last = committed.map(|(id, _)| *id).filter(|id| id.unsigned_abs() > commits_at(base))?;
            return Some(Difference { base: base.clone(), head: Mark::new(last.to_string()), ceiling: last });
        }
        let head = self.outbox.commits;
        let from = commits_at(base);
        let new = self.outbox.rows.iter().filter_map(|(id, row)| {
            let is_new = row.commit.is_some_and(|commit| from < commit && commit <= head);
            is_new.then_some((*id, row.commit.unwrap_or_default()))
        });
        let (ids, commits): (Vec<_>, Vec<_>) = new.unzip();
        let ceiling = ids.into_iter().max()?;
        // Nothing lies between the base and the commit before the first new one.
        let first = commits.into_iter().min().unwrap_or(head);
        let base = if self.rng.random() { Mark::new((first - 1).to_string()) } else { base.clone() };
        Some(Difference { base, head: Mark::new(head.to_string()), ceiling })
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
