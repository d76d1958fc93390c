//! SIGHUP: reads the configuration again. The level of the log applies at once. All other changes
//! are logged, and apply at the next start. A configuration with an error changes nothing.

use tracing::{error, info, warn};

use super::config::ConfigFile;
use super::log::LogLevel;
use crate::config::{Effective, Overrides};

/// The setting that applies at once.
const LEVEL: &str = "log.level";

/// Reads the configuration again.
pub(crate) struct Reload {
    pub(crate) file: ConfigFile,
    pub(crate) overrides: Overrides,
    /// The settings with which the process started.
    pub(crate) started_with: Effective,
    pub(crate) level: LogLevel,
    /// The level in force; `None` when it comes from the flag or the variable.
    pub(crate) level_in_force: Option<String>,
}

impl Reload {
    /// Reads the file, applies what it can, and logs the other changes.
    pub(crate) fn run(&mut self) {
        let file = self.file.shown();
        let (config, effective) = match self.file.load_without_files(&self.overrides) {
            Ok(loaded) => loaded,
            Err(failure) => {
                error!("{file} is not applied, the previous settings stay in effect: {failure}");
                return;
            }
        };
        let mut applied = false;
        match &mut self.level_in_force {
            Some(level) if *level != config.log.level => match self.level.set(&config.log.level) {
                Ok(()) => {
                    info!("{file} was read again: {LEVEL} is now {:?}", config.log.level);
                    *level = config.log.level;
                    applied = true;
                }
                Err(problem) => error!("{LEVEL} of {file} is not applied: {problem}"),
            },
            _ => {}
        }
        let is_by_flag = self.level_in_force.is_none();
        let waiting: Vec<_> = self
            .started_with
            .changed(&effective)
            .into_iter()
            .filter(|path| path != LEVEL || is_by_flag)
            .collect();
        match (waiting.is_empty(), applied) {
            (false, _) => {
                warn!("{file} was read again: these settings apply after a restart: {}", waiting.join(", "));
            }
            (true, false) => info!("{file} was read again: nothing has changed"),
            (true, true) => {}
        }
    }
}
