//! Valid names of topics, and their files.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

/// The maximum length of a topic's name, in bytes. File systems accept 255, including the suffixes
/// of the files.
const MAX_NAME: usize = 200;

/// Makes the file of a topic; an existing file stays as it is. Blocks for one access to the disk.
///
/// # Errors
/// The name is not valid for a topic, or the file cannot be made.
pub fn create_topic(directory: &Path, topic: &str) -> io::Result<()> {
    let path = path(directory, topic).map_err(io::Error::other)?;
    OpenOptions::new().create(true).append(true).open(path).map(drop)
}

/// Returns the file of a topic.
pub(crate) fn path(directory: &Path, topic: &str) -> Result<PathBuf, String> {
    check(topic)?;
    Ok(directory.join(format!("{topic}.log")))
}

/// Returns the file of a group that reads a topic.
pub(crate) fn group_path(directory: &Path, topic: &str, group: &str) -> Result<PathBuf, String> {
    check(topic)?;
    check(group)?;
    Ok(directory.join(format!("{topic}@{group}.place")))
}

/// Checks a name: it must not lead to another folder or to another kind of file.
fn check(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(format!(
            "{name:?} is not a valid name for a topic or group of a directory: use 1 to {MAX_NAME} of \
             A-Z a-z 0-9 _ - ., not beginning with a dot"
        ));
    }
    Ok(())
}
