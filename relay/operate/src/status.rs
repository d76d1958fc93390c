//! The status of each pipeline from its database: the leader, waiting and parked messages, and what
//! holds rows back.

mod state;
mod symptom;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{BoxFuture, try_join};
use outbox_log::admin::{
    self, Blocker, COUNTED_MAX, CountedError, ERRORS_LOOKED_AT, Picture, Process, RelayStatus,
};
use outbox_log::retention::{self, HeldBack, Segment};
use outbox_log::{BrokerTrouble, ExceptionState, LogError};
use serde::Serialize;
use time::OffsetDateTime;

use super::cause::Cause;
use super::error::OperateError;
use super::operator::{Operator, Role};
use super::pause::PauseLine;
use super::seconds::{self, age};
use super::turns::in_turns;
use crate::settings::PipelineConfig;

pub use state::PipelineState;

/// One pipeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PipelineStatus {
    /// Its name.
    pub pipeline: String,
    /// Its state.
    pub state: PipelineState,
    /// Whether it publishes in broker transactions, according to the configuration.
    pub is_transactional: bool,
    /// The reason why nothing more is known, or a probable error in the name.
    pub problem: Option<String>,
    /// The holder of the lease.
    pub holder: Option<String>,
    /// The fencing token of the current or last holder.
    pub epoch: Option<i64>,
    /// The number of processes that wait for the lease; `None` where the database does not show
    /// them (SQLite).
    pub standbys: Option<u64>,
    /// The processes that lead or wait for the lease; `None` where the database does not show them
    /// (SQLite).
    #[serde(skip)]
    pub processes: Option<Vec<Process>>,
    /// The remaining time of the lease.
    pub lease_remaining_seconds: Option<f64>,
    /// The age of the last checkpoint.
    pub checkpoint_age_seconds: Option<f64>,
    /// The server to whose history the cursor belongs.
    pub cursor_system_identifier: Option<String>,
    /// The timeline of the server's log; 0 where the server did not report it.
    pub cursor_timeline: Option<i64>,
    /// Whether this is the server that answers. Otherwise the next leader first compares the cursor
    /// with the server.
    pub cursor_is_of_this_server: Option<bool>,
    /// Maximum number of waiting messages: unread, held, retrying, and scheduled ones that are due.
    pub backlog_entries_max: Option<u64>,
    /// The place in the log of the message that has waited longest.
    pub oldest_pending_id: Option<i64>,
    /// Its age.
    pub oldest_pending_age_seconds: Option<f64>,
    /// Whether messages are retried without success until an operator acts, for example because
    /// their topic is missing.
    #[serde(skip)]
    pub retries_wait_for_operator: bool,
    /// Parked messages, by state.
    pub exceptions: BTreeMap<&'static str, u64>,
    /// Whether these are lower bounds: more messages are parked than the [`COUNTED_MAX`] that are
    /// counted.
    pub exceptions_are_at_least: bool,
    /// The time since the first message of each state was parked, for states with messages.
    pub exceptions_age_seconds: BTreeMap<&'static str, f64>,
    /// The most frequent error of the messages of a state, for states in which messages have one.
    #[serde(skip)]
    pub causes: BTreeMap<&'static str, Cause>,
    /// The pauses in force, with author and reason.
    pub paused: Vec<PauseLine>,
    /// The error that keeps every message of the current or last leader from the broker.
    pub broker_error: Option<BrokerError>,
    /// The open transaction whose rows cannot be read yet.
    pub held_back_by: Option<OpenTransaction>,
    /// The age of the oldest entry in the outbox, published or not.
    pub history_age_seconds: Option<f64>,
    /// The size of the outbox.
    pub history_bytes: Option<u64>,
    /// The reason why expired history is held back.
    pub history_held_back_by: Option<String>,
    /// Maximum number of messages that the relay has not passed.
    #[serde(skip)]
    pub unread_max: Option<u64>,
    /// The age of the oldest message that the relay has not passed.
    #[serde(skip)]
    pub oldest_unread_age_seconds: Option<f64>,
    /// The reason why nothing more is known.
    #[serde(skip)]
    pub error: Option<OperateError>,
}

/// An error that keeps every message of a relay from its broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokerError {
    /// The error of the broker or its client, and the remedy.
    pub error: String,
    /// Whether it may pass by itself; otherwise an operator must act.
    pub passes: bool,
    /// The time since which it lasts, by the relay's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub since: OffsetDateTime,
}

