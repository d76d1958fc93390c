//! `relay retention`: history, its age, and what holds it back.

use std::time::Duration;

use clap::Args;
use operate::PipelineConfig;
use operate::units::Time;
use outbox::retention::{HeldBack, Segment};
use serde::Serialize;

use super::config::{ConfigFile, find};
use super::database;
use super::exit::Exit;
use super::failure::{Failure, first};
use super::output::{Format, age, or_dash, table};

/// The arguments of `relay retention`.
#[derive(Debug, Args)]
pub struct Retention {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Only show what would be removed.
    #[arg(long)]
    dry_run: bool,

    /// How long history is kept, instead of the configured time; for example 12h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep: Option<Duration>,
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse().map(|Time(duration)| duration).map_err(|error: operate::units::NotATime| error.to_string())
}

/// One segment of one pipeline's outbox.
#[derive(Debug, Serialize)]
struct Shown {
    pipeline: String,
    segment: u16,
    newest_id: Option<i64>,
    newest_age_seconds: Option<f64>,
    oldest_age_seconds: Option<f64>,
    bytes: Option<u64>,
    /// Whether it can be removed, or has been.
    can_go: bool,
    held_back_by: Option<String>,
}

impl Retention {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let (mut shown, mut exit, mut failed) = (Vec::new(), Exit::Success, None);
        for pipeline in pipelines {
            let name = pipeline.name.as_str();
            let segments = match self.look(pipeline).await {
                Ok(segments) => segments,
                // A failure here does not hide what was removed from the other pipelines.
                Err(failure) => {
                    failed = first(failed, failure.about(name));
                    continue;
                }
            };
            for reason in segments.iter().filter_map(|segment| segment.held_back.as_ref()) {
                if reason.needs_attention() {
                    exit = Exit::Unavailable;
                    eprintln!("{name}: old history stays: {reason}{}", remedy(name, reason));
                }
            }
            shown.extend(segments.into_iter().map(|segment| Shown::of(name, segment)));
        }
        if failed.is_none() || !shown.is_empty() {
            format.print(&shown, |shown| rows(shown))?;
        }
        failed.map_or(Ok(exit), Err)
    }

    /// Removes expired segments unless this is a dry run, and returns the segments afterwards.
    async fn look(&self, pipeline: &PipelineConfig) -> Result<Vec<Segment>, Failure> {
        let keep = self.keep.or(pipeline.retention.keep()).ok_or_else(|| {
            let help = "add --keep, for example --keep 3d";
            Failure::with_help(Exit::Usage, "retention is off", help)
        })?;
        let log = database::retention(pipeline)?;
        if !self.dry_run {
            let expired = log.expire(keep).await?;
            let bytes = expired.bytes.map(|bytes| format!(", {}", mebibytes(bytes)));
            let rows = expired.rows.map(|rows| format!(", {rows} rows"));
            eprintln!(
                "{}: {} segments emptied{}{}",
                pipeline.name,
                expired.segments,
                rows.unwrap_or_default(),
                bytes.unwrap_or_default()
            );
        }
        Ok(log.segments(keep).await?)
    }
}

/// Returns the end of a sentence with the remedy for the operator, or an empty text.
fn remedy(pipeline: &str, reason: &HeldBack) -> String {
    match reason {
        HeldBack::Relay(relay) => {
            format!("; if it is gone for good: relay forget --pipeline {pipeline} {relay}")
        }
        HeldBack::Parked(_) => format!("; decide about it: relay dead list --pipeline {pipeline}"),
        _ => String::new(),
    }
}

impl Shown {
    fn of(pipeline: &str, segment: Segment) -> Self {
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs_f64());
        Self {
            pipeline: pipeline.to_owned(),
            segment: segment.number,
            newest_id: segment.newest.map(|id| id.0),
            newest_age_seconds: seconds(segment.newest_age),
            oldest_age_seconds: seconds(segment.oldest_age),
            bytes: segment.bytes,
            can_go: segment.held_back.is_none(),
            held_back_by: segment.held_back.map(|reason| reason.to_string()),
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & ((1 << 20) - 1)) * 10) >> 20)
}

fn rows(shown: &[Shown]) -> String {
    let ago = |seconds: Option<f64>| or_dash(seconds.map(|seconds| age(Duration::from_secs_f64(seconds))));
    let rows = shown.iter().map(|shown| {
        [
            shown.pipeline.clone(),
            shown.segment.to_string(),
            ago(shown.oldest_age_seconds),
            ago(shown.newest_age_seconds),
            or_dash(shown.bytes.map(mebibytes)),
            shown.held_back_by.clone().unwrap_or_else(|| String::from("can go")),
        ]
    });
    table(["pipeline", "segment", "oldest", "newest", "size", "state"], rows)
}
