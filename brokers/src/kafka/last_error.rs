//! The last error of a session's client, for the session itself and for the owner of its connector.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Age at which an error no longer explains anything. librdkafka repeats one that lasts every 30
/// seconds.
const RECENT: Duration = Duration::from_secs(90);

/// The last error that librdkafka reported about its connections.
#[derive(Debug, Default)]
pub(super) struct LastError(Mutex<Option<Report>>);

#[derive(Debug)]
struct Report {
    at: Instant,
    text: String,
}

impl LastError {
    /// Replaces the previous error.
    pub(super) fn note(&self, text: &str, at: Instant) {
        *self.lock() = Some(Report { at, text: text.to_owned() });
    }

    /// Returns the error, if it is recent.
    pub(super) fn recent(&self, now: Instant) -> Option<String> {
        let report = self.lock();
        let report = report.as_ref().filter(|report| now.duration_since(report.at) < RECENT)?;
        Some(report.text.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_until_it_is_old() {
        let last = LastError::default();
        let begin = Instant::now();
        assert_eq!(last.recent(begin), None);
        last.note("refused", begin);
        assert_eq!(last.recent(begin + RECENT / 2).as_deref(), Some("refused"));
        assert_eq!(last.recent(begin + RECENT), None);
    }
}
