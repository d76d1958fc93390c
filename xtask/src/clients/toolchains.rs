//! Finds the languages of the clients.

use std::process::{Command, Stdio};

/// A program that builds or runs clients.
struct Toolchain {
    /// The program and arguments with which it succeeds if its version suffices.
    command: &'static [&'static str],
    /// Its name and its oldest version that suffices.
    needed: &'static str,
}

const ALL: [Toolchain; 6] = [
    Toolchain {
        command: &["python3", "-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"],
        needed: "Python 3.11 with venv",
    },
    Toolchain {
        command: &["node", "-e", "process.exit(+(parseInt(process.versions.node) < 20))"],
        needed: "Node 20",
    },
    Toolchain { command: &["npm", "--version"], needed: "npm" },
    Toolchain { command: &["go", "version"], needed: "Go 1.25" },
    Toolchain { command: &["javac", "--release", "17", "--version"], needed: "a JDK 17" },
    Toolchain { command: &["mvn", "--version"], needed: "Maven 3.8" },
];

/// Returns an error that names every language that is missing.
pub(super) fn require() -> Result<(), String> {
    let missing: Vec<&str> = ALL.iter().filter(|it| !is_there(it.command)).map(|it| it.needed).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the tests of the clients need {}, which PATH does not have, or only in an older version: install it, or leave \
         this check out with --except clients",
        missing.join(" and ")
    ))
}

fn is_there(command: &[&str]) -> bool {
    let [program, arguments @ ..] = command else { return false };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_refuses_is_not_there() {
        assert!(is_there(&["sh", "-c", "true"]));
        assert!(!is_there(&["sh", "-c", "exit 1"]));
        assert!(!is_there(&["no-such-language", "--version"]));
    }
}
