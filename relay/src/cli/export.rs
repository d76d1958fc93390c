//! `--export`: the whole of a list, as CSV or JSON.

use std::io::{ErrorKind, Write as _};

use clap::Args;
use operate::OperateError;
use operate::export::{AuditExport, DeadExport, ExportFormat};

use super::exit::Exit;
use super::failure::{Failure, first};
use super::progress::during;

/// The argument of commands whose list can be exported.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Print everything that matches as csv or json, without a limit and without holding it in
    /// memory. The end of the output names what is missing.
    #[arg(long, value_name = "csv|json", conflicts_with = "limit")]
    export: Option<ExportFormat>,
}

impl Export {
    /// Returns the format, if an export was requested.
    pub(crate) fn format(&self) -> Option<ExportFormat> {
        self.export
    }
}

/// An export that is being printed.
pub(crate) enum Exporting {
    Audit(Box<AuditExport>),
    Dead(Box<DeadExport>),
}

impl Exporting {
    async fn next(&mut self) -> Option<String> {
        match self {
            Self::Audit(export) => export.next().await,
            Self::Dead(export) => export.next().await,
        }
    }

    fn missing(&self) -> &[OperateError] {
        match self {
            Self::Audit(export) => export.missing(),
            Self::Dead(export) => export.missing(),
        }
    }

    /// Prints it, part by part, and notes the audits that may not be read. Fails with the errors of
    /// places that did not answer.
    pub(crate) async fn print(mut self) -> Result<Exit, Failure> {
        while let Some(part) = during("reading", self.next()).await {
            let mut out = std::io::stdout().lock();
            match out.write_all(part.as_bytes()).and_then(|()| out.flush()) {
                // The reader has enough (`| head`).
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Success),
                written => written?,
            }
        }
        if let Self::Audit(export) = &self
            && !export.left_out().is_empty()
        {
            note!("{}", export.left_out());
        }
        let missing = self.missing().iter().cloned().map(Failure::from).fold(None, first);
        missing.map_or(Ok(Exit::Success), Err)
    }
}
