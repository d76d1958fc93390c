//! The session with the broker: its messages in flight, and the reason why it must end.
//!
//! Invariants: a refusal is never replaced by another reason; only an answer about a message resets
//! the count of fruitless sessions.

use crate::amount::Amount;

/// Sessions that may break without any confirmation before messages are sent one by one.
const FRUITLESS_BEFORE_CARE: u32 = 3;
/// Sessions that may break before a message that was alone in flight is parked. A broken session
/// does not count as an attempt, because the party at fault is unknown.
const FRUITLESS_BEFORE_RETRY: u32 = 6;

/// The reason why a session must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Only this message of a pipelined session was refused, and no later message of its key may
    /// succeed.
    Refused,
    /// The session broke or stopped answering; no message is known to be the cause.
    Lost,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Session {
    in_flight: Amount,
    /// Consecutive sessions that broke without an answer about any message.
    fruitless: u32,
    end: Option<SessionEnd>,
}

impl Session {
    /// Begins the next session. Nothing is in flight in it.
    pub(super) fn start(&mut self) {
        if self.end.take() == Some(SessionEnd::Lost) {
            self.fruitless = self.fruitless.saturating_add(1);
        }
        self.in_flight = Amount::default();
    }

    /// Records why the session must end. A refusal takes precedence: it explains every other
    /// failure of the session, earlier or later.
    pub(super) fn end(&mut self, cause: SessionEnd) {
        if self.end != Some(SessionEnd::Refused) {
            self.end = Some(cause);
        }
    }

    /// Returns why the session must end, if it must.
    pub(super) fn must_end(&self) -> Option<SessionEnd> {
        self.end
    }

    /// Records that the publisher has one more message.
    pub(super) fn submitted(&mut self, message: Amount) {
        self.in_flight = self.in_flight.plus(message);
    }

    /// Records that a message is no longer in flight.
    pub(super) fn left(&mut self, message: Amount) {
        self.in_flight = self.in_flight.minus(message);
    }

    /// Records that the broker has answered about a message: it confirmed the message, or refused
    /// it alone.
    pub(super) fn answered(&mut self) {
        self.fruitless = 0;
    }

    /// Returns the messages that the publisher has not answered and that are in the window.
    pub(super) fn in_flight(&self) -> Amount {
        self.in_flight
    }

    /// Returns their number.
    pub(super) fn in_flight_len(&self) -> usize {
        self.in_flight.entries
    }

    /// Returns whether to send messages one by one. That starts after several sessions in a row
    /// broke without an answer about any message. So a message that breaks sessions is found and
    /// does not stop all others.
    pub(super) fn is_careful(&self) -> bool {
        self.fruitless >= FRUITLESS_BEFORE_CARE
    }

    /// Returns whether the message that was alone in flight when this session breaks is at fault.
    pub(super) fn blames_the_message(&self) -> bool {
        self.fruitless >= FRUITLESS_BEFORE_RETRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_not_replaced_and_counts_no_session_as_fruitless() {
        let mut session = Session::default();
        session.end(SessionEnd::Lost);
        session.end(SessionEnd::Refused);
        session.end(SessionEnd::Lost);
        assert_eq!(session.must_end(), Some(SessionEnd::Refused));
        for _ in 0..FRUITLESS_BEFORE_RETRY {
            session.start();
            session.end(SessionEnd::Refused);
        }
        assert!(!session.is_careful());
    }

    #[test]
    fn care_begins_after_fruitless_sessions_and_ends_with_an_answer() {
        let mut session = Session::default();
        for broken in 1..=FRUITLESS_BEFORE_RETRY {
            session.submitted(Amount { entries: 1, bytes: 1 });
            session.end(SessionEnd::Lost);
            session.start();
            assert_eq!(session.in_flight(), Amount::default());
            assert_eq!(session.is_careful(), broken >= FRUITLESS_BEFORE_CARE, "{broken}");
            assert_eq!(session.blames_the_message(), broken >= FRUITLESS_BEFORE_RETRY, "{broken}");
        }
        session.answered();
        assert!(!session.is_careful() && !session.blames_the_message());
    }
}
