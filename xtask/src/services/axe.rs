//! axe-core, the rules that check a page for people who see poorly or use no mouse. It is a package
//! of npm; one file of it is used, and none of its code runs while it is unpacked.

use super::{
    fault::{Doing, Fault},
    home::remove,
    install,
    process::{run, which},
    settings,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const VERSION: &str = "4.14.1";
/// The file in the package.
const SCRIPT: &str = "package/axe.min.js";
/// SHA-256 of that file, as `sha256sum` prints it.
const DIGEST: &str = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c";

/// Returns the script; downloads it on first use.
pub(crate) fn script(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    let folder = settings::downloads_dir()?.join("axe-core");
    let script = folder.join(VERSION).join(SCRIPT);
    if script.is_file() && check(&script).is_ok() {
        return Ok(script);
    }
    phase("waiting for its turn to download");
    let turn = install::turn()?;
    if which("npm").is_none() {
        install::packages(&turn, &["npm"], phase)?;
    }
    phase(&format!("downloading axe-core {VERSION}"));
    // Unpacked elsewhere and renamed: a folder with the final name is complete.
    let aside = folder.join("partial");
    remove(&aside)?;
    fs::create_dir_all(&aside).doing(format_args!("cannot create {}", aside.display()))?;
    let package = format!("axe-core@{VERSION}");
    let pack = ["pack", "--silent", "--ignore-scripts", &package];
    run(Command::new("npm").args(pack).current_dir(&aside), "npm pack").map_err(|error| {
        Fault::Unavailable(format!("{error}\n  is npm's registry reachable? A mirror belongs into ~/.npmrc"))
    })?;
    let archive = format!("axe-core-{VERSION}.tgz");
    run(Command::new("tar").args(["xzf", &archive, SCRIPT]).current_dir(&aside), "tar")?;
    check(&aside.join(SCRIPT))?;
    let complete = folder.join(VERSION);
    remove(&complete)?;
    fs::rename(&aside, &complete).doing(format_args!("cannot move axe-core to {}", complete.display()))?;
    Ok(script)
}

/// Refuses a file other than the one whose rules were reviewed.
fn check(script: &Path) -> Result<(), Fault> {
    let found = run(Command::new("sha256sum").arg(script), "sha256sum")?;
    if found.starts_with(DIGEST) {
        Ok(())
    } else {
        Err(Fault::Failed(format!(
            "axe-core {VERSION} does not have the SHA-256 {DIGEST}, but {found}\n  see where npm takes it from, and \
             change the digest together with the version"
        )))
    }
}
