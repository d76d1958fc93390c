//! `relay erase`: removes what is stored of a subject.

use clap::Args;
use message::{OrderingKey, Tenant, Topic};
use operate::erase::{ErasedPart, ErasureReport, Goals, Subject, erase, look};
use operate::{NamedTables, PipelineConfig, Places, named_tables};

use super::config::{ConfigFile, find};
use super::confirm::confirm;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, counted, or_dash, table};
use super::progress::{Counted, during};
use super::replay::stop;
use super::signature::Signature;
use crate::config::Config;

/// The subject, and who decides.
#[derive(Debug, Args)]
pub struct Erase {
    #[command(flatten)]
    config: ConfigFile,

    /// The ordering key of the messages, which is their CloudEvents subject; also the id of sagas,
    /// and the account or the key of idempotency keys. Compared exactly.
    #[arg(long, visible_alias = "subject", value_name = "KEY")]
    key: OrderingKey,

    /// Only messages of this topic. Then idempotency keys and sagas are left out.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Topic>,

    /// Only in inboxes and idempotency keys of this tenant. Then outboxes and sagas are left out,
    /// which have no tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<Tenant>,

    /// Only the outbox of this pipeline, with the results of its messages, and dead letters in the
    /// inboxes that apply them. Then idempotency keys and sagas are left out.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Also discard dead messages and open dead letters: they never take effect.
    #[arg(long)]
    discard: bool,

    /// Also messages that a configured consumer has not applied yet. A result that it stores later
    /// is not erased any more.
    #[arg(long)]
    unapplied: bool,

    /// Count what would be erased and what would be left, but change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    signature: Signature,
}

/// Where the command erases.
struct Scope {
    places: Places,
    pipelines: Vec<PipelineConfig>,
    configured: Vec<PipelineConfig>,
    tables: Vec<NamedTables>,
}

impl Erase {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed_unless(self.dry_run)?;
        let subject = Subject {
            key: self.key.as_str().to_owned(),
            topic: self.topic.as_ref().map(|topic| topic.as_str().to_owned()),
            tenant: self.tenant.clone(),
            discard: self.discard,
            unapplied: self.unapplied,
        };
        let Scope { places, pipelines, configured, tables } =
            during("connecting", self.scope(self.config.read()?)).await?;
        let goals =
            Goals { places: &places, pipelines: &pipelines, configured: &configured, tables: &tables };
        let counting = Counted::endless();
        counting.say(String::from("counting"));
        let counted_rows = |rows| counting.add("counting", rows);
        let planned = look(&goals, &signed.operator, &subject, &counted_rows).await;
        drop(counting);
        let planned = planned?;
        if self.dry_run {
            places.close().await;
            return shown(&planned, format);
        }
        // Nothing to erase is recorded as well.
        if !self.yes && planned.erased > 0 {
            note!("{}", text(&planned));
            planned.errors.iter().for_each(|error| note!("{error}"));
            if !confirm(&question(&planned))? {
                return Err(Failure::new(Exit::Usage, "not confirmed; nothing was erased"));
            }
        }
        let erasing = Counted::endless();
        erasing.say(String::from("erasing"));
        let erased_rows = |rows| erasing.add("erasing", rows);
        let report = erase(&goals, &signed, &subject, &stop()?, &erased_rows).await;
        drop(erasing);
        places.close().await;
        shown(&report?, format)
    }

    async fn scope(&self, config: Config) -> Result<Scope, Failure> {
        let pipelines: Vec<PipelineConfig> = match &self.pipeline {
            Some(name) => vec![find(&config, name)?.clone()],
            None => config.pipelines.clone(),
        };
        let tables = match &self.pipeline {
            Some(_) => Vec::new(),
            None => named_tables(&config.pipelines, &config.verify),
        };
        // All of them: another pipeline may not have published yet what this one has, and its
        // consumers may have results of the same rows.
        let places = config.pipelines.iter().fold(Places::new(), Places::outbox);
        let places = places.inboxes(config.verify.iter().collect()).await;
        Ok(Scope { places, pipelines, configured: config.pipelines, tables })
    }
}

/// Prints a report. Returns 3 if something is left, or a database did not answer.
fn shown(report: &ErasureReport, format: Format) -> Result<Exit, Failure> {
    format.print(report, text)?;
    let mut exit = if report.is_whole() { Exit::Success } else { Exit::Unavailable };
    for error in &report.errors {
        let failure = Failure::from(error.clone());
        exit = exit.worst(failure.exit());
        note!("{failure}");
    }
    Ok(exit)
}

