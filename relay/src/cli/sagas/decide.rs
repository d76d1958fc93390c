//! Decisions about sagas. Each is recorded with its author and reason.

use clap::Args;
use saga::Choice;
use serde::Serialize;
use serde_json::Value;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, one_line};
use super::super::progress::during;
use super::super::signature::Signature;
use super::{Which, opened};

/// The saga, and who decides.
#[derive(Debug, Args)]
pub struct Decide {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    signature: Signature,
}

/// The arguments of `relay sagas skip`.
#[derive(Debug, Args)]
pub struct Skip {
    #[command(flatten)]
    decide: Decide,

    /// The name of the step.
    #[arg(long, value_name = "STEP")]
    step: String,

    /// The result of the step as JSON, which the saga's code gets. Required, except if an undo is
    /// skipped.
    #[arg(long, value_name = "JSON", value_parser = json)]
    result: Option<Value>,
}

/// The result of a decision.
#[derive(Debug, Serialize)]
struct Decided {
    action: &'static str,
    saga: String,
    step: Option<String>,
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}; write a string as '\"text\"'"))
}

impl Decide {
    pub(crate) async fn execute(self, choice: Choice, format: Format) -> Result<Exit, Failure> {
        let (id, signed) = (self.which.id()?, self.signature.signed()?);
        let done = Decided {
            action: choice.action().as_str(),
            saga: id.to_string(),
            step: choice.step().map(str::to_owned),
        };
        let sagas = opened(&self.which.place).await?;
        let decided = during("deciding", sagas.decide(&signed, &id, choice, None)).await;
        sagas.close().await;
        decided?;
        format.print(&done, |Decided { action, saga, step }| match step {
            Some(step) => one_line(&format!("{action}: {saga}, step {step}")),
            None => one_line(&format!("{action}: {saga}")),
        })?;
        Ok(Exit::Success)
    }
}

impl Skip {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let Self { decide, step, result } = self;
        decide.execute(Choice::Skip { step, result }, format).await
    }
}
