//! Licences, bans, sources and known vulnerabilities of everything in the build, by cargo-deny and
//! `deny.toml`.

use crate::{
    cargo::{cargo, step},
    child, workspace,
};
use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

/// How long fetching the advisory database may take; it is a git repository of a few megabytes.
const FETCH_PATIENCE: Duration = Duration::from_secs(120);

/// The version that is installed where there is none.
const VERSION: &str = "0.20.2";

/// Checks everything. The advisories need a database from the network. If it is out of reach, they
/// are not checked, and the result is the reason.
pub(crate) fn run() -> Result<Option<String>, String> {
    let program = installed()?;
    let deny = |arguments: &[&str]| -> Result<Command, String> {
        let mut command = Command::new(&program);
        command.args(["--workspace", "--all-features"]).args(arguments).current_dir(workspace::root()?);
        Ok(command)
    };
    step(
        "licences, bans, sources",
        &mut deny(&["check", "--hide-inclusion-graph", "licenses", "bans", "sources"])?,
    )?;
    println!("\n── fetching the advisory database");
    let fetching =
        deny(&["fetch", "db"])?.spawn().map_err(|error| format!("cannot run cargo-deny: {error}"))?;
    match child::wait(fetching, FETCH_PATIENCE)? {
        Some(status) if status.success() => {
            step("advisories", &mut deny(&["--offline", "check", "advisories"])?)?;
            Ok(None)
        }
        ended => {
            let why = ended
                .map_or_else(|| format!("not there after {FETCH_PATIENCE:?}"), |status| status.to_string());
            let ignored = format!("the advisory database cannot be fetched ({why})");
            eprintln!("\nWARNING: known vulnerabilities were NOT CHECKED: {ignored}\n");
            Ok(Some(ignored))
        }
    }
}

/// Returns the program: from the PATH, or from the build folder, where it is installed if missing.
fn installed() -> Result<PathBuf, String> {
    let tools = workspace::target()?.join("tools");
    let own = tools.join("bin/cargo-deny");
    for candidate in [PathBuf::from("cargo-deny"), own.clone()] {
        let asked =
            Command::new(&candidate).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if asked.is_ok_and(|status| status.success()) {
            return Ok(candidate);
        }
    }
    println!("cargo-deny is not installed; it is built once into {} (minutes)", tools.display());
    // Unoptimised: it runs for seconds, and builds in less than half the time.
    let options = ["install", "--locked", "--debug", "--no-default-features", "cargo-deny"];
    let mut install = cargo(options)?;
    install.args(["--version", VERSION, "--root"]).arg(&tools);
    // A folder of its own: its profile and features share nothing with the workspace's build.
    install.env("CARGO_TARGET_DIR", tools.join("build")).env("CARGO_PROFILE_DEV_DEBUG", "false");
    step("installing cargo-deny", &mut install)?;
    Ok(own)
}
