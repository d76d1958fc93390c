//! The real `relay` program as a child process.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::OnceLock;

use time::OffsetDateTime;
use tokio::process::{Child, Command};

use crate::brokers::Broker;
use crate::eventually::{eventually, when};
use crate::stage::{Stage, random};
use crate::trial::{Failure, Outcome};

/// Short times, so that tests do not wait as long as an operator would.
const ENGINE: &str = "\
[pipeline.engine]
lease_ttl = \"3s\"
retry_initial = \"50ms\"
retry_max = \"500ms\"
attempts_max = 2
shutdown_grace = \"5s\"
";

/// A configuration file with one pipeline.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
}

impl Config {
    /// Writes a pipeline `name` from a database to a broker, with short times. `more` is appended
    /// to the file.
    ///
    /// # Errors
    /// The file could not be written, or the broker lives in this process only.
    pub fn write(
        stage: &Stage,
        name: &str,
        url: &str,
        broker: &dyn Broker,
        more: &str,
    ) -> Result<Self, Failure> {
        let section =
            broker.relay_section().ok_or("a broker of this process cannot be reached from another")?;
        Self::with_section(stage, name, url, &section, more)
    }

    /// Writes a pipeline `name` from a database to the broker of this section, with short times.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn with_section(
        stage: &Stage,
        name: &str,
        url: &str,
        section: &str,
        more: &str,
    ) -> Result<Self, Failure> {
        let database = format!("[[pipeline]]\nname = {name:?}\n[pipeline.database]\nurl = {url:?}\n");
        Self::text(stage, &format!("{database}{section}{ENGINE}{more}"))
    }

    /// Writes a file with this text.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn text(stage: &Stage, text: &str) -> Result<Self, Failure> {
        let path = stage.folder().join(format!("relay-{}.toml", random()));
        std::fs::write(&path, text)?;
        Ok(Self { path })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A running relay. It is killed when this is dropped.
pub struct RelayProcess {
    child: Child,
    log: PathBuf,
}

impl RelayProcess {
    /// Starts `relay run`.
    ///
    /// # Errors
    /// The program could not be built or started.
    pub fn start(stage: &Stage, config: &Config) -> Result<Self, Failure> {
        Self::start_with(stage, config, &[("RELAY_LOG", "info,relay=debug")])
    }

