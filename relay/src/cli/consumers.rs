//! `relay consumers`: the work of consumers, according to their inboxes.

use clap::Args;
use inbox::ConsumerName;
use operate::Places;
use operate::consumers::{ConsumerLine, Searches, consumers};
use operate::status::{Symptom, Wait};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::{Failure, first};
use super::hint;
use super::operator::viewer;
use super::output::{Format, Table, age, or_dash, sentence, terminal_width};
use super::progress::during;

/// The arguments of `relay consumers`.
#[derive(Debug, Args)]
pub struct Consumers {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this consumer.
    #[arg(long, value_name = "NAME")]
    consumer: Option<ConsumerName>,
}

/// One consumer, in JSON.
#[derive(Debug, Serialize)]
struct Line {
    consumer: String,
    location: String,
    has_started: bool,
    dead: u64,
    held: u64,
    retrying: u64,
    applied_last_hour: u64,
    #[serde(with = "time::serde::rfc3339::option")]
    last_applied_at: Option<OffsetDateTime>,
    /// A message that was published for it and has not arrived, while it applies nothing.
    untaken: Option<Uuid>,
    waits: Vec<String>,
}

impl Consumers {
    pub(crate) async fn execute(&self, format: Format) -> Result<Exit, Failure> {
        let config = self.config.read()?;
        let is_wanted = |name: &ConsumerName| self.consumer.as_ref().is_none_or(|wanted| wanted == name);
        let inboxes: Vec<_> = config.verify.iter().filter(|inbox| is_wanted(&inbox.consumer)).collect();
        if inboxes.is_empty() {
            return Err(none(self.consumer.as_ref()));
        }
        let looking = async {
            let places = config.pipelines.iter().fold(Places::new(), Places::outbox).inboxes(inboxes).await;
            let found = consumers(&places, &viewer(), &Searches::default()).await;
            places.close().await;
            found
        };
        let (found, away) = during("looking", looking).await?;
        format.print(&found.iter().map(Line::of).collect::<Vec<_>>(), |_| text(&found))?;
        let failure = away.into_iter().map(Failure::from).fold(None, first);
        let is_sick = found.iter().any(|line| line.waits().iter().any(is_trouble));
        match failure {
            Some(failure) => Err(failure),
            None if is_sick => Ok(Exit::Unavailable),
            None => Ok(Exit::Success),
        }
    }
}

/// Returns whether a condition is one that somebody should look at.
fn is_trouble(wait: &Wait) -> bool {
    wait.needs_operator() || wait.symptom == Symptom::ConsumerStalled
}

fn none(wanted: Option<&ConsumerName>) -> Failure {
    let text = match wanted {
        Some(name) => format!("no [[verify.inbox]] of the configuration has the consumer {name}"),
        None => String::from("no inbox is configured: add [[verify.inbox]] with its consumer and database"),
    };
    Failure::new(Exit::Usage, text)
}

impl Line {
    fn of(line: &ConsumerLine) -> Self {
        let activity = line.activity.clone().unwrap_or_default();
        Self {
            consumer: line.consumer.clone(),
            location: line.location.clone(),
            has_started: line.has_started,
            dead: activity.dead,
            held: activity.held,
            retrying: activity.retrying,
            applied_last_hour: activity.applied,
            last_applied_at: activity.last_applied_at,
            untaken: line.untaken.as_ref().map(|untaken| untaken.message_id),
            waits: line.waits().iter().map(Wait::told).collect(),
        }
    }
}

/// Returns a row for each consumer, and then what waits at them.
fn text(found: &[ConsumerLine]) -> String {
    let rows = found.iter().map(|line| {
        let activity = line.activity.clone().unwrap_or_default();
        let ago = |at: OffsetDateTime| {
            age((OffsetDateTime::now_utc() - at).max(time::Duration::ZERO).unsigned_abs())
        };
        let least = if line.letters_are_at_least() { "≥ " } else { "" };
        [
            line.consumer.clone(),
            format!("{least}{}", activity.dead),
            format!("{least}{}", activity.held),
            activity.retrying.to_string(),
            activity.applied.to_string(),
            if line.has_started {
                or_dash(activity.last_applied_at.map(ago))
            } else {
                String::from("never started")
            },
            line.location.clone(),
        ]
    });
    let headers = ["consumer", "dead", "held", "retrying", "applied in 1 h", "last applied", "inbox"];
    let table = Table::new(headers, rows).optional(&["inbox", "held", "retrying"]).shown();
    let reasons = found.iter().flat_map(|line| {
        line.waits().into_iter().flat_map(|wait| {
            let told = format!("{}: {}", line.consumer, wait.told());
            let command = next(line, &wait).map(|command| format!("  {command}"));
            std::iter::once(sentence(&told, terminal_width())).chain(command)
        })
    });
    std::iter::once(table).chain(reasons).collect::<Vec<_>>().join("\n")
}

/// Returns the command that shows more about a condition.
fn next(line: &ConsumerLine, wait: &Wait) -> Option<String> {
    match (wait.symptom, &line.untaken) {
        (Symptom::ConsumerDead | Symptom::ConsumerHeld, _) => {
            Some(hint::command(&["dead", "list", "--source", "inbox", "--consumer", &line.consumer]))
        }
        (Symptom::ConsumerStalled, Some(untaken)) => {
            Some(hint::command(&["show", &untaken.message_id.to_string()]))
        }
        _ => None,
    }
}
