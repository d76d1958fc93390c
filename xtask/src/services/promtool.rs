//! promtool, which checks and tests alert rules. It is extracted from Debian's package, because
//! installing the package would start Prometheus.

use super::{
    fault::{Doing, Fault},
    install,
    process::which,
    settings,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PACKAGE: &str = "prometheus";

/// Returns its file; downloads it if it is missing.
pub(crate) fn program(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    if let Some(found) = which("promtool") {
        return Ok(found);
    }
    let folder = settings::downloads_dir()?.join("promtool");
    let program = folder.join("usr/bin/promtool");
    if program.is_file() {
        return Ok(program);
    }
    if which("apt-get").is_none() || which("dpkg-deb").is_none() {
        let why = format!("not installed, and this system has no apt-get: install {PACKAGE} yourself");
        return Err(Fault::Unavailable(why));
    }
    phase("waiting for its turn to download");
    let _turn = install::turn()?;
    phase(&format!("downloading {PACKAGE}"));
    fs::create_dir_all(&folder).doing(format_args!("cannot create {}", folder.display()))?;
    run(&folder, "apt-get", &["download", PACKAGE])?;
    let packages = fs::read_dir(&folder).doing(format_args!("cannot list {}", folder.display()))?;
    let package = packages
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| Fault::Unavailable(format!("apt-get downloaded no package {PACKAGE}")))?;
    run(&folder, "dpkg-deb", &["--extract", &package.display().to_string(), "."])?;
    fs::remove_file(&package).doing(format_args!("cannot remove {}", package.display()))?;
    if program.is_file() {
        Ok(program)
    } else {
        Err(Fault::Unavailable(format!("Debian's package {PACKAGE} holds no promtool")))
    }
}

fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<(), Fault> {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.doing(format_args!("cannot run {program}"))?;
    if output.status.success() {
        Ok(())
    } else {
        let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Fault::Unavailable(format!("{program} {}: {told}", arguments.join(" "))))
    }
}
