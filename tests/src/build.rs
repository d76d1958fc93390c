//! Programs that tests start, built beside the test's own executable.

use std::path::PathBuf;
use std::process::Command;

/// Builds the programs that these arguments of cargo select, with the profile of this test. Returns
/// the folder that holds them.
///
/// # Errors
/// The build failed; the error holds cargo's output.
pub fn programs(selected: &[&str]) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // target/<profile>/deps/<test>
    let profile = own.ancestors().nth(2).ok_or("this test does not lie in a target folder")?;
    let target = profile.parent().ok_or("this test does not lie in a target folder")?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Also select the dependencies that are built for the tests, so that none is built twice.
    build.args(["build", "--quiet", "--package", "shared-build"]).args(selected);
    build.arg("--target-dir").arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let output = build.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(profile.to_owned());
    }
    Err(format!("{selected:?} cannot be built: {}", String::from_utf8_lossy(&output.stderr)))
}
