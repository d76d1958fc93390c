//! `relay demo`, and the hidden commands that its own processes run.

use std::error::Error;

use super::exit::Exit;
use super::failure::Failure;
use super::output::Format;
use crate::demo::{self, Args, DemoError, Report};

/// Runs the demo and prints its result.
pub(crate) async fn execute(args: Args, format: Format) -> Result<Exit, Failure> {
    let report = demo::run(args, format == Format::Json).await?;
    format.print(&report, Report::table)?;
    Ok(if report.holds() { Exit::Success } else { Exit::Broken })
}

/// A relay of the demo.
pub(crate) async fn execute_relay() -> Result<Exit, Failure> {
    demo::run_relay().await?;
    Ok(Exit::Success)
}

/// A consumer of the demo.
pub(crate) async fn execute_consumer() -> Result<Exit, Failure> {
    demo::run_consumer().await?;
    Ok(Exit::Success)
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        let exit = match &error {
            DemoError::Usage(_) => Exit::Usage,
            DemoError::Interrupted => Exit::Interrupted,
            _ => Exit::Unavailable,
        };
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            // Client libraries repeat their sources in their own texts.
            let more = error.to_string();
            if !text.contains(&more) {
                text.push_str(&format!(": {more}"));
            }
            cause = error.source();
        }
        Self::new(exit, text)
    }
}
