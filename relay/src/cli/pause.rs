//! `relay pause` and `relay resume`.

use clap::{ArgGroup, Args};
use message::{OrderingKey, Topic};
use operate::{Operator, Places, Role, Signed, pause};
use outbox_log::PauseScope;
use serde::Serialize;

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
use super::output::Format;

/// The scope to pause or to resume, the actor and the reason.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("scope").required(true).args(["topic", "key", "all"]))]
pub struct Pause {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// Only messages of this topic; later messages with their keys wait behind them.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Topic>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<OrderingKey>,

    /// The whole pipeline.
    #[arg(long)]
    all: bool,

    /// The reason; `relay status` shows it.
    #[arg(long, visible_alias = "note", value_name = "TEXT")]
    reason: String,

    /// The name of the actor, for the audit.
    #[arg(long, value_name = "NAME", env = "USER")]
    actor: String,
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
        let pipeline = self.pipeline.read()?;
        let scope = match (&self.topic, &self.key) {
            (Some(topic), _) => PauseScope::Topic(topic.as_str().to_owned()),
            (_, Some(key)) => PauseScope::Key(key.as_str().to_owned()),
            _ => PauseScope::Pipeline,
        };
        let signed =
            Signed { operator: Operator::new(self.actor, Role::Operator), reason: self.reason.clone() };
        let places = Places::new().outbox(&pipeline);
        if action == "paused" {
            pause::pause(&places, &signed, &scope).await?;
        } else {
            pause::resume(&places, &signed, &scope, None).await?;
        }
        let done = Done {
            action,
            pipeline: pipeline.name.to_string(),
            scope: scope.to_string(),
            reason: self.reason,
        };
        format.print(&done, |done| format!("{}: {} is {}", done.pipeline, done.scope, done.action))?;
        match action {
            "paused" => {
                eprintln!(
                    "takes effect within a second; messages already handed to the broker are still delivered"
                );
                if pause::is_unknown(&places, &scope).await {
                    eprintln!(
                        "no message of {scope} is in the outbox: is the name right? it is paused anyway"
                    );
                }
            }
            _ => eprintln!("takes effect within a second"),
        }
        Ok(Exit::Success)
    }
}
