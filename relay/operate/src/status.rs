//! The status of each pipeline from its database: the leader, waiting and parked messages, and what
//! holds rows back.

mod blocker;
mod causes;
mod rank;
mod state;
mod symptom;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{BoxFuture, try_join};
use message::Fault;
use outbox_log::admin::{self, Blocker, COUNTED_MAX, ParkedCount, Picture, Process, RelayStatus};
use outbox_log::retention::{self, HeldBack, Segment};
use outbox_log::{BrokerTrouble, ExceptionState, LogError, PauseScope};
use serde::Serialize;
use time::OffsetDateTime;

use super::cause::Cause;
use super::error::OperateError;
use super::operator::{Operator, Role};
use super::pause::PauseLine;
use super::seconds;
use super::tables::Tables;
use super::turns::in_turns;
use crate::settings::PipelineConfig;

pub use blocker::statement_that_ends;
pub(crate) use blocker::statement_that_ends_session;
pub use rank::{Rank, Severity};
pub use state::PipelineState;
pub use symptom::Symptom;
pub use waits::{Count, Wait};

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
    /// The location of its database, without secrets; `None` when its URL cannot be read.
    #[serde(skip)]
    pub location: Option<String>,
    /// How long its database has not answered, as far as the reader of the status has watched it.
    #[serde(skip)]
    pub away_for: Option<Duration>,
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
    /// The time since the lease was first taken after the last checkpoint; `None` if the leader has
    /// stored that one.
    #[serde(skip)]
    pub taken_seconds: Option<f64>,
    /// The server to whose history the cursor belongs.
    pub cursor_system_identifier: Option<String>,
    /// The timeline of the server's log; 0 where the server did not report it.
    pub cursor_timeline: Option<i64>,
    /// Whether this is the server that answers. Otherwise the next leader first compares the cursor
    /// with the server.
    pub cursor_is_of_this_server: Option<bool>,
    /// Maximum number of waiting messages: unread, held, retrying, and scheduled ones that are due.
    pub backlog_entries_max: Option<u64>,
    /// The position in the log of the message that has waited longest.
    pub oldest_pending_id: Option<i64>,
    /// Its age.
    pub oldest_pending_age_seconds: Option<f64>,
    /// Whether messages are retried without success until an operator acts, for example because
    /// their topic is missing.
    #[serde(skip)]
    pub retries_wait_for_operator: bool,
    /// Parked messages, by state.
    pub exceptions: BTreeMap<ExceptionState, u64>,
    /// Whether these are lower bounds: more messages are parked than the [`COUNTED_MAX`] that are
    /// counted.
    pub exceptions_are_at_least: bool,
    /// The time since the first message of each state was parked, for states with messages.
    pub exceptions_age_seconds: BTreeMap<ExceptionState, f64>,
    /// The error of the messages of a state behind which most messages wait, for states in which
    /// messages have one.
    #[serde(skip)]
    pub causes: BTreeMap<ExceptionState, Cause>,
    /// The pauses in force, with author and reason.
    pub paused: Vec<PauseLine>,
    /// The error that keeps every message of the current or last leader from the broker.
    pub broker_error: Option<BrokerError>,
    /// The open transaction whose rows cannot be read yet.
    #[serde(serialize_with = "blocker::serialize")]
    pub held_back_by: Option<Blocker>,
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
    /// The time since the lease of the last leader ended. `None` while it lasts, and after a
    /// release: the database does not know when that was.
    #[serde(skip)]
    pub leaderless_seconds: Option<f64>,
    /// How long a lease lasts, according to the configuration.
    #[serde(skip)]
    pub lease_ttl: Option<Duration>,
    /// The reason why nothing more is known.
    #[serde(skip)]
    pub error: Option<OperateError>,
}

/// An error that keeps every message of a relay from its broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokerError {
    /// The error of the broker or its client, and the remedy.
    pub error: String,
    /// Whether it may be temporary; otherwise an operator must act.
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
        format!("no message has reached the broker since {since}: {}", self.error)
    }
}

impl From<BrokerTrouble> for BrokerError {
    fn from(BrokerTrouble { error, passes, since, .. }: BrokerTrouble) -> Self {
        Self { error, passes, since }
    }
}

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
    /// Reads everything, in two sessions for each pipeline.
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
    // Boxed and collected: with the iterator in this function's future, other crates could not
    // prove that the future is `Send`.
    let mut looks: Vec<BoxFuture<'_, PipelineStatus>> = Vec::new();
    for pipeline in pipelines {
        looks.push(Box::pin(look(pipeline, depth)));
    }
    Ok(in_turns(looks).await)
}

