//! `relay run --once`: detects when everything is published, or nothing more can be.

use std::time::Duration;

use message::Fault;
use outbox_log::ExceptionState::{self, Dead, Discarded, Held, Retrying, Scheduled};
use outbox_log::admin::{COUNTED_MAX, LogAdmin, ParkedCount, RelayStatus};
use outbox_log::{EntryId, LogError, Pause, PauseScope, RelayName};
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
/// How long to continue while the destination accepts none of the messages that are still tried,
/// although it has a session: by then each has been tried some 60 times. A message on which an HTTP
/// receiver always fails (500) would otherwise keep a job from ending.
const UNACCEPTED_MAX: Duration = Duration::from_secs(900);
/// Number of consecutive queries that must find nothing to publish.
const QUIET_LOOKS: u32 = 2;
/// If the number of held messages does not fall for this long, they count as staying. Those that
/// are free again are read back, published and confirmed part by part, which takes time. If the
/// destination may take longer for an answer, that time is added.
const HELD_STILL: Duration = Duration::from_secs(5);

/// Counts of the messages that stay when nothing more is published automatically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) dead: u64,
    pub(crate) held: u64,
    pub(crate) scheduled: u64,
    /// Messages that are retried but wait for an operator: their destination is missing, refuses
    /// them, or has failed on them for a quarter of an hour.
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
    /// How long the destination may take for an answer, if that is limited.
    pub(crate) answer_max: Option<Duration>,
}

impl Now {
    /// Returns whether the messages that wait are being tried, here or by the process that leads:
    /// that one stores the error that keeps it from the broker.
    fn are_tried(&self, relay: Option<&RelayStatus>) -> bool {
        match self.status.borrow().role {
            Role::Leading { .. } => *self.session.borrow(),
            Role::Standby { .. } => {
                relay.is_some_and(|relay| relay.holder.is_some() && relay.broker_trouble.is_none())
            }
            _ => false,
        }
    }

