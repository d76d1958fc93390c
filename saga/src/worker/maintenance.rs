//! Forgets sagas that ended long ago, wakes sagas that a wrong clock has postponed, and reports
//! overdue ones.

use std::time::Duration;

use message::jittered;

use crate::dialect::Dialect;
use crate::operator::{OVERDUE_COUNTED_MAX, Overdue};
use crate::sagas::Sagas;
use crate::telemetry;

/// Mean time between two passes; jitter varies it by up to 25 %.
const EVERY: Duration = Duration::from_secs(60);
/// How long a saga may be overdue before it is reported.
const OVERDUE: Duration = Duration::from_secs(60);

/// Maintains the tables forever. Jitter separates the passes of processes that were started
/// together.
pub(super) async fn keep_running<DB: Dialect>(sagas: Sagas<DB>) {
    loop {
        tokio::time::sleep(jittered(EVERY, rand::random())).await;
        if let Err(error) = sagas.forget().await {
            tracing::warn!(%error, "could not delete ended sagas; the next pass tries again");
        }
        if let Err(error) = sagas.forget_decisions().await {
            tracing::debug!(%error, "could not delete old decisions about sagas");
        }
        if let Err(error) = sagas.wake_stranded().await {
            tracing::warn!(%error, "could not check sagas that are due far in the future; the next pass \
                                    tries again");
        }
        match sagas.overdue(OVERDUE).await {
            Ok(overdue) => report(&overdue),
            Err(error) => tracing::warn!(%error, "could not count overdue sagas; trying again"),
        }
    }
}

fn report(overdue: &[Overdue]) {
    let longest = overdue.iter().map(|overdue| overdue.longest).max().unwrap_or_default();
    telemetry::overdue(longest);
    for Overdue { saga_type, version, sagas, longest } in overdue {
        let at_least = if *sagas < OVERDUE_COUNTED_MAX { "" } else { "at least this many " };
        tracing::warn!(
            saga_type,
            version,
            sagas,
            ?longest,
            "{at_least}sagas wait for a worker that has their version, or for more workers"
        );
    }
}