impl BrokerError {
    /// Returns the sentence without its time.
    fn why(&self) -> String {
        format!("no message reaches the broker: {}", self.error)
    }

    /// Returns the sentence with its time.
    pub(crate) fn told(&self) -> String {
        let since = seconds::text(self.since);
        format!("no message reaches the broker since {since}: {}", self.error)
    }
}

impl From<BrokerTrouble> for BrokerError {
    fn from(BrokerTrouble { error, passes, since, .. }: BrokerTrouble) -> Self {
        Self { error, passes, since }
    }
}

/// The open transaction whose rows cannot be read yet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenTransaction {
    /// The server process; 0 for a prepared transaction, which has none.
    pub pid: i32,
    /// The application name of its client; the name of a prepared transaction.
    pub application_name: String,
    /// `active`, `idle in transaction`, …, or `prepared`; `None` where the server hides it.
    pub state: Option<String>,
    /// The time since it began; `None` where the server hides it, because the login lacks
    /// `pg_read_all_stats`.
    pub age_seconds: Option<f64>,
}

/// The text for a transaction of another role whose age the server hides.
const AGE_HIDDEN: &str = "age hidden (needs pg_read_all_stats)";

/// The kind of a condition that keeps messages from leaving.
///
/// The order is that of their severity: the first keeps most messages from leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Symptom {
    /// The database does not answer.
    DatabaseAway,
    /// No relay has ever led.
    NeverLed,
    /// No relay leads.
    NoLeader,
    /// The cursor belongs to the history of another server.
    OtherHistory,
    /// The broker takes no message.
    BrokerRefuses,
    /// An operator has paused a topic, a key or the pipeline.
    Paused,
    /// An open transaction has written rows that cannot be read yet.
    RowsHeldBack,
    /// The leader needs long to pass messages on.
    Behind,
    /// Messages wait for an operator.
    Dead,
    /// Messages wait behind others.
    Held,
    /// Messages failed and will be retried.
    Retrying,
    /// Old messages cannot be deleted.
    HistoryKept,
    /// Dead letters of a consumer wait for an operator.
    ConsumerDead,
    /// A consumer fails and tries again.
    ConsumerFails,
}

/// A number of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The number.
    pub number: u64,
    /// Whether there are more: not all were counted.
    pub is_at_least: bool,
}

/// A condition that keeps messages from leaving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Its kind.
    pub symptom: Symptom,
    /// The reason, in one sentence.
    pub why: String,
    /// The number of messages that it concerns, if it is one of single messages.
    pub count: Option<Count>,
    /// Their most frequent error, if they have one.
    pub cause: Option<Cause>,
    /// Its duration.
    pub lasts: Option<Duration>,
    /// Whether it passes by itself.
    pub passes: bool,
}

/// A leader that needs longer to pass on what it has read has a problem.
const PASSED_WITHIN_SECONDS: f64 = 30.0;

/// A hundred years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the status of pipelines, in their order. If a database is unreachable, its pipelines are
/// `unknown`. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view pipelines.
pub async fn status(
    pipelines: impl IntoIterator<Item = &PipelineConfig>,
    operator: &Operator,
) -> Result<Vec<PipelineStatus>, OperateError> {
    status_at(pipelines, operator, Depth::WithHistory).await
}

/// Extent of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Everything but the age and the size of the outbox, in one session for each pipeline.
    WithoutHistory,
    /// Everything, in two sessions for each pipeline.
    WithHistory,
}

/// Like [`status`], with a chosen depth. Cancel-safe.
///
/// # Errors
/// As for [`status`].
pub async fn status_at(
    pipelines: impl IntoIterator<Item = &PipelineConfig>,
    operator: &Operator,
    depth: Depth,
) -> Result<Vec<PipelineStatus>, OperateError> {
    operator.permit(Role::Viewer, "view pipelines")?;
    // Boxed and collected: with the iterator in this function's future, other crates could not show
    // that the future is `Send`.
    let mut looks: Vec<BoxFuture<'_, PipelineStatus>> = Vec::new();
    for pipeline in pipelines {
        looks.push(Box::pin(look(pipeline, depth)));
    }
    Ok(in_turns(looks).await)
}

