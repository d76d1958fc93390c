//! `relay run --once`: detects when everything is published, or nothing more can be.

use std::time::Duration;

use message::Fault;
use outbox_log::ExceptionState::{self, Dead, Discarded, Held, Retrying, Scheduled};
use outbox_log::admin::{LogAdmin, ParkedCount, RelayStatus};
use outbox_log::{LogError, Pause, PauseScope, RelayName};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use engine::{Role, Status};

/// Interval of the queries. Checkpoints are stored about as often.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Pause after a failed query: the pipeline reports the error itself and waits as well.
const FAILED_INTERVAL: Duration = Duration::from_secs(2);
/// How long to continue while the only messages that are still tried are those that wait for an
/// operator. By then each of them has been tried again, and a topic that is created on first use
/// exists.
const BLOCKED_MAX: Duration = Duration::from_secs(20);
/// Number of consecutive queries that must find nothing to publish.
const QUIET_LOOKS: u32 = 2;

/// Counts of the messages that stay when nothing more is published automatically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) dead: u64,
    pub(crate) held: u64,
    pub(crate) scheduled: u64,
    /// Messages that are retried but wait for an operator: their destination is missing, or refuses
    /// them.
    pub(crate) blocked: u64,
    /// Whether something is paused; messages behind a pause stay as well.
    pub(crate) is_paused: bool,
}

impl Left {
    /// Returns whether messages stay until an operator decides.
    pub(crate) fn needs_an_operator(self) -> bool {
        self.dead > 0 || self.blocked > 0 || self.is_paused
    }
}

/// Waits until everything is published, once the pipeline leads or stands by. Returns an error with
/// the reason when the pipeline cannot lead until an operator acts. Cancel-safe.
pub(crate) async fn ended(
    log: &dyn LogAdmin,
    name: &RelayName,
    status: watch::Receiver<Status>,
) -> Result<Left, String> {
    let drained = async {
        reaches(status.clone(), |role| matches!(role, Role::Leading { .. } | Role::Standby { .. })).await;
        drained(log, name).await
    };
    let is_blocked = |role: &Role| matches!(role, Role::Waiting { fault: Fault::Operator, .. });
    tokio::select! {
        left = drained => Ok(left),
        role = reaches(status.clone(), is_blocked) => match role {
            Role::Waiting { reason, .. } => Err(reason),
            _ => Err(String::from("the relay cannot lead")),
        },
    }
}

/// Waits until the pipeline has a role. Never returns if the pipeline has ended.
async fn reaches(mut status: watch::Receiver<Status>, is_reached: impl Fn(&Role) -> bool) -> Role {
    let reached = status.wait_for(|status| is_reached(&status.role)).await.map(|status| status.role.clone());
    match reached {
        Ok(role) => role,
        Err(_) => std::future::pending().await,
    }
}

