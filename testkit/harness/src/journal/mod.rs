//! Journals of processes. Each line is one JSON document and is passed to the operating system in
//! one call. So a killed process loses nothing, and at most its last line is incomplete.
//!
//! | module | contents |
//! |---|---|
//! | `received` | deliveries as a consumer received them |
//! | `subscription` | a subscription that records them |

mod received;
mod subscription;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use received::{Part, Received, Settled};
pub use subscription::{Handled, Journaled};

/// A journal to write to.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    /// Opens a journal, and appends to the entries of earlier processes.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options().create(true).append(true).open(path)?;
        // The last line of a killed process may be incomplete.
        file.write_all(b"\n")?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes entries.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, entries: &[impl Serialize]) -> io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        // The file is consistent even if another thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&lines)
    }
}

/// Reads a journal. Skips incomplete and empty lines. A missing journal is empty.
///
/// # Errors
/// The file cannot be read.
pub fn read<T: DeserializeOwned>(path: &Path, mut entry: impl FnMut(T)) -> io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for line in BufReader::new(file).split(b'\n') {
        if let Ok(read) = serde_json::from_slice(&line?) {
            entry(read);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        Journal::open(&path).unwrap().write(&[1, 2]).unwrap();
        File::options().append(true).open(&path).unwrap().write_all(b"{\"torn").unwrap();
        Journal::open(&path).unwrap().write(&[3]).unwrap();
        let mut all: Vec<u32> = Vec::new();
        read(&path, |entry| all.push(entry)).unwrap();
        assert_eq!(all, [1, 2, 3]);
    }
}