fn text(report: &ErasureReport) -> String {
    let mut lines = Vec::new();
    if report.parts.is_empty() {
        lines.push(String::from("nothing is stored under this key"));
    } else {
        let done = if report.dry_run { "would erase" } else { "erased" };
        lines.push(table(["place", "what", done, "discarded first", "left"], report.parts.iter().map(row)));
    }
    if report.left > 0 {
        lines.push(String::from(
            "what is left has had no effect yet, or is in use: run the command again later",
        ));
        let has = |why: &str| report.parts.iter().any(|part| part.left.contains_key(why));
        if has("dead") || has("open") {
            lines.push(String::from(
                "dead messages and open dead letters wait for a decision: `relay dead`, or --discard",
            ));
        }
        if has("discarded") {
            lines.push(String::from(
                "discarded messages keep their key until their relay removes them: let it run, or \
                 `relay forget --discard-parked`",
            ));
        }
        if has("an inbox does not answer") {
            lines.push(String::from(
                "rows stay while an inbox does not answer: only they lead to its results. Make it answer, or \
                 remove it from the configuration if it is gone",
            ));
        }
        if has("not applied yet") {
            lines.push(String::from(
                "what is not applied yet still gets its result: `relay verify` says where, or --unapplied",
            ));
        }
    }
    if report.stopped {
        lines.push(String::from("stopped before the end: run the command again to continue"));
    }
    if report.dry_run {
        lines.push(String::from("nothing was changed yet"));
    }
    lines.join("\n")
}

/// Returns the question before an erasure.
fn question(planned: &ErasureReport) -> String {
    let rows = counted(planned.erased, "row");
    match planned.errors.len() {
        0 => format!("erase {rows}, for good?"),
        _ => format!("erase {rows}, for good? (see above what does not answer: it is not erased)"),
    }
}

fn row(part: &ErasedPart) -> [String; 5] {
    let left: Vec<String> = part.left.iter().map(|(why, count)| format!("{count} {why}")).collect();
    [
        part.place.clone(),
        part.what.to_owned(),
        part.erased.to_string(),
        or_dash(Some(part.discarded).filter(|count| *count > 0)),
        or_dash(Some(left.join(", ")).filter(|left| !left.is_empty())),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use super::*;
    use crate::config::Overrides;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        erase: Erase,
    }

    /// Goal: an erasure for one pipeline also opens the inboxes of others, which may have results
    /// of the same rows. Oracle: the error of the inbox of another pipeline.
    #[tokio::test]
    async fn an_erasure_for_one_pipeline_opens_all_inboxes() {
        let pipeline = |name: &str| {
            format!(
                "[[pipeline]]\nname = '{name}'\n[pipeline.database]\nurl = 'sqlite:/nowhere/o.db'\n[pipeline.sqs]\n"
            )
        };
        let inbox =
            "[[verify.inbox]]\nconsumer = 'mail'\npipelines = ['b']\nurl = 'sqlite:/nowhere/mail.db'\n";
        let text = [&pipeline("a"), &pipeline("b"), inbox].concat();
        let read = Config::read(Path::new("relay.toml"), &text, &Overrides::default());
        let config = read.ok().unwrap().0;
        let asked = ["erase", "--key", "k", "--pipeline", "a", "--dry-run"];
        let scope = Cli::try_parse_from(asked).unwrap().erase.scope(config).await.ok().unwrap();
        assert_eq!((scope.pipelines.len(), scope.configured.len()), (1, 2));
        let away: Vec<String> = scope.places.away().iter().map(ToString::to_string).collect();
        assert!(away.len() == 1 && away[0].starts_with("inbox of mail: "), "{away:?}");
    }

    /// Goal: an operator learns before the erasure that a database does not answer. Oracle: the
    /// question.
    #[test]
    fn the_question_names_that_something_does_not_answer() {
        let mut planned = ErasureReport {
            dry_run: true,
            erased: 1,
            left: 0,
            parts: Vec::new(),
            stopped: false,
            errors: Vec::new(),
        };
        assert_eq!(question(&planned), "erase 1 row, for good?");
        planned.errors.push(operate::OperateError::refused("inbox of mail: away", ""));
        assert!(question(&planned).ends_with("(see above what does not answer: it is not erased)"));
    }
}
