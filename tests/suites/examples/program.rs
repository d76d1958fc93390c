//! Building and running an example.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tests::{Failure, Outcome, Stage};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Maximum run time of a program. Only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs an example with these settings. Returns the lines of its standard output.
pub(crate) async fn example(name: &str, settings: &[(&str, &str)]) -> Result<Vec<String>, Failure> {
    let mut command = Command::new(path(name)?);
    command.envs(settings.iter().copied());
    lines(command).await
}

/// Fails without the client of PostgreSQL.
pub(crate) fn psql() -> Result<(), String> {
    answers("psql", &["--version"], "psql")
}

/// Fails without the Python of the search path.
pub(crate) fn python3() -> Result<(), String> {
    answers("python3", &["--version"], "python3")
}

/// Fails without a Python that has clients of RabbitMQ and PostgreSQL.
pub(crate) fn python_with_clients() -> Result<(), String> {
    answers(python(), &["-c", "import pika, psycopg2"], "python3 with pika and psycopg2")
}

fn answers(program: impl AsRef<OsStr>, arguments: &[&str], what: &str) -> Result<(), String> {
    let answer = std::process::Command::new(program).args(arguments).output();
    let is_there = answer.is_ok_and(|answer| answer.status.success());
    if is_there { Ok(()) } else { Err(format!("{what} is not installed")) }
}

/// Returns the Python that `cargo xtask test` has found, or else the one of the search path.
pub(crate) fn python() -> OsString {
    std::env::var_os("OUTBOX_PYTHON").unwrap_or_else(|| "python3".into())
}

/// A running example. Dropping it kills the process.
pub(crate) struct Running {
    child: Child,
    /// Address of the example if it is a web service.
    pub(crate) address: String,
}

impl Running {
    /// Starts an example. Its standard error is shown when the test fails.
    pub(crate) fn start(stage: &Stage, name: &str, settings: &[(&str, &str)]) -> Result<Self, Failure> {
        let mut command = Command::new(path(name)?);
        command.envs(settings.iter().copied());
        Self::spawn(stage, name, command)
    }

    /// Does the same for another program, under this name.
    pub(crate) fn spawn(stage: &Stage, name: &str, mut command: Command) -> Result<Self, Failure> {
        let log = stage.folder().join(stage.unique(name));
        // Several programs with the same name write into one file.
        if !log.exists() {
            stage.show_on_failure(&log);
        }
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        Ok(Self { child: command.kill_on_drop(true).spawn()?, address: String::new() })
    }

    /// Starts a web service on its own port. It is listening on return.
    pub(crate) async fn serve(stage: &Stage, name: &str, settings: &[(&str, &str)]) -> Result<Self, Failure> {
        Self::serve_at(stage, name, "127.0.0.1:0", settings).await
    }

    /// Does the same on this address.
    pub(crate) async fn serve_at(
        stage: &Stage,
        name: &str,
        address: &str,
        settings: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        let mut running = Self::start(stage, name, &[settings, &[("LISTEN", address)]].concat())?;
        let mut line = String::new();
        let mut stdout = BufReader::new(running.child.stdout.as_mut().ok_or("no standard output")?);
        tokio::time::timeout(PATIENCE, stdout.read_line(&mut line)).await??;
        let address = line.trim().strip_prefix("listening on http://");
        running.address = address.ok_or_else(|| format!("{name} does not listen: {line:?}"))?.to_owned();
        Ok(running)
    }

    /// Kills the program, and waits until it has ended.
    pub(crate) async fn kill(mut self) -> Outcome {
        Ok(self.child.kill().await?)
    }

    /// Requests an orderly exit with SIGTERM, and waits until the program has ended.
    pub(crate) async fn terminate(self) -> Result<ExitStatus, Failure> {
        let pid = self.child.id().ok_or("it has ended before")?;
        let sent = Command::new("kill").arg("-TERM").arg(pid.to_string()).status().await?;
        if !sent.success() {
            return Err(format!("kill: {sent}").into());
        }
        self.ended().await
    }

    /// Waits until the program has ended on its own.
    pub(crate) async fn ended(mut self) -> Result<ExitStatus, Failure> {
        Ok(tokio::time::timeout(PATIENCE, self.child.wait()).await??)
    }
}

/// Returns the path of an example.
pub(crate) fn path(name: &str) -> Result<PathBuf, Failure> {
    Ok(folder()?.join(name))
}

/// Runs a command that must succeed. Returns the lines of its standard output.
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

/// Returns the folder of the examples, beside this test's own executable. They are built once per
/// run. `OUTBOX_EXAMPLES` names another folder.
fn folder() -> Result<&'static Path, Failure> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOLDER.get_or_init(build) {
        Ok(folder) => Ok(folder),
        Err(problem) => Err(problem.clone().into()),
    }
}

fn build() -> Result<PathBuf, String> {
    if let Some(folder) = std::env::var_os("OUTBOX_EXAMPLES") {
        return Ok(folder.into());
    }
    let selected = ["--package", "examples", "--bins", "--features", "examples/crash-points"];
    tests::build::programs(&selected)
}
