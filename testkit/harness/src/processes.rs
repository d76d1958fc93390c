//! Processes: kept running, killed, restarted with other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Failure;

pub use rustix::process::Signal;

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs business transactions.
    Producer,
    /// The `relay` program.
    Relay,
    /// Receives and applies messages.
    Consumer,
    /// Runs sagas.
    Worker,
}

impl Role {
    /// Returns the name of the role in the singular.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Relay => "relay",
            Self::Consumer => "consumer",
            Self::Worker => "worker",
        }
    }
}

/// The command of a process.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// Variables in addition to those of this process.
    pub environment: BTreeMap<String, String>,
    /// The file to which the output of the process is appended.
    pub log: PathBuf,
}

/// Pause before a process that has ended is restarted.
const RESTART: Duration = Duration::from_millis(300);

struct Slot {
    role: Role,
    recipe: Recipe,
    /// Variables for the next start only.
    next: BTreeMap<String, String>,
    pid: Option<Pid>,
    starts: u64,
}

type Slots = Arc<Mutex<BTreeMap<String, Slot>>>;

/// The processes. Each is kept running until its role is [stopped](Self::stop). It is restarted
/// however it ends.
#[derive(Default)]
pub struct Processes {
    slots: Slots,
    /// The roles that were stopped.
    over: watch::Sender<BTreeSet<Role>>,
    keepers: tokio::sync::Mutex<BTreeMap<Role, JoinSet<()>>>,
}

impl Processes {
    /// Starts a process under a unique name, and keeps it running.
    pub async fn keep(&self, name: &str, role: Role, recipe: Recipe) {
        let slot = Slot { role, recipe, next: BTreeMap::new(), pid: None, starts: 0 };
        lock(&self.slots).insert(name.to_owned(), slot);
        let (name, slots, over) = (name.to_owned(), Arc::clone(&self.slots), self.over.subscribe());
        self.keepers.lock().await.entry(role).or_default().spawn(keep(name, role, slots, over));
    }

    /// Returns all names, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        lock(&self.slots).keys().cloned().collect()
    }

    /// Returns the names of one role, in order.
    #[must_use]
    pub fn of(&self, role: Role) -> Vec<String> {
        lock(&self.slots).iter().filter(|(_, slot)| slot.role == role).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the process id, or `None` between two starts of the process.
    #[must_use]
    pub fn pid(&self, name: &str) -> Option<Pid> {
        lock(&self.slots).get(name)?.pid
    }

    /// Returns how often the process has been started.
    #[must_use]
    pub fn starts(&self, name: &str) -> u64 {
        lock(&self.slots).get(name).map_or(0, |slot| slot.starts)
    }

    /// Sends a signal. Between two starts of the process no signal is sent, which is not an error.
    ///
    /// # Errors
    /// There is no process of this name.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<(), Failure> {
        // The keeper clears the process id right after the process was reaped, which is too soon
        // for the number to be reused.
        let slots = lock(&self.slots);
        let slot = slots.get(name).ok_or_else(|| format!("there is no process {name:?}"))?;
        match slot.pid.map(|pid| kill_process(pid, signal)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Sets an additional variable for only the next start. For example, it arms crash points:
    /// [`message::crash_points::VARIABLE`].
    ///
    /// # Errors
    /// There is no process of this name.
    pub fn set_for_next_start(&self, name: &str, variable: &str, value: &str) -> Result<(), Failure> {
        let mut slots = lock(&self.slots);
        let slot = slots.get_mut(name).ok_or_else(|| format!("there is no process {name:?}"))?;
        slot.next.insert(variable.to_owned(), value.to_owned());
        Ok(())
    }

    /// Requests an orderly end of all processes of a role (SIGTERM), kills them after `limit`, and
    /// restarts none. Returns whether all of them ended on their own.
    pub async fn stop(&self, role: Role, limit: Duration) -> bool {
        self.over.send_modify(|over| {
            over.insert(role);
        });
        for name in self.of(role) {
            // A suspended process must run to receive the other signal.
            for signal in [Signal::TERM, Signal::CONT] {
                let _ = self.signal(&name, signal);
            }
        }
        let Some(mut keepers) = self.keepers.lock().await.remove(&role) else { return true };
        let ended = async { while keepers.join_next().await.is_some() {} };
        let in_order = tokio::time::timeout(limit, ended).await.is_ok();
        if !in_order {
            for name in self.of(role) {
                if let Some(pid) = self.pid(&name).filter(|_| !limit.is_zero()) {
                    eprintln!("{name} did not end within {limit:?}: {}", threads(pid));
                }
                let _ = self.signal(&name, Signal::KILL);
            }
            while keepers.join_next().await.is_some() {}
        }
        in_order
    }
}

fn lock(slots: &Slots) -> MutexGuard<'_, BTreeMap<String, Slot>> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn keep(name: String, role: Role, slots: Slots, mut over: watch::Receiver<BTreeSet<Role>>) {
    loop {
        match start(&name, &slots, || over.borrow_and_update().contains(&role)) {
            Ok(None) => return,
            Ok(Some(mut child)) => {
                let _ = child.wait().await;
                if let Some(slot) = lock(&slots).get_mut(&name) {
                    slot.pid = None;
                }
            }
            Err(error) => eprintln!("{name} cannot be started: {error}"),
        }
        tokio::select! {
            () = tokio::time::sleep(RESTART) => {}
            _ = over.changed() => {}
        }
    }
}

/// Returns a command whose process the kernel kills when this process ends in any way, so that no
/// process is left behind.
#[cfg(target_os = "linux")]
fn unless_orphaned(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", UNLESS_ORPHANED]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Returns a plain command. Other kernels lack this feature, so a child ends with its parent only
/// if the parent ends in an orderly way.
#[cfg(not(target_os = "linux"))]
fn unless_orphaned(program: &Path) -> Command {
    Command::new(program)
}

/// A script that becomes the program in its arguments if the process `$0` is still the parent.
/// Without it, the end of a parent before the kernel began to watch it would never be noticed.
#[cfg(target_os = "linux")]
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// Starts a process, unless it is `over`. The check happens while the slots are locked. To stop a
/// role, the role is marked first and signalled afterwards. So a process is either not started, or
/// gets the signal.
fn start(
    name: &str,
    slots: &Slots,
    over: impl FnOnce() -> bool,
) -> Result<Option<tokio::process::Child>, Failure> {
    let mut slots = lock(slots);
    if over() {
        return Ok(None);
    }
    let slot = slots.get_mut(name).ok_or("it was abandoned")?;
    let log = std::fs::File::options().create(true).append(true).open(&slot.recipe.log)?;
    let child = unless_orphaned(&slot.recipe.program)
        .args(&slot.recipe.arguments)
        .envs(&slot.recipe.environment)
        .envs(std::mem::take(&mut slot.next))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    slot.pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    slot.starts += 1;
    Ok(Some(child))
}

/// Describes every thread of a process, for the report of a process that does not end.
fn threads(pid: Pid) -> String {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let threads = std::fs::read_dir(&tasks).into_iter().flatten().flatten().map(|task| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        format!("{} in {} ({})", read("comm").trim(), read("wchan"), read("syscall").trim())
    });
    threads.collect::<Vec<_>>().join("; ")
}