/// Time between two looks at a leader that seems to store nothing.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Returns the status of a pipeline. A row whose transaction was open for minutes looks as if the
/// leader had left it for minutes. So a leader that seems to store nothing is looked at again, once
/// it has had the time to store.
async fn look(pipeline: &PipelineConfig, depth: Depth) -> PipelineStatus {
    let status = look_once(pipeline, depth).await;
    if !status.waits().iter().any(|wait| wait.symptom == Symptom::NotStored) {
        return status;
    }
    tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    look_once(pipeline, depth).await
}

async fn look_once(pipeline: &PipelineConfig, depth: Depth) -> PipelineStatus {
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
        let pauses = picture.pauses.iter().cloned();
        let paused: Vec<PauseLine> = pauses.map(|pause| PauseLine::of(&pipeline.name, pause)).collect();
        let causes = causes::causes(admin.as_ref(), pipeline, &picture, &paused).await;
        Ok::<_, OperateError>(Found { picture, problem, segments, paused, causes })
    };
    let is_transactional = pipeline.broker.is_transactional();
    // Without a URL that can be read, its text could have a secret anywhere.
    let tables = Tables::of(&pipeline.database).ok().filter(|tables| tables.dialect().is_ok());
    let location = tables.map(|tables| tables.location());
    match asked.await {
        Ok(Found { picture, problem, segments, paused, causes }) => {
            let Picture { relay, blocker, processes, .. } = picture;
            let status = PipelineStatus::of(name, relay, blocker).with(&segments);
            let lease_ttl = Some(pipeline.settings.lease_ttl);
            PipelineStatus {
                is_transactional,
                paused,
                problem,
                location,
                causes,
                processes,
                lease_ttl,
                ..status
            }
        }
        Err(error) => {
            let error = error.told_as(|text| pipeline.database.named(text));
            PipelineStatus {
                state: PipelineState::Unknown,
                is_transactional,
                problem: Some(error.to_string()),
                location,
                error: Some(error),
                ..PipelineStatus::of(name, None, None)
            }
        }
    }
}

/// The answers of a pipeline's database.
struct Found {
    picture: Picture,
    /// A probable error in the name of the pipeline.
    problem: Option<String>,
    segments: Vec<Segment>,
    paused: Vec<PauseLine>,
    causes: BTreeMap<ExceptionState, Cause>,
}

