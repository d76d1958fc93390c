//! Chromium and its driver, for tests of the page that operators see. They are Debian's packages.

use super::{fault::Fault, install, process::which};
use std::path::PathBuf;

const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

/// Returns the driver's file; installs driver and browser if one of them is missing.
pub(crate) fn driver(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    install::found(&PACKAGES, both, phase)
}

fn both() -> Option<PathBuf> {
    which("chromium").and_then(|_| which("chromedriver"))
}
