//! The real relay in a separate process, as an operator runs it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use super::{Database, RELAY};
use crate::Failure;

/// The kernel's clock ticks per second in `/proc/<pid>/stat`: 100 on every Linux that runs Rust
/// programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// A relay process. It is killed when this is dropped.
pub(crate) struct RelayProcess {
    child: Child,
    pid: u32,
    folder: PathBuf,
}

impl RelayProcess {
    /// Starts `relay run` with default settings, with metrics recorded. `broker` is the broker's
    /// section of the configuration.
    pub(crate) fn start(database: &Database, broker: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe()?.with_file_name("relay");
        let folder = std::env::temp_dir().join(format!("bench-relay-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&folder)?;
        let config = folder.join("relay.toml");
        let url = &database.url;
        std::fs::write(
            &config,
            format!(
                "[http]\nlisten = \"127.0.0.1:0\"\n\
                 [[pipeline]]\nname = \"{RELAY}\"\n[pipeline.database]\nurl = \"{url}\"\n{broker}"
            ),
        )?;
        let log = std::fs::File::create(folder.join("relay.log"))?;
        let child = Command::new(&program)
            .arg("run")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                format!("cannot run {} (build it: `cargo build --bin relay`): {error}", program.display())
            })?;
        let pid = child.id().ok_or("the relay has ended at once")?;
        Ok(Self { child, pid, folder })
    }

    /// Returns the peak of its resident memory so far, in MiB.
    pub(crate) fn memory_peak_mib(&self) -> Result<f64, Failure> {
        let status = self.read("status")?;
        let kib = status.lines().find_map(|line| {
            line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
        });
        Ok(kib.ok_or("the kernel does not tell the relay's memory")? / 1_024.0)
    }

    /// Returns the processor time that it has used so far.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        let stat = self.read("stat")?;
        // The name, in parentheses, may contain anything. User and system time are the 12th and
        // 13th field after it.
        let after = stat.rsplit_once(')').ok_or("an unknown form of /proc/<pid>/stat")?.1;
        let ticks: f64 = after
            .split_ascii_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum();
        Ok(Duration::from_secs_f64(ticks / TICKS_PER_SECOND))
    }

    fn read(&self, file: &str) -> Result<String, Failure> {
        let path = format!("/proc/{}/{file}", self.pid);
        std::fs::read_to_string(&path).map_err(|error| {
            let log = std::fs::read_to_string(self.folder.join("relay.log")).unwrap_or_default();
            format!("the relay is gone ({path}: {error}):\n{log}").into()
        })
    }

    /// Waits until its log contains this text.
    pub(crate) async fn tells(&self, text: &str, patience: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        let log = self.folder.join("relay.log");
        while !std::fs::read_to_string(&log)?.contains(text) {
            if begun.elapsed() > patience {
                return Err(
                    format!("the relay does not say {text:?}:\n{}", std::fs::read_to_string(&log)?).into()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Asks it to end (SIGTERM), and waits for its end.
    pub(crate) async fn terminate(&mut self) -> Result<(), Failure> {
        let sent = Command::new("kill").arg("-TERM").arg(self.pid.to_string()).status().await?;
        if !sent.success() {
            return Err(format!("kill: {sent}").into());
        }
        let ended = self.child.wait().await?;
        if ended.success() { Ok(()) } else { Err(format!("the relay ended with {ended}").into()) }
    }

    /// Kills it and removes its files.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        self.child.kill().await?;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}
