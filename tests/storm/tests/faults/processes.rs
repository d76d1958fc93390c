//! Processes that end, are suspended, or lose track of time.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use harness::faults::{Kill, Pause};
use libtest_mimic::Trial;
use storm::faults::clock::ClockJump;
use storm::stage::{Recipe, Role, Stage};
use tests::{Failure, Outcome, trial};
use tokio::process::Command;

use crate::scene::{empty, heal, inject, until};

pub(crate) fn trials() -> Vec<Trial> {
    let clock = ClockJump::from_environment();
    let mut trials = vec![
        trial("processes/a_killed_one_is_started_again", &[], a_killed_one_is_started_again),
        trial("processes/a_paused_one_stands_still", &[], a_paused_one_stands_still),
        trial("processes/nobody_outlives_the_storm", &[], nobody_outlives_the_storm),
    ];
    let required = tests::backends::all_are_required();
    trials.push(match clock {
        Err(why) if !required => {
            Trial::test(format!("processes/a_clock_jumps [{why}]"), || Ok(())).with_ignored_flag(true)
        }
        clock => {
            trial("processes/a_clock_jumps_and_time_goes_on", &[], move |test| a_clock_jumps(test, clock))
        }
    });
    trials
}

/// Starts a process that writes the wall clock and the monotonic clock several times a second.
async fn watch(stage: &Stage) -> PathBuf {
    let seen = stage.folder.join("seen");
    let script = "use Time::HiRes qw(clock_gettime CLOCK_REALTIME CLOCK_MONOTONIC sleep); $| = 1; \
                  while (1) { printf qq{%.3f %.3f\\n}, clock_gettime(CLOCK_REALTIME), clock_gettime(CLOCK_MONOTONIC); \
                  sleep 0.05 }";
    let recipe = Recipe {
        program: "perl".into(),
        arguments: vec!["-e".to_owned(), script.to_owned()],
        environment: Default::default(),
        log: seen.clone(),
    };
    stage.processes.keep("watch", Role::Relay, recipe).await;
    seen
}

/// Returns the last whole line: wall clock and monotonic clock, in seconds.
fn last(seen: &Path) -> Result<Option<(f64, f64)>, Failure> {
    let text = std::fs::read_to_string(seen).unwrap_or_default();
    let Some((lines, _)) = text.rsplit_once('\n') else { return Ok(None) };
    let Some((wall, monotonic)) = lines.lines().last().and_then(|line| line.split_once(' ')) else {
        return Ok(None);
    };
    Ok(Some((wall.parse()?, monotonic.parse()?)))
}

async fn running(stage: &Stage) -> Result<rustix::process::Pid, Failure> {
    until("it runs", async || Ok(stage.processes.pid("watch"))).await
}

async fn a_killed_one_is_started_again(test: tests::Stage) -> Outcome {
    let stage = empty(&test);
    watch(&stage).await;
    let first = running(&stage).await?;
    inject(&mut Kill, &stage, 1).await?;
    until("another one runs", async || Ok(stage.processes.pid("watch").filter(|pid| *pid != first))).await?;
    heal(&mut Kill, &stage).await
}

/// Returns the state that the kernel reports: `T` for stopped.
fn state(pid: rustix::process::Pid) -> Result<char, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    let (_, rest) = stat.rsplit_once(") ").ok_or("no state")?;
    Ok(rest.chars().next().ok_or("no state")?)
}

async fn a_paused_one_stands_still(test: tests::Stage) -> Outcome {
    let stage = empty(&test);
    watch(&stage).await;
    let pid = running(&stage).await?;
    let mut fault = Pause::default();
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    until("it stands still", async || Ok((state(pid)? == 'T').then_some(()))).await?;
    heal(&mut fault, &stage).await?;
    until("it goes on", async || Ok((state(pid)? != 'T').then_some(()))).await?;
    assert_eq!(stage.processes.pid("watch"), Some(pid));
    Ok(())
}

async fn a_clock_jumps(test: tests::Stage, clock: Result<ClockJump, String>) -> Outcome {
    let mut fault = clock?;
    let stage = empty(&test);
    let seen = watch(&stage).await;
    running(&stage).await?;
    heal(&mut fault, &stage).await?;
    let injected = inject(&mut fault, &stage, 1).await?;
    let jump: f64 = injected.detail.trim_end_matches(" s").parse()?;
    let off = || -> Result<Option<(f64, f64)>, Failure> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
        // The time since boot equals the monotonic clock of a process whose clock is not faked.
        let boot: f64 =
            std::fs::read_to_string("/proc/uptime")?.split(' ').next().ok_or("no time")?.parse()?;
        Ok(last(&seen)?.map(|(wall, monotonic)| (wall - now, monotonic - boot)))
    };
    until("the wall clock has jumped", async || Ok(off()?.filter(|(wall, _)| (wall - jump).abs() < 2.0)))
        .await?;
    let (_, monotonic) = off()?.ok_or("nothing seen")?;
    assert!(monotonic.abs() < 2.0, "the monotonic clock is off by {monotonic} s");
    heal(&mut fault, &stage).await?;
    until("it is right again", async || Ok(off()?.filter(|(wall, _)| wall.abs() < 2.0))).await?;
    Ok(())
}

/// A killed storm cannot stop its processes, so the kernel does.
async fn nobody_outlives_the_storm(test: tests::Stage) -> Outcome {
    let folder = test.folder().display().to_string();
    let mut storm = Command::new(env!("CARGO_BIN_EXE_storm"))
        .args(["run", "--minutes", "5", "--database", "sqlite", "--broker", "mock-kafka", "--fault", "pause"])
        .args(["--folder", &folder])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let own = storm.id().unwrap_or_default();
    let others = || mentioning(&folder).into_iter().filter(|pid| *pid != own).count();
    until("three producers and four consumers run", async || Ok((others() >= 7).then_some(()))).await?;
    storm.kill().await?;
    until("nobody is left", async || Ok((others() == 0).then_some(()))).await
}

/// Returns the processes whose arguments contain this text.
fn mentioning(what: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mentions = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(what)
    };
    pids.filter(mentions).collect()
}
