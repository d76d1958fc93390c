//! Starting and stopping, in the same way for every service.

use super::{
    Name, Secure, Stop,
    fault::Fault,
    home::Home,
    ports,
    process::{self, Identity, Signal},
    progress::{Progress, Task},
    settings,
    state::State,
};
use std::{
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// The time limit from the start of the process to its first answer. A cold RabbitMQ on a busy
/// machine takes about 20 s.
const READY_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(100);

/// The result of `up` for one service.
#[derive(Debug)]
pub(crate) enum Outcome {
    Started,
    AlreadyRunning,
    /// Run by another party and named by its variable; holds the address.
    External(String),
    Missing(Fault),
}

pub(crate) struct UpReport {
    pub(crate) name: Name,
    pub(crate) outcome: Outcome,
}

impl UpReport {
    /// Returns the address for clients, if there is something to connect to.
    pub(crate) fn address(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Started | Outcome::AlreadyRunning => {
                self.name.port().ok().map(|port| self.name.service().url(port))
            }
            Outcome::External(address) => Some(address.clone()),
            Outcome::Missing(_) => None,
        }
    }
}

/// Returns the address of a service that another party runs: a person has set its variable, and the
/// address is not ours. Such a service is used as is and never started or stopped.
///
/// A variable that repeats our own address may come from `eval "$(cargo xtask services env)"`, or
/// from a person who runs compose.yaml on the same ports. It is the latter if no process of ours is
/// alive, and yet something answers.
pub(crate) fn external(name: Name) -> Result<Option<String>, Fault> {
    let Some(address) = settings::given_address(name) else { return Ok(None) };
    let port = name.port()?;
    if address != name.service().url(port) {
        return Ok(Some(address));
    }
    let lives = Home::of(name)?.state()?.is_some_and(|state| state.process.is_alive());
    Ok((!lives && name.service().probe(port).is_ok()).then_some(address))
}

/// Returns the variables and addresses of the TLS listeners of a running service of ours.
pub(crate) fn secure_addresses(name: Name) -> Result<Vec<(&'static str, String)>, Fault> {
    let secure = name.service().secure()?.into_iter();
    let offered = secure.filter(|Secure { port, offered, .. }| offered(*port));
    Ok(offered.map(|Secure { variable, url, .. }| (variable, url)).collect())
}

/// Returns the version of a started instance of ours.
pub(crate) fn version(name: Name) -> Result<Option<String>, Fault> {
    Ok(Home::of(name)?.state()?.map(|state| state.version))
}

/// Starts every service that is not running, all in parallel, and waits until each one answers.
pub(crate) fn up(names: &[Name]) -> Vec<UpReport> {
    let progress = Progress::new();
    thread::scope(|scope| {
        let workers: Vec<_> = names
            .iter()
            .map(|&name| (name, progress.task(name)))
            .map(|(name, task)| (name, scope.spawn(move || bring_up(name, &task))))
            .collect();
        let joined = workers.into_iter().map(|(name, worker)| {
            let failed = |_| Outcome::Missing(Fault::Failed("xtask itself failed, see above".to_owned()));
            UpReport { name, outcome: worker.join().unwrap_or_else(failed) }
        });
        joined.collect()
    })
}

fn bring_up(name: Name, task: &Task) -> Outcome {
    let outcome = match external(name) {
        Ok(Some(address)) => Ok(Outcome::External(address)),
        Ok(None) => start(name, task),
        Err(fault) => Err(fault),
    };
    match outcome {
        Ok(outcome) => {
            task.finish(match &outcome {
                Outcome::External(_) => "external, left alone",
                Outcome::AlreadyRunning => "already running",
                _ => "ready",
            });
            outcome
        }
        Err(fault) => {
            task.finish(if matches!(fault, Fault::Unavailable(_)) { "not available" } else { "failed" });
            Outcome::Missing(fault)
        }
    }
}

/// Starts one service of ours and waits until it answers.
pub(crate) fn start(name: Name, task: &Task) -> Result<Outcome, Fault> {
    if !cfg!(target_os = "linux") {
        return Err(Fault::Unavailable(
            "needs Linux: use `docker compose up` and the variables in compose.yaml".to_owned(),
        ));
    }
    let home = Home::of(name)?;
    let _lock = home.lock()?;
    let port = name.port()?;
    if let Some(state) = home.state()? {
        if state.process.is_alive() {
            if state.port != port {
                return Err(Fault::Failed(format!(
                    "it runs on port {} (process {}), but {} asks for {port}: run `cargo xtask services stop {name}` first",
                    state.port,
                    state.process.pid,
                    name.service().client_port().variable
                )));
            }
            match wait_ready(&home, port, &state.process, None) {
                Ok(()) => return Ok(Outcome::AlreadyRunning),
                // It was just dying: start it again.
                Err(NotReady::Ended(_)) => {}
                Err(late) => return Err(late.into()),
            }
        }
        // Left by a crash or a reboot.
        home.forget()?;
    }
    name.service().after_stop(&home)?;
    ports::require_free(name)?;
    launch(&home, port, task)?;
    Ok(Outcome::Started)
}

