//! Checks how long published messages and decisions are kept.

use operate::Retention;
use outbox_log::retention::KeepBounds;

/// Returns the problem if a retention is out of bounds.
pub(crate) fn check(retention: Retention, bounds: KeepBounds) -> Result<(), String> {
    match retention {
        Retention::For(keep) => bounds.check(keep).map_err(|error| error.to_string()),
        Retention::Off => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use outbox_log::retention::{KEEP_DECISIONS, KEEP_MESSAGES};

    use super::*;

    #[test]
    fn bounds_and_off() {
        for bounds in [KEEP_MESSAGES, KEEP_DECISIONS] {
            assert_eq!(check(Retention::For(bounds.max), bounds), Ok(()));
            assert_eq!(check(Retention::Off, bounds), Ok(()));
        }
        let long = Retention::For(2 * KEEP_MESSAGES.max);
        assert_eq!(check(long, KEEP_MESSAGES).unwrap_err(), "10d is outside 1m to 5d");
    }
}
