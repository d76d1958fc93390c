//! Asks the database for exceptions, names of queues and pauses.

use outbox_log::DueKind;
use tokio::time::Instant;

use super::{Driver, PAUSE_LOOK_INTERVAL};
use crate::reader::{Answer, Ask};

/// Kinds of queries: held entries, due exceptions of both kinds, names of queues, pauses, and
/// retrying exceptions that come before the others.
const KINDS: usize = 6;

impl Driver {
    /// Sends the database one query at a time, if there is room for the answer. The kinds of
    /// queries take turns, so that none is starved.
    pub(super) fn ask(&mut self) {
        if self.asked || self.draining.is_some() {
            return;
        }
        for _ in 0..KINDS {
            let kind = self.turn;
            self.turn = (self.turn + 1) % KINDS;
            if let Some(ask) = self.question(kind) {
                self.machine.asks();
                self.asked = self.asks.try_send(ask).is_ok();
                return;
            }
        }
    }

    fn question(&mut self, kind: usize) -> Option<Ask> {
        match kind {
            0 if self.machine.has_room_for_held() => {
                let asks = Some(self.machine.held_asks()).filter(|asks| !asks.is_empty())?;
                let entries_max = self.machine.held_max(&asks);
                Some(Ask::Held { asks, entries_max })
            }
            1 => self.question_about_due(DueKind::Scheduled),
            2 => self.question_about_due(DueKind::Retrying),
            3 => self.machine.wanted_names().map(Ask::Names),
            4 if Instant::now() >= self.pauses_at => {
                self.pauses_at = Instant::now() + PAUSE_LOOK_INTERVAL;
                Some(Ask::Pauses)
            }
            5 if self.machine.has_room_for_exceptions() && self.due.wants_first(Instant::now()) => {
                Some(Ask::First(self.machine.probes()))
            }
            _ => None,
        }
    }

    fn question_about_due(&self, kind: DueKind) -> Option<Ask> {
        let position = self.due.wanted(kind).filter(|_| self.machine.has_room_for_due(kind))?;
        Some(Ask::Due(kind, position))
    }

    pub(super) fn on_answer(&mut self, answer: Answer) {
        self.asked = false;
        match answer {
            Answer::Due(kind, page) => {
                self.due.read(kind, &page, Instant::now());
                self.machine.due(page.exceptions, self.host.uniform());
            }
            Answer::First(exceptions) => self.machine.due(exceptions, self.host.uniform()),
            Answer::Held(asks, pages) => self.machine.held(&asks, pages),
            Answer::Names(names) => self.machine.names(names),
            Answer::Pauses(paused) => self.machine.pauses(paused),
        }
    }
}
