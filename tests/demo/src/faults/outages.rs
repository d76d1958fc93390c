//! Takes the broker away for a moment.

use std::time::Duration;

use crate::error::DemoError;
use crate::progress::Progress;
use crate::target::Outage;

/// How long the broker is away.
const AWAY: Duration = Duration::from_millis(800);

/// Takes the broker away at the points of the plan, and brings it back; returns after the last
/// time.
///
/// # Errors
/// [`DemoError::Unavailable`] when the broker inside this process does not do what it is told.
pub(crate) async fn run_outages(
    outage: &Outage,
    points: &[u64],
    progress: &Progress,
) -> Result<(), DemoError> {
    if let Outage::Impossible(_) = outage {
        return Ok(());
    }
    for (place, point) in points.iter().enumerate() {
        progress.until(|counts| counts.published >= *point).await;
        progress.say(&format!("broker gone ({} of {})", place + 1, points.len()));
        switch(outage, false)?;
        tokio::time::sleep(AWAY).await;
        switch(outage, true)?;
        progress.say("broker back");
        progress.update(|counts| counts.outages += 1);
    }
    Ok(())
}

fn switch(outage: &Outage, up: bool) -> Result<(), DemoError> {
    match outage {
        Outage::Mock(mock) => {
            let switched = if up { mock.up() } else { mock.down() };
            switched.map_err(DemoError::during("switch the broker inside this process"))
        }
        Outage::Proxy(proxy) => {
            if up {
                proxy.heal();
            } else {
                proxy.down();
            }
            Ok(())
        }
        Outage::Impossible(_) => Ok(()),
    }
}
