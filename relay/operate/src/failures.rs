//! The failed attempts of a parked message, as its history shows them.

use outbox_log::ExceptionState;
use outbox_log::entries::{EARLIER_ERROR_CHARS_MAX, EARLIER_ERRORS_MAX, EarlierError, ParkedState};
use serde::Serialize;
use time::OffsetDateTime;

use super::seconds;

/// A failed attempt, or several in sequence with the same error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedAttempts {
    /// The number of the first one; `None` where that is not known.
    pub first: Option<u32>,
    /// The number of the last one. Attempts are numbered from 1, and from 1 again after a requeue.
    /// An outage of the broker does not count: such an attempt has the number of the one before it,
    /// or 0.
    pub last: u32,
    /// When the last one failed; `None` for a message that an operator has discarded since.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub at: Option<OffsetDateTime>,
    /// The error. An earlier one is cut after 500 characters, and then ends in an ellipsis.
    pub error: String,
}

impl FailedAttempts {
    /// Returns the numbers for people: `3`, `4 to 9`, or `not counted`.
    #[must_use]
    pub fn numbers(&self) -> String {
        match self.first {
            Some(first) if first < self.last => format!("{first} to {}", self.last),
            _ if self.last == 0 => String::from("not counted"),
            _ => self.last.to_string(),
        }
    }

    /// Returns the last ten errors of a parked entry, latest first.
    pub(crate) fn of(parked: &ParkedState) -> Vec<Self> {
        let all = parked.earlier_errors.iter().cloned().map(Error::of_earlier).chain(Error::of_last(parked));
        // With fewer errors, the first one listed is the first of all.
        let mut before = (parked.earlier_errors.len() < EARLIER_ERRORS_MAX).then_some(0);
        let mut failures: Vec<Self> = Vec::new();
        for Error { attempts, at, error } in all {
            let first = match before {
                Some(before) if before < attempts => Some(before + 1),
                Some(before) if before > attempts && attempts > 0 => Some(1),
                _ => None,
            };
            before = Some(attempts);
            failures.push(Self { first, last: attempts, at, error });
        }
        failures.reverse();
        failures
    }
}

/// An error with the number and the time of its last attempt.
struct Error {
    attempts: u32,
    at: Option<OffsetDateTime>,
    error: String,
}

impl Error {
    fn of_earlier(earlier: EarlierError) -> Self {
        let EarlierError { attempts, at, mut error } = earlier;
        if error.chars().count() >= EARLIER_ERROR_CHARS_MAX {
            error.push('…');
        }
        Self { attempts, at: Some(at), error }
    }

    /// Returns the last error, unless a requeue has added it to the earlier ones and no attempt has
    /// failed since.
    fn of_last(parked: &ParkedState) -> Option<Self> {
        let error = parked.error.clone()?;
        let is_listed = parked.attempts == 0
            && parked
                .earlier_errors
                .last()
                .is_some_and(|last| error.chars().take(EARLIER_ERROR_CHARS_MAX).eq(last.error.chars()));
        let at = Some(parked.changed_at).filter(|_| parked.state != ExceptionState::Discarded);
        (!is_listed).then_some(Self { attempts: parked.attempts, at, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(attempts: u32, error: &str, earlier: &[(u32, &str)]) -> ParkedState {
        let at = OffsetDateTime::UNIX_EPOCH;
        ParkedState {
            state: ExceptionState::Dead,
            attempts,
            due_at: None,
            fault: None,
            error: Some(error.to_owned()),
            earlier_errors: earlier
                .iter()
                .map(|(attempts, error)| EarlierError { attempts: *attempts, at, error: (*error).to_owned() })
                .collect(),
            since: at,
            changed_at: at,
            edited_at: None,
            behind: None,
        }
    }

    fn told(parked: &ParkedState) -> Vec<String> {
        let line = |failed: FailedAttempts| format!("{}: {}", failed.numbers(), failed.error);
        FailedAttempts::of(parked).into_iter().map(line).collect()
    }

    #[test]
    fn attempts_have_their_numbers_latest_first() {
        assert_eq!(told(&parked(1, "a", &[])), ["1: a"]);
        assert_eq!(told(&parked(9, "c", &[(3, "a"), (4, "b")])), ["5 to 9: c", "4: b", "1 to 3: a"]);
        // An outage is not counted, before and after others.
        assert_eq!(told(&parked(2, "b", &[(0, "a"), (2, "c")])), ["2: b", "1 to 2: c", "not counted: a"]);
        // Nothing is known of errors before the nine earlier ones.
        let many: Vec<(u32, &str)> = (4..13).map(|n| (n, "x")).collect();
        let lines = told(&parked(20, "y", &many));
        assert_eq!((lines.len(), &*lines[0], &*lines[9]), (10, "13 to 20: y", "4: x"));
    }

    #[test]
    fn a_requeue_counts_from_one_again() {
        // Not tried since.
        assert_eq!(told(&parked(0, "a", &[(10, "a")])), ["1 to 10: a"]);
        assert_eq!(told(&parked(2, "a", &[(10, "a")])), ["1 to 2: a", "1 to 10: a"]);
        assert_eq!(told(&parked(0, "b", &[(10, "a")])), ["not counted: b", "1 to 10: a"]);
    }

    #[test]
    fn a_long_error_is_marked_as_cut_and_a_decision_is_no_attempt() {
        let long = "ä".repeat(EARLIER_ERROR_CHARS_MAX);
        let mut entry = parked(2, "b", &[(1, &long)]);
        entry.state = ExceptionState::Discarded;
        let failures = FailedAttempts::of(&entry);
        assert_eq!((failures[0].at, failures[1].error.chars().count()), (None, EARLIER_ERROR_CHARS_MAX + 1));
        // The whole error is longer than what was kept of it.
        let requeued = parked(0, &format!("{long}!"), &[(1, &long)]);
        assert_eq!(FailedAttempts::of(&requeued).len(), 1);
    }
}
