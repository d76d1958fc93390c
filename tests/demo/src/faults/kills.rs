//! Kills the relay that leads, without warning.

use harness::processes::{Processes, Role, Signal};

use crate::error::DemoError;
use crate::progress::Progress;

/// Kills the leader when so many messages have been confirmed, and waits each time until another
/// one leads; returns after the last time.
///
/// # Errors
/// [`DemoError::Unavailable`] when a process cannot be killed.
pub(crate) async fn kill_relays(
    processes: &Processes,
    points: &[u64],
    progress: &Progress,
) -> Result<(), DemoError> {
    for (place, point) in points.iter().enumerate() {
        let leads = |pid: i32| {
            let is = |name: &String| processes.pid(name).is_some_and(|own| own.as_raw_nonzero().get() == pid);
            processes.of(Role::Relay).into_iter().find(is)
        };
        // A relay that does not lead yet has nothing to lose, and one that was killed leads no
        // more.
        progress.until(|counts| counts.published >= *point && counts.leader.and_then(leads).is_some()).await;
        let before = progress.counts();
        let Some(name) = before.leader.and_then(leads) else { continue };
        progress.say(&format!("relay killed ({} of {}): another one stands by", place + 1, points.len()));
        processes.signal(&name, Signal::KILL).map_err(DemoError::during("kill a relay"))?;
        progress.update(|counts| counts.relay_kills += 1);
        progress.until(|counts| counts.epoch > before.epoch).await;
        progress.update(|counts| counts.relay_restarts += 1);
    }
    Ok(())
}
