//! `relay lag`: how far topics are behind.

use std::time::Duration;

use clap::Args;
use operate::Places;
use operate::lag::{LagLine, lag};
use operate::pause::PauseLine;
use operate::status::Rank;
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

/// Returns a row for each topic, the worst first, as on the page, and then the pauses.
fn text(lines: &[LagLine]) -> String {
    let mut sorted: Vec<&LagLine> = lines.iter().collect();
    sorted.sort_by(|one, other| Rank::of_topic(one).cmp(&Rank::of_topic(other)));
    let rows = sorted.iter().map(|line| {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outbox_log::PauseScope;

    use super::*;

    /// Goal: the topic that needs an operator is the first one, and a pause of a pipeline is one
    /// line even where its topics are apart. Oracle: the order of the rows, and the lines below
    /// them.
    #[test]
    fn the_worst_topic_is_first() {
        let pause = PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Pipeline,
            actor: String::from("ann"),
            reason: String::from("migration"),
            since: time::OffsetDateTime::UNIX_EPOCH,
            age: Duration::from_secs(60),
        };
        let line = |pipeline: &str, topic: &str, unread, dead, paused| LagLine {
            pipeline: pipeline.to_owned(),
            topic: topic.to_owned(),
            unread,
            unread_is_at_least: false,
            parked: BTreeMap::from([(Dead, dead)]),
            oldest_age_seconds: None,
            paused,
        };
        let text = text(&[
            line("orders", "a", 7, 0, Some(pause.clone())),
            line("orders", "b", 0, 0, Some(pause)),
            line("bills", "c", 900, 0, None),
            line("bills", "d", 0, 2, None),
        ]);
        let told: Vec<&str> = text.lines().collect();
        let first = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
        let rows: Vec<_> = told[1..5].iter().map(|line| first(line)).collect();
        assert_eq!(rows, [["orders", "a"], ["bills", "d"], ["bills", "c"], ["orders", "b"]], "{text}");
        assert_eq!(told[5..], ["orders: pipeline is paused by ann: migration, for 1m"], "{text}");
    }
}
