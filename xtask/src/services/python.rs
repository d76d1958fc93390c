//! Python with clients of RabbitMQ and PostgreSQL, for the example of a service in another language
//! than Rust. They are Debian's packages.

use super::{fault::Fault, install, process::which};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const PACKAGES: [&str; 3] = ["python3", "python3-pika", "python3-psycopg2"];

/// Debian's own Python: another Python that comes first in the `PATH` does not see Debian's
/// packages.
const DEBIANS: &str = "/usr/bin/python3";

/// Returns its file; installs it with the clients if one of them is missing.
pub(crate) fn program(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    install::found(&PACKAGES, find, phase)
}

fn find() -> Option<PathBuf> {
    [which("python3"), Some(DEBIANS.into())].into_iter().flatten().find(|file| has_clients(file))
}

fn has_clients(python: &Path) -> bool {
    let mut import = Command::new(python);
    import
        .args(["-c", "import pika, psycopg2"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success())
}
