//! The folder of one service.

use super::{Name, fault::Doing, fault::Fault, settings, state::State};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// `<services>/<name>`: configuration, data, logs, downloads, the state file and the lock.
pub(crate) struct Home {
    pub(crate) name: Name,
    pub(crate) dir: PathBuf,
}

impl Home {
    pub(crate) fn of(name: Name) -> Result<Self, Fault> {
        Ok(Self { name, dir: settings::services_dir()?.join(name.as_str()) })
    }

    /// Waits until no other xtask works on this service. Released when the file is dropped.
    pub(crate) fn lock(&self) -> Result<File, Fault> {
        fs::create_dir_all(&self.dir).doing(format_args!("cannot create {}", self.dir.display()))?;
        lock_file(&self.dir.join("lock"))
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("logs/server.log")
    }

    /// Opens a fresh log; the log of the previous run is kept beside it.
    pub(crate) fn open_log(&self) -> Result<File, Fault> {
        let log = self.log();
        if log.exists() {
            fs::rename(&log, log.with_extension("previous.log"))
                .doing(format_args!("cannot move {}", log.display()))?;
        }
        self.write("logs/server.log", "")?;
        File::options().append(true).open(&log).doing(format_args!("cannot open {}", log.display()))
    }

    /// Returns the last lines of the log, indented, for an error message.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        match fs::read(&log) {
            Ok(bytes) => tail(&String::from_utf8_lossy(&bytes), 15, &log),
            Err(error) => format!("  (no log at {}: {error})", log.display()),
        }
    }

    /// Writes a file of ours below the folder and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Fault> {
        let path = self.dir.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).doing(format_args!("cannot create {}", parent.display()))?;
        }
        fs::write(&path, text).doing(format_args!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn state_file(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    /// Returns the state that the last start left, if any. A file that cannot be parsed is an
    /// error: it may stand for a running process.
    pub(crate) fn state(&self) -> Result<Option<State>, Fault> {
        let path = self.state_file();
        match fs::read_to_string(&path) {
            Ok(text) => State::parse(&text).map(Some).map_err(|error| {
                Fault::Failed(format!(
                    "{} is damaged ({error}): stop the process by hand, then delete the file",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Fault::Failed(format!("cannot read {}: {error}", path.display()))),
        }
    }

    pub(crate) fn save(&self, state: &State) -> Result<(), Fault> {
        // Written to another file and renamed, so that a reader without the lock never sees half of
        // it.
        let aside = self.write("state.json.new", &state.to_json())?;
        fs::rename(&aside, self.state_file()).doing("cannot write the state file")
    }

    pub(crate) fn forget(&self) -> Result<(), Fault> {
        remove(&self.state_file())
    }

    /// Removes data and logs; downloads stay.
    pub(crate) fn purge(&self) -> Result<(), Fault> {
        remove(&self.name.service().data(self)?)?;
        remove(&self.dir.join("logs"))
    }
}

/// Takes an exclusive lock on a file, created if needed.
pub(crate) fn lock_file(path: &Path) -> Result<File, Fault> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .doing(format_args!("cannot open {}", path.display()))?;
    file.lock().doing(format_args!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Removes a file, or a folder with its contents. Does nothing if it is missing.
pub(crate) fn remove(path: &Path) -> Result<(), Fault> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Fault::Failed(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

fn tail(text: &str, lines_max: usize, log: &Path) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.len().saturating_sub(lines_max);
    let mut shown = format!("last lines of {}:", log.display());
    for line in &lines[start..] {
        shown.push_str("\n  ");
        shown.push_str(line);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::tail;
    use std::path::Path;

    #[test]
    fn the_tail_holds_the_last_lines_that_say_something() {
        let shown = tail("one\n\ntwo\nthree\n", 2, Path::new("/log"));
        assert_eq!(shown, "last lines of /log:\n  two\n  three");
    }
}
