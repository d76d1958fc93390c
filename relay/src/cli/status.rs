//! `relay status`: who leads, what waits, what is parked, and what holds rows back.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use outbox::admin::{Blocker, RelayStatus};
use outbox::retention::{HeldBack, Segment};
use serde::Serialize;

use super::config::ConfigFile;
use super::database;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, age, or_dash, table};
use crate::config::PipelineConfig;

/// The arguments of `relay status`.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

/// One pipeline.
#[derive(Debug, Serialize)]
struct Shown {
    pipeline: String,
    /// `leading`, `idle` (nobody holds the lease), `expired`, `new` (never led) or `unknown`.
    state: &'static str,
    /// The reason why no more is known.
    problem: Option<String>,
    holder: Option<String>,
    epoch: Option<i64>,
    lease_remaining_seconds: Option<f64>,
    checkpoint_age_seconds: Option<f64>,
    /// The server in whose history the cursor means something, and the timeline of its log.
    cursor_system_identifier: Option<String>,
    cursor_timeline: Option<i64>,
    /// Whether that is the server that answers; otherwise the next leader compares the cursor with
    /// it first.
    cursor_is_of_this_server: Option<bool>,
    /// At most so many messages wait: of the log, held, retrying, and scheduled ones that are due.
    backlog_entries_max: Option<u64>,
    oldest_pending_id: Option<i64>,
    oldest_pending_age_seconds: Option<f64>,
    exceptions: BTreeMap<&'static str, u64>,
    held_back_by: Option<OpenTransaction>,
    /// The age of the oldest entry in the outbox, also of what has left.
    history_age_seconds: Option<f64>,
    history_bytes: Option<u64>,
    /// Why history that is old enough to go stays.
    history_held_back_by: Option<String>,
    #[serde(skip)]
    exit: Exit,
}

/// The open transaction whose rows cannot be read yet.
#[derive(Debug, Serialize)]
struct OpenTransaction {
    pid: i32,
    application_name: String,
    state: String,
    age_seconds: f64,
}

impl Status {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![super::config::find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let shown = join_all(pipelines.into_iter().map(look)).await;
        format.print(&shown, |shown| rows(shown))?;
        for Shown { pipeline, problem, .. } in &shown {
            if let Some(problem) = problem {
                eprintln!("{pipeline}: {problem}");
            }
        }
        Ok(shown.iter().map(|shown| shown.exit).max().unwrap_or(Exit::Success))
    }
}

/// Messages that do not flow: held, retrying or dead ones. What is on its way, or scheduled for
/// later, is no reason to look again.
fn exit(relay: &RelayStatus) -> Exit {
    let stuck =
        ["held", "retrying", "dead"].iter().filter_map(|state| relay.exceptions.get(state)).sum::<u64>();
    if stuck > 0 { Exit::Unavailable } else { Exit::Success }
}

/// A hundred years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

async fn look(pipeline: &PipelineConfig) -> Shown {
    let name = pipeline.name.as_str();
    let asked = async {
        let admin = database::administration(pipeline)?;
        let history = database::retention(pipeline)?;
        // Where nothing goes, everything is young.
        let keep = pipeline.retention.keep().unwrap_or(FOREVER);
        let (relays, blocker, segments) =
            futures_util::future::try_join3(admin.relays(), admin.blocker(), history.segments(keep)).await?;
        Ok::<_, Failure>((relays.into_iter().find(|relay| relay.relay == name), blocker, segments))
    };
    match asked.await {
        Ok((relay, blocker, segments)) => Shown::of(name, relay, blocker).with(&segments),
        Err(failure) => Shown {
            state: "unknown",
            problem: Some(failure.to_string()),
            exit: failure.exit(),
            ..Shown::of(name, None, None)
        },
    }
}