async fn look(pipeline: &PipelineConfig, depth: Depth) -> PipelineStatus {
    let name = pipeline.name.as_str();
    let asked = async {
        let (address, options) = (pipeline.database.address(), pipeline.database.options().clone());
        let admin = admin::open(address.clone(), pipeline.source.clone(), options.clone())?;
        let history = retention::open(address, pipeline.source.clone(), options)?;
        // Without retention, nothing expires.
        let keep = pipeline.retention.keep().unwrap_or(FOREVER);
        let segments = async {
            match depth {
                Depth::WithHistory => history.segments(keep).await,
                Depth::WithoutHistory => Ok(Vec::new()),
            }
        };
        let all = try_join(admin.picture(&pipeline.name), segments).await;
        let (picture, segments) = all.map_err(|error: LogError| OperateError::from(error))?;
        let problem = match picture.relay {
            Some(_) => None,
            None => unknown(&admin.relays().await?),
        };
        Ok::<_, OperateError>((picture, problem, segments))
    };
    let is_transactional = pipeline.broker.is_transactional();
    match asked.await {
        Ok((picture, problem, segments)) => {
            let Picture { relay, blocker, pauses, errors, processes } = picture;
            let paused = pauses.into_iter().map(|pause| PauseLine::of(&pipeline.name, pause)).collect();
            let status = PipelineStatus::of(name, relay, blocker).with(&segments);
            let causes = causes(&errors, &status.exceptions);
            PipelineStatus { is_transactional, paused, problem, causes, processes, ..status }
        }
        Err(error) => PipelineStatus {
            state: PipelineState::Unknown,
            is_transactional,
            problem: Some(error.to_string()),
            error: Some(error),
            ..PipelineStatus::of(name, None, None)
        },
    }
}

