//! The library that gives one process another wall clock (libfaketime): for storms, and for servers
//! whose clock is wrong.

use super::{fault::Fault, install};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

const PACKAGE: &str = "libfaketime";

/// The variant for programs with threads.
const LIBRARY: &str = "libfaketimeMT.so.1";

/// The folders into which Debian and others put it, with or without one per architecture.
const FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib/faketime",
    "/usr/lib64/faketime",
    "/usr/local/lib/faketime",
];

/// Returns its file; installs it if it is missing.
pub(crate) fn library(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    install::found(&[PACKAGE], find, phase)
}

/// Returns the variables of a process whose wall clock is off by the offset in the file; its
/// monotonic clock is not.
pub(crate) fn variables(library: &Path, file: &Path) -> [(&'static str, OsString); 4] {
    [
        ("LD_PRELOAD", library.into()),
        ("FAKETIME_TIMESTAMP_FILE", file.into()),
        ("FAKETIME_CACHE_DURATION", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ]
}

fn find() -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| PathBuf::from(folder).join(LIBRARY)).find(|file| file.is_file())
}
