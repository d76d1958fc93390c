//! Injects faults on request.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use message::{Fault, FaultScope, MessageId, PublishError};

use super::broker::Broker;

/// The actual outcome of a message whose outcome is reported as unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The message was stored; only the confirmation was lost.
    Confirmation,
    /// The message never arrived.
    Message,
}

/// The fault switches of a [`Broker`]. Every switch takes effect at once, for all sessions.
#[derive(Debug)]
pub struct Faults<'a>(pub(super) &'a Broker);

impl Faults<'_> {
    /// Refuses the next `count` submissions.
    pub fn refuse_next(&self, count: usize, fault: Fault, scope: FaultScope) {
        self.0.lock().script.next.extend(std::iter::repeat_n(FaultDecision::Refuse(fault, scope), count));
    }

    /// Refuses every `nth` submission from now on.
    pub fn refuse_every(&self, nth: NonZeroUsize, fault: Fault, scope: FaultScope) {
        self.0.lock().script.every = Some((nth, 0, fault, scope));
    }

    /// Refuses this message every time: a poison message.
    pub fn refuse_id(&self, id: MessageId, fault: Fault, scope: FaultScope) {
        self.0.lock().script.ids.insert(id, (fault, scope));
    }

    /// Reports the next `count` submissions as lost with their session; `loss` determines whether
    /// they are stored.
    pub fn lose_next(&self, count: usize, loss: Loss) {
        self.0.lock().script.next.extend(std::iter::repeat_n(FaultDecision::Lose(loss), count));
    }

    /// Cancels all requested refusals and losses that have not happened yet.
    pub fn heal(&self) {
        self.0.lock().script = Script::default();
    }

    /// Breaks every open publishing session; the outcome of unconfirmed messages becomes unknown.
    pub fn break_publishers(&self) {
        self.0.break_publishers();
    }

    /// Breaks every open subscription; unsettled messages are delivered again.
    pub fn break_subscriptions(&self) {
        self.0.break_subscriptions();
    }

    /// Makes the broker unreachable: open sessions of both kinds break, and new ones fail.
    pub fn unreachable(&self) {
        self.0.set_reachable(false);
        self.0.break_publishers();
        self.0.break_subscriptions();
    }

    /// Makes the broker reachable again.
    pub fn reachable(&self) {
        self.0.set_reachable(true);
    }

    /// Stores messages, but confirms none until [`release_confirms`](Self::release_confirms).
    pub fn hold_confirms(&self) {
        self.0.hold_confirms();
    }

    /// Confirms everything that was withheld, in order, and withholds no more.
    pub fn release_confirms(&self) {
        self.0.release_confirms();
    }

    /// Loses the next `count` calls that settle deliveries, and breaks the session of each: the
    /// acknowledgements never arrive. Their messages are delivered again.
    pub fn lose_settlements(&self, count: usize) {
        self.0.lock().lost_settlements_left += count;
    }

    /// From now on shuffles deliveries that are received together, even those of one key, like a
    /// queue without ordering. The same seed gives the same orders.
    pub fn shuffle_deliveries(&self, seed: u64) {
        // A generator that starts at zero stays there.
        self.0.lock().shuffle = Some(seed | 1);
    }

    /// Delivers each of the next `count` messages twice in a row.
    pub fn duplicate_next(&self, count: usize) {
        self.0.lock().duplicates_left += count;
    }
}

/// The outcome planned for one submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultDecision {
    Store,
    Refuse(Fault, FaultScope),
    Lose(Loss),
}

/// The requested failures.
#[derive(Debug, Default)]
pub(super) struct Script {
    next: std::collections::VecDeque<FaultDecision>,
    every: Option<(NonZeroUsize, usize, Fault, FaultScope)>,
    ids: HashMap<MessageId, (Fault, FaultScope)>,
}

impl Script {
    /// Decides about the next submission and advances the script.
    pub(super) fn classify(&mut self, id: MessageId) -> FaultDecision {
        if let Some((fault, scope)) = self.ids.get(&id) {
            return FaultDecision::Refuse(*fault, *scope);
        }
        if let Some(verdict) = self.next.pop_front() {
            return verdict;
        }
        if let Some((nth, count, fault, scope)) = &mut self.every {
            *count = (*count + 1) % *nth;
            if *count == 0 {
                return FaultDecision::Refuse(*fault, *scope);
            }
        }
        FaultDecision::Store
    }
}

/// Returns the error of a requested refusal.
pub(super) fn refusal(fault: Fault, scope: FaultScope) -> PublishError {
    PublishError::new(fault, scope, format!("refused, as the test requested ({fault}, {scope})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_submission_is_refused_after_the_scripted_ones() {
        let mut script = Script::default();
        script.next.push_back(FaultDecision::Lose(Loss::Message));
        script.every = Some((NonZeroUsize::new(3).unwrap(), 0, Fault::Broker, FaultScope::Topic));
        let refused = FaultDecision::Refuse(Fault::Broker, FaultScope::Topic);
        let verdicts: Vec<_> = (0..7).map(|_| script.classify(MessageId::new())).collect();
        let expected = [
            FaultDecision::Lose(Loss::Message),
            FaultDecision::Store,
            FaultDecision::Store,
            refused,
            FaultDecision::Store,
            FaultDecision::Store,
            refused,
        ];
        assert_eq!(verdicts, expected);
    }
}
