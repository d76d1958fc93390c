//! A folder in memory for the files of the gate's tests.
//!
//! Most of them wait for the disk: a test on SQLite commits thousands of times, and each commit
//! waits until the file is on the disk. In memory such a test takes a third of the time. What
//! concerns the disk itself (crashes, a full disk) belongs to the night, whose files stay on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Linux keeps files in memory.
const ROOT: &str = "/dev/shm";
const PREFIX: &str = "outbox-tests-";
/// Room that must be free: a suite uses a part of it. Containers often have 64 MiB.
const FREE_MIN: u64 = 4 << 30;

/// A folder that exists until this is dropped.
pub(super) struct Memory(PathBuf);

impl Memory {
    /// Makes the folder; `None` without room for it. Removes those of runs that were killed.
    pub(super) fn new() -> Option<Self> {
        Self::below(Path::new(ROOT), FREE_MIN)
    }

    fn below(root: &Path, free_min: u64) -> Option<Self> {
        for folder in fs::read_dir(root).ok()?.flatten() {
            let name = folder.file_name();
            let run = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if run.is_some_and(|run| !Path::new("/proc").join(run).exists()) {
                // Another run may remove it at the same time.
                let _ = fs::remove_dir_all(folder.path());
            }
        }
        if free(root)? < free_min {
            return None;
        }
        let folder = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        Some(Self(folder))
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The next run removes what could not be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the free bytes of the file system of this folder.
fn free(folder: &Path) -> Option<u64> {
    let asked = Command::new("df").args(["--output=avail", "-B1"]).arg(folder).output().ok()?;
    String::from_utf8(asked.stdout).ok()?.lines().nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_with_its_run_and_one_of_a_killed_run_by_the_next() {
        let root = std::env::temp_dir().join(format!("memory-{}", std::process::id()));
        // No process has this number: it is above the largest that Linux gives.
        let left = root.join(format!("{PREFIX}4194305"));
        fs::create_dir_all(&left).unwrap();
        let memory = Memory::below(&root, 1).unwrap();
        let path = memory.path().to_owned();
        assert!(path.is_dir() && !left.exists());
        drop(memory);
        assert!(!path.exists());
        assert!(Memory::below(&root, u64::MAX).is_none(), "there is not that much room");
        fs::remove_dir_all(root).unwrap();
    }
}
