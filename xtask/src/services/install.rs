//! Debian packages, installed only where nothing has to be asked.

use super::{
    fault::{Doing, Fault},
    home::lock_file,
    process::{is_root, run, which},
    settings,
};
use std::{
    fs::{self, File},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Held while anything is installed or downloaded: neither apt nor Maven's repository supports two
/// at once.
pub(crate) struct Turn {
    _threads: MutexGuard<'static, ()>,
    _processes: File,
}

/// Waits for this process's turn to install.
pub(crate) fn turn() -> Result<Turn, Fault> {
    static THREADS: Mutex<()> = Mutex::new(());
    let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = settings::downloads_dir()?;
    fs::create_dir_all(&folder).doing(format_args!("cannot create {}", folder.display()))?;
    let processes = lock_file(&folder.join("install.lock"))?;
    Ok(Turn { _threads: threads, _processes: processes })
}

/// Looks with `find`. If that finds nothing, installs these Debian packages and looks again.
pub(crate) fn found<T>(
    names: &[&str],
    find: impl Fn() -> Option<T>,
    phase: &dyn Fn(&str),
) -> Result<T, Fault> {
    if let Some(found) = find() {
        return Ok(found);
    }
    phase("waiting for its turn to install");
    let turn = turn()?;
    packages(&turn, names, phase)?;
    find().ok_or_else(|| {
        Fault::Unavailable(format!("installed, but what they hold is not found: {}", names.join(", ")))
    })
}

/// Installs Debian packages, as root or through a `sudo` that asks nothing. Otherwise the error
/// says what to run.
pub(crate) fn packages(_turn: &Turn, names: &[&str], phase: &dyn Fn(&str)) -> Result<(), Fault> {
    let list = names.join(" ");
    if which("apt-get").is_none() {
        return Err(Fault::Unavailable(format!(
            "not installed, and this system has no apt-get: install {list} yourself"
        )));
    }
    let by_hand = format!("sudo apt-get install -y --no-install-recommends {list}");
    let Some(prefix) = privilege() else {
        return Err(Fault::Unavailable(format!(
            "not installed, and we are not root: run `{by_hand}`, then try again"
        )));
    };
    phase(&format!("installing {list}"));
    // Package lists may be missing (fresh image) or stale: refresh them only when the first try
    // fails.
    let first = apt(prefix, &[&["install", "-y", "--no-install-recommends"], names].concat());
    if first.is_ok() {
        return Ok(());
    }
    phase(&format!("refreshing package lists for {list}"));
    apt(prefix, &["update"])
        .and_then(|()| apt(prefix, &[&["install", "-y", "--no-install-recommends"], names].concat()))
        .map_err(|error| Fault::Unavailable(format!("{error}\n  by hand: {by_hand}")))
}

fn privilege() -> Option<&'static [&'static str]> {
    if is_root() {
        return Some(&[]);
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    sudo.is_ok_and(|status| status.success()).then_some(&["sudo", "-n"])
}

fn apt(prefix: &[&str], arguments: &[&str]) -> Result<(), Fault> {
    const OPTIONS: [&str; 7] = [
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-q",
        "-o",
        "DPkg::Lock::Timeout=300",
        "-oAcquire::Retries=3",
    ];
    let words = [prefix, &OPTIONS, arguments].concat();
    let (program, rest) = words.split_first().ok_or_else(|| Fault::Failed("no command".to_owned()))?;
    run(Command::new(program).args(rest), &format!("apt-get {}", arguments.join(" "))).map(drop)
}
