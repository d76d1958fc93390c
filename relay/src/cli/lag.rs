//! `relay lag`: how far topics are behind.

use std::time::Duration;

use clap::Args;
use operate::Places;
use operate::lag::{LagLine, lag};
use operate::pause::PauseLine;
use outbox_log::ExceptionState::{self, Dead, Held, Retrying, Scheduled};

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::{Failure, first};
use super::operator::viewer;
use super::output::{Format, Table, age, nothing_waits, or_dash, sentence, terminal_width};
use super::progress::during;

/// The arguments of `relay lag`.
#[derive(Debug, Args)]
pub struct Lag {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

impl Lag {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![super::config::find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let places = pipelines.into_iter().fold(Places::new(), Places::outbox);
        let (lines, away) = during("counting messages", lag(&places, &viewer())).await?;
        format.print(
            &lines,
            |lines| {
                if lines.is_empty() { nothing_waits(away.is_empty()) } else { text(lines) }
            },
        )?;
        let failure = away.into_iter().map(Failure::from).fold(None, first);
        failure.map_or(Ok(Exit::Success), Err)
    }
}

fn text(lines: &[LagLine]) -> String {
    let rows = lines.iter().map(|line| {
        let parked = |state: ExceptionState| line.parked.get(&state).copied().unwrap_or_default().to_string();
        [
            line.pipeline.clone(),
            line.topic.clone(),
            if line.unread_is_at_least { format!("≥ {}", line.unread) } else { line.unread.to_string() },
            parked(Held),
            parked(Retrying),
            parked(Scheduled),
            parked(Dead),
            or_dash(line.oldest_age_seconds.map(|seconds| age(Duration::from_secs_f64(seconds)))),
        ]
    });
    let headers = ["pipeline", "topic", "unread", "held", "retrying", "scheduled", "dead", "oldest"];
    let table = Table::new(headers, rows).optional(&["scheduled", "retrying", "oldest"]);
    let table = table.short_names(&["topic"]).shown();
    // A pause of a whole pipeline is one line.
    let mut paused: Vec<&PauseLine> = lines.iter().filter_map(|line| line.paused.as_ref()).collect();
    paused.dedup();
    let paused = paused.into_iter().map(|pause| {
        let text = format!("{}: {}, for {}", pause.pipeline, pause.told(), age(pause.age));
        sentence(&text, terminal_width())
    });
    std::iter::once(table).chain(paused).collect::<Vec<_>>().join("\n")
}
