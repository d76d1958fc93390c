//! Decides what happens to an entry after a failure. Pure.

use message::{Fault, FaultScope};

/// The next step for an entry whose publishing was not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Send it again on the next session; nothing is recorded.
    Resend,
    /// Park it and retry later; its key waits. `attempts` is the new count.
    Retry {
        /// Attempts that counted so far, this one included if it counts.
        attempts: u32,
        /// Whether the whole topic waits with it.
        block_topic: bool,
    },
    /// Park it as dead: an operator decides.
    Dead {
        /// Attempts that counted, this one included.
        attempts: u32,
    },
}

/// Decides the next step after one failure.
///
/// * a lost session: resend, regardless of the party at fault (wrong credentials stop the session,
///   not the message);
/// * a problem of the topic: wait with the whole topic, without counting;
/// * the broker's or the operator's fault with one message: wait, without counting;
/// * the message's own fault: count, and after `attempts_max` it is dead.
#[must_use]
pub(crate) fn decide(fault: Fault, scope: FaultScope, attempts: u32, attempts_max: u32) -> NextStep {
    match (scope, fault) {
        (FaultScope::Session, _) => NextStep::Resend,
        (FaultScope::Topic, _) => NextStep::Retry { attempts, block_topic: true },
        (FaultScope::Message, Fault::Broker | Fault::Operator) => {
            NextStep::Retry { attempts, block_topic: false }
        }
        (FaultScope::Message, Fault::Message) => {
            let attempts = attempts.saturating_add(1);
            if attempts >= attempts_max {
                NextStep::Dead { attempts }
            } else {
                NextStep::Retry { attempts, block_topic: false }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_verdicts() {
        use Fault::{Broker, Message, Operator};
        let retry = |attempts, block_topic| NextStep::Retry { attempts, block_topic };
        let table = [
            (Broker, FaultScope::Session, 3, NextStep::Resend),
            (Operator, FaultScope::Session, 3, NextStep::Resend),
            (Broker, FaultScope::Topic, 3, retry(3, true)),
            (Operator, FaultScope::Topic, 9, retry(9, true)),
            (Broker, FaultScope::Message, 9, retry(9, false)),
            (Operator, FaultScope::Message, 9, retry(9, false)),
            (Message, FaultScope::Message, 0, retry(1, false)),
            (Message, FaultScope::Message, 8, retry(9, false)),
            (Message, FaultScope::Message, 9, NextStep::Dead { attempts: 10 }),
            (Message, FaultScope::Message, u32::MAX, NextStep::Dead { attempts: u32::MAX }),
        ];
        for (fault, scope, attempts, expected) in table {
            assert_eq!(decide(fault, scope, attempts, 10), expected, "{fault} {scope} {attempts}");
        }
    }

    #[test]
    fn the_brokers_fault_never_burns_an_attempt() {
        for scope in [FaultScope::Message, FaultScope::Topic] {
            let NextStep::Retry { attempts, .. } = decide(Fault::Broker, scope, 5, 1) else {
                panic!("an outage must not kill a message");
            };
            assert_eq!(attempts, 5);
        }
    }
}
