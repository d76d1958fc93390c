//! Runs checks as processes of their own, each with a log. A check that crashes or hangs does not
//! affect the others.

use super::{
    list::{Check, Place},
    outcome::{self, Outcome},
    programs,
};
use crate::{child, require::Require, workspace};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The end of a check.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) check: &'static Check,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    pub(super) log: PathBuf,
}

/// Runs checks and keeps their logs.
pub(super) struct Runner {
    place: Place,
    require: Require,
    folder: PathBuf,
    /// The file that lists the test programs that were built for all checks.
    programs: Option<PathBuf>,
    /// The maximum duration of one check.
    time_limit: Duration,
    /// This program, looked up before a build replaces the file.
    program: PathBuf,
}

impl Runner {
    /// Makes a runner, and the folder for its logs.
    pub(super) fn new(place: Place, require: &Require, time_limit: Duration) -> Result<Self, String> {
        let folder = workspace::target()?.join("checks").join(place.as_str());
        let failed = |error: std::io::Error| format!("cannot make {}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let program = kept_program(&folder)?;
        Ok(Self { place, require: require.clone(), folder, programs: None, time_limit, program })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stores which programs were built for all checks.
    pub(super) fn use_programs(&mut self, programs: &programs::Programs) -> Result<(), String> {
        let file = self.folder.join("programs.json");
        programs.write(&file)?;
        self.programs = Some(file);
        Ok(())
    }

    /// Runs lanes in parallel, the checks of each lane one after the other. Calls `ended` for each
    /// check.
    pub(super) fn run(&self, lanes: &[Vec<&'static Check>], ended: impl Fn(&Ended) + Sync) -> Vec<Ended> {
        let all = Mutex::new(Vec::new());
        let run = |lane: &[&'static Check]| {
            for check in lane {
                let one = self.run_one(check);
                ended(&one);
                all.lock().unwrap_or_else(PoisonError::into_inner).push(one);
            }
        };
        let run = &run;
        thread::scope(|scope| {
            for lane in lanes {
                scope.spawn(move || run(lane));
            }
        });
        all.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_one(&self, check: &'static Check) -> Ended {
        let begun = Instant::now();
        let log = self.folder.join(format!("{}.log", check.name));
        let outcome = self.outcome(check, &log).unwrap_or_else(Outcome::failed);
        Ended { check, outcome, seconds: begun.elapsed().as_secs_f64(), log }
    }

    fn outcome(&self, check: &Check, log: &Path) -> Result<Outcome, String> {
        let file = self.folder.join(format!("{}.json", check.name));
        // An earlier run may have left it.
        if file.exists() {
            fs::remove_file(&file).map_err(|error| format!("cannot remove {}: {error}", file.display()))?;
        }
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", log.display());
        let output = File::create(log).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(["check", check.name, "--place", self.place.as_str(), "--require"]);
        command.arg(self.require.to_string()).env(outcome::FILE_VARIABLE, &file);
        match &self.programs {
            Some(programs) => command.env(programs::FILE_VARIABLE, programs),
            None => command.env_remove(programs::FILE_VARIABLE),
        };
        // With this, tests of snapshots write what they compare with.
        command.env_remove("UPDATE_SNAPSHOTS");
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", check.name))?;
        match child::wait(child, self.time_limit)? {
            Some(status) => match Outcome::read(&file) {
                Ok(outcome) if status.success() || !outcome.is_success() => Ok(outcome),
                _ => Err(crashed(status, log)),
            },
            None => Err(format!("it was stopped after {:.0} min", self.time_limit.as_secs_f64() / 60.0)),
        }
    }
}

/// Makes a copy of this program: building the workspace replaces the file that it was started from.
fn kept_program(folder: &Path) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find xtask's own program: {error}"))?;
    let kept = folder.join("xtask");
    let failed =
        |error: std::io::Error| format!("cannot copy {} to {}: {error}", own.display(), kept.display());
    if kept.exists() {
        fs::remove_file(&kept).map_err(failed)?;
    }
    fs::copy(&own, &kept).map(|_| kept.clone()).map_err(failed)
}

/// Returns a report for a check that ended without writing a report: the end of its log.
fn crashed(status: ExitStatus, log: &Path) -> String {
    const LINES: usize = 40;
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(LINES)..].join("\n");
    format!("it ended without a result ({status})\n{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_crashed_is_reported_with_the_end_of_its_log() {
        let log = std::env::temp_dir().join(format!("xtask-crash-{}", std::process::id()));
        fs::write(&log, "first\nthe reason\n").unwrap();
        let status = Command::new("false").status().expect("false");
        let text = crashed(status, &log);
        fs::remove_file(&log).unwrap();
        assert!(text.contains("exit status: 1") && text.contains("the reason"), "{text}");
    }
}
