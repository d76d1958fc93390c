//! The log of this process, kept for tests that need it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing_subscriber::EnvFilter;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn log() -> MutexGuard<'static, Vec<u8>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ToLog;

impl io::Write for ToLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        log().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts to keep the log lines of this process that match these directives. Call it once in a test
/// binary, before the first test.
pub fn keep(directives: &str) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(directives))
        .with_ansi(false)
        .with_writer(|| ToLog)
        .init();
}

/// Returns the log of this process so far.
#[must_use]
pub fn logged() -> String {
    String::from_utf8_lossy(&log()).into_owned()
}

/// Returns the lines that contain all of these texts. Include a text of the test's own: all tests
/// of a binary share one log.
#[must_use]
pub fn lines_with(texts: &[&str]) -> Vec<String> {
    let holds = |line: &&str| texts.iter().all(|text| line.contains(text));
    logged().lines().filter(holds).map(str::to_owned).collect()
}