/// Returns the most frequent error of each state. It was read from a sample if more messages are in
/// the state than were looked at.
fn causes(
    errors: &[CountedError],
    exceptions: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, Cause> {
    let looked_at = 2 * u64::from(ERRORS_LOOKED_AT);
    let states = [ExceptionState::Dead, ExceptionState::Retrying];
    let causes = states.into_iter().filter_map(|state| {
        let of_state = errors.iter().filter(|counted| counted.state == state);
        let counted = of_state.map(|counted| (counted.error.clone(), counted.count));
        let is_sample = exceptions.get(state.as_str()).is_some_and(|count| *count > looked_at);
        Some((state.as_str(), Cause::of(counted, is_sample)?))
    });
    causes.collect()
}

/// Returns the problem of a name under which no relay has led, if others have led: it may be
/// misspelt.
fn unknown(others: &[RelayStatus]) -> Option<String> {
    let known: Vec<&str> = others.iter().map(|relay| relay.relay.as_str()).collect();
    (!known.is_empty()).then(|| {
        format!(
            "no relay with this name has led; this outbox knows {}: is the name misspelt?",
            known.join(", ")
        )
    })
}

impl PipelineStatus {
    /// Describes a pipeline by what its database knows of its relay.
    #[must_use]
    pub fn of(name: &str, relay: Option<RelayStatus>, blocker: Option<Blocker>) -> Self {
        let lease = relay.as_ref().and_then(|relay| relay.holder.as_ref());
        let remaining = lease.and_then(|holder| holder.expires_in);
        let oldest = relay.as_ref().and_then(|relay| relay.backlog.oldest_waiting());
        let history = relay.as_ref().and_then(|relay| relay.history.as_ref());
        Self {
            pipeline: name.to_owned(),
            state: match (&relay, lease, remaining) {
                (None, ..) => PipelineState::New,
                (_, None, _) => PipelineState::Idle,
                (_, Some(_), None) => PipelineState::Expired,
                (_, Some(_), Some(_)) => PipelineState::Leading,
            },
            is_transactional: false,
            problem: None,
            holder: lease.map(|holder| holder.name.clone()),
            epoch: relay.as_ref().map(|relay| relay.epoch),
            standbys: relay.as_ref().and_then(|relay| relay.standbys),
            processes: None,
            lease_remaining_seconds: seconds(remaining),
            checkpoint_age_seconds: seconds(relay.as_ref().map(|relay| relay.checkpoint_age)),
            cursor_system_identifier: history.map(|history| history.system_identifier.clone()),
            cursor_timeline: history.map(|history| history.timeline),
            cursor_is_of_this_server: history.map(|history| history.is_present),
            backlog_entries_max: relay.as_ref().map(|relay| relay.backlog.waiting_max()),
            oldest_pending_id: oldest.map(|(id, _)| id.0),
            oldest_pending_age_seconds: seconds(oldest.map(|(_, age)| age)),
            oldest_unread_age_seconds: seconds(
                relay.as_ref().and_then(|relay| relay.backlog.oldest).map(|(_, age)| age),
            ),
            unread_max: relay.as_ref().map(|relay| relay.backlog.entries_max),
            exceptions_age_seconds: relay.as_ref().map(ages).unwrap_or_default(),
            exceptions_are_at_least: relay.as_ref().is_some_and(is_cut),
            broker_error: relay.as_ref().and_then(|relay| relay.broker_trouble.clone()).map(Into::into),
            retries_wait_for_operator: relay.as_ref().is_some_and(has_retries_for_operator),
            exceptions: relay.map(|relay| relay.exceptions).unwrap_or_default(),
            causes: BTreeMap::new(),
            paused: Vec::new(),
            held_back_by: blocker.map(|blocker| OpenTransaction {
                pid: blocker.pid,
                application_name: blocker.application_name,
                state: blocker.state,
                age_seconds: seconds(blocker.age),
            }),
            history_age_seconds: None,
            history_bytes: None,
            history_held_back_by: None,
            error: None,
        }
    }

    fn with(self, segments: &[Segment]) -> Self {
        let reasons = segments.iter().filter_map(|segment| segment.held_back.as_ref());
        Self {
            history_age_seconds: seconds(segments.iter().filter_map(|segment| segment.oldest_age).max()),
            history_bytes: segments.iter().map(|segment| segment.bytes).sum(),
            history_held_back_by: reasons
                .filter(|reason| reason.needs_attention())
                .map(HeldBack::to_string)
                .next(),
            ..self
        }
    }

    /// Returns the number of parked messages in a state.
    #[must_use]
    pub fn parked(&self, state: ExceptionState) -> u64 {
        self.exceptions.get(state.as_str()).copied().unwrap_or_default()
    }

    /// Returns the number of messages that do not flow: held, retrying or dead ones. Messages on
    /// their way or scheduled for later do not count.
    #[must_use]
    pub fn stuck(&self) -> u64 {
        let states = [ExceptionState::Held, ExceptionState::Retrying, ExceptionState::Dead];
        states.into_iter().map(|state| self.parked(state)).sum()
    }

    /// Returns how long the oldest message has waited for the leader, if that is long and nothing
    /// else explains it.
    fn behind_seconds(&self) -> Option<f64> {
        let is_explained = self.state != PipelineState::Leading
            || self.cursor_is_of_this_server == Some(false)
            || self.held_back_by.is_some()
            || self.broker_error.is_some()
            || self.paused.iter().any(|pause| pause.paused == "pipeline");
        // Parked messages wait for something else. Without them, the oldest message may be due.
        let is_parked = self.parked(ExceptionState::Held) + self.parked(ExceptionState::Retrying) > 0;
        let age = if is_parked { self.oldest_unread_age_seconds } else { self.oldest_pending_age_seconds };
        age.filter(|age| !is_explained && *age > PASSED_WITHIN_SECONDS)
    }

    /// Returns everything that keeps messages from leaving, most severe first.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        let mut add = |symptom: Symptom, passes: bool, lasts: Option<f64>, why: String| {
            waits.push(Wait::new(symptom, passes, lasts, why));
        };
        match self.state {
            PipelineState::Unknown => {
                let problem = self.problem.as_deref().unwrap_or("unknown reason");
                add(Symptom::DatabaseAway, true, None, format!("the database does not answer: {problem}"));
            }
            PipelineState::New => {
                let text = "no relay has ever led: start one with this pipeline";
                add(Symptom::NeverLed, false, None, String::from(text));
            }
            PipelineState::Idle => {
                let text = "no relay leads: the last one released its lease";
                add(Symptom::NoLeader, false, self.checkpoint_age_seconds, String::from(text));
            }
            PipelineState::Expired => {
                let holder = self.holder.as_deref().unwrap_or("the last relay");
                let text = format!(
                    "no relay leads: the lease of {holder} has expired, and no other relay has taken over"
                );
                add(Symptom::NoLeader, false, self.checkpoint_age_seconds, text);
            }
            PipelineState::Leading => {}
        }
        if self.cursor_is_of_this_server == Some(false) {
            let text = "the cursor belongs to another server's history: the next leader compares the two";
            add(Symptom::OtherHistory, true, None, String::from(text));
        }
        if let Some(refusal) = &self.broker_error {
            let lasts = (OffsetDateTime::now_utc() - refusal.since).as_seconds_f64();
            add(Symptom::BrokerRefuses, refusal.passes, Some(lasts), refusal.why());
        }
        for pause in &self.paused {
            let since = (OffsetDateTime::now_utc() - pause.since).as_seconds_f64();
            add(Symptom::Paused, false, Some(since), pause.told());
        }
        if let Some(OpenTransaction { pid: 0, application_name, age_seconds, .. }) = &self.held_back_by {
            let quoted = application_name.replace('\'', "''");
            let text = format!(
                "a prepared transaction has written rows that cannot be read yet: COMMIT PREPARED or ROLLBACK \
                 PREPARED '{quoted}', as its coordinator decided"
            );
            add(Symptom::RowsHeldBack, false, *age_seconds, text);
        } else if let Some(OpenTransaction { pid, application_name, state, age_seconds }) = &self.held_back_by
        {
            let state = state.as_deref().unwrap_or(AGE_HIDDEN);
            let text = format!(
                "an open transaction has written rows that cannot be read yet: process {pid}, \
                 {application_name:?}, {state}"
            );
            add(Symptom::RowsHeldBack, true, *age_seconds, text);
        }
        if let Some(age) = self.behind_seconds() {
            let text = "messages wait for the leader to publish them: it is behind, or its broker is unavailable or slow";
            add(Symptom::Behind, true, Some(age), String::from(text));
        }
        let least = if self.exceptions_are_at_least { "≥ " } else { "" };
        for (symptom, state, text) in [
            (Symptom::Dead, ExceptionState::Dead, "dead: requeue or discard them"),
            (
                Symptom::Held,
                ExceptionState::Held,
                "waiting behind an earlier message with the same key, or because a topic is stopped",
            ),
            (Symptom::Retrying, ExceptionState::Retrying, "retrying: they failed and will be retried"),
        ] {
            let passes = symptom == Symptom::Retrying && !self.retries_wait_for_operator;
            let lasts = self.exceptions_age_seconds.get(state.as_str()).copied();
            let number = self.parked(state);
            let why = match number {
                0 => continue,
                1 => format!("{least}1 message is {}", of_one(text)),
                number => format!("{least}{number} messages are {text}"),
            };
            let count = Some(Count { number, is_at_least: self.exceptions_are_at_least });
            let cause = self.causes.get(state.as_str()).cloned();
            waits.push(Wait { count, cause, ..Wait::new(symptom, passes, lasts, why) });
        }
        if let Some(reason) = &self.history_held_back_by {
            let why = format!("old messages cannot be deleted from the outbox: {reason}");
            waits.push(Wait::new(Symptom::HistoryKept, false, self.history_age_seconds, why));
        }
        waits
    }
}

