//! Decisions about dead messages. Each is recorded with its author and reason.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use message::{HeaderName, HeaderValue, Headers};
use operate::dead::{self, BulkReport, Change, DeadMessage, Filter, MessageRef, Plan, Report};
use operate::replay::Moment;
use operate::{Places, Signed, seconds};
use time::{Duration, OffsetDateTime};

use super::super::confirm::confirm;
use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::hint;
use super::super::output::{Format, counted, one_line};
use super::super::places::Where;
use super::super::progress::{Counted, during};
use super::super::signature::Signature;
use super::arguments::{CONDITIONS, Conditions};
use super::{bulk, decision, show};

/// Maximum messages of a filter whose outcomes are printed one by one.
const EACH_MAX: u64 = 500;

/// The outcome of a decision.
enum Done {
    /// With a line for each message.
    Each(Report),
    /// With a summary.
    Bulk(BulkReport),
}

/// The dead messages, and who decides.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(CONDITIONS).args(["ids", "all"]))]
pub struct Decide {
    #[command(flatten)]
    place: Where,

    /// Position in the log, message id, or id of the dead letter. Can be repeated.
    #[arg(long = "id", value_name = "ID", conflicts_with_all = CONDITIONS, conflicts_with = "all")]
    ids: Vec<MessageRef>,

    #[command(flatten)]
    conditions: Conditions,

    /// All dead messages.
    #[arg(long, conflicts_with_all = CONDITIONS)]
    all: bool,

    /// Show the messages that would be changed, but change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation if messages are selected by a filter or --all.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    signature: Signature,
}

/// The arguments of `relay dead requeue`.
#[derive(Debug, Args)]
pub struct Requeue {
    #[command(flatten)]
    decide: Decide,

    /// In an inbox, also apply messages older than its retention. Find out first whether they took
    /// effect: the inbox cannot know.
    #[arg(long)]
    accept_late: bool,
}

/// The dead message, its new content, and who decides.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("content").required(true).multiple(true).args(["payload_file", "headers"]))]
pub struct Edit {
    #[command(flatten)]
    place: Where,

    /// Position in the log, or message id.
    #[arg(long, value_name = "ID")]
    id: MessageRef,

    /// A file that contains the new payload.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,

    /// A header. Can be repeated: the given headers replace all old ones.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// Accept a payload that is not JSON although the message's content type says so.
    #[arg(long, requires = "payload_file")]
    accept_invalid_json: bool,

    /// Only if the message has not changed after this time, "changed at" in `relay dead show`: an
    /// edit that was made meanwhile is not overwritten.
    #[arg(long, value_name = "TIME")]
    unchanged_since: Option<Moment>,

    /// Show the message that would be edited, but change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    signature: Signature,
}

impl Requeue {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        self.decide.execute(&Change::Requeue { accept_late: self.accept_late }, format).await
    }
}

impl Decide {
    pub(crate) async fn execute(self, change: &Change, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed_unless(self.dry_run)?;
        let places = self.place.open_for(&self.ids).await?;
        let done = Box::pin(self.decide(&places, &signed, change)).await;
        let now = match &done {
            Ok(Done::Bulk(report)) => Box::pin(bulk::result(&places, &signed, report)).await,
            _ => None,
        };
        places.close().await;
        match done? {
            Done::Each(report) => {
                let is_requeue =
                    matches!(change, Change::Requeue { .. }) && report.messages.iter().any(|it| it.done);
                let id = report.decision.filter(|_| is_requeue);
                let exit = told(report, format);
                if let Some(id) = id {
                    decision::tell(id, None);
                }
                exit
            }
            Done::Bulk(report) => bulk::told(report, now.as_ref(), format),
        }
    }

    async fn decide(&self, places: &Places, signed: &Signed, change: &Change) -> Result<Done, Failure> {
        let filter = self.conditions.filter(&self.ids, &self.place);
        if self.ids.is_empty() {
            let selecting = dead::select(places, &signed.operator, &filter, change, None);
            let selected = during("choosing messages", selecting).await?.of_all(places)?;
            if selected.count() + selected.following > EACH_MAX {
                if self.dry_run {
                    return Ok(Done::Bulk(selected.dry_run(change)));
                }
                self.ask(change, selected.count(), &selected.selection)?;
                return Ok(Done::Bulk(bulk::carry_out(places, signed, change, selected).await?));
            }
        }
        let planning = dead::plan(places, &signed.operator, &filter, change);
        let plan = during("choosing messages", planning).await?;
        if self.dry_run {
            return Ok(Done::Each(plan.dry_run(change)));
        }
        if self.ids.is_empty() && !plan.messages.is_empty() {
            self.ask(change, plan.messages.len() as u64, &plan.selection)?;
        }
        let decided = Counted::up_to(plan.messages.len() as u64, "decided");
        let progress = |so_far| decided.set("decided", so_far as u64);
        Ok(Done::Each(plan.carry_out(places, signed, change, progress).await?))
    }

