//! `relay verify`: outbox, broker and inboxes compared on a live system. Reads only.
//!
//! | file | what it holds |
//! |---|---|
//! | `target.rs` | which inboxes, by flag |
//! | `range.rs` | which messages: a span of time is a range of ids |
//! | `progress.rs` | what a person sees meanwhile |
//! | `sources.rs` | everything that is read, in sessions that cannot write |
//! | `topic.rs` | the log of Kafka among them |
//! | `spool.rs` | what was seen, on disk |
//! | `reconcile.rs` | what the places in which a message was seen say together; pure |
//! | `compare.rs` | one pipeline: read, reconcile, look at suspects again |
//! | `report.rs` | the result |
//!
//! **No false alarm.** A system that runs is never seen at one moment, so nothing is named at first
//! sight. Whatever is wrong is looked up again, the outbox first and what is downstream after it: a
//! message that the relay had passed by then is at the broker when the broker is read. What is
//! missing in an inbox may be on its way there: it is looked up until for `--grace` nothing of it
//! has arrived, and only the rest is named.

mod compare;
mod progress;
mod range;
mod reconcile;
mod report;
mod sources;
mod spool;
mod target;
#[cfg(feature = "kafka")]
mod topic;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use time::OffsetDateTime;

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::Failure;
use super::output::Format;
use crate::config::units::Time;
use crate::config::{InboxConfig, PipelineConfig};
use crate::operate::pace::Pace;

use compare::Comparison;
use progress::Progress;
use range::Range;
use report::Report;
use sources::Reading;
use target::inbox_of;

/// The arguments of `relay verify`.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// An inbox to compare with, beside those of the configuration. May be repeated. A URL with a
    /// password is refused here: it belongs in [[verify.inbox]].
    #[arg(long = "inbox", value_name = "CONSUMER=URL")]
    inboxes: Vec<String>,

    /// Only messages of this topic. May be repeated.
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Only messages whose ids were made less than so long ago (2h, 7d).
    #[arg(long, value_name = "AGO")]
    since: Option<Time>,

    /// Only messages whose ids were made more than so long ago.
    #[arg(long, value_name = "AGO")]
    until: Option<Time>,

    /// Published messages that are in no inbox may be on their way: they are missing when for so
    /// long none of them has arrived.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    grace: Time,

    /// At most so many rows are read per second, over all databases and the broker.
    #[arg(long, value_name = "ROWS", default_value = "5000")]
    rows_per_second: NonZeroU32,

    /// No statement runs longer in PostgreSQL (but for verify.inbox.effects, which is one
    /// statement).
    #[arg(long, value_name = "TIME", default_value = "10s")]
    statement_timeout: Time,

    /// Name at most so many messages. All are counted.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

impl Verify {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines: Vec<&PipelineConfig> = match &self.pipeline {
            Some(name) => vec![super::config::find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let named = self.inboxes.iter().map(|flag| inbox_of(flag)).collect::<Result<Vec<_>, _>>()?;
        let range = self.range()?;
        let mut report = Report::new(range, self.limit);
        for pipeline in pipelines {
            let name = pipeline.name.as_str();
            let of_config = config.verify.iter().filter(|inbox| inbox.is_of(name)).cloned();
            let inboxes = of_config.chain(named.iter().cloned()).collect();
            let compared = self.comparison(pipeline, inboxes, range).run().await;
            report.add(compared.map_err(|failure| failure.about(format_args!("pipeline {name}")))?);
        }
        format.print(&report, Report::table)?;
        Ok(match (report.is_proven(), report.undecided()) {
            (false, _) => Exit::Broken,
            // As `relay status` says it.
            (true, 1..) => Exit::Unavailable,
            (true, 0) => Exit::Success,
        })
    }

    fn range(&self) -> Result<Range, Failure> {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since.0 <= until.0
        {
            let message = format_args!("--since {since} is not longer ago than --until {until}");
            return Err(Failure::new(Exit::Usage, message));
        }
        let ago = |time: Option<Time>| time.map(|time| time.0);
        Ok(Range::new(OffsetDateTime::now_utc(), ago(self.since), ago(self.until)))
    }

    fn comparison<'a>(
        &self,
        pipeline: &'a PipelineConfig,
        inboxes: Vec<InboxConfig>,
        range: Range,
    ) -> Comparison<'a> {
        Comparison {
            pipeline,
            inboxes,
            topics: BTreeSet::from_iter(self.topics.iter().cloned()),
            range,
            grace: self.grace.0,
            reading: Reading {
                pace: Pace::new(self.rows_per_second),
                progress: Progress::new(),
                statement_timeout: self.statement_timeout.0.max(Duration::from_millis(1)),
            },
        }
    }
}