impl Wait {
    /// Creates a condition that lasts for this number of seconds.
    fn new(symptom: Symptom, passes: bool, lasts: Option<f64>, why: String) -> Self {
        let lasts = lasts.map(|age| Duration::from_secs_f64(age.max(0.0)));
        Self { symptom, why, count: None, cause: None, lasts, passes }
    }

    /// Returns the sentence with its duration.
    #[must_use]
    pub fn told(&self) -> String {
        match self.lasts {
            Some(lasts) => format!("{}, for {}", self.why, age(lasts)),
            None => self.why.clone(),
        }
    }
}

/// Returns the text about several messages as one about a single message.
fn of_one(text: &str) -> String {
    text.replace("them", "it").replace("they", "it")
}

/// Returns whether messages are retried although an operator is at fault.
fn has_retries_for_operator(relay: &RelayStatus) -> bool {
    let operator = message::Fault::Operator.as_str();
    relay.parked.iter().any(|of| of.state == ExceptionState::Retrying && of.cause == operator && of.count > 0)
}

/// Returns whether the parked messages of a relay were not all counted.
fn is_cut(relay: &RelayStatus) -> bool {
    relay.exceptions.values().sum::<u64>() >= u64::from(COUNTED_MAX)
}

/// Returns the time since the first message of each state was parked.
fn ages(relay: &RelayStatus) -> BTreeMap<&'static str, f64> {
    let mut ages = BTreeMap::new();
    for parked in &relay.parked {
        let age: &mut f64 = ages.entry(parked.state.as_str()).or_default();
        *age = age.max(parked.longest.as_secs_f64());
    }
    ages
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_messages_is_told_with_its_duration() {
        let mut status = PipelineStatus::of("orders", None, None);
        assert_eq!(status.state, PipelineState::New);
        assert!(status.waits()[0].why.contains("no relay has ever led"));
        status.state = PipelineState::Expired;
        status.holder = Some(String::from("host-1"));
        status.checkpoint_age_seconds = Some(125.0);
        let blocker = ("report", "idle in transaction");
        status.held_back_by = Some(OpenTransaction {
            pid: 7,
            application_name: blocker.0.into(),
            state: Some(blocker.1.into()),
            age_seconds: Some(90.0),
        });
        status.exceptions = BTreeMap::from([("dead", 1), ("held", 12), ("scheduled", 3)]);
        status.exceptions_age_seconds = BTreeMap::from([("dead", 3_600.0), ("scheduled", 9.0)]);
        let told: Vec<String> = status.waits().iter().map(Wait::told).collect();
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[0].contains("host-1") && told[0].ends_with("for 2m5s"), "{told:?}");
        assert!(told[1].contains("process 7") && told[1].ends_with("for 1m30s"), "{told:?}");
        assert!(told[2].starts_with("1 message is dead") && told[2].ends_with("for 1h"), "{told:?}");
        assert!(told[3].starts_with("12 messages are waiting"), "{told:?}");
        let symptoms: Vec<Symptom> = status.waits().iter().map(|wait| wait.symptom).collect();
        assert_eq!(symptoms, [Symptom::NoLeader, Symptom::RowsHeldBack, Symptom::Dead, Symptom::Held]);
        let capped = PipelineStatus { exceptions_are_at_least: true, ..status.clone() };
        assert!(capped.waits()[3].why.starts_with("≥ 12 messages are"), "{:?}", capped.waits());
        assert_eq!(status.stuck(), 13);
        let hidden =
            OpenTransaction { pid: 7, application_name: blocker.0.into(), state: None, age_seconds: None };
        status.held_back_by = Some(hidden);
        let told = status.waits()[1].told();
        assert!(told.ends_with("\"report\", age hidden (needs pg_read_all_stats)"), "{told}");

        let prepared = OpenTransaction {
            pid: 0,
            application_name: String::from("order-7"),
            state: Some(String::from("prepared")),
            age_seconds: Some(90.0),
        };
        status.held_back_by = Some(prepared);
        let told = status.waits()[1].told();
        assert!(told.contains("ROLLBACK PREPARED 'order-7'") && told.ends_with("for 1m30s"), "{told}");
    }

    #[test]
    fn a_broker_that_gives_no_session_explains_the_wait() {
        let refusal = BrokerError {
            error: String::from("login refused; check the password"),
            passes: false,
            since: OffsetDateTime::now_utc() - Duration::from_secs(90),
        };
        let status = PipelineStatus {
            state: PipelineState::Leading,
            oldest_pending_age_seconds: Some(90.0),
            broker_error: Some(refusal),
            ..PipelineStatus::of("orders", None, None)
        };
        let waits = status.waits();
        assert_eq!(waits.len(), 1, "{waits:?}");
        let told = waits[0].told();
        assert!(told.contains("login refused; check the password, for 1m30s") && !waits[0].passes, "{told}");
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["broker_error"]["error"], "login refused; check the password");
    }

    #[test]
    fn a_leader_without_trouble_waits_for_nothing() {
        let status =
            PipelineStatus { state: PipelineState::Leading, ..PipelineStatus::of("orders", None, None) };
        assert_eq!(status.waits(), []);
        let behind = |status: &PipelineStatus| {
            status.waits().iter().any(|it| it.why.contains("its broker is unavailable"))
        };
        let fresh = PipelineStatus { oldest_pending_age_seconds: Some(29.0), ..status.clone() };
        assert_eq!(fresh.waits(), []);
        let mut late = PipelineStatus {
            oldest_pending_age_seconds: Some(90.0),
            oldest_unread_age_seconds: Some(40.0),
            exceptions: BTreeMap::from([("dead", 1)]),
            ..status
        };
        assert!(behind(&late), "one that is dead does not explain why others wait");
        assert!(late.waits()[0].told().ends_with("for 1m30s"), "{:?}", late.waits());
        late.exceptions = BTreeMap::from([("held", 1)]);
        assert!(late.waits()[0].told().ends_with("for 40s"), "{:?}", late.waits());
        late.oldest_unread_age_seconds = None;
        assert!(!behind(&late), "the one that is held is the oldest");
        late.oldest_unread_age_seconds = Some(40.0);
        late.state = PipelineState::Idle;
        assert!(!behind(&late), "nobody leads: that is why");
    }
}