    /// Starts `relay run` with these environment variables.
    ///
    /// # Errors
    /// The program could not be built or started.
    pub fn start_with(stage: &Stage, config: &Config, variables: &[(&str, &str)]) -> Result<Self, Failure> {
        let log = stage.folder().join(format!("relay-{}.log", random()));
        let file = std::fs::File::create(&log)?;
        stage.show_on_failure(&log);
        let child = command(&["run", "--config"])?
            .arg(config.path())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Starts `relay run` with its log written there instead of to a file.
    ///
    /// # Errors
    /// The program could not be built or started.
    pub fn start_logging_to(stage: &Stage, config: &Config, stderr: Stdio) -> Result<Self, Failure> {
        let log = stage.folder().join(format!("relay-{}.log", random()));
        let file = std::fs::File::create(&log)?;
        stage.show_on_failure(&log);
        let child = command(&["run", "--log-level", "trace", "--config"])?
            .arg(config.path())
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Starts another command with this configuration.
    ///
    /// # Errors
    /// The program could not be built or started.
    pub fn start_command(stage: &Stage, config: &Config, arguments: &[&str]) -> Result<Self, Failure> {
        let log = stage.folder().join(format!("relay-{}.log", random()));
        let file = std::fs::File::create(&log)?;
        stage.show_on_failure(&log);
        let child = command(arguments)?
            .arg("--config")
            .arg(config.path())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Kills it without warning, and waits until it has ended.
    ///
    /// # Errors
    /// The process could not be killed.
    pub async fn kill(mut self) -> Outcome {
        self.child.kill().await?;
        Ok(())
    }

    /// Sends a signal by its name: `TERM`, `STOP`, `CONT`.
    ///
    /// # Errors
    /// The process has ended.
    pub async fn signal(&self, name: &str) -> Outcome {
        let pid = self.child.id().ok_or("the relay has ended")?;
        let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().await?;
        if sent.success() { Ok(()) } else { Err(format!("signal {name} did not reach the relay").into()) }
    }

    /// Returns its exit status, if it has ended.
    ///
    /// # Errors
    /// The operating system does not report its status.
    pub fn has_ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.try_wait()?)
    }

    /// Returns its peak resident memory in bytes.
    ///
    /// # Errors
    /// The process has ended.
    pub fn memory_peak(&self) -> Result<u64, Failure> {
        memory_peak(self.child.id().ok_or("the relay has ended")?)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It does not end in time.
    pub async fn ended(&mut self) -> Result<ExitStatus, Failure> {
        let child = tokio::sync::Mutex::new(&mut self.child);
        eventually("the relay ends", || async { Ok(child.lock().await.try_wait()?) }).await
    }

    /// Asks it to stop and waits until it has ended with success.
    ///
    /// # Errors
    /// It does not end in time, or not with success.
    pub async fn stop(mut self) -> Outcome {
        self.signal("TERM").await?;
        let status = self.ended().await?;
        if status.success() { Ok(()) } else { Err(format!("the relay ended with {status}").into()) }
    }

    /// Returns its log so far.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<String, Failure> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// Waits until its log contains this text.
    ///
    /// # Errors
    /// The text does not come in time.
    pub async fn tells(&self, text: &str) -> Outcome {
        eventually(&format!("the relay tells {text:?}"), || async { Ok(when(self.log()?.contains(text))) })
            .await
    }

    /// Waits until it has logged this text with an address, and returns the address. Tests let it
    /// listen on port 0, since another process may take a port that was free shortly before.
    ///
    /// # Errors
    /// The text does not appear in time.
    pub async fn address(&self, text: &str) -> Result<String, Failure> {
        eventually(&format!("the relay tells {text:?} with an address"), || async {
            let log = self.log()?;
            let line = log.lines().find(|line| line.contains(text));
            let address = line.and_then(|line| line.split_once("address=")?.1.split_whitespace().next());
            Ok(address.map(str::to_owned))
        })
        .await
    }
}

/// Appends to the log of a test whether the relay was still running, or how it had ended.
impl Drop for RelayProcess {
    fn drop(&mut self) {
        let end = match self.child.try_wait() {
            Ok(Some(status)) => format!("the relay has ended: {status}"),
            Ok(None) => format!("the relay runs: {}", threads(self.child.id())),
            Err(error) => format!("nobody knows whether the relay runs: {error}"),
        };
        let log = std::fs::File::options().append(true).open(&self.log);
        // If the folder is already removed, the line has no reader either.
        _ = log.and_then(|mut log| {
            writeln!(log, "--- {}: the test lets it go; {end}", OffsetDateTime::now_utc())
        });
    }
}

/// Returns the peak resident memory of a process in bytes.
///
/// # Errors
/// The process has ended.
pub fn memory_peak(pid: u32) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    Ok(peak.ok_or("the kernel tells no peak")?.parse::<u64>()? << 10)
}

/// Lists the threads of a process, each with the kernel function it waits in. A program whose
/// threads are all blocked looks like one that has nothing to log.
fn threads(pid: Option<u32>) -> String {
    let Some(pid) = pid else { return String::from("no threads") };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let threads = tasks.map(|task| {
        let waits = read(task.path().join("wchan"));
        format!("{} in {waits}", read(task.path().join("comm")))
    });
    threads.collect::<Vec<_>>().join(", ")
}

/// Runs a command of the program to its end.
///
/// # Errors
/// The program could not be built or started.
pub async fn relay(arguments: &[&str]) -> Result<Output, Failure> {
    Ok(command(arguments)?.stdin(Stdio::null()).output().await?)
}

/// Runs a command with additional environment variables, such as a URL that holds a password.
///
/// # Errors
/// The program could not be built or started.
pub async fn relay_with(variables: &[(&str, &str)], arguments: &[&str]) -> Result<Output, Failure> {
    Ok(command(arguments)?.envs(variables.iter().copied()).stdin(Stdio::null()).output().await?)
}

/// Runs a command with the URL of a database.
///
/// # Errors
/// The program could not be built or started.
pub async fn relay_on(url: &str, arguments: &[&str]) -> Result<Output, Failure> {
    relay_with(&[("RELAY_DATABASE_URL", url)], arguments).await
}

pub(crate) fn command(arguments: &[&str]) -> Result<Command, Failure> {
    let mut command = Command::new(program()?);
    command.args(arguments).env("NO_COLOR", "1");
    Ok(command)
}

/// Returns the program beside this test's own executable, which is built once per run.
/// `OUTBOX_RELAY` names another program.
///
/// # Errors
/// It could not be built.
pub fn program() -> Result<&'static Path, Failure> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PROGRAM.get_or_init(build) {
        Ok(path) => Ok(path),
        Err(problem) => Err(problem.clone().into()),
    }
}

fn build() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("OUTBOX_RELAY") {
        return Ok(path.into());
    }
    let folder = crate::build::programs(&["--package", "outbox-toolkit-relay", "--bin", "relay"])?;
    Ok(folder.join("relay"))
}
