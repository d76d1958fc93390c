//! Leaves out what a database server says again and again.
//!
//! PostgreSQL warns at each transaction in the last 40 million transaction ids before it stops: at
//! each checkpoint, several times a second, until somebody repairs it.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// The target under which the client library logs what a server says.
const TARGET: &str = "sqlx::postgres::notice";
/// A repeated text is counted for this long before it is logged again.
const EVERY: Duration = Duration::from_secs(600);
/// Maximum number of texts to remember. Others are logged each time.
const TEXTS_MAX: usize = 100;

/// The texts that servers have sent lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Repeats(Arc<Mutex<BTreeMap<String, Said>>>);

#[derive(Debug)]
struct Said {
    /// The text of the last time: its numbers may differ.
    text: String,
    /// When it was logged.
    at: Instant,
    left_out: u64,
}

/// A text that was left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repeated {
    pub(super) text: String,
    pub(super) times: u64,
}

impl Repeats {
    /// Returns whether to log a text now. Texts that differ only in their numbers are the same.
    fn is_news(&self, text: String, now: Instant) -> bool {
        let same = text.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty());
        let same = same.collect::<Vec<_>>().join("#");
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, said| said.left_out > 0 || now.duration_since(said.at) < EVERY);
        if let Some(said) = known.get_mut(&same) {
            said.left_out += 1;
            said.text = text;
            return false;
        }
        if known.len() < TEXTS_MAX {
            known.insert(same, Said { text, at: now, left_out: 0 });
        }
        true
    }

    /// Returns the texts that were left out for long enough, each with its number.
    pub(super) fn due(&self, now: Instant) -> Vec<Repeated> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |said: &&mut Said| said.left_out > 0 && now.duration_since(said.at) >= EVERY;
        let due = known.values_mut().filter(is_due).map(|said| {
            said.at = now;
            Repeated { text: said.text.clone(), times: std::mem::take(&mut said.left_out) }
        });
        due.collect()
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if event.metadata().target() != TARGET {
            return true;
        }
        let mut text = Text::default();
        event.record(&mut text);
        self.is_news(text.0, Instant::now())
    }
}

/// The message of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // A text takes everything.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Goal: a warning of the server at each checkpoint is one line, and one line with the number
    /// every ten minutes; other warnings and other lines are not affected. Oracle: the lines, and
    /// what is due by the time.
    #[test]
    fn what_a_server_repeats_is_logged_once_and_then_counted() {
        let (lines, repeats) = (Lines::default(), Repeats::default());
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber.with(repeats.clone()), || {
            for left in [39_985_967, 39_985_966, 9] {
                tracing::warn!(target: TARGET, "database \"shop\" must be vacuumed within {left} transactions");
            }
            tracing::warn!(target: TARGET, "another warning");
            for _ in 0..2 {
                tracing::warn!("must be vacuumed within 7 transactions");
            }
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!(
            (count(" 39985967 "), count("\"shop\""), count("within 7"), count("another")),
            (1, 1, 2, 1)
        );

        let now = Instant::now();
        assert_eq!(repeats.due(now), []);
        let text = String::from("database \"shop\" must be vacuumed within 9 transactions");
        assert_eq!(repeats.due(now + EVERY), [Repeated { text: text.clone(), times: 2 }]);
        assert!(!repeats.is_news(text.clone(), now + EVERY), "within the next ten minutes");
        assert_eq!(repeats.due(now + EVERY * 2), [Repeated { text: text.clone(), times: 1 }]);
        assert!(repeats.is_news(text, now + EVERY * 3), "it had ended");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        let text = |number: usize| format!("table {}", "x".repeat(number));
        for number in 0..=TEXTS_MAX {
            assert!(repeats.is_news(text(number), now));
        }
        assert!(!repeats.is_news(text(0), now) && repeats.is_news(text(TEXTS_MAX), now));
        assert_eq!(repeats.0.lock().unwrap().len(), TEXTS_MAX);
    }
}
