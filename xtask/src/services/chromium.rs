//! Chromium and its driver, for tests of the page that operators see. Debian's packages.

use super::{fault::Fault, install, process::which};
use std::path::PathBuf;

const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

/// The driver's file; installs it with the browser if one of them is missing.
pub(crate) fn driver(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    if let Some(found) = both() {
        return Ok(found);
    }
    phase("waiting for its turn to install");
    let turn = install::turn()?;
    install::packages(&turn, &PACKAGES, phase)?;
    both().ok_or_else(|| Fault::Unavailable("chromium was installed, and its driver is not there".to_owned()))
}

fn both() -> Option<PathBuf> {
    which("chromium").and_then(|_| which("chromedriver"))
}
