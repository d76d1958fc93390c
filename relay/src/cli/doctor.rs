//! `relay doctor`: prints what [`operate::doctor`] finds.

use std::cmp::Reverse;

use clap::Args;
use operate::doctor::{
    CheckState, ChecklistItem, DoctorOptions, Finding, PipelineReport, RoleNames, checklist, examine,
};
use operate::{PipelineConfig, in_turns};
use serde::Serialize;

use super::config::{ConfigFile, find};
use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, or_dash, table};
use super::progress::during;
use crate::config::Config;

/// The arguments of `relay doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Also check this topic. The topics of the latest messages and of the inboxes are always
    /// checked. Can be repeated.
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// The number of partitions that a Kafka topic should have. Can be repeated.
    #[arg(long = "partitions", value_name = "TOPIC=COUNT", value_parser = recorded)]
    partitions: Vec<(String, usize)>,

    /// The names of the roles that `relay migrate roles` made.
    #[command(flatten)]
    roles: RoleOptions,

    /// Also exit with 2 on warnings.
    #[arg(long)]
    strict: bool,

    /// List only checks that did not pass, the worst first, and from the checklist only items for
    /// which a check has found a problem. All are counted, and JSON contains all of them.
    #[arg(long)]
    problems: bool,
}

/// The names of roles. The relay's role is the one that connects.
#[derive(Debug, Args)]
struct RoleOptions {
    /// The role that migrates.
    #[arg(long, value_name = "ROLE", default_value = "outbox_migrator")]
    migrator: String,

    /// The role of services that enqueue messages.
    #[arg(long, value_name = "ROLE", default_value = "outbox_producer")]
    producer: String,

    /// The role of services that consume messages.
    #[arg(long, value_name = "ROLE", default_value = "inbox_consumer")]
    consumer: String,

    /// The role of services that claim idempotency keys.
    #[arg(long, value_name = "ROLE", default_value = "idempotency_claimant")]
    claimant: String,

    /// The role of services that start and run sagas.
    #[arg(long, value_name = "ROLE", default_value = "saga_worker")]
    worker: String,

    /// The role that reads states, ids and names.
    #[arg(long, value_name = "ROLE", default_value = "outbox_observer")]
    observer: String,
}

impl RoleOptions {
    fn names(&self) -> RoleNames {
        RoleNames {
            migrator: self.migrator.clone(),
            producer: self.producer.clone(),
            consumer: self.consumer.clone(),
            claimant: self.claimant.clone(),
            worker: self.worker.clone(),
            observer: self.observer.clone(),
        }
    }
}

/// The whole output.
#[derive(Debug, Serialize)]
struct Report {
    pipelines: Vec<PipelineReport>,
    go_live: Vec<ChecklistItem>,
}

fn recorded(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("{text:?} is not in the form TOPIC=COUNT");
    let (topic, count) = text.rsplit_once('=').ok_or_else(wrong)?;
    Ok((topic.to_owned(), count.parse().map_err(|_| wrong())?))
}

impl Doctor {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let options = DoctorOptions::default()
            .topics(self.topics.iter().cloned().collect())
            .partitions(self.partitions.iter().cloned().collect())
            .roles(self.roles.names());
        let looks = pipelines.into_iter().map(|pipeline| async {
            let adopted = adopted_table(&config, pipeline).await;
            examine(pipeline, &config.verify, &options, adopted).await
        });
        let pipelines = during("checking", in_turns(looks.collect())).await;
        let report = Report { go_live: checklist(&pipelines), pipelines };
        format.print(&report, |report| report.shown(self.problems))?;
        Ok(exit_of(&report.pipelines, self.strict))
    }
}

/// Checks that new rows of the pipeline's old table are handed over, if it has one.
#[cfg(feature = "postgres")]
async fn adopted_table(config: &Config, pipeline: &PipelineConfig) -> Option<Finding> {
    let adoption = config.adoptions.get(&pipeline.name)?;
    Some(adopt::finding(pipeline, adoption).await)
}

