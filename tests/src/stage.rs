//! Resources of a test, which are removed at its end, and the evidence that it shows when it fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tempfile::TempDir;

use crate::trial::{Failure, Outcome};

/// Maximum bytes of a log that are shown, from its end.
const EVIDENCE_BYTES: usize = 6_000;

/// The environment of one test: a folder, a suffix for names, and the cleanups for its end, which
/// run in reverse order.
#[derive(Clone)]
pub struct Stage(Arc<Inner>);

struct Inner {
    name: String,
    suffix: String,
    folder: TempDir,
    cleanups: Mutex<Vec<Cleanup>>,
    evidence: Mutex<Vec<PathBuf>>,
}

struct Cleanup {
    what: String,
    work: BoxFuture<'static, Outcome>,
}

impl Stage {
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            suffix: random(),
            folder: tempfile::tempdir()?,
            cleanups: Mutex::default(),
            evidence: Mutex::default(),
        })))
    }

    /// Returns the test's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns a name that no other test has: `prefix` and a random suffix of `a-z 0-9 _`.
    #[must_use]
    pub fn unique(&self, prefix: &str) -> String {
        format!("{prefix}_{}", self.0.suffix)
    }

    /// Returns a folder that is removed with the test.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.folder.path()
    }

    /// Registers work that runs when the test ends, whatever its outcome.
    pub fn afterwards(&self, what: impl Into<String>, work: impl Future<Output = Outcome> + Send + 'static) {
        lock(&self.0.cleanups).push(Cleanup { what: what.into(), work: work.boxed() });
    }

    /// Shows the end of this file when the test fails.
    pub fn show_on_failure(&self, file: impl Into<PathBuf>) {
        lock(&self.0.evidence).push(file.into());
    }

    pub(crate) fn evidence(&self) -> String {
        let mut text = String::new();
        for file in lock(&self.0.evidence).iter() {
            let bytes = std::fs::read(file).unwrap_or_default();
            let end = &bytes[bytes.len().saturating_sub(EVIDENCE_BYTES)..];
            text.push_str(&format!("--- {}\n{}\n", file.display(), String::from_utf8_lossy(end)));
        }
        text
    }

    /// Runs all cleanups. Reports what could not be removed.
    pub(crate) async fn clean_up(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        loop {
            let Some(Cleanup { what, work }) = lock(&self.0.cleanups).pop() else { break };
            if let Err(failure) = work.await {
                problems
                    .push(format!("{what} could not be removed: {}", crate::trial::chain(failure.as_ref())));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns twelve random characters of `a-f 0-9`.
#[must_use]
pub fn random() -> String {
    format!("{:012x}", rand::random::<u64>() >> 16)
}
