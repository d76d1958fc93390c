//! `relay status`: the leader, waiting and parked messages, and what holds rows back.

use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use operate::pause::PauseLine;
use operate::status::{PipelineStatus, status};
use operate::units::Time;

use super::config::ConfigFile;
use super::dead::viewer;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{self, Format, age, or_dash, table};

/// The arguments of `relay status`.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Repeat every 2s, or at this interval, until a signal stops it.
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Time>,
}

impl Status {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let Some(Time(every)) = self.watch else { return self.look(format).await };
        let mut ended = pin!(tokio::signal::ctrl_c());
        loop {
            if format == Format::Table && std::io::stdout().is_terminal() {
                // Clears the screen and moves to its top.
                output::print("\u{1b}[2J\u{1b}[H")?;
            }
            let exit = self.look(format).await?;
            tokio::select! {
                _ = &mut ended => return Ok(exit),
                () = tokio::time::sleep(every.max(WATCH_MIN)) => {}
            }
        }
    }

    async fn look(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![super::config::find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let shown = status(pipelines, &viewer()).await?;
        format.print(&shown, |shown| rows(shown))?;
        for PipelineStatus { pipeline, problem, .. } in &shown {
            if let Some(problem) = problem {
                eprintln!("{pipeline}: {problem}");
            }
        }
        Ok(shown.iter().map(exit).max().unwrap_or(Exit::Success))
    }
}

/// Returns the exit code. Messages on their way or scheduled for later are no failure; a broker
/// without a session is one.
fn exit(shown: &PipelineStatus) -> Exit {
    match &shown.error {
        Some(error) => Failure::from(error.clone()).exit(),
        None if shown.stuck() > 0 || shown.broker_error.is_some() => Exit::Unavailable,
        None => Exit::Success,
    }
}

/// Minimum pause between two looks: each opens its own connections.
const WATCH_MIN: Duration = Duration::from_millis(200);

fn state(shown: &PipelineStatus) -> String {
    let how = if shown.is_transactional { ", in transactions" } else { "" };
    format!("{}{how}", shown.state)
}

/// Returns the system identifier and the timeline of the cursor.
fn cursor_of(shown: &PipelineStatus) -> String {
    match (&shown.cursor_system_identifier, shown.cursor_timeline, shown.cursor_is_of_this_server) {
        (Some(system), Some(timeline), Some(true)) => format!("{system}/{timeline}"),
        (Some(system), Some(timeline), _) => format!("{system}/{timeline}, not this server"),
        _ => String::from("-"),
    }
}

fn paused(pauses: &[PauseLine]) -> String {
    let told = pauses.iter().map(|pause| format!("{} by {}: {}", pause.paused, pause.actor, pause.reason));
    told.collect::<Vec<_>>().join("; ")
}

fn rows(shown: &[PipelineStatus]) -> String {
    let ago = |seconds: Option<f64>| or_dash(seconds.map(|seconds| age(Duration::from_secs_f64(seconds))));
    let rows = shown.iter().map(|shown| {
        let counted: Vec<String> = shown
            .exceptions
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(state, count)| match shown.exceptions_are_at_least {
                true => format!(">= {count} {state}"),
                false => format!("{count} {state}"),
            })
            .collect();
        let held_back = shown.held_back_by.as_ref();
        let held_back = held_back.map(|by| format!("{} {}", by.named(), by.standing()));
        [
            shown.pipeline.clone(),
            state(shown),
            or_dash(shown.holder.as_ref()),
            or_dash(shown.standbys),
            or_dash(shown.epoch),
            ago(shown.lease_remaining_seconds),
            cursor_of(shown),
            // Without an oldest entry nothing waits, even if ids have gaps.
            match (shown.oldest_pending_id, shown.backlog_entries_max) {
                (Some(_), Some(entries)) => format!("≤ {entries}"),
                (None, Some(entries)) => entries.to_string(),
                _ => String::from("-"),
            },
            ago(shown.oldest_pending_age_seconds),
            if counted.is_empty() { String::from("-") } else { counted.join(", ") },
            if shown.paused.is_empty() { String::from("-") } else { paused(&shown.paused) },
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
        "standbys",
        "epoch",
        "lease",
        "cursor of",
        "backlog",
        "oldest",
        "parked",
        "paused",
        "held back by",
        "history",
    ];
    let refusals = shown.iter().filter_map(|shown| {
        shown.broker_error.as_ref().map(|refusal| format!("{}: {}", shown.pipeline, refusal.told()))
    });
    std::iter::once(table(headers, rows)).chain(refusals).collect::<Vec<_>>().join("\n")
}
