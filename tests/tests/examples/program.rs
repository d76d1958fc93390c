//! Building and running an example.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tests::Failure;
use tokio::process::Command;

/// How long a program may run; only ever used up by a failing test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs an example with these settings; its standard output, line by line.
pub(crate) async fn example(name: &str, settings: &[(&str, &str)]) -> Result<Vec<String>, Failure> {
    let mut command = Command::new(folder()?.join(name));
    command.envs(settings.iter().copied());
    lines(command).await
}

/// Runs a command that must succeed; its standard output, line by line.
pub(crate) async fn lines(mut command: Command) -> Result<Vec<String>, Failure> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let Output { status, stdout, stderr } =
        ended.map_err(|_| format!("not ended after {PATIENCE:?}: {command:?}"))??;
    let stdout = String::from_utf8(stdout)?;
    if !status.success() {
        return Err(format!("{status}\n{stdout}\n{}", String::from_utf8_lossy(&stderr)).into());
    }
    Ok(stdout.lines().map(str::to_owned).collect())
}

/// The folder of the examples, beside this test's own executable; they are brought up to date once per run.
fn folder() -> Result<&'static Path, Failure> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOLDER.get_or_init(build) {
        Ok(folder) => Ok(folder),
        Err(problem) => Err(problem.clone().into()),
    }
}

fn build() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // target/<profile>/deps/<test>
    let profile = own.ancestors().nth(2).ok_or("this test does not lie in a target folder")?;
    let target = profile.parent().ok_or("this test does not lie in a target folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = std::process::Command::new(cargo);
    build.args(["build", "--quiet", "--package", "examples", "--bins", "--target-dir"]).arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let output = build.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(profile.to_owned());
    }
    Err(format!("the examples cannot be built: {}", String::from_utf8_lossy(&output.stderr)))
}
