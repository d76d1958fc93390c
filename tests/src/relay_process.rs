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

/// Settings with which tests need not wait for human time scales.
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
    /// A pipeline `name` from a database to a broker, with short times; `more` is appended to the
    /// file.
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

    /// A pipeline `name` from a database to the broker of this section, with short times.
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

    /// A file with this text.
    ///
    /// # Errors
    /// It could not be written.
    pub fn text(stage: &Stage, text: &str) -> Result<Self, Failure> {
        let path = stage.folder().join(format!("relay-{}.toml", random()));
        std::fs::write(&path, text)?;
        Ok(Self { path })
    }

    /// The file.
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

    /// Starts `relay run` with these variables.
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

    /// Kills it without a warning, and waits until it is gone.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn kill(mut self) -> Outcome {
        self.child.kill().await?;
        Ok(())
    }

    /// Sends a signal by its name: `TERM`, `STOP`, `CONT`.
    ///
    /// # Errors
    /// The process is gone.
    pub async fn signal(&self, name: &str) -> Outcome {
        let pid = self.child.id().ok_or("the relay has ended")?;
        let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().await?;
        if sent.success() { Ok(()) } else { Err(format!("signal {name} did not reach the relay").into()) }
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// The operating system's.
    pub fn has_ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.try_wait()?)
    }

    /// Returns the most memory that it had at one time, in bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn memory_peak(&self) -> Result<u64, Failure> {
        let pid = self.child.id().ok_or("the relay has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
        Ok(peak.ok_or("the kernel tells no peak")?.parse::<u64>()? << 10)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It does not end.
    pub async fn ended(&mut self) -> Result<ExitStatus, Failure> {
        let child = tokio::sync::Mutex::new(&mut self.child);
        eventually("the relay ends", || async { Ok(child.lock().await.try_wait()?) }).await
    }

    /// Asks it to stop and waits until it has ended well.
    ///
    /// # Errors
    /// It does not end, or not with success.
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

    /// Waits until it has told this.
    ///
    /// # Errors
    /// It does not.
    pub async fn tells(&self, text: &str) -> Outcome {
        eventually(&format!("the relay tells {text:?}"), || async { Ok(when(self.log()?.contains(text))) })
            .await
    }

    /// Waits until it has told this with an address, and returns the address: tests let it listen
    /// at port 0, since a port that was free a moment ago may be somebody's by now.
    ///
    /// # Errors
    /// It does not.
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

/// The end of a failed test's evidence: whether the relay was silent or gone.
impl Drop for RelayProcess {
    fn drop(&mut self) {
        let end = match self.child.try_wait() {
            Ok(Some(status)) => format!("the relay has ended: {status}"),
            Ok(None) => format!("the relay runs: {}", threads(self.child.id())),
            Err(error) => format!("nobody knows whether the relay runs: {error}"),
        };
        let log = std::fs::File::options().append(true).open(&self.log);
        // A folder that is gone has no reader either.
        _ = log.and_then(|mut log| {
            writeln!(log, "--- {}: the test lets it go; {end}", OffsetDateTime::now_utc())
        });
    }
}

/// The threads of a process, each with what it waits for in the kernel: a program that is silent
/// because all of them are blocked looks like one that has nothing to say.
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

/// Runs a command with more variables, such as a URL that holds a password.
///
/// # Errors
/// The program could not be built or started.
pub async fn relay_with(variables: &[(&str, &str)], arguments: &[&str]) -> Result<Output, Failure> {
    Ok(command(arguments)?.envs(variables.iter().copied()).stdin(Stdio::null()).output().await?)
}

/// Runs a command on a database.
///
/// # Errors
/// The program could not be built or started.
pub async fn relay_on(url: &str, arguments: &[&str]) -> Result<Output, Failure> {
    relay_with(&[("RELAY_DATABASE_URL", url)], arguments).await
}

fn command(arguments: &[&str]) -> Result<Command, Failure> {
    let mut command = Command::new(program()?);
    command.args(arguments).env("NO_COLOR", "1");
    Ok(command)
}

/// The program beside this test's own executable, brought up to date once per run. `OUTBOX_RELAY`
/// names another.
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
