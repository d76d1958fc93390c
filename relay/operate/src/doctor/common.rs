//! Checks that several databases and brokers have in common. Pure.

use std::time::Duration;

use super::facts::Skew;
use super::report::{CheckState, Finding};
use super::text::age;

pub(super) const DATABASE: &str = "database";

const POOLER: &str = "pooler";
const POOLER_REMEDY: &str = "a pooler shares server sessions between clients: point database.url at the \
                             server or at a pooler in session mode; with PgBouncer in transaction mode, use \
                             1.21 or newer and max_prepared_statements above 0";

/// Leases use the database's clock, ids the producers': a difference of a second does no harm.
const SKEW_WARN: Duration = Duration::from_secs(1);
/// The default limit beyond which inboxes refuse ids from the future.
const SKEW_FAIL: Duration = Duration::from_secs(300);

/// Checks whether a pooler shares sessions of the server.
#[cfg(feature = "postgres")]
pub(super) fn pooler(shared_session: bool) -> Finding {
    let (measured, problem) = if shared_session {
        ("two connections share one server session", Some((CheckState::Warn, String::from(POOLER_REMEDY))))
    } else {
        ("each connection has its own session", None)
    };
    Finding::unless(POOLER, DATABASE, measured, problem)
}

/// Returns the finding for a pooler that prevents every query.
pub(super) fn handed_on(reason: String) -> Finding {
    Finding::fail(POOLER, DATABASE, reason, POOLER_REMEDY)
}

/// Checks whether the relay opens the database.
pub(super) fn accepted(refused: Option<&str>) -> Finding {
    let measured = if refused.is_none() { "the relay accepts it" } else { "the relay refuses it" };
    Finding::unless("opens", DATABASE, measured, refused.map(|why| (CheckState::Fail, why.to_owned())))
}

/// Checks a server's clock against this machine's.
pub(super) fn clock(subject: &str, skew: Skew) -> Finding {
    let measured = format!("differs by {} ± {}", age(skew.by), age(skew.uncertainty));
    let surely = skew.by.saturating_sub(skew.uncertainty);
    let state = match surely {
        surely if surely > SKEW_FAIL => CheckState::Fail,
        surely if surely > SKEW_WARN => CheckState::Warn,
        _ => return Finding::pass("clock", subject, measured),
    };
    let remedy = "run NTP (chrony) on both machines: an id contains the time of the machine that generated \
                  it, and an inbox refuses ids more than 5 minutes ahead of its database";
    Finding::unless("clock", subject, measured, Some((state, remedy.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_may_be_right_passes() {
        let skew = Skew { by: Duration::from_secs(2), uncertainty: Duration::from_millis(1_500) };
        assert_eq!(clock(DATABASE, skew).state, CheckState::Pass);
    }
}
