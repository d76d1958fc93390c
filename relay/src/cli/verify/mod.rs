//! `relay verify`: prints what [`operate::verify`] finds.
//!
//! | file | what it holds |
//! |---|---|
//! | `target.rs` | inboxes named by flags |
//! | `progress.rs` | progress on standard error |
//! | `table.rs` | the result, for people |

mod progress;
mod table;
mod target;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use operate::units::Time;
use operate::verify::{Comparison, Range, Reading, Report};
use operate::{InboxConfig, PipelineConfig};
use time::OffsetDateTime;

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::Failure;
use super::operator::viewer;
use super::output::Format;

use progress::Rows;
use target::inbox_of;

/// The arguments of `relay verify`.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Also compare with this inbox. Can be repeated. A URL with a password is refused here: put it
    /// in [[verify.inbox]].
    #[arg(long = "inbox", value_name = "CONSUMER=URL")]
    inboxes: Vec<String>,

    /// Only messages of this topic. Can be repeated.
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Only messages whose ids are newer than this (2h, 7d).
    #[arg(long, value_name = "AGO")]
    since: Option<Time>,

    /// Only messages whose ids are older than this.
    #[arg(long, value_name = "AGO")]
    until: Option<Time>,

    /// How long to wait for published messages that are not in an inbox yet. They count as missing
    /// if none of them arrives within this time.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    grace: Time,

    /// Maximum rows read per second, from all databases and the broker together.
    #[arg(long, value_name = "ROWS", default_value = "5000")]
    rows_per_second: NonZeroU32,

    /// Time limit of each PostgreSQL statement, except that of verify.inbox.effects.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    statement_timeout: Time,

    /// Maximum number of messages to list. All are counted.
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
        let mut failure = None;
        for pipeline in pipelines {
            let name = pipeline.name.as_str();
            let of_config = config.verify.iter().filter(|inbox| inbox.is_of(name)).cloned();
            let inboxes = of_config.chain(named.iter().cloned()).collect();
            match self.comparison(pipeline, inboxes, range).run(&viewer()).await {
                Ok(compared) => report.add(compared),
                // It does not hide the findings in others.
                Err(error) => {
                    let failed = Failure::from(error).about(format_args!("pipeline {name}"));
                    report.add_not_compared(name, failed.to_string());
                    failure = super::failure::first(failure, failed);
                }
            }
        }
        if report.pipelines.is_empty()
            && let Some(failure) = failure
        {
            return Err(failure);
        }
        format.print(&report, |report| table::shown(report, &self.inboxes))?;
        match failure {
            Some(failure) if report.has_faults() => {
                failure.print();
                Ok(Exit::Broken)
            }
            Some(failure) => Err(failure),
            None if report.has_faults() => Ok(Exit::Broken),
            // Like `relay status`.
            None if report.undecided > 0 => Ok(Exit::Unavailable),
            None => Ok(Exit::Success),
        }
    }

    fn range(&self) -> Result<Range, Failure> {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since.0 <= until.0
        {
            let message = format_args!("--since {since} must be longer ago than --until {until}");
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
            findings_max: self.limit,
            reading: Reading::new(
                self.rows_per_second,
                self.statement_timeout.0.max(Duration::from_millis(1)),
                Box::new(Rows::new()),
            ),
        }
    }
}
