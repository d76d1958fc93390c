//! Processes that outlive xtask: started in their own group, recognised by pid and start time.

use super::fault::{Doing, Fault};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The identity of a process. A pid alone is not enough: pids are reused, and start anew after a
/// reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// Clock ticks between boot and the start of the process (`/proc/<pid>/stat`, field 22).
    pub(crate) started_ticks: u64,
    pub(crate) boot_id: String,
}

impl Identity {
    pub(crate) fn of(pid: u32) -> Result<Self, Fault> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
            .doing(format_args!("cannot inspect process {pid}"))?;
        let started_ticks = parse_stat(&stat)
            .map(|stat| stat.started_ticks)
            .ok_or_else(|| Fault::Failed(format!("cannot understand /proc/{pid}/stat: {stat}")))?;
        Ok(Self { pid, started_ticks, boot_id: boot_id() })
    }

    /// Whether the process is alive. A zombie is dead: its parent just has not reaped it yet. A
    /// zombie with other threads is alive: those still hold its ports and files.
    pub(crate) fn is_alive(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .ok()
            .and_then(|stat| parse_stat(&stat))
            .is_some_and(|stat| {
                let dead = matches!(stat.state, 'Z' | 'X') && stat.threads <= 1;
                !dead && stat.started_ticks == self.started_ticks && boot_id() == self.boot_id
            })
    }

    /// Returns true once the process is gone, false if it is still there after the limit.
    pub(crate) fn wait_gone(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    threads: u64,
    started_ticks: u64,
}

/// Reads fields 3, 20 and 22. The command name before them may hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        threads: fields.get(17)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Term,
    Int,
    Quit,
    Kill,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
        }
    }
}

/// Sends a signal to the process; `Kill` goes to its whole group, which we made.
pub(crate) fn send(process: &Identity, signal: Signal) -> Result<(), Fault> {
    let target = if signal == Signal::Kill { format!("-{}", process.pid) } else { process.pid.to_string() };
    // The shell's builtin: there is no safe call in std, and `kill` as a program is not everywhere.
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$0\" -- \"$1\"", signal.name(), &target])
        .stderr(Stdio::null())
        .status()
        .doing("cannot run sh")?;
    if status.success() || !process.is_alive() {
        return Ok(());
    }
    Err(Fault::Failed(format!(
        "may not send {} to process {}: stop it as its owner",
        signal.name(),
        process.pid
    )))
}

/// Starts a server in its own process group, with its output in the log. Its environment is
/// minimal, except for the command's own variables.
pub(crate) fn spawn(mut command: Command, log: &File) -> Result<Child, Fault> {
    let program = command.get_program().to_string_lossy().into_owned();
    let own: Vec<_> =
        command.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect();
    let errors = log.try_clone().doing("cannot share the log")?;
    let output = log.try_clone().doing("cannot share the log")?;
    command
        .env_clear()
        .env("PATH", search_path())
        .env("LANG", "C.UTF-8")
        .envs(own)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .doing(format_args!("cannot start {program}"))
}

/// Runs a tool of a service to its end; on failure its output is the error.
pub(crate) fn run(command: &mut Command, what: &str) -> Result<String, Fault> {
    let output = command.stdin(Stdio::null()).output().doing(format_args!("cannot run {what}"))?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(text);
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = lines[lines.len().saturating_sub(12)..].join("\n  ");
    Err(Fault::Failed(format!("{what} failed ({}):\n  {shown}", output.status)))
}

/// Returns `PATH` with the folders of administrators' tools, which a plain user's `PATH` often
/// lacks.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
}

/// Returns the first file with this name on the search path.
pub(crate) fn which(program: &str) -> Option<std::path::PathBuf> {
    std::env::split_paths(&search_path()).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns the pids of the processes whose working folder is this one.
pub(crate) fn working_in(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder))
        .collect()
}

/// Whether the effective user of this process is root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_command_name() {
        let rest = "S 1 7 7 0 -1 4194560 1 0 0 0 3 1 0 0 20 0 5 0 123456 1000 10";
        let expected = || Some(Stat { state: 'S', threads: 5, started_ticks: 123_456 });
        assert_eq!(parse_stat(&format!("7 (postgres) {rest}")), expected());
        assert_eq!(parse_stat(&format!("7 (a) b (c) {rest}")), expected());
        assert_eq!(parse_stat("7 (short) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let own = Identity::of(std::process::id()).expect("own identity");
        assert!(own.is_alive());
        assert!(!Identity { started_ticks: own.started_ticks + 1, ..own.clone() }.is_alive());
        assert!(!Identity { boot_id: "another boot".to_owned(), ..own }.is_alive());
    }

    #[test]
    fn a_killed_process_is_gone_even_before_it_is_reaped() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().expect("sleep");
        let identity = Identity::of(child.id()).expect("identity");
        assert!(identity.is_alive());
        send(&identity, Signal::Kill).expect("kill");
        assert!(identity.wait_gone(Duration::from_secs(10)));
        child.wait().expect("reap");
    }
}