/// Returns the problem of a name under which no relay has led, if others have led: it may be
/// misspelled.
fn unknown(others: &[RelayStatus]) -> Option<String> {
    let known: Vec<&str> = others.iter().map(|relay| relay.relay.as_str()).collect();
    (!known.is_empty()).then(|| {
        format!(
            "no relay with this name has ever led; this outbox knows {}: is the name misspelled?",
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
            location: None,
            away_for: None,
            holder: lease.map(|holder| holder.name.clone()),
            epoch: relay.as_ref().map(|relay| relay.epoch),
            standbys: relay.as_ref().and_then(|relay| relay.standbys),
            processes: None,
            lease_remaining_seconds: seconds(remaining),
            checkpoint_age_seconds: seconds(relay.as_ref().map(|relay| relay.checkpoint_age)),
            taken_seconds: seconds(relay.as_ref().and_then(|relay| relay.taken_for)),
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
            exceptions: relay.as_ref().map(|relay| relay.exceptions.clone()).unwrap_or_default(),
            causes: BTreeMap::new(),
            paused: Vec::new(),
            held_back_by: blocker,
            history_age_seconds: None,
            history_bytes: None,
            history_held_back_by: None,
            leaderless_seconds: seconds(lease.and_then(|holder| holder.expired_for)),
            lease_ttl: None,
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
        self.exceptions.get(&state).copied().unwrap_or_default()
    }

    /// Returns whether an operator has to start a relay: for longer than a lease lasts, the lease
    /// of the last leader has been over without its release, or messages wait and no relay has led.
    /// By then a standby would have taken over.
    #[must_use]
    pub fn is_left_alone(&self) -> bool {
        let lease = self.lease_ttl.unwrap_or_default().as_secs_f64();
        let is_long = |age: Option<f64>| age.is_some_and(|age| age > lease);
        let has_waited = is_long(self.oldest_pending_age_seconds) && is_long(self.checkpoint_age_seconds);
        match self.state {
            PipelineState::Expired => has_waited || is_long(self.leaderless_seconds),
            PipelineState::Idle => has_waited,
            _ => false,
        }
    }

    /// Returns whether a pipeline needs attention, the rule of the page's summary and of the exit
    /// code of `relay status`: a condition needs an operator, or messages are held, retrying or
    /// dead.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        self.stuck() > 0 || self.waits().iter().any(Wait::needs_operator)
    }

    /// Returns whether a pause keeps a message from leaving.
    fn keeps_a_message(&self, paused: &PauseScope) -> bool {
        match paused {
            PauseScope::Pipeline => self.oldest_pending_id.is_some(),
            PauseScope::Topic(_) | PauseScope::Key(_) => self.parked(ExceptionState::Held) > 0,
        }
    }

    /// Returns an upper bound of the messages that wait, if one is known to.
    #[must_use]
    pub fn waiting_max(&self) -> Option<u64> {
        self.oldest_pending_id.and(self.backlog_entries_max)
    }

    /// Returns the number of messages that do not flow: held, retrying or dead ones. Messages on
    /// their way or scheduled for later do not count.
    #[must_use]
    pub fn stuck(&self) -> u64 {
        let states = [ExceptionState::Held, ExceptionState::Retrying, ExceptionState::Dead];
        states.into_iter().map(|state| self.parked(state)).sum()
    }
}

/// Returns whether messages are retried although an operator is at fault.
fn has_retries_for_operator(relay: &RelayStatus) -> bool {
    let by_operator = |of: &ParkedCount| of.cause == Some(Fault::Operator) && of.count > 0;
    relay.parked.iter().any(|of| of.state == ExceptionState::Retrying && by_operator(of))
}

/// Returns whether the parked messages of a relay were not all counted.
fn is_cut(relay: &RelayStatus) -> bool {
    relay.exceptions.values().sum::<u64>() >= u64::from(COUNTED_MAX)
}

/// Returns the time since the first message of each state was parked.
fn ages(relay: &RelayStatus) -> BTreeMap<ExceptionState, f64> {
    let mut ages = BTreeMap::new();
    for parked in &relay.parked {
        let age: &mut f64 = ages.entry(parked.state).or_default();
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
    use crate::sample::Sample;

    /// A leader that has had nothing to do for an hour, and a row whose transaction has committed
    /// only now, two minutes after the row was written.
    const QUIET: &str = "\
        INSERT INTO outbox_relay (relay, epoch, holder, lease_until, lease_seconds, cursor, checkpoint_at) \
        VALUES ('orders', 1, 'a', (unixepoch() + 600) * 1000000, 600, '{\"base\":\"0\",\"progress\":null}', \
            (unixepoch() - 3600) * 1000000); \
        INSERT INTO outbox_message (topic, payload, enqueued_at) VALUES ('t', x'', (unixepoch() - 120) * 1000000)";
    const STORED: &str = "UPDATE outbox_relay SET cursor = '{\"base\":\"1\",\"progress\":null}', \
        checkpoint_at = unixepoch() * 1000000";

    /// Goal: a leader is not accused of storing nothing because a row that has just become visible
    /// is old. Oracle: the symptoms, of one that stores the row soon after the first look, and of
    /// one that does not.
    #[tokio::test]
    async fn a_row_that_becomes_visible_late_accuses_no_leader() {
        let viewer = Operator::new("ann", Role::Viewer);
        for stores in [true, false] {
            let sample = Sample::open().await;
            sample.run(QUIET).await;
            let stored = async {
                tokio::time::sleep(LOOK_AGAIN_AFTER / 8).await;
                if stores {
                    sample.run(STORED).await;
                }
            };
            let (status, ()) = tokio::join!(status([&sample.pipeline], &viewer), stored);
            let status = status.unwrap().remove(0);
            assert_eq!(status.state, PipelineState::Leading);
            let symptoms: Vec<Symptom> = status.waits().iter().map(|wait| wait.symptom).collect();
            assert_eq!(symptoms.contains(&Symptom::NotStored), !stores, "{symptoms:?}");
        }
    }
}