fn launch(home: &Home, port: u16, task: &Task) -> Result<(), Fault> {
    let service = home.name.service();
    let installed = service.install(home, &|message| task.phase(message))?;
    task.phase("preparing");
    let command = service.prepare(home, &installed)?;
    task.phase(&format!("starting {}", installed.version));
    let data = service.data(home)?;
    if !data.starts_with(&home.dir) {
        task.note(&format!(
            "data is in {}: its server's user may not enter {}",
            data.display(),
            home.dir.display()
        ));
    }
    let log = home.open_log()?;
    let mut child = process::spawn(command, &log)?;
    let process = Identity::of(child.id())?;
    let state = State { service: home.name, version: installed.version, port, data, process };
    home.save(&state)?;
    let ready = wait_ready(home, port, &state.process, Some(&mut child));
    if ready.is_err() {
        halt(home, &state.process, Stop::Immediately)?;
    }
    ready.map_err(Fault::from)
}

/// The reason why no first answer came.
enum NotReady {
    Ended(String),
    TooLate(String),
}

impl From<NotReady> for Fault {
    fn from(why: NotReady) -> Self {
        let (NotReady::Ended(why) | NotReady::TooLate(why)) = why;
        Self::Failed(why)
    }
}

/// Waits for the first answer in the service's own protocol.
fn wait_ready(
    home: &Home,
    port: u16,
    process: &Identity,
    mut child: Option<&mut Child>,
) -> Result<(), NotReady> {
    let begun = Instant::now();
    loop {
        let answer = home.name.service().probe(port);
        let gone = match &mut child {
            Some(child) => child.try_wait().ok().flatten().map(|status| format!("it ended with {status}")),
            None => None,
        };
        let gone = gone.or_else(|| (!process.is_alive()).then(|| "it ended".to_owned()));
        // An answer counts only while the process is ours and alive.
        match (gone, answer) {
            (Some(gone), _) => {
                return Err(NotReady::Ended(format!("{gone} before it was ready\n{}", home.log_tail())));
            }
            (None, Ok(())) => return Ok(()),
            (None, Err(why)) if begun.elapsed() >= READY_LIMIT => {
                return Err(NotReady::TooLate(format!(
                    "not ready after {} s ({why}): try again, or start over with `cargo xtask services down --purge`\n{}",
                    READY_LIMIT.as_secs(),
                    home.log_tail()
                )));
            }
            (None, Err(_)) => thread::sleep(READY_POLL),
        }
    }
}

/// The outcome of stopping a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    Stopped,
    WasNotRunning,
}

/// Stops one service of ours; its data stays unless `purge`.
pub(crate) fn stop(name: Name, how: Stop, purge: bool) -> Result<Stopped, Fault> {
    let home = Home::of(name)?;
    let _lock = home.lock()?;
    let stopped = match home.state()? {
        Some(state) if state.process.is_alive() => {
            halt(&home, &state.process, how)?;
            Stopped::Stopped
        }
        Some(_) => {
            name.service().after_stop(&home)?;
            home.forget()?;
            Stopped::WasNotRunning
        }
        None => Stopped::WasNotRunning,
    };
    if purge {
        home.purge()?;
    }
    Ok(stopped)
}

/// Sends the service's signal, and KILL after the time limit.
fn halt(home: &Home, process: &Identity, how: Stop) -> Result<(), Fault> {
    let service = home.name.service();
    if process.is_alive() {
        process::send(process, service.signal(how))?;
        if !process.wait_gone(STOP_LIMIT) {
            process::send(process, Signal::Kill)?;
            if !process.wait_gone(STOP_LIMIT) {
                return Err(Fault::Failed(format!("process {} does not end, even when killed", process.pid)));
            }
        }
    }
    service.after_stop(home)?;
    home.forget()
}

/// Stops the services one after the other, in the reverse order of the list.
pub(crate) fn down(names: &[Name], purge: bool) -> Vec<(Name, Result<Stopped, Fault>)> {
    names.iter().rev().map(|&name| (name, stop(name, Stop::Gracefully, purge))).collect()
}
