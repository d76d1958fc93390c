//! Decides when messages that the destination has refused are retried. Pure.
//!
//! A pipelined publisher's session ends with a refusal, and everything in flight is sent again. A
//! message that was refused will probably be refused again, and due entries have the lowest ids. If
//! they went first, as soon as a few dozen of them were due in turn, each session would end before
//! anything else was confirmed. So they wait until nothing else is ready or in flight, and then go
//! together: the session that finds the culprits sends all of them one by one. Even under a load
//! that never pauses, they go after `PUT_OFF_MAX`, so that each is settled in the end, and its key
//! continues. A probe of a blocked topic is not postponed: its topic waits for it. Neither is any
//! message that is published in transactions: there, the session that searches for the culprit is
//! also pipelined, and would never reach it.

use std::time::Duration;

use message::{MaxInFlightPerKey, Ticket};

use super::Machine;
use crate::window::Item;

/// Maximum time that refused messages wait for the others. One refusal costs two sessions, which
/// take a second or two.
const PUT_OFF_MAX: Duration = Duration::from_secs(30);

/// Minimum time between two tries, even if nothing else waits: messages that become due one after
/// the other share a try, and messages that are enqueued meanwhile find a session.
const APART_MIN: Duration = Duration::from_secs(2);

/// The entries that wait, with the time at which the first one began to wait.
#[derive(Debug, Default)]
pub(super) struct Refused {
    tickets: Vec<Ticket>,
    /// Survives `clear`: otherwise each end of a session would postpone them again.
    since: Option<Duration>,
    /// When entries were taken last.
    taken_at: Option<Duration>,
    /// Whether refused entries keep their position.
    pub(super) keep_turn: bool,
}

impl Refused {
    /// Adds an entry.
    pub(super) fn put(&mut self, ticket: Ticket, now: Duration) {
        self.tickets.push(ticket);
        self.since.get_or_insert(now);
    }

    /// Forgets the entries, which are queued again.
    pub(super) fn clear(&mut self) {
        self.tickets.clear();
    }

    /// Takes the entries if it is time for them: nothing else is left, or they have waited long
    /// enough.
    fn take(&mut self, now: Duration, is_idle: bool) -> Vec<Ticket> {
        if self.tickets.is_empty() {
            self.since = None;
        }
        let is_late = self.since.is_some_and(|since| now.saturating_sub(since) >= PUT_OFF_MAX);
        let is_soon = self.taken_at.is_some_and(|at| now.saturating_sub(at) < APART_MIN);
        if self.tickets.is_empty() || is_soon || !is_idle && !is_late {
            return Vec::new();
        }
        (self.since, self.taken_at) = (None, Some(now));
        std::mem::take(&mut self.tickets)
    }
}

impl Machine {
    /// Returns whether an entry that is about to be queued waits for the others.
    pub(super) fn goes_last(&self, item: &Item) -> bool {
        self.puts_refused_off()
            && item.was_refused()
            && !self.blocks.is_probe(item.message.topic.as_str(), item.id)
    }

    /// Returns whether entries that were refused wait for the others in this session.
    pub(super) fn puts_refused_off(&self) -> bool {
        self.key_queues.window() == MaxInFlightPerKey::Pipelined && !self.refused.keep_turn
    }

