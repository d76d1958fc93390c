//! Commands that may never end.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Waits for a child. If it takes longer than `patience`, ends it with all that it started, and
/// returns `None` as status.
///
/// Services that it started continue: they are in process groups of their own.
pub(crate) fn wait(child: Child, patience: Duration) -> Result<Option<ExitStatus>, String> {
    wait_until(child, patience, &AtomicBool::new(false))
}

/// Waits as [`wait`] does, but ends the child as well once this is enough.
fn wait_until(
    mut child: Child,
    patience: Duration,
    is_enough: &AtomicBool,
) -> Result<Option<ExitStatus>, String> {
    let begun = Instant::now();
    let failed = |error: std::io::Error| format!("cannot wait for a command: {error}");
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Some(status));
        }
        let is_enough = is_enough.load(Ordering::Relaxed);
        if is_enough || begun.elapsed() > patience {
            end_with_descendants(child.id());
            let status = child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(is_enough.then_some(status));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Runs a command and returns its output, or `None` if it took longer than `patience` and was
/// ended. Ends it as soon as it prints a line that is enough: then the output has this line, and
/// the status is not that of a success.
pub(crate) fn output(
    mut command: Command,
    patience: Duration,
    is_enough: fn(&str) -> bool,
) -> Result<Option<Output>, String> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let has_said_enough = Arc::new(AtomicBool::new(false));
    // Read while it runs: a full pipe would stop it.
    let stdout = child.stdout.take().map(|stream| reading(stream, is_enough, &has_said_enough));
    let stderr = child.stderr.take().map(|stream| reading(stream, |_| false, &has_said_enough));
    let status = wait_until(child, patience, &has_said_enough)?;
    let [stdout, stderr] =
        [stdout, stderr].map(|reader| reader.and_then(|reader| reader.join().ok()).unwrap_or_default());
    Ok(status.map(|status| Output { status, stdout, stderr }))
}

fn reading(
    stream: impl Read + Send + 'static,
    is_enough: fn(&str) -> bool,
    has_said_enough: &Arc<AtomicBool>,
) -> thread::JoinHandle<Vec<u8>> {
    let has_said_enough = Arc::clone(has_said_enough);
    thread::spawn(move || {
        let (mut stream, mut bytes) = (BufReader::new(stream), Vec::new());
        loop {
            let begin = bytes.len();
            // An error ends the output early; the status says whether the command succeeded.
            if !stream.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
                return bytes;
            }
            if is_enough(&String::from_utf8_lossy(&bytes[begin..])) {
                has_said_enough.store(true, Ordering::Relaxed);
            }
        }
    })
}

/// A process, its parent and its process group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    id: u32,
    parent: u32,
    group: u32,
}

/// Ends a process and its descendants that are in its process group. They are stopped first: a
/// running one could start another between the look and the kill.
fn end_with_descendants(ancestor: u32) {
    let mut stopped = vec![ancestor];
    signal("-STOP", &stopped);
    loop {
        let found = descendants(ancestor, &processes());
        let new: Vec<u32> = found.into_iter().filter(|id| !stopped.contains(id)).collect();
        if new.is_empty() {
            break;
        }
        signal("-STOP", &new);
        stopped.extend(new);
    }
    signal("-KILL", &stopped);
}

fn signal(name: &str, ids: &[u32]) {
    // Some of them may have ended by themselves.
    drop(Command::new("kill").arg(name).args(ids.iter().map(u32::to_string)).stderr(Stdio::null()).status());
}

fn descendants(ancestor: u32, all: &[Process]) -> Vec<u32> {
    let Some(first) = all.iter().find(|process| process.id == ancestor) else { return Vec::new() };
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = all.iter().filter(|process| process.parent == parent && process.group == first.group);
        found.extend(children.map(|process| process.id));
        next += 1;
    }
    found.split_off(1)
}

/// Returns all processes, on Linux. Elsewhere there is no such list.
fn processes() -> Vec<Process> {
    let entries =
        fs::read_dir("/proc").map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    let stat = |entry: fs::DirEntry| process(&fs::read_to_string(entry.path().join("stat")).ok()?);
    entries.into_iter().filter_map(stat).collect()
}

/// Reads `id (name) state parent group …`; the name may contain blanks and parentheses.
fn process(stat: &str) -> Option<Process> {
    let (id, rest) = stat.split_once(" (")?;
    let mut fields = rest.rsplit_once(')')?.1.split_whitespace().skip(1);
    let mut number = || fields.next()?.parse().ok();
    Some(Process { id: id.parse().ok()?, parent: number()?, group: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_takes_too_long_is_ended() {
        let sleeping = Command::new("sleep").arg("60").spawn().expect("sleep");
        assert_eq!(wait(sleeping, Duration::ZERO).expect("waited"), None);
        let quick = Command::new("false").spawn().expect("false");
        assert_eq!(
            wait(quick, Duration::from_secs(60)).expect("waited").and_then(|status| status.code()),
            Some(1)
        );
    }

    #[test]
    fn what_a_child_started_ends_with_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        stdout.read_line(&mut line).expect("a line");
        assert_eq!(wait(child, Duration::ZERO).expect("waited"), None);
        // The pipe's end: no process holds its other side any more.
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("the end");
        assert!(line.trim().parse::<u32>().is_ok() && rest.is_empty(), "{line:?} {rest:?}");
    }

    #[test]
    fn the_output_of_a_command_is_read_while_it_runs() {
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        // More than a pipe holds.
        let script = "head -c 200000 /dev/zero; echo no >&2; exit 3";
        let output = output(sh(script), Duration::from_secs(60), |_| false);
        let output = output.expect("run").expect("in time");
        assert_eq!(
            (output.status.code(), output.stdout.len(), &output.stderr[..]),
            (Some(3), 200_000, &b"no\n"[..])
        );
        assert!(super::output(sh("sleep 600"), Duration::ZERO, |_| false).expect("run").is_none());
    }

    #[test]
    fn a_command_that_has_said_enough_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; echo enough; sleep 600; echo never"]);
        let output = output(command, Duration::from_secs(60), |line| line == "enough\n");
        let output = output.expect("run").expect("in time");
        assert_eq!(output.stdout, b"begun\nenough\n");
        assert!(!output.status.success());
    }

    #[test]
    fn only_descendants_in_the_same_group_are_ended() {
        let of = |id, parent, group| Process { id, parent, group };
        let all = [of(1, 0, 1), of(5, 1, 5), of(6, 5, 5), of(7, 6, 5), of(8, 6, 8), of(9, 1, 5)];
        assert_eq!(descendants(5, &all), [6, 7]);
        assert!(descendants(4, &all).is_empty());
        assert_eq!(process("7 (a (b) c) S 6 5 5 0"), Some(of(7, 6, 5)));
        assert_eq!(process("7"), None);
    }
}