/// Waits until the relay has settled everything committed, whichever process leads. Dead messages,
/// messages held behind them, and paused and scheduled ones stay. Waits forever while the database
/// or the broker is unreachable. Cancel-safe.
async fn drained(log: &dyn LogAdmin, name: &RelayName) -> Left {
    let mut quiet = 0;
    let mut blocked_since: Option<Instant> = None;
    loop {
        let asked = async { Ok::<_, LogError>((log.relay(name).await?, log.pauses(name).await?)) };
        let pause = match asked.await {
            Ok((relay, pauses)) => {
                if let Some(left) = relay.as_ref().and_then(blocked) {
                    let since = *blocked_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= BLOCKED_MAX {
                        return left;
                    }
                } else {
                    blocked_since = None;
                }
                match relay.and_then(|relay| left(&relay, &pauses)) {
                    Some(left) => {
                        quiet += 1;
                        if quiet >= QUIET_LOOKS {
                            return left;
                        }
                    }
                    None => quiet = 0,
                }
                LOOK_INTERVAL
            }
            Err(error) => {
                warn!(relay = %name, "cannot find out whether all messages are published: {error}");
                FAILED_INTERVAL
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Counts the messages that stay. Returns `None` while more may be published automatically: the log
/// is not read to its end, a message is retried, or messages are held without a dead one or a
/// pause.
fn left(relay: &RelayStatus, pauses: &[Pause]) -> Option<Left> {
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    let left = Left {
        dead: count(Dead),
        held: count(Held),
        scheduled: count(Scheduled),
        blocked: 0,
        is_paused: !pauses.is_empty(),
    };
    if pauses.iter().any(|pause| pause.scope == PauseScope::Pipeline) {
        return Some(left);
    }
    let moves = relay.backlog.oldest.is_some()
        || count(Retrying) + count(Discarded) > 0
        || (left.held > 0 && left.dead == 0 && !left.is_paused);
    (!moves).then_some(left)
}

/// Counts the messages that are left if no message is retried except those that wait for an
/// operator.
fn blocked(relay: &RelayStatus) -> Option<Left> {
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    let by_operator =
        |parked: &&ParkedCount| parked.state == Retrying && parked.cause == Some(Fault::Operator);
    let blocked: u64 = relay.parked.iter().filter(by_operator).map(|parked| parked.count).sum();
    let moves = relay.backlog.oldest.is_some() || count(Retrying) > blocked || count(Discarded) > 0;
    (blocked > 0 && !moves).then(|| Left {
        dead: count(Dead),
        held: count(Held),
        scheduled: count(Scheduled),
        blocked,
        is_paused: false,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outbox_log::admin::Backlog;
    use outbox_log::{Cursor, EntryId, Mark};

    use super::*;

    fn relay(oldest: Option<u64>, exceptions: &[(ExceptionState, u64)]) -> RelayStatus {
        RelayStatus {
            relay: String::from("orders"),
            epoch: 1,
            holder: None,
            checkpoint_age: Duration::ZERO,
            cursor: Cursor::at(Mark::new("1")),
            broker_trouble: None,
            standbys: None,
            history: None,
            backlog: Backlog {
                entries_max: 0,
                oldest: oldest.map(|seconds| (EntryId::default(), Duration::from_secs(seconds))),
                parked: 0,
                oldest_parked: None,
            },
            exceptions: exceptions.iter().copied().collect::<BTreeMap<_, _>>(),
            parked: Vec::new(),
        }
    }

    #[test]
    fn only_what_leaves_by_itself_is_waited_for() {
        assert_eq!(left(&relay(None, &[]), &[]), Some(Left::default()));
        assert_eq!(left(&relay(Some(1), &[]), &[]), None);
        assert_eq!(left(&relay(None, &[(Retrying, 1)]), &[]), None);
        assert_eq!(left(&relay(None, &[(Discarded, 1)]), &[]), None);
        // A topic that an operator must repair holds its messages as well.
        assert_eq!(left(&relay(None, &[(Held, 2)]), &[]), None);
        let parked = Left { dead: 1, held: 2, scheduled: 3, ..Left::default() };
        assert_eq!(left(&relay(None, &[(Dead, 1), (Held, 2), (Scheduled, 3)]), &[]), Some(parked));
    }

    #[test]
    fn what_only_an_operator_can_free_is_not_waited_for_without_end() {
        let parked = |cause, count| ParkedCount {
            state: Retrying,
            cause: Some(cause),
            count,
            longest: Duration::ZERO,
        };
        let mut relay = relay(None, &[(Retrying, 2), (Held, 3)]);
        relay.parked = vec![parked(Fault::Operator, 2)];
        assert_eq!(blocked(&relay), Some(Left { blocked: 2, held: 3, ..Left::default() }));
        assert!(blocked(&relay).is_some_and(Left::needs_an_operator));
        relay.parked = vec![parked(Fault::Operator, 1), parked(Fault::Broker, 1)];
        assert_eq!(blocked(&relay), None, "the broker may come back");
        relay.exceptions.clear();
        relay.parked.clear();
        assert_eq!(blocked(&relay), None);
    }

    #[test]
    fn only_a_decision_of_an_operator_makes_it_end_with_an_error() {
        assert!(!Left { held: 2, scheduled: 1, ..Left::default() }.needs_an_operator());
        assert!(Left { dead: 1, ..Left::default() }.needs_an_operator());
        assert!(Left { is_paused: true, ..Left::default() }.needs_an_operator());
    }

    #[test]
    fn what_is_paused_is_not_waited_for() {
        let pause = |scope| Pause {
            scope,
            actor: String::from("ann"),
            reason: String::from("a test"),
            since: time::OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        };
        let topic = [pause(PauseScope::Topic(String::from("t")))];
        let held = Left { held: 2, is_paused: true, ..Left::default() };
        assert_eq!(left(&relay(None, &[(Held, 2)]), &topic), Some(held));
        assert_eq!(left(&relay(Some(1), &[]), &topic), None, "other topics flow");
        let all = [pause(PauseScope::Pipeline)];
        assert!(left(&relay(Some(1), &[]), &all).is_some_and(|left| left.is_paused));
    }
}