impl Shown {
    fn of(name: &str, relay: Option<RelayStatus>, blocker: Option<Blocker>) -> Self {
        let lease = relay.as_ref().and_then(|relay| relay.holder.as_ref());
        let remaining = lease.and_then(|holder| holder.expires_in);
        let oldest = relay.as_ref().and_then(|relay| relay.backlog.oldest_waiting());
        let exit = relay.as_ref().map_or(Exit::Success, exit);
        let history = relay.as_ref().and_then(|relay| relay.history.as_ref());
        Self {
            pipeline: name.to_owned(),
            state: match (&relay, lease, remaining) {
                (None, ..) => "new",
                (_, None, _) => "idle",
                (_, Some(_), None) => "expired",
                (_, Some(_), Some(_)) => "leading",
            },
            problem: None,
            holder: lease.map(|holder| holder.name.clone()),
            epoch: relay.as_ref().map(|relay| relay.epoch),
            lease_remaining_seconds: seconds(remaining),
            checkpoint_age_seconds: seconds(relay.as_ref().map(|relay| relay.checkpoint_age)),
            cursor_system_identifier: history.map(|history| history.system_identifier.clone()),
            cursor_timeline: history.map(|history| history.timeline),
            cursor_is_of_this_server: history.map(|history| history.is_present),
            backlog_entries_max: relay.as_ref().map(|relay| relay.backlog.waiting_max()),
            oldest_pending_id: oldest.map(|(id, _)| id.0),
            oldest_pending_age_seconds: seconds(oldest.map(|(_, age)| age)),
            exceptions: relay.map(|relay| relay.exceptions).unwrap_or_default(),
            held_back_by: blocker.map(|blocker| OpenTransaction {
                pid: blocker.pid,
                application_name: blocker.application_name,
                state: blocker.state,
                age_seconds: blocker.age.as_secs_f64(),
            }),
            history_age_seconds: None,
            history_bytes: None,
            history_held_back_by: None,
            exit,
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
}

impl Shown {
    /// System identifier and timeline.
    fn cursor_of(&self) -> String {
        match (&self.cursor_system_identifier, self.cursor_timeline, self.cursor_is_of_this_server) {
            (Some(system), Some(timeline), Some(true)) => format!("{system}/{timeline}"),
            (Some(system), Some(timeline), _) => format!("{system}/{timeline}, not this server"),
            _ => String::from("-"),
        }
    }
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

fn rows(shown: &[Shown]) -> String {
    let ago = |seconds: Option<f64>| or_dash(seconds.map(|seconds| age(Duration::from_secs_f64(seconds))));
    let rows = shown.iter().map(|shown| {
        let counted: Vec<String> = shown
            .exceptions
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        let held_back = shown.held_back_by.as_ref().map(|by| {
            let age = age(Duration::from_secs_f64(by.age_seconds));
            format!("pid {} {:?} {} for {age}", by.pid, by.application_name, by.state)
        });
        [
            shown.pipeline.clone(),
            shown.state.to_owned(),
            or_dash(shown.holder.as_ref()),
            or_dash(shown.epoch),
            ago(shown.lease_remaining_seconds),
            shown.cursor_of(),
            // Without an oldest entry nothing waits, whatever gaps the ids have.
            match (shown.oldest_pending_id, shown.backlog_entries_max) {
                (Some(_), Some(entries)) => format!("≤ {entries}"),
                (None, Some(_)) => String::from("0"),
                _ => String::from("-"),
            },
            ago(shown.oldest_pending_age_seconds),
            if counted.is_empty() { String::from("-") } else { counted.join(", ") },
            or_dash(held_back),
            match &shown.history_held_back_by {
                Some(reason) => format!("{}: {reason}", ago(shown.history_age_seconds)),
                None => ago(shown.history_age_seconds),
            },
        ]
    });
    let headers = [
        "pipeline",
        "state",
        "holder",
        "epoch",
        "lease",
        "cursor of",
        "backlog",
        "oldest",
        "parked",
        "held back by",
        "history",
    ];
    table(headers, rows)
}
