//! Asks the database for exceptions, names of queues and pauses.

use tokio::time::Instant;

use super::{Driver, PAUSE_LOOK_INTERVAL};
use crate::reader::{Answer, Ask};

/// Kinds of queries: held entries, due exceptions, names of queues, and pauses.
const KINDS: usize = 4;

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
                Some(self.machine.held_asks()).filter(|asks| !asks.is_empty()).map(Ask::Held)
            }
            1 if self.machine.has_room_for_due() => self.due.wanted().map(Ask::Due),
            2 => self.machine.wanted_names().map(Ask::Names),
            3 if Instant::now() >= self.pauses_at => {
                self.pauses_at = Instant::now() + PAUSE_LOOK_INTERVAL;
                Some(Ask::Pauses)
            }
            _ => None,
        }
    }

    pub(super) fn on_answer(&mut self, answer: Answer) {
        self.asked = false;
        match answer {
            Answer::Due(page) => {
                self.due.read(&page, Instant::now());
                self.machine.due(page.exceptions, self.host.uniform());
            }
            Answer::Held(asks, pages) => self.machine.held(&asks, pages),
            Answer::Names(names) => self.machine.names(names),
            Answer::Pauses(paused) => self.machine.pauses(paused),
        }
    }
}
