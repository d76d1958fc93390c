//! `relay demo`, and the hidden command that its consumer runs.

use std::error::Error;
use std::path::Path;

use super::exit::Exit;
use super::failure::Failure;
use super::output::Format;
use ::demo::{Args, DemoError, Report};

/// Runs the demo and prints its result.
pub(crate) async fn execute(args: Args, format: Format) -> Result<Exit, Failure> {
    let report = ::demo::run(args, format == Format::Json).await?;
    format.print(&report, Report::table)?;
    Ok(if report.holds() { Exit::Success } else { Exit::Broken })
}

/// Runs a consumer of the demo.
pub(crate) async fn execute_consumer(task: &Path) -> Result<Exit, Failure> {
    ::demo::run_consumer(task).await?;
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
