//! `relay pause` and `relay resume`.

use std::collections::BTreeSet;

use clap::{ArgGroup, Args};
use message::{OrderingKey, Topic};
use operate::pause::PauseLine;
use operate::{Places, pause};
use outbox_log::PauseScope;
use serde::Serialize;

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
use super::hint;
use super::operator::viewer;
use super::output::{Format, one_line};
use super::progress::during;
use super::signature::Signature;
use crate::near::nearest;

/// The scope to pause or to resume, the actor and the reason.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("scope").required(true).args(["topic", "key", "all"]))]
pub struct Pause {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// Only messages of this topic. Later messages with the same keys wait, even in other topics.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Topic>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<OrderingKey>,

    /// All messages of the pipeline.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    signature: Signature,
}

/// The result of a command.
#[derive(Debug, Serialize)]
struct Done {
    action: &'static str,
    pipeline: String,
    scope: String,
    reason: String,
}

impl Pause {
    pub(crate) async fn pause(self, format: Format) -> Result<Exit, Failure> {
        self.execute("paused", format).await
    }

    pub(crate) async fn resume(self, format: Format) -> Result<Exit, Failure> {
        self.execute("resumed", format).await
    }

    async fn execute(self, action: &'static str, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed()?;
        let pipeline = self.pipeline.read()?;
        let scope = match (&self.topic, &self.key) {
            (Some(topic), _) => PauseScope::Topic(topic.as_str().to_owned()),
            (_, Some(key)) => PauseScope::Key(key.as_str().to_owned()),
            _ => PauseScope::Pipeline,
        };
        let places = Places::new().outbox(&pipeline);
        if action == "paused" {
            during("pausing", pause::pause(&places, &signed, &scope)).await?;
        } else if let Err(error) = during("resuming", pause::resume(&places, &signed, &scope, None)).await {
            let in_force = pause::pauses(&places, &viewer()).await.unwrap_or_default();
            if let Some(command) = meant_to_resume(pipeline.name.as_str(), &scope, &in_force) {
                note!("its name has characters that are shown as escapes: {command}");
            }
            return Err(error.into());
        }
        let done = Done {
            action,
            pipeline: pipeline.name.to_string(),
            scope: scope.to_string(),
            reason: signed.note,
        };
        format.print(&done, |done| {
            one_line(&format!("{}: {} is {}", done.pipeline, done.scope, done.action))
        })?;
        match action {
            "paused" => {
                note!(
                    "takes effect within a second; up to a window of messages already queued for the broker still goes out"
                );
                note!(
                    "the metric relay_in_flight_messages counts them, and ending the relay process stops them"
                );
                if during("looking", pause::is_unknown(&places, &scope)).await {
                    let meant = meant(&places, &scope).await;
                    let scope = one_line(&scope.to_string());
                    note!("the outbox has no message of {scope}: {meant}? It is paused anyway");
                }
                note!("it stays paused until `{}`", resume_command(&done.pipeline, &scope));
            }
            _ => note!("takes effect within a second"),
        }
        Ok(Exit::Success)
    }
}

/// Returns a question to the operator about a name that the outbox does not know: did they mean a
/// topic that it knows?
async fn meant(places: &Places, scope: &PauseScope) -> String {
    let known = match scope {
        PauseScope::Topic(_) => pause::known_topics(places).await,
        PauseScope::Key(_) | PauseScope::Pipeline => BTreeSet::new(),
    };
    let topic = match scope {
        PauseScope::Topic(topic) => nearest(topic, known.iter().map(String::as_str)),
        PauseScope::Key(_) | PauseScope::Pipeline => None,
    };
    topic.map_or_else(
        || String::from("is the name correct"),
        |topic| format!("did you mean {}", one_line(topic)),
    )
}

/// Returns the command that ends a pause. A name with characters that are escaped where it is shown
/// is spelled for the shell: as it is shown, it would be another name.
pub(super) fn resume_command(pipeline: &str, paused: &PauseScope) -> String {
    // A key that begins with a dash must be in one word with its option.
    let dashed;
    let scope = match paused {
        PauseScope::Key(key) if key.starts_with('-') => {
            dashed = format!("--key={key}");
            vec![dashed.as_str()]
        }
        PauseScope::Topic(topic) => vec!["--topic", topic.as_str()],
        PauseScope::Key(key) => vec!["--key", key.as_str()],
        PauseScope::Pipeline => vec!["--all"],
    };
    let words = [&["resume"][..], &scope[..], &["--pipeline", pipeline, "--note", "WHY"]].concat();
    hint::command(&words)
}

/// Returns the command that ends the pause of the scope that looks like this one: it was copied as
/// it is shown, with the escapes of characters that a terminal does not show.
fn meant_to_resume(pipeline: &str, asked: &PauseScope, in_force: &[PauseLine]) -> Option<String> {
    let shown = |scope: &PauseScope| one_line(&scope.to_string());
    let looks_alike = |pause: &&PauseLine| pause.paused != *asked && shown(&pause.paused) == shown(asked);
    let pause = in_force.iter().find(looks_alike)?;
    Some(resume_command(pipeline, &pause.paused))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::*;

    /// Goal: a key with characters that are not shown can be resumed in the terminal: from the
    /// printed command, and after its shown spelling was pasted. Oracle: the key that bash passes
    /// on.
    #[test]
    fn a_key_that_cannot_be_shown_can_be_resumed() {
        let key = "order-\u{202e}gnp.exe\u{202c}-\u{5e9}\u{7}it's \\ `x`";
        let hidden = PauseScope::Key(key.to_owned());
        let command = resume_command("orders", &hidden);
        let script = format!("relay() {{ printf %s \"$3\"; }}; {command}");
        let ran = std::process::Command::new("bash").args(["-c", &script]).env("LC_ALL", "C").output();
        assert_eq!(ran.unwrap().stdout, key.as_bytes(), "{command}");
        assert_eq!(one_line(&command), command, "printing does not change it");

        let pause = |paused| PauseLine {
            pipeline: String::from("orders"),
            paused,
            actor: String::from("ann"),
            reason: String::from("migration"),
            since: OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        };
        let in_force = [pause(PauseScope::Pipeline), pause(hidden)];
        let as_shown = PauseScope::Key(one_line(key));
        assert_eq!(meant_to_resume("orders", &as_shown, &in_force), Some(command));
        let other = PauseScope::Key(String::from("order-7"));
        assert_eq!(meant_to_resume("orders", &other, &in_force), None);
    }
}
