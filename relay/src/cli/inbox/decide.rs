//! Decisions about dead letters of an inbox. Each is recorded with who took it and why.

use ::inbox::{Action, DeadLetter, DeadLetterId, RedriveOptions, Redriven, Requested};
use clap::{ArgGroup, Args};
use serde::Serialize;

use super::super::database::TablesDatabase;
use super::super::dead::{Signature, confirm};
use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, table};
use super::place::Opened;
use super::select::{self, Selection};

/// Which dead letters, and who decides.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "consumer", "topic", "reason", "older_than", "newer_than", "all"]))]
pub struct Decide {
    #[command(flatten)]
    place: TablesDatabase,

    /// The dead letter. May be repeated.
    #[arg(
        long = "id",
        value_name = "ID",
        conflicts_with_all = ["consumer", "topic", "reason", "older_than", "newer_than", "all"]
    )]
    ids: Vec<DeadLetterId>,

    #[command(flatten)]
    selection: Selection,

    /// Every open dead letter.
    #[arg(long, conflicts_with_all = ["consumer", "topic", "reason", "older_than", "newer_than"])]
    all: bool,

    /// Show which dead letters would be decided about, and decide nothing.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before deciding about several.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    signature: Signature,
}

/// The result of a decision about one dead letter.
#[derive(Debug, Serialize)]
struct Line {
    id: String,
    consumer: String,
    topic: String,
    /// `requested`, `requested before`, or how it is closed; `open` in a dry run; `not decided`
    /// with the error.
    outcome: String,
}

impl Decide {
    pub(crate) async fn execute(
        self,
        action: Action,
        accept_late: bool,
        format: Format,
    ) -> Result<Exit, Failure> {
        let inbox = Opened::of(&self.place).await?;
        let decided = self.decide(&inbox, action, RedriveOptions { accept_late }, format).await;
        inbox.close().await;
        decided
    }

    async fn decide(
        &self,
        inbox: &Opened,
        action: Action,
        options: RedriveOptions,
        format: Format,
    ) -> Result<Exit, Failure> {
        let letters = if self.ids.is_empty() {
            self.selection.read(inbox, false, usize::MAX).await?
        } else {
            select::by_id(inbox, &self.ids).await?
        };
        let is_asked = self.ids.is_empty() && !self.yes && !self.dry_run && !letters.is_empty();
        let which =
            if self.selection.is_everything() { "dead letters, all that are open" } else { "dead letters" };
        if is_asked && !confirm(&format!("{} {} {which}?", action.as_str(), letters.len()))? {
            return Err(Failure::new(Exit::Usage, "not confirmed; nothing was decided"));
        }
        let mut lines = Vec::with_capacity(letters.len());
        let mut failed: Option<Failure> = None;
        let mut decided = 0;
        for letter in &letters {
            let outcome = if self.dry_run {
                Ok(letter.resolved.map_or("open", |(resolution, _)| resolution.as_str()))
            } else {
                self.decide_one(inbox, letter.id, action, options).await
            };
            match outcome {
                Ok(outcome) => {
                    decided += 1;
                    lines.push(Line::of(letter, outcome));
                }
                Err(error) => {
                    lines.push(Line::of(letter, &format!("not decided: {error}")));
                    let is_away = error.exit() == Exit::Unavailable;
                    // An outage is told before what is the matter with one letter.
                    failed = Some(failed.filter(|_| !is_away).unwrap_or(error));
                    if is_away {
                        break;
                    }
                }
            }
        }
        format.print(&lines, |lines| shown(lines))?;
        let Some(error) = failed else { return Ok(Exit::Success) };
        let done = format!("{decided} of {} were decided about", letters.len());
        Err(Failure::with_help(error.exit(), error, done))
    }

    async fn decide_one(
        &self,
        inbox: &Opened,
        id: DeadLetterId,
        action: Action,
        options: RedriveOptions,
    ) -> Result<&'static str, Failure> {
        let signature = self.signature.of_inbox();
        let closed = match action {
            Action::Discard => inbox.discard(id, &signature).await?,
            _ => match inbox.request_redrive(id, options, &signature).await? {
                Requested::Now => return Ok("requested"),
                Requested::Closed(closed) => closed,
                _ => return Ok("requested before"),
            },
        };
        Ok(match closed {
            Redriven::Now(resolution) | Redriven::Before { resolution, .. } => resolution.as_str(),
            _ => "decided elsewhere",
        })
    }
}

impl Line {
    fn of(letter: &DeadLetter, outcome: &str) -> Self {
        Self {
            id: letter.id.to_string(),
            consumer: letter.consumer.clone(),
            topic: letter.topic.clone(),
            outcome: outcome.to_owned(),
        }
    }
}

fn shown(lines: &[Line]) -> String {
    if lines.is_empty() {
        return String::from("nothing was decided");
    }
    let rows = lines
        .iter()
        .map(|Line { id, consumer, topic, outcome }| [id, consumer, topic, outcome].map(Clone::clone));
    table(["id", "consumer", "topic", "outcome"], rows)
}
