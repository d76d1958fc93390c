//! The database goes back to an earlier state: a backup is restored, or a lagging replica is
//! promoted.
//!
//! Everything in it goes back together: rows, cursor, lease, and parked entries. Open transactions
//! end, and ids and commit numbers are assigned again. Everything committed since is undone and
//! forgotten. But some of it is at the broker, and relays have marks in memory whose commit numbers
//! now stand for other commits.
//!
//! The store makes the same promises as the PostgreSQL adapter
//! (`outbox/log/src/postgres/history.rs`). A mark names the history in which it was taken. The
//! lease is granted with a cursor of the current history. Calls with a mark or a lease of another
//! history fail on any connection.

use std::collections::BTreeSet;

use message::MessageId;
use outbox_log::{Cursor, LogError, Mark, Progress};

use super::tables::OutboxTables;
use crate::breakage::Breakage;
use crate::world::State;

/// Returns the mark behind this number of commits of a history.
pub(super) fn mark(history: u64, commits: u64) -> Mark {
    Mark::new(format!("{history}/{commits}"))
}

/// Returns the number of commits that a mark stands for.
pub(super) fn commits_at(mark: &Mark) -> u64 {
    parts(mark).1
}

fn parts(mark: &Mark) -> (u64, u64) {
    let (history, commits) = mark.as_str().split_once('/').unwrap_or_default();
    (history.parse().unwrap_or_default(), commits.parse().unwrap_or_default())
}

impl OutboxTables {
    /// Returns the cursor with its marks renamed to the current history. They mean the same there:
    /// the cursor was stored in it, or went back with it.
    pub(super) fn granted_cursor(&self) -> Cursor {
        let here = |old: &Mark| mark(self.history, commits_at(old));
        let Cursor { base, progress, transaction } = &self.relay.cursor;
        let progress =
            progress.as_ref().map(|progress| Progress { head: here(&progress.head), ..progress.clone() });
        Cursor { base: here(base), progress, transaction: transaction.clone() }
    }

    /// Replaces tables that were ahead of this earlier state.
    fn follow(&mut self, ahead: Self, is_pooled: bool) {
        let ids = |tables: &Self| -> BTreeSet<MessageId> {
            let committed = tables.rows.values().filter(|row| row.commit.is_some());
            committed.map(|row| row.message.id).collect()
        };
        self.rows.retain(|_, row| row.commit.is_some());
        self.undone = &ids(&ahead) - &ids(self);
        self.undone.extend(ahead.undone);
        self.given_back = &ahead.discarded - &self.discarded;
        self.given_back.extend(ahead.given_back);
        self.history = ahead.history + 1;
        self.connected_since = if is_pooled { ahead.connected_since } else { self.history };
        // Decisions, observations and the outage of the server stay.
        (self.edited, self.leases, self.down_until) = (ahead.edited, ahead.leases, ahead.down_until);
    }
}

impl State {
    /// Saves the state to which the database goes back.
    pub(crate) fn back_up(&mut self) {
        self.backup = Some(self.outbox.clone());
    }

    /// Takes the database back to the saved state, if there is one. Behind a pooler, connections do
    /// not notice.
    pub(crate) fn restore(&mut self, is_pooled: bool) {
        let Some(backup) = self.backup.take() else { return };
        let ahead = std::mem::replace(&mut self.outbox, backup);
        self.outbox.follow(ahead, is_pooled);
        let OutboxTables { commits, history, undone, .. } = &self.outbox;
        let undone: Vec<u32> = undone.iter().map(|id| self.name(*id)).collect();
        let text = format!("history {history} begins after {commits} commits; undone: {undone:?}");
        self.note(format_args!("{text}"));
    }

    /// Fails if a mark belongs to another history.
    pub(super) fn check_mark(&self, mark: &Mark) -> Result<(), LogError> {
        self.check_history(parts(mark).0)
    }

    /// Fails if this history is not the current one.
    pub(super) fn check_history(&self, history: u64) -> Result<(), LogError> {
        if history == self.outbox.history || self.is_broken(Breakage::HistoryBelieved) {
            return Ok(());
        }
        let reason = format!("simulated: of history {history}, and this is {}", self.outbox.history);
        Err(LogError::Unavailable { reason, source: None })
    }
}
