//! `relay retention`: history, its age, and what holds it back.

use std::time::Duration;

use clap::Args;
use operate::retention::{History, SegmentLine};
use operate::units::Time;
use operate::{PipelineConfig, Signed};

use super::config::{ConfigFile, find};
use super::exit::Exit;
use super::failure::{Failure, first};
use super::operator::viewer;
use super::output::{Format, Table, age, counted, or_dash};
use super::progress::during;
use super::signature::Signature;

/// The arguments of `relay retention`.
#[derive(Debug, Args)]
pub struct Retention {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Show what would be deleted, but delete nothing.
    #[arg(long)]
    dry_run: bool,

    /// Keep messages for this long instead of the configured time, for example 12h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep: Option<Duration>,

    #[command(flatten)]
    signature: Signature,
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse().map(|Time(duration)| duration).map_err(|error: operate::units::NotATime| error.to_string())
}

impl Retention {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed_unless(self.dry_run)?;
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let (mut shown, mut exit, mut failed) = (Vec::new(), Exit::Success, None);
        for pipeline in pipelines {
            let name = pipeline.name.as_str();
            let segments = match self.look(pipeline, &signed).await {
                Ok(segments) => segments,
                // A failure here does not hide what was removed from the other pipelines.
                Err(failure) => {
                    failed = first(failed, failure.about(name));
                    continue;
                }
            };
            for warning in segments.iter().filter_map(|segment| segment.warning.as_ref()) {
                exit = Exit::Unavailable;
                note!("{name}: old messages cannot be deleted: {warning}");
            }
            shown.extend(segments);
        }
        if failed.is_none() || !shown.is_empty() {
            format.print(&shown, |shown| rows(shown))?;
        }
        failed.map_or(Ok(exit), Err)
    }

    /// Removes expired segments unless this is a dry run, and returns the segments afterwards.
    async fn look(&self, pipeline: &PipelineConfig, signed: &Signed) -> Result<Vec<SegmentLine>, Failure> {
        let history = History::open(pipeline, self.keep)?;
        if !self.dry_run {
            let expired = during("deleting old messages", history.expire(signed)).await?;
            let bytes = expired.bytes.map(|bytes| format!(", {}", mebibytes(bytes)));
            let rows = expired.rows.map(|rows| format!(", {rows} rows"));
            note!(
                "{}: {} emptied{}{}",
                pipeline.name,
                counted(expired.segments, "segment"),
                rows.unwrap_or_default(),
                bytes.unwrap_or_default()
            );
        }
        Ok(during("reading", history.segments(&viewer())).await?)
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & ((1 << 20) - 1)) * 10) >> 20)
}

fn rows(shown: &[SegmentLine]) -> String {
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
    Table::new(["pipeline", "segment", "oldest", "newest", "size", "state"], rows)
        .optional(&["segment", "newest"])
        .shown()
}
