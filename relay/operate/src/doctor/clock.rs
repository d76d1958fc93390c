//! The check of a server's clock. Pure.

use std::time::Duration;

use super::report::{CheckState, Finding};
use super::text::age;

/// Leases use the database's clock, ids the producers': a difference of a second does no harm.
const SKEW_WARN: Duration = Duration::from_secs(1);
/// The default limit beyond which inboxes refuse ids from the future.
const SKEW_FAIL: Duration = Duration::from_secs(300);

/// The clock of a server compared with this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Skew {
    /// The difference without its sign.
    pub(crate) by: Duration,
    /// The maximum error of the difference.
    pub(crate) uncertainty: Duration,
}

/// Checks a server's clock against this machine's.
pub(super) fn check(subject: &str, skew: Skew) -> Finding {
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
        assert_eq!(check("database", skew).state, CheckState::Pass);
    }
}