    /// Asks whether to decide about this many messages, unless that is confirmed already.
    fn ask(&self, change: &Change, number: u64, selection: &str) -> Result<(), Failure> {
        let messages = counted(number, "dead message");
        let question = format!("{} {messages} ({})?", change.as_str(), one_line(selection));
        if self.yes || confirm(&question)? {
            return Ok(());
        }
        Err(Failure::new(Exit::Usage, "not confirmed; nothing was changed"))
    }
}

/// Refuses a payload that has to be JSON by the message's content type, and is not.
async fn refuse_invalid(places: &Places, plan: &Plan, change: &Change) -> Result<(), Failure> {
    let Change::Edit { payload: Some(payload), .. } = change else { return Ok(()) };
    for message in &plan.messages {
        let Some(pipeline) = &message.pipeline else { continue };
        let Ok(id) = message.id.parse() else { continue };
        if let Some(warning) = dead::not_json(places, pipeline, id, payload).await? {
            let help = "nothing was changed: correct the file, or add --accept-invalid-json";
            return Err(Failure::with_help(Exit::Usage, warning, help));
        }
    }
    Ok(())
}

impl Edit {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let payload = match &self.payload_file {
            None => None,
            Some(path) => Some(std::fs::read(path).map_err(|error| {
                Failure::new(Exit::Usage, format_args!("{} cannot be read: {error}", path.display()))
            })?),
        };
        let signed = self.signature.signed_unless(self.dry_run)?;
        let change = Change::Edit { payload, headers: headers(self.headers)? };
        let places = self.place.open_for(std::slice::from_ref(&self.id)).await?;
        let filter = Filter { ids: vec![self.id.clone()], ..Filter::default() };
        let mut is_dead = true;
        let report = async {
            let plan = dead::plan(&places, &signed.operator, &filter, &change).await?;
            is_dead = plan.messages.iter().all(|message| message.is_dead());
            unchanged(&plan.messages, self.unchanged_since)?;
            if !self.accept_invalid_json {
                refuse_invalid(&places, &plan, &change).await?;
            }
            if self.dry_run {
                return Ok(plan.dry_run(&change));
            }
            Ok::<_, Failure>(plan.carry_out(&places, &signed, &change, |_| ()).await?)
        };
        let report = report.await;
        places.close().await;
        let report = report?;
        // The command is complete, even where several pipelines have a message with this number.
        let owner = report.messages.first().map(|edited| edited.owner.clone()).unwrap_or_default();
        let exit = told(report, format)?;
        let id = self.id.to_string();
        if !self.dry_run && !is_dead {
            let show = hint::command(&["show", "--pipeline", owner.as_str(), id.as_str()]);
            note!("the relay retries it automatically: {show}");
        } else if !self.dry_run {
            let words =
                ["dead", "requeue", "--pipeline", owner.as_str(), "--id", id.as_str(), "--note", "WHY"];
            note!("it stays dead until you requeue it: {}", hint::command(&words));
        }
        Ok(exit)
    }
}

/// Refuses messages that have changed after a time, which was shown to the second.
fn unchanged(messages: &[DeadMessage], since: Option<Moment>) -> Result<(), Failure> {
    let Some(since) = since.map(|since| since.at(OffsetDateTime::now_utc())) else { return Ok(()) };
    let changed = |message: &&DeadMessage| message.changed_at >= since + Duration::SECOND;
    let Some(message) = messages.iter().find(changed) else { return Ok(()) };
    let at = seconds::text(message.changed_at);
    let text = format_args!("message {} changed at {at}: nothing was edited", message.id);
    Err(Failure::with_help(
        Exit::Usage,
        text,
        "`relay dead show` shows it, `relay dead audit` who changed it",
    ))
}

/// Prints the outcome of a decision; its first error ends the command.
fn told(report: Report, format: Format) -> Result<Exit, Failure> {
    show::report(&report, format)?;
    report.error.map_or(Ok(Exit::Success), |error| Err(error.into()))
}

/// Parses one header of the command line.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let name = HeaderName::new(name).map_err(|error| error.to_string())?;
    Ok((name, HeaderValue::new(value).map_err(|error| error.to_string())?))
}

/// Returns all headers of the command line; `None` keeps the old ones.
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

/// Parses the headers of a command line, for the fuzz targets.
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
