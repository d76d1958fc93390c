//! What the service manager is told: a unit of `Type=notify`, with or without `WatchdogSec`. Nothing
//! happens where no manager listens.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        warn!("the service manager could not be told: {error}");
    }
}

/// The process is up: it has read its configuration and looked at its databases.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The process stops, in order.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// The process reads its configuration again; [`ready`] ends that.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => warn!("the service manager could not be told: {error}"),
    }
}

/// Tells the watchdog, where there is one, that tasks of this process still have their turns; twice
/// in its time. Ends when the handle is dropped.
pub(crate) fn watchdog() -> Option<AbortOnDropHandle<()>> {
    let mut limit = 0;
    if !sd_notify::watchdog_enabled(false, &mut limit) || limit == 0 {
        return None;
    }
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
