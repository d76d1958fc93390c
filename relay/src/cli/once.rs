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
/// How long the number of held messages must not fall before they count as staying: those that are
/// free again are read back, published and confirmed part by part.
const HELD_STILL: Duration = Duration::from_secs(5);

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

/// The current state of the pipeline.
pub(crate) struct Now {
    pub(crate) status: watch::Receiver<Status>,
    /// Whether it has had a session with the broker since it took the lease.
    pub(crate) session: watch::Receiver<bool>,
}

impl Now {
    /// Returns whether the messages that wait are being tried, here or by the process that leads.
    fn are_tried(&self) -> bool {
        match self.status.borrow().role {
            Role::Leading { .. } => *self.session.borrow(),
            Role::Standby { .. } => true,
            _ => false,
        }
    }
}

/// Waits until everything is published, once the pipeline leads or stands by. Returns an error with
/// the reason when the pipeline cannot lead until an operator acts. Cancel-safe.
pub(crate) async fn ended(log: &dyn LogAdmin, name: &RelayName, now: Now) -> Result<Left, String> {
    let status = now.status.clone();
    let drained = async {
        reaches(status.clone(), |role| matches!(role, Role::Leading { .. } | Role::Standby { .. })).await;
        drained(log, name, &now).await
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
async fn drained(log: &dyn LogAdmin, name: &RelayName, now: &Now) -> Left {
    let mut course = Course::default();
    loop {
        let asked = async { Ok::<_, LogError>((log.relay(name).await?, log.pauses(name).await?)) };
        let pause = match asked.await {
            Ok((relay, pauses)) => {
                let look = Look { relay: relay.as_ref(), pauses: &pauses, are_tried: now.are_tried() };
                if let Some(left) = course.look(&look, Instant::now()) {
                    return left;
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

/// The answer of one query.
struct Look<'a> {
    relay: Option<&'a RelayStatus>,
    pauses: &'a [Pause],
    /// Whether the messages that wait are being tried.
    are_tried: bool,
}

/// The answers of the latest queries.
#[derive(Debug, Default)]
struct Course {
    /// Nothing is published any more.
    quiet: Option<Still>,
    /// Only messages are tried that wait for an operator.
    blocked: Option<Still>,
}

/// The same answer of several queries in a row.
#[derive(Debug)]
struct Still {
    since: Instant,
    looks: u32,
    /// The number of held messages at the last query.
    held: u64,
}

impl Still {
    /// Adds an answer to those before it. If held messages have left, it is the first one.
    fn add(before: Option<Self>, left: Left, now: Instant) -> Self {
        match before {
            Some(still) if left.held >= still.held => {
                Self { looks: still.looks + 1, held: left.held, ..still }
            }
            _ => Self { since: now, looks: 1, held: left.held },
        }
    }
}

impl Course {
    /// Takes in an answer. Returns what is left once nothing more is published automatically.
    fn look(&mut self, look: &Look<'_>, now: Instant) -> Option<Left> {
        let left = look.relay.and_then(|relay| left(relay, look.pauses));
        // Until the broker can be reached, what waits has not been tried.
        let left = left.filter(|left| left.held == 0 || look.are_tried || is_paused(look.pauses));
        let blocked = look.relay.and_then(blocked).filter(|_| look.are_tried);
        self.quiet = left.map(|left| Still::add(self.quiet.take(), left, now));
        self.blocked = blocked.map(|blocked| Still::add(self.blocked.take(), blocked, now));
        let lasts = |still: &Still, at_least| now.duration_since(still.since) >= at_least;
        let is_over = |(left, still): &(Left, &Still)| {
            let at_least = if left.held > 0 && !is_paused(look.pauses) { HELD_STILL } else { Duration::ZERO };
            still.looks >= QUIET_LOOKS && lasts(still, at_least)
        };
        let quiet = left.zip(self.quiet.as_ref()).filter(is_over).map(|(left, _)| left);
        let is_over = |(_, still): &(Left, &Still)| lasts(still, BLOCKED_MAX);
        quiet.or_else(|| blocked.zip(self.blocked.as_ref()).filter(is_over).map(|(blocked, _)| blocked))
    }
}

/// Returns whether the whole pipeline is paused.
fn is_paused(pauses: &[Pause]) -> bool {
    pauses.iter().any(|pause| pause.scope == PauseScope::Pipeline)
}

/// Returns the number of scheduled messages that are due. The relay tries them, so they become
/// something else.
fn due(relay: &RelayStatus) -> u64 {
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    relay.backlog.parked.saturating_sub(count(Held) + count(Retrying))
}

/// Counts the messages that stay. Returns `None` while more may be published automatically: the log
/// is not read to its end, a message is retried, a scheduled one is due, or messages are held
/// without a dead one or a pause.
fn left(relay: &RelayStatus, pauses: &[Pause]) -> Option<Left> {
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    let left = Left {
        dead: count(Dead),
        held: count(Held),
        scheduled: count(Scheduled),
        blocked: 0,
        is_paused: !pauses.is_empty(),
    };
    if is_paused(pauses) {
        return Some(left);
    }
    let moves = relay.backlog.oldest.is_some()
        || due(relay) + count(Retrying) + count(Discarded) > 0
        || (left.held > 0 && left.dead == 0 && !left.is_paused);
    (!moves).then_some(left)
}

/// Counts the messages that are left if no message is retried except those that wait for an
/// operator, and no scheduled one is due.
fn blocked(relay: &RelayStatus) -> Option<Left> {
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    let by_operator =
        |parked: &&ParkedCount| parked.state == Retrying && parked.cause == Some(Fault::Operator);
    let blocked: u64 = relay.parked.iter().filter(by_operator).map(|parked| parked.count).sum();
    let moves =
        relay.backlog.oldest.is_some() || count(Retrying) > blocked || due(relay) + count(Discarded) > 0;
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
        let mut relay = relay(None, &[(Dead, 1), (Held, 2), (Scheduled, 3)]);
        relay.backlog.parked = 2;
        assert_eq!(left(&relay, &[]), Some(parked), "no scheduled one is due");
        relay.backlog.parked = 3;
        assert_eq!(left(&relay, &[]), None, "one of the scheduled ones is due");
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
        relay.parked = vec![parked(Fault::Operator, 2)];
        relay.exceptions.insert(Scheduled, 1);
        relay.backlog.parked = 2 + 3;
        assert!(blocked(&relay).is_some());
        relay.backlog.parked = 2 + 3 + 1;
        assert_eq!(blocked(&relay), None, "a scheduled one is due");
        relay.exceptions.clear();
        relay.parked.clear();
        assert_eq!(blocked(&relay), None);
    }

    /// A leader counts as one at once; its session with the broker takes longer, and the held
    /// messages that it reads back leave part by part.
    #[test]
    fn held_messages_are_waited_for_while_they_leave() {
        let of = |held| relay(None, &[(Dead, 1), (Held, held)]);
        let begun = Instant::now();
        let mut course = Course::default();
        let mut look = |relay: &RelayStatus, are_tried, seconds| {
            let look = Look { relay: Some(relay), pauses: &[], are_tried };
            course.look(&look, begun + Duration::from_secs(seconds))
        };
        for seconds in 0..60 {
            assert_eq!(look(&of(90), false, seconds), None, "there is no session yet");
        }
        for seconds in 60..90 {
            assert_eq!(look(&of(120 - seconds), true, seconds), None, "one leaves each second");
        }
        for seconds in 90..94 {
            assert_eq!(look(&of(31), true, seconds), None, "{seconds}");
        }
        let left = Left { dead: 1, held: 31, ..Left::default() };
        assert_eq!(look(&of(31), true, 95), Some(left));
        // Nothing is waited for that nobody holds.
        let none = relay(None, &[(Dead, 1)]);
        assert_eq!(look(&none, false, 96), None);
        assert_eq!(look(&none, false, 96), Some(Left { dead: 1, ..Left::default() }));
    }

    #[test]
    fn what_waits_for_an_operator_is_tried_before_the_run_ends() {
        let mut status = relay(None, &[(Retrying, 2), (Held, 30)]);
        let cause = Some(Fault::Operator);
        status.parked = vec![ParkedCount { state: Retrying, cause, count: 2, longest: Duration::ZERO }];
        status.backlog.parked = 32;
        let begun = Instant::now();
        let mut course = Course::default();
        let mut look = |status: &RelayStatus, are_tried, seconds| {
            let look = Look { relay: Some(status), pauses: &[], are_tried };
            course.look(&look, begun + Duration::from_secs(seconds))
        };
        for seconds in 0..60 {
            assert_eq!(look(&status, false, seconds), None, "there is no session yet");
        }
        for seconds in 60..80 {
            assert_eq!(look(&status, true, seconds), None, "{seconds}");
        }
        assert_eq!(look(&status, true, 80).map(|left| left.blocked), Some(2));
        status.exceptions.insert(Held, 29);
        status.backlog.parked = 31;
        assert_eq!(look(&status, true, 81), None, "one of the held ones has left");
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
