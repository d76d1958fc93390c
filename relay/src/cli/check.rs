//! `relay check`: the configuration, the secrets of the page, and whether databases and brokers
//! admit the relay.

use clap::Args;
use operate::doctor::{PipelineReport, reach, reach_inbox};
use operate::in_turns;

use super::config::{ConfigFile, find};
use super::doctor::exit_of;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, or_dash, table};
use super::progress::during;

/// The arguments of `relay check`.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

impl Check {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        // `relay run` would refuse to start for the same reason.
        #[cfg(feature = "page")]
        if let Some(page) = &config.page {
            web::check(page).map_err(|error| Failure::new(Exit::Usage, &error))?;
        }
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let looks = pipelines.into_iter().map(|pipeline| async {
            let inboxes = config.verify.iter().filter(|inbox| inbox.is_of(pipeline.name.as_str()));
            let inboxes = in_turns(inboxes.map(reach_inbox).collect());
            let (mut checks, inboxes) = tokio::join!(reach(pipeline), inboxes);
            checks.extend(inboxes);
            PipelineReport { pipeline: pipeline.name.to_string(), checks }
        });
        let reports = during("checking", in_turns(looks.collect())).await;
        format.print(&reports, |reports| shown(reports))?;
        Ok(exit_of(&reports, false))
    }
}

fn shown(reports: &[PipelineReport]) -> String {
    let rows = reports.iter().flat_map(|report| {
        report.checks.iter().map(|finding| {
            [
                report.pipeline.clone(),
                finding.state.as_str().to_owned(),
                finding.subject.clone(),
                finding.measured.clone(),
                or_dash(finding.remedy.as_ref()),
            ]
        })
    });
    table(["pipeline", "state", "subject", "measured", "remedy"], rows)
}
