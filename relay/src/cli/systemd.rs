//! Notifies the service manager: a unit of `Type=notify`, with or without `WatchdogSec`. Does
//! nothing without a service manager.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        warn!("could not notify the service manager: {error}");
    }
}

/// Reports that the process is up: it has read its configuration and opened its databases once.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the process is shutting down in an orderly way.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports that the process reads its configuration again; [`ready`] ends that.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => warn!("could not notify the service manager: {error}"),
    }
}

/// Returns the watchdog's time limit in microseconds, like `sd_watchdog_enabled(3)`. It applies to
/// this process unless the variable names another one.
fn watchdog_limit(limit: Option<&str>, process: Option<&str>) -> Option<u64> {
    let is_ours = process.is_none_or(|id| id.parse() == Ok(std::process::id()));
    limit.filter(|_| is_ours)?.parse().ok().filter(|limit| *limit > 0)
}

/// Notifies the watchdog, if there is one, twice per time limit while tasks of this process make
/// progress. Ends when the handle is dropped.
pub(crate) fn watchdog() -> Option<AbortOnDropHandle<()>> {
    let variable = |name| std::env::var(name).ok();
    let limit = watchdog_limit(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref())?;
    let task: JoinHandle<()> = tokio::spawn(async move {
        let mut tick = interval(Duration::from_micros((limit / 2).max(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            notify(&[NotifyState::Watchdog]);
        }
    });
    Some(AbortOnDropHandle::new(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let own = std::process::id().to_string();
        assert_eq!(watchdog_limit(Some("30000000"), None), Some(30_000_000));
        assert_eq!(watchdog_limit(Some("30000000"), Some(&own)), Some(30_000_000));
        for (limit, process) in [(Some("1"), Some("0")), (None, None), (Some("0"), None), (Some("x"), None)] {
            assert_eq!(watchdog_limit(limit, process), None, "{limit:?} {process:?}");
        }
    }
}