/// Checks nothing: only a table in PostgreSQL can be adopted.
#[cfg(not(feature = "postgres"))]
async fn adopted_table(_: &Config, _: &PipelineConfig) -> Option<Finding> {
    None
}

/// Returns the exit code for these reports. A required change outranks a failure that may be
/// temporary.
pub(super) fn exit_of(reports: &[PipelineReport], strict: bool) -> Exit {
    let of = |report: &PipelineReport| match report.worst() {
        CheckState::Fail if report.is_only_unavailable() => Exit::Unavailable,
        CheckState::Fail => Exit::Usage,
        CheckState::Warn if strict => Exit::Usage,
        _ => Exit::Success,
    };
    let exits: Vec<Exit> = reports.iter().map(of).collect();
    if exits.contains(&Exit::Usage) { Exit::Usage } else { exits.into_iter().max().unwrap_or(Exit::Success) }
}

impl Report {
    fn shown(&self, only_problems: bool) -> String {
        let findings = |report: &PipelineReport| {
            let of = report.checks.iter().map(|finding| (report.pipeline.clone(), finding.clone()));
            of.collect::<Vec<(String, Finding)>>()
        };
        let mut findings: Vec<_> = self.pipelines.iter().flat_map(findings).collect();
        if only_problems {
            findings.retain(|(_, finding)| finding.state != CheckState::Pass);
            findings.sort_by_key(|(_, finding)| Reverse(finding.state));
        }
        let rows = findings.into_iter().map(|(pipeline, finding)| {
            [
                pipeline,
                finding.state.as_str().to_owned(),
                finding.check.to_owned(),
                finding.subject,
                finding.measured,
                or_dash(finding.remedy),
            ]
        });
        let checks = table(["pipeline", "state", "check", "subject", "measured", "remedy"], rows);
        // An item that only a person can verify is not a problem that was found.
        let is_shown = |state| !only_problems || matches!(state, CheckState::Warn | CheckState::Fail);
        let items: Vec<_> = self.go_live.iter().filter(|item| is_shown(item.state)).collect();
        let has_items = !items.is_empty();
        let rows = items.into_iter().map(|item| {
            let state = match item.state {
                CheckState::Unknown => "you",
                state => state.as_str(),
            };
            [state.to_owned(), item.item.to_owned(), item.how.to_owned()]
        });
        let go_live = table(["state", "go-live checklist", "how"], rows);
        let go_live = if has_items { format!("{go_live}\n\n") } else { String::new() };
        let count = |state| {
            let findings = self.pipelines.iter().flat_map(|report| &report.checks);
            findings.filter(|finding| finding.state == state).count()
        };
        format!(
            "{checks}\n\n{go_live}{} passed, {} warned, {} failed, {} unknown",
            count(CheckState::Pass),
            count(CheckState::Warn),
            count(CheckState::Fail),
            count(CheckState::Unknown),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_alone_are_listed_and_everything_is_counted() {
        let checks = vec![
            Finding::pass("tables", "outbox", "current"),
            Finding::unknown("alarms", "broker", "no management URL", "set it"),
            Finding::fail("rights", "relay", "none", "grant"),
        ];
        let pipelines = vec![PipelineReport { pipeline: String::from("orders"), checks }];
        let report = Report { go_live: checklist(&pipelines), pipelines };
        let (all, problems) = (report.shown(false), report.shown(true));
        assert!(all.contains("tables") && all.contains("rights"), "{all}");
        assert!(!problems.contains("tables") && problems.contains("rights"), "{problems}");
        assert!(problems.ends_with("1 passed, 0 warned, 1 failed, 1 unknown"), "{problems}");
        assert!(problems.find("rights") < problems.find("alarms"), "the worst is first: {problems}");
        let checklist = |text: &str| text.contains("GO-LIVE CHECKLIST");
        assert!(checklist(&all) && !checklist(&problems), "{problems}");
    }
}
