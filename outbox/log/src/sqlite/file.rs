//! The file behind a connection. A connection keeps the file that it opened, even after that file
//! was removed and another one has its name. Producers that connect later write into the other.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::LogError;

/// The numbers that distinguish two files, whatever their names. Those of an open file are not
/// assigned to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// The file that a connection has opened.
#[derive(Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    /// `None` where it is unknown, as on Windows, where an open file cannot be replaced.
    identity: Option<Identity>,
}

impl OpenedFile {
    /// Records which file is at a path, before it is opened: so a file that is replaced meanwhile
    /// counts as replaced.
    pub(super) fn about_to_open(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path).ok().flatten() }
    }

    /// Checks that the path still leads to the file. Queries the file system once, while each
    /// statement does so several times.
    ///
    /// # Errors
    /// [`LogError::Unavailable`]: the next term opens the file that exists by then.
    pub(super) fn check(&self) -> Result<(), LogError> {
        let Some(opened) = self.identity else { return Ok(()) };
        let path = self.path.display();
        let reason = match identity(&self.path) {
            Ok(Some(found)) if found != opened => {
                format!(
                    "{path} was replaced by another file: the relay closes the old one and opens the new one"
                )
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                format!("{path} was removed while the relay had it open: put the file back, or replace it")
            }
            _ => return Ok(()),
        };
        Err(LogError::Unavailable { reason, source: None })
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<Option<Identity>> {
    use std::os::unix::fs::MetadataExt as _;

    let found = std::fs::metadata(path)?;
    Ok(Some(Identity { device: found.dev(), inode: found.ino() }))
}

#[cfg(not(unix))]
fn identity(_: &Path) -> std::io::Result<Option<Identity>> {
    Ok(None)
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_one_replaced_is_told_from_one_that_was_removed() {
        let directory = std::env::temp_dir().join(format!("opened-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [shop, copy] = ["shop.db", "copy.db"].map(|name| directory.join(name));
        for path in [&shop, &copy] {
            std::fs::write(path, "").unwrap();
        }
        let opened = OpenedFile::about_to_open(&shop);
        opened.check().unwrap();
        std::fs::write(&shop, "written").unwrap();
        opened.check().unwrap();
        // A link to the same file is the same file.
        std::fs::remove_file(&copy).unwrap();
        std::fs::hard_link(&shop, &copy).unwrap();
        std::fs::rename(&copy, &shop).unwrap();
        opened.check().unwrap();

        let kept = std::fs::File::open(&shop).unwrap();
        std::fs::remove_file(&shop).unwrap();
        let removed = opened.check().unwrap_err().to_string();
        assert!(removed.contains("shop.db was removed"), "{removed}");
        std::fs::write(&shop, "").unwrap();
        let replaced = opened.check().unwrap_err().to_string();
        assert!(replaced.contains("shop.db was replaced by another file"), "{replaced}");
        OpenedFile::about_to_open(&shop).check().unwrap();
        drop(kept);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_name_that_is_no_path_is_not_checked() {
        OpenedFile::about_to_open(Path::new("file:nowhere.db?mode=rwc")).check().unwrap();
    }
}
