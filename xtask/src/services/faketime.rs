//! The library that gives one process another wall clock (libfaketime), for storms.

use super::{fault::Fault, install};
use std::path::PathBuf;

const PACKAGE: &str = "libfaketime";

/// The variant for programs with threads.
const LIBRARY: &str = "libfaketimeMT.so.1";

/// Where Debian and others put it, below one folder per architecture or not.
const FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib/faketime",
    "/usr/lib64/faketime",
    "/usr/local/lib/faketime",
];

/// Its file; installs it if it is missing.
pub(crate) fn library(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    install::found(&[PACKAGE], find, phase)
}

fn find() -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| PathBuf::from(folder).join(LIBRARY)).find(|file| file.is_file())
}
