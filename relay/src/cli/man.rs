//! `relay man`: man pages, one for each command.

use std::path::PathBuf;

use clap::Args;

use super::exit::Exit;
use super::failure::Failure;
use super::help;
use super::output::print;

/// The arguments of `relay man`.
#[derive(Debug, Args)]
pub struct Man {
    /// The folder for the pages; created if missing. Existing pages with the same names are
    /// replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Man {
    pub(crate) fn execute(&self) -> Result<Exit, Failure> {
        let folder = self.out.display();
        let failed = |error: std::io::Error| {
            let help = "choose a writable folder";
            Failure::with_help(Exit::Usage, format_args!("{folder}: {error}"), help)
        };
        std::fs::create_dir_all(&self.out).map_err(failed)?;
        clap_mangen::generate_to(help::command(), &self.out).map_err(failed)?;
        print(&format!("the pages are in {folder}: man {folder}/relay.1"))?;
        Ok(Exit::Success)
    }
}