    /// Queues the entries that were refused before, if it is time for them and the publisher
    /// accepts some: otherwise they could be postponed again before they are sent.
    pub(super) fn let_refused_go(&mut self) {
        if self.is_publisher_full() {
            return;
        }
        let is_idle = self.key_queues.ready_len() == 0 && self.session.in_flight_len() == 0;
        for ticket in self.refused.take(self.silence.now(), is_idle) {
            let key = self.window.get_mut(ticket).and_then(|item| item.message.key.clone());
            self.key_queues.push(ticket, key.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use message::{PublishError, Receipt, Submission};
    use outbox_log::{Exception, ExceptionState};

    use super::super::bench::{Bench, exception, message_for};
    use super::*;

    /// Number of messages that were refused.
    const REFUSED: i64 = 60;

    /// Returns a bench with this many due messages of topic `t`, each with its own key, each
    /// refused once. Nothing after them in the log has been read.
    fn with_refused_messages() -> Bench {
        let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
        bench.last = REFUSED;
        let due = (1..=REFUSED).map(|id| {
            let message = message_for("t", &format!("refused-{id}"));
            Exception { attempts: 1, ..exception(id, &message, ExceptionState::Retrying) }
        });
        bench.machine.due(due.collect(), 0.5);
        bench
    }

    fn read_others(bench: &mut Bench) {
        (0..20).for_each(|number| bench.read(&message_for("u", &format!("k{number}"))));
    }

    fn topics(batch: &[Submission]) -> Vec<&str> {
        let mut topics: Vec<&str> = batch.iter().map(|it| it.message.topic.as_str()).collect();
        topics.dedup();
        topics
    }

    fn answer(bench: &mut Bench, batch: &[Submission], error: impl Fn() -> PublishError) {
        for Submission { ticket, .. } in batch {
            bench.machine.receipt(Receipt { ticket: *ticket, outcome: Err(error()) }, 0.5);
        }
    }

    #[test]
    fn dozens_of_refused_messages_keep_no_other_topic_from_leaving() {
        let mut bench = with_refused_messages();
        read_others(&mut bench);
        let others = bench.machine.submissions(999);
        assert_eq!((others.len(), topics(&others)), (20, vec!["u"]));
        assert!(bench.machine.submissions(999).is_empty(), "a refusal would end the session");
        // The session breaks for another reason. The next session behaves in the same way.
        answer(&mut bench, &others, || PublishError::session_lost("gone"));
        bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        let others = bench.machine.submissions(999);
        assert_eq!((others.len(), topics(&others)), (20, vec!["u"]));
        others.iter().for_each(|it| bench.confirm(it.ticket));
        let refused = bench.machine.submissions(999);
        assert_eq!((refused.len(), topics(&refused)), (60, vec!["t"]), "now all of them, at once");
        // A batch is refused, and the next session finds the culprits: it tries all of them.
        answer(&mut bench, &refused, || PublishError::session_lost("a batch was refused"));
        assert!(bench.machine.session_end().is_some());
        bench.machine.session_started(MaxInFlightPerKey::One);
        let refused = bench.machine.submissions(999);
        assert_eq!((refused.len(), topics(&refused)), (60, vec!["t"]));
        answer(&mut bench, &refused, || PublishError::refused("too large"));
        assert_eq!((bench.machine.session_end(), bench.machine.open_len()), (None, 0));
    }

    /// A session with transactions that searches for the culprits is also pipelined: if they were
    /// postponed there, the others would use it up each time.
    #[test]
    fn in_transactions_refused_messages_keep_their_turn() {
        let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
        bench.machine = bench.machine.with_left_before(BTreeSet::new());
        let message = message_for("t", "refused");
        let due = Exception { attempts: 1, ..exception(1, &message, ExceptionState::Retrying) };
        bench.last = 1;
        bench.machine.due(vec![due], 0.5);
        read_others(&mut bench);
        assert_eq!(topics(&bench.machine.submissions(999)), ["t", "u"]);
    }

    #[test]
    fn refused_messages_go_after_a_while_although_others_never_pause() {
        let mut bench = with_refused_messages();
        let mut in_flight = Vec::new();
        for seconds in 0..30 {
            bench.at(seconds * 1_000);
            bench.read(&message_for("u", "busy"));
            let batch = bench.machine.submissions(999);
            assert_eq!(topics(&batch), ["u"], "after {seconds} s");
            let before = std::mem::replace(&mut in_flight, batch);
            before.iter().for_each(|it| bench.confirm(it.ticket));
        }
        bench.at(30_000);
        let refused = bench.machine.submissions(999);
        assert_eq!((refused.len(), topics(&refused)), (60, vec!["t"]));
    }

    #[test]
    fn refused_messages_are_put_off_once_and_not_with_every_session() {
        let mut bench = with_refused_messages();
        for seconds in 0..30 {
            bench.at(seconds * 1_000);
            bench.read(&message_for("u", "busy"));
            let batch = bench.machine.submissions(999);
            assert_eq!(topics(&batch), ["u"], "after {seconds} s");
            bench.confirm(batch[0].ticket);
            let unconfirmed = &batch[1..];
            answer(&mut bench, unconfirmed, || PublishError::session_lost("gone"));
            bench.read(&message_for("u", "busy"));
            bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        }
        bench.at(30_000);
        assert_eq!(topics(&bench.machine.submissions(999)), ["u", "t"]);
    }

    #[test]
    fn refused_messages_that_become_due_in_turn_share_a_try() {
        let mut bench = with_refused_messages();
        let first = bench.machine.submissions(30);
        assert_eq!(first.len(), 30, "nothing else waits");
        answer(&mut bench, &first, || PublishError::session_lost("a batch was refused"));
        bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        bench.at(1_999);
        assert!(bench.machine.submissions(999).is_empty(), "a session for each of them");
        bench.publish("u", "c");
        bench.at(2_000);
        assert_eq!(bench.machine.submissions(999).len(), 60);
    }

    #[test]
    fn where_a_refusal_ends_no_session_nothing_is_put_off() {
        let mut bench = with_refused_messages();
        bench.machine.session_started(MaxInFlightPerKey::One);
        read_others(&mut bench);
        assert_eq!(topics(&bench.machine.submissions(999)), ["t", "u"]);
    }

    /// Otherwise messages would be mistaken for those that break sessions, and sent one by one.
    #[test]
    fn sessions_in_which_messages_are_refused_are_not_fruitless() {
        let mut bench = with_refused_messages();
        for turn in 0..9 {
            bench.at(turn * 2_000);
            let refused = bench.machine.submissions(999);
            assert!(refused.len() > 1, "one by one: {}", refused.len());
            answer(&mut bench, &refused, || PublishError::session_lost("a batch was refused"));
            bench.machine.session_started(MaxInFlightPerKey::One);
            let first = bench.machine.submissions(1);
            answer(&mut bench, &first, || PublishError::refused("too large"));
            let rest = bench.machine.submissions(1);
            answer(&mut bench, &rest, || PublishError::session_lost("no suspect message is left"));
            bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        }
    }
}
