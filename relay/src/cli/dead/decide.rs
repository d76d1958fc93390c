//! Decisions about dead messages. Each is recorded with who took it and why.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use message::{HeaderName, HeaderValue, Headers};
use outbox::admin::{Decision, ListedEntry, LogAdmin, OperatorDecision};
use outbox::log::{ExceptionState, RelayName};
use serde::Serialize;

use super::super::config::OnePipeline;
use super::super::database;
use super::super::exit::Exit;
use super::super::failure::{Failure, exit_of};
use super::super::output::Format;
use super::select::{Id, Selection};

/// Who decides, and why.
#[derive(Debug, Args)]
pub(crate) struct Signature {
    /// Who decides, for the audit.
    #[arg(long, value_name = "NAME", env = "USER")]
    actor: String,

    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    note: String,
}

impl Signature {
    /// As the inbox stores it.
    pub(crate) fn of_inbox(&self) -> ::inbox::Signature {
        ::inbox::Signature { actor: self.actor.clone(), note: self.note.clone() }
    }
}

/// Which dead messages, and who decides.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["ids", "topic", "key", "all"]))]
pub struct Decide {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The message: its place in the log, or its message id. May be repeated.
    #[arg(long = "id", value_name = "ID", conflicts_with_all = ["topic", "key", "all"])]
    ids: Vec<Id>,

    /// Every dead message of this topic.
    #[arg(long, value_name = "TOPIC", conflicts_with = "all")]
    topic: Option<String>,

    /// Every dead message with this ordering key.
    #[arg(long, value_name = "KEY", conflicts_with = "all")]
    key: Option<String>,

    /// Every dead message.
    #[arg(long)]
    all: bool,

    /// Do not ask before deciding about all messages, a topic or a key.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    signature: Signature,
}

/// Which dead message, its new content, and who decides.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("content").required(true).multiple(true).args(["payload_file", "headers"]))]
pub struct Edit {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The message: its place in the log, or its message id.
    #[arg(long, value_name = "ID")]
    id: Id,

    /// The file that holds the new payload.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,

    /// A header; may be repeated. All headers together replace the old ones.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    #[command(flatten)]
    signature: Signature,
}

/// The entries that were decided about.
#[derive(Debug, Serialize)]
struct Decided {
    action: &'static str,
    decided: Vec<i64>,
}

impl Decide {
    pub(crate) async fn execute(self, decision: Decision, format: Format) -> Result<Exit, Failure> {
        let pipeline = self.pipeline.read()?;
        let log = database::administration(&pipeline)?;
        let single = !self.ids.is_empty();
        let selection = Selection { ids: self.ids, topic: self.topic, key: self.key };
        let entries = selection.read(log.as_ref(), &pipeline.name, ExceptionState::Dead, usize::MAX).await?;
        selection.check_found(entries.iter(), "dead")?;
        if !single && !self.yes && !entries.is_empty() {
            let question = format!(
                "{} dead messages of pipeline {}: {}?",
                decision.action(),
                pipeline.name,
                entries.len()
            );
            if !confirm(&question)? {
                return Err(Failure::new(Exit::Usage, "not confirmed; nothing was decided"));
            }
        }
        carry_out(log.as_ref(), &pipeline.name, &entries, &decision, &self.signature, format).await
    }
}

impl Edit {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let payload = match &self.payload_file {
            None => None,
            Some(path) => Some(std::fs::read(path).map_err(|error| {
                Failure::new(Exit::Usage, format_args!("{} cannot be read: {error}", path.display()))
            })?),
        };
        let decision = Decision::Edit { payload: payload.map(Into::into), headers: headers(self.headers)? };
        let pipeline = self.pipeline.read()?;
        let log = database::administration(&pipeline)?;
        let selection = Selection { ids: vec![self.id], ..Selection::default() };
        let entries = selection.read(log.as_ref(), &pipeline.name, ExceptionState::Dead, 1).await?;
        selection.check_found(entries.iter(), "dead")?;
        let exit =
            carry_out(log.as_ref(), &pipeline.name, &entries, &decision, &self.signature, format).await?;
        eprintln!("it stays dead until it is requeued: relay dead requeue --id {}", selection.ids[0]);
        Ok(exit)
    }
}

/// Decides about each entry in its own transaction; what was decided before a failure stays
/// decided, and is told.
async fn carry_out(
    log: &dyn LogAdmin,
    relay: &RelayName,
    entries: &[ListedEntry],
    decision: &Decision,
    signature: &Signature,
    format: Format,
) -> Result<Exit, Failure> {
    let mut decided = Decided { action: decision.action().as_str(), decided: Vec::new() };
    let mut failed = None;
    for entry in entries {
        let (actor, note) = (signature.actor.clone(), signature.note.clone());
        let decree = OperatorDecision { decision: decision.clone(), actor, note };
        match log.decide(relay, entry.id, decree).await {
            Ok(()) => decided.decided.push(entry.id.0),
            Err(error) => {
                let done = format!("{} of {} were decided about", decided.decided.len(), entries.len());
                failed = Some(Failure::with_help(exit_of(error.fault()), error, done));
                break;
            }
        }
    }
    format.print(&decided, |decided| {
        let ids: Vec<String> = decided.decided.iter().map(i64::to_string).collect();
        match ids.is_empty() {
            true => String::from("nothing was decided"),
            false => format!("{}: {}", decided.action, ids.join(" ")),
        }
    })?;
    failed.map_or(Ok(Exit::Success), Err)
}

/// Asks a person; where there is none, nothing is decided.
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        let help = "add --yes where nobody can answer";
        return Err(Failure::with_help(Exit::Usage, format_args!("{question} nobody can be asked"), help));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// One header of the command line.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let name = HeaderName::new(name).map_err(|error| error.to_string())?;
    Ok((name, HeaderValue::new(value).map_err(|error| error.to_string())?))
}

/// All headers of the command line; `None` leaves the old ones.
fn headers(given: Vec<(HeaderName, HeaderValue)>) -> Result<Option<Headers>, Failure> {
    if given.is_empty() {
        return Ok(None);
    }
    let mut headers = Headers::new();
    for (name, value) in given {
        if headers.get(name.as_str()).is_some() {
            return Err(Failure::new(Exit::Usage, format_args!("header {} is given twice", name.as_str())));
        }
        headers
            .insert(String::from(name), String::from(value))
            .map_err(|error| Failure::new(Exit::Usage, error))?;
    }
    Ok(Some(headers))
}

/// The headers of a command line, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn edited_headers(arguments: &[&str]) -> Result<Option<Headers>, String> {
    let given = arguments.iter().map(|argument| header(argument)).collect::<Result<_, _>>()?;
    headers(given).map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_checked_and_given_once() {
        assert!(
            header("tenant=a=b")
                .is_ok_and(|(name, value)| (name.as_str(), value.as_str()) == ("tenant", "a=b"))
        );
        assert!(header("tenant").unwrap_err().contains("NAME=VALUE"));
        assert!(header("ten ant=a").is_err());
        let pair = || header("tenant=a").unwrap();
        assert!(headers(Vec::new()).unwrap().is_none());
        assert_eq!(headers(vec![pair()]).unwrap().unwrap().get("tenant"), Some("a"));
        assert!(headers(vec![pair(), pair()]).unwrap_err().to_string().contains("given twice"));
    }
}
