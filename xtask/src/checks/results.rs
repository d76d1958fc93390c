//! The results of a run: the outcome of each check, in a file that a later run continues.

use super::{list::Place, outcome::Outcome, runner::Ended};
use crate::{git, workspace};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// One check and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) check: String,
    pub(super) ok: bool,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    pub(super) log: PathBuf,
    /// The services that it had to find, as `--require` says.
    pub(super) require: String,
    /// Whether the files were those of the commit.
    pub(super) clean: bool,
}

/// The checks of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) place: String,
    pub(super) commit: String,
    pub(super) cores: usize,
    pub(super) seconds: f64,
    pub(super) checks: Vec<Line>,
}

/// The code that a run checks.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) commit: String,
    /// Whether the files are those of the commit.
    pub(super) is_clean: bool,
}

impl Code {
    pub(super) fn look() -> Result<Self, String> {
        let root = workspace::root()?;
        let commit = git::answer(&root, ["rev-parse", "HEAD"])?.trim().to_owned();
        let changes = git::answer(&root, ["status", "--porcelain"])?;
        Ok(Self { commit, is_clean: changes.trim().is_empty() })
    }
}

impl Line {
    pub(super) fn new(ended: &Ended, require: &str, code: &Code) -> Self {
        Self {
            check: ended.check.name.to_owned(),
            ok: ended.outcome.is_success(),
            outcome: ended.outcome.clone(),
            seconds: ended.seconds,
            log: ended.log.clone(),
            require: require.to_owned(),
            clean: code.is_clean,
        }
    }

    /// Whether the check need not run again under this `--require`: it passed whole, on the files
    /// of the commit.
    fn stands(&self, require: &str) -> bool {
        self.ok && self.clean && self.outcome.skipped == 0 && self.require == require
    }
}

impl Results {
    pub(super) fn new(place: Place, code: &Code) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let commit = code.commit.clone();
        Self { place: place.as_str().to_owned(), commit, cores, seconds: 0.0, checks: Vec::new() }
    }

    /// Adds a check, in place of an earlier result of the same check.
    pub(super) fn put(&mut self, line: Line) {
        self.seconds += line.seconds;
        match self.checks.iter_mut().find(|known| known.check == line.check) {
            Some(known) => *known = line,
            None => self.checks.push(line),
        }
    }

    /// Returns the names of the checks that need not run again.
    pub(super) fn standing(&self, require: &str, code: &Code) -> Vec<&str> {
        let lines = self.checks.iter().filter(|line| code.is_clean && line.stands(require));
        lines.map(|line| line.check.as_str()).collect()
    }

    /// Returns the sum of all checks.
    pub(super) fn total(&self) -> Outcome {
        self.checks.iter().fold(Outcome::default(), |mut sum, line| {
            sum.add(line.outcome.clone());
            sum
        })
    }

    /// Returns the results of an earlier run on the same commit.
    ///
    /// # Errors
    /// The file cannot be read, or an older version of this program wrote it: remove it.
    pub(super) fn earlier(folder: &Path, code: &Code) -> Result<Option<Self>, String> {
        let file = file(folder);
        if !file.exists() {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| {
            format!("{} is not a file of results; remove it: {error}", file.display())
        };
        let text = fs::read_to_string(&file).map_err(|error| failed(&error))?;
        let results: Self = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        Ok(Some(results).filter(|results| results.commit == code.commit))
    }

    /// Writes the file in the folder of logs.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let file = file(folder);
        let failed = |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", file.display());
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(&error))?;
        fs::write(&file, text + "\n").map_err(|error| failed(&error))
    }

    /// Removes the file of an earlier run: whatever ends this one, its results must not be taken
    /// for ours.
    pub(super) fn forget(folder: &Path) -> Result<(), String> {
        match fs::remove_file(file(folder)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {error}", file(folder).display()))
            }
            _ => Ok(()),
        }
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("results.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(check: &str, outcome: Outcome) -> Line {
        let ok = outcome.is_success();
        let require = "all".to_owned();
        Line { check: check.to_owned(), ok, outcome, seconds: 2.0, log: PathBuf::new(), require, clean: true }
    }

    fn code(commit: &str, is_clean: bool) -> Code {
        Code { commit: commit.to_owned(), is_clean }
    }

    fn results(lines: Vec<Line>) -> Results {
        let mut results = Results::new(Place::Night, &code("a", true));
        lines.into_iter().for_each(|line| results.put(line));
        results
    }

    #[test]
    fn a_continued_run_keeps_what_it_knows() {
        let folder = std::env::temp_dir().join(format!("xtask-results-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let before = results(vec![line("deny", Outcome::passed()), line("fuzz", Outcome::failed("left: 1"))]);
        before.write(&folder).unwrap();
        let read = Results::earlier(&folder, &code("a", true)).unwrap().expect("the same commit");
        let of_another = Results::earlier(&folder, &code("b", true)).unwrap();
        Results::forget(&folder).unwrap();
        let gone = Results::earlier(&folder, &code("a", true)).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read, before);
        assert_eq!((of_another, gone), (None, None), "another commit proves nothing");

        let mut both = read;
        both.put(line("fuzz", Outcome::passed()));
        assert_eq!(both.checks, [line("deny", Outcome::passed()), line("fuzz", Outcome::passed())]);
        assert_eq!((both.total().to_string().as_str(), both.seconds), ("2 passed, 0 failed, 0 skipped", 6.0));
    }

    #[test]
    fn only_what_passed_whole_on_the_files_of_the_commit_need_not_run_again() {
        let unclean = Line { clean: false, ..line("unclean", Outcome::passed()) };
        let lenient = Line { require: "none".to_owned(), ..line("lenient", Outcome::passed()) };
        let known = results(vec![
            line("whole", Outcome::passed()),
            line("failed", Outcome::failed("left: 1")),
            line("partly", Outcome::passed_but_for("no network".to_owned())),
            unclean,
            lenient,
        ]);
        assert_eq!(known.standing("all", &code("a", true)), ["whole"]);
        assert_eq!(known.standing("none", &code("a", true)), ["lenient"]);
        assert!(known.standing("all", &code("a", false)).is_empty(), "files that differ prove nothing");
    }
}