    /// Returns how long held messages must stay before they count as staying.
    fn held_still(&self) -> Duration {
        HELD_STILL.saturating_add(self.answer_max.unwrap_or_default())
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

/// Waits until the relay has settled everything committed, whichever process leads. Messages stay
/// if they are dead, held behind a dead one, paused or scheduled, or if the destination does not
/// accept them. Waits forever while the database or the broker is unreachable. Cancel-safe.
async fn drained(log: &dyn LogAdmin, name: &RelayName, now: &Now) -> Left {
    let mut course = Course::default();
    loop {
        let asked = async { Ok::<_, LogError>((relay(log, name).await?, log.pauses(name).await?)) };
        let pause = match asked.await {
            Ok((relay, pauses)) => {
                let look = Look {
                    are_tried: now.are_tried(relay.as_ref()),
                    held_still: now.held_still(),
                    relay: relay.as_ref(),
                    pauses: &pauses,
                };
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

/// Reads the status. If more messages are parked than are counted, a state that the counted ones
/// lack counts as one message if any message has it: not everything is published.
async fn relay(log: &dyn LogAdmin, name: &RelayName) -> Result<Option<RelayStatus>, LogError> {
    let Some(mut relay) = log.relay(name).await? else { return Ok(None) };
    if is_cut_off(&relay) {
        for state in [Dead, Held, Retrying] {
            if relay.exceptions.get(&state).is_some_and(|count| *count > 0) {
                continue;
            }
            let found = match state {
                Held => log.held(name, 1).await?,
                _ => log.list(name, state, EntryId::default(), 1).await?,
            };
            if !found.is_empty() {
                add_uncounted(&mut relay, state);
            }
        }
    }
    Ok(Some(relay))
}

/// Returns whether parked messages may be missing in the counts.
fn is_cut_off(relay: &RelayStatus) -> bool {
    relay.exceptions.values().sum::<u64>() >= u64::from(COUNTED_MAX)
}

/// Adds a message that the counts left out.
fn add_uncounted(relay: &mut RelayStatus, state: ExceptionState) {
    relay.exceptions.insert(state, 1);
    relay.backlog.parked += u64::from(state != Dead);
}

/// The answer of one query.
struct Look<'a> {
    relay: Option<&'a RelayStatus>,
    pauses: &'a [Pause],
    /// Whether the messages that wait are being tried.
    are_tried: bool,
    held_still: Duration,
}

/// The answers of the latest queries.
#[derive(Debug, Default)]
struct Course {
    /// Nothing is published any more.
    quiet: Option<Still>,
    /// Only messages that wait for an operator are tried.
    blocked: Option<Still>,
    /// Only messages that the destination has not accepted before are tried.
    unaccepted: Option<Still>,
}

/// The same answer of several queries in a row.
#[derive(Debug)]
struct Still {
    since: Instant,
    looks: u32,
    /// The number of held messages at the last query.
    held: u64,
    /// The number of those that are tried.
    tried: u64,
}

impl Still {
    /// Adds an answer to those before it. If held messages have left, or ones that are tried, it
    /// counts as the first one.
    fn add(before: Option<Self>, left: Left, now: Instant) -> Self {
        let tried = left.blocked;
        match before {
            Some(still) if left.held >= still.held && tried >= still.tried => {
                Self { looks: still.looks + 1, held: left.held, tried, ..still }
            }
            _ => Self { since: now, looks: 1, held: left.held, tried },
        }
    }
}

impl Course {
    /// Takes in an answer. Returns what is left once nothing more is published automatically.
    fn look(&mut self, look: &Look<'_>, now: Instant) -> Option<Left> {
        let left = look.relay.and_then(|relay| left(relay, look.pauses));
        // Until the broker can be reached, what waits has not been tried.
        let left = left.filter(|left| left.held == 0 || look.are_tried || is_paused(look.pauses));
        // More are held than are counted, so the number does not show that some leave.
        let stores = |relay: &RelayStatus| is_cut_off(relay) && relay.checkpoint_age < HELD_STILL;
        let left = left.filter(|_| !look.relay.is_some_and(stores));
        let blocked = look.relay.and_then(blocked).filter(|_| look.are_tried);
        let unaccepted = look.relay.and_then(unaccepted).filter(|_| look.are_tried);
        self.quiet = left.map(|left| Still::add(self.quiet.take(), left, now));
        self.blocked = blocked.map(|blocked| Still::add(self.blocked.take(), blocked, now));
        self.unaccepted = unaccepted.map(|left| Still::add(self.unaccepted.take(), left, now));
        let lasts = |still: &Still, at_least| now.duration_since(still.since) >= at_least;
        let is_over = |(left, still): &(Left, &Still)| {
            let waits = left.held > 0 && !is_paused(look.pauses);
            let at_least = if waits { look.held_still } else { Duration::ZERO };
            still.looks >= QUIET_LOOKS && lasts(still, at_least)
        };
        let quiet = left.zip(self.quiet.as_ref()).filter(is_over).map(|(left, _)| left);
        let over = |left: Option<Left>, still: Option<&Still>, at_least| {
            left.zip(still).filter(|(_, still)| lasts(still, at_least)).map(|(left, _)| left)
        };
        quiet
            .or_else(|| over(blocked, self.blocked.as_ref(), BLOCKED_MAX.max(look.held_still)))
            .or_else(|| over(unaccepted, self.unaccepted.as_ref(), UNACCEPTED_MAX))
    }
}

/// Returns whether the whole pipeline is paused.
fn is_paused(pauses: &[Pause]) -> bool {
    pauses.iter().any(|pause| pause.scope == PauseScope::Pipeline)
}

/// Returns the number of scheduled messages that are due. The relay tries them, so their state will
/// change.
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

/// Counts the messages that are left if nothing happens except retries of messages that their
/// destination does not accept. Messages that are at fault themselves die when their attempts are
/// used up.
fn unaccepted(relay: &RelayStatus) -> Option<Left> {
    let count = |state: ExceptionState| relay.exceptions.get(&state).copied().unwrap_or_default();
    let by_destination = |parked: &&ParkedCount| {
        parked.state == Retrying && matches!(parked.cause, Some(Fault::Broker | Fault::Operator))
    };
    let tried: u64 = relay.parked.iter().filter(by_destination).map(|parked| parked.count).sum();
    let moves =
        relay.backlog.oldest.is_some() || count(Retrying) > tried || due(relay) + count(Discarded) > 0;
    // While the broker cannot be reached, nothing is tried.
    (tried > 0 && !moves && relay.broker_trouble.is_none()).then(|| Left {
        dead: count(Dead),
        held: count(Held),
        scheduled: count(Scheduled),
        blocked: tried,
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
            taken_for: None,
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
            let look = Look { relay: Some(relay), pauses: &[], are_tried, held_still: HELD_STILL };
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
        // Without held messages, the run does not wait for any.
        let none = relay(None, &[(Dead, 1)]);
        assert_eq!(look(&none, false, 96), None);
        assert_eq!(look(&none, false, 96), Some(Left { dead: 1, ..Left::default() }));
    }

    /// Goal: the run does not end while messages leave of which more are held than are counted.
    /// Oracle: the end, by the age of the last checkpoint.
    #[test]
    fn held_messages_that_are_not_counted_are_waited_for_while_they_leave() {
        let mut status = relay(None, &[(Dead, 1), (Held, u64::from(COUNTED_MAX) - 1)]);
        let begun = Instant::now();
        let mut course = Course::default();
        let mut look = |status: &RelayStatus, seconds| {
            let look = Look { relay: Some(status), pauses: &[], are_tried: true, held_still: HELD_STILL };
            course.look(&look, begun + Duration::from_secs(seconds))
        };
        for seconds in 0..60 {
            assert_eq!(look(&status, seconds), None, "the removal of others is stored");
        }
        status.checkpoint_age = HELD_STILL;
        for seconds in 60..65 {
            assert_eq!(look(&status, seconds), None, "{seconds}");
        }
        assert_eq!(look(&status, 65).map(|left| left.dead), Some(1));
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
            let look = Look { relay: Some(status), pauses: &[], are_tried, held_still: HELD_STILL };
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

    /// Goal: one message on which an HTTP receiver always fails does not keep a job from ending,
    /// and an outage does not end it. Oracle: the end in virtual time.
    #[test]
    fn what_the_destination_never_accepts_is_not_waited_for_without_end() {
        let mut status = relay(None, &[(Retrying, 1), (Held, 2)]);
        let retrying =
            |cause| ParkedCount { state: Retrying, cause: Some(cause), count: 1, longest: Duration::ZERO };
        status.parked = vec![retrying(Fault::Broker)];
        status.backlog.parked = 3;
        let begun = Instant::now();
        let mut course = Course::default();
        let mut look = |status: &RelayStatus, are_tried, seconds| {
            let look = Look { relay: Some(status), pauses: &[], are_tried, held_still: HELD_STILL };
            course.look(&look, begun + Duration::from_secs(seconds))
        };
        let of_message = RelayStatus { parked: vec![retrying(Fault::Message)], ..status.clone() };
        let trouble = outbox_log::BrokerTrouble::of("away", true, time::OffsetDateTime::UNIX_EPOCH);
        let away = RelayStatus { broker_trouble: Some(trouble), ..status.clone() };
        for seconds in 0..1_000 {
            assert_eq!(look(&of_message, true, seconds), None, "its attempts are counted");
            assert_eq!(look(&away, true, seconds), None, "the broker cannot be reached");
            assert_eq!(look(&status, false, seconds), None, "there is no session yet");
        }
        for seconds in 1_000..1_900 {
            assert_eq!(look(&status, true, seconds), None, "{seconds}");
        }
        let left = look(&status, true, 1_900).unwrap();
        assert_eq!(left, Left { held: 2, blocked: 1, ..Left::default() });
        assert!(left.needs_an_operator());
        status.exceptions.insert(Held, 1);
        status.backlog.parked = 2;
        assert_eq!(look(&status, true, 1_901), None, "a held one has left");
    }

    #[test]
    fn a_destination_that_takes_its_time_is_given_it() {
        let of = |held| relay(None, &[(Dead, 1), (Held, held)]);
        let begun = Instant::now();
        let mut course = Course::default();
        let status = watch::channel(Status::of(Role::Leading { epoch: 1 })).1;
        let session = watch::channel(true).1;
        let now = Now { status, session, answer_max: Some(Duration::from_secs(13)) };
        let mut look = |relay: &RelayStatus, seconds| {
            let look =
                Look { relay: Some(relay), pauses: &[], are_tried: true, held_still: now.held_still() };
            course.look(&look, begun + Duration::from_secs(seconds))
        };
        for seconds in 0..120 {
            assert_eq!(look(&of(90 - seconds / 12), seconds), None, "one leaves each 12 s");
        }
        assert_eq!(look(&of(81), 126).map(|left| left.held), Some(81));
    }

    #[test]
    fn a_standby_waits_until_the_leader_reaches_the_broker() {
        let role = Role::Standby { holder: String::from("other") };
        let now = Now {
            status: watch::channel(Status::of(role)).1,
            session: watch::channel(false).1,
            answer_max: None,
        };
        let holder = outbox_log::admin::Holder {
            name: String::from("other"),
            expires_in: Some(Duration::from_secs(9)),
            expired_for: None,
        };
        let led = RelayStatus { holder: Some(holder), ..relay(None, &[]) };
        assert!(now.are_tried(Some(&led)));
        assert!(!now.are_tried(Some(&relay(None, &[]))) && !now.are_tried(None), "no process leads");
        let trouble = outbox_log::BrokerTrouble::of("away", true, time::OffsetDateTime::UNIX_EPOCH);
        assert!(!now.are_tried(Some(&RelayStatus { broker_trouble: Some(trouble), ..led })));
    }

    /// The counts end after a million parked messages, such as scheduled ones.
    #[test]
    fn a_message_that_was_not_counted_is_waited_for() {
        let mut scheduled = relay(None, &[(Scheduled, u64::from(COUNTED_MAX) - 1)]);
        assert!(!is_cut_off(&scheduled) && left(&scheduled, &[]).is_some());
        scheduled.exceptions.insert(Scheduled, u64::from(COUNTED_MAX));
        assert!(is_cut_off(&scheduled));
        add_uncounted(&mut scheduled, Dead);
        assert!(left(&scheduled, &[]).is_some_and(Left::needs_an_operator));
        for state in [Retrying, Held] {
            let mut scheduled = RelayStatus { exceptions: scheduled.exceptions.clone(), ..scheduled.clone() };
            scheduled.exceptions.remove(&Dead);
            add_uncounted(&mut scheduled, state);
            assert_eq!(left(&scheduled, &[]), None, "{state}");
            assert_eq!(due(&scheduled), 0, "none of the scheduled ones is due");
        }
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
