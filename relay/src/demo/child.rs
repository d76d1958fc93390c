//! A child process: started, listened to, killed or stopped in order.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child as Process, ChildStdin, ChildStdout, Command};

use super::error::DemoError;

/// How long a child may take to stop in order.
const STOP: Duration = Duration::from_secs(15);

/// A running child. Dropping it kills it.
pub(crate) struct Child {
    process: Process,
    /// The child stops when this is closed.
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts this program's hidden subcommand with a task; what it logs goes to the file `log`.
    ///
    /// # Errors
    /// [`DemoError::Unavailable`] when no process can be started.
    pub(crate) async fn spawn(
        command: &'static str,
        task: &impl Serialize,
        log: &PathBuf,
    ) -> Result<Self, DemoError> {
        let what = || format!("start a process ({command})");
        let mut line = serde_json::to_vec(task).map_err(DemoError::during(what()))?;
        line.push(b'\n');
        let program = std::env::current_exe().map_err(DemoError::during(what()))?;
        let log = File::create(log).map_err(DemoError::during(what()))?;
        let mut process = Command::new(program)
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C at the terminal is for the parent, which then stops its children.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(DemoError::during(what()))?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(DemoError::during(what())("its standard streams are missing"));
        };
        stdin.write_all(&line).await.map_err(DemoError::during(what()))?;
        let lines = tokio::io::AsyncBufReadExt::lines(BufReader::new(stdout));
        Ok(Self { process, stdin: Some(stdin), lines })
    }

    /// The next line that it tells; nothing once it has ended. Cancel-safe.
    pub(crate) async fn next_line(&mut self) -> Option<String> {
        // Bytes that are no text come from no child of ours.
        self.lines.next_line().await.ok().flatten()
    }

    /// Waits until it has ended. Cancel-safe; standard input stays open.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus, DemoError> {
        // `Child::wait` would close standard input, but it was taken out above.
        self.process.wait().await.map_err(DemoError::during("wait for a process"))
    }

    /// Kills it without warning (SIGKILL) and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<(), DemoError> {
        self.process.kill().await.map_err(DemoError::during("kill a process"))
    }

    /// Lets it stop in order; kills it when that takes too long.
    pub(crate) async fn stop(mut self) -> Result<(), DemoError> {
        drop(self.stdin.take());
        match tokio::time::timeout(STOP, self.ended()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => self.kill().await,
        }
    }
}
