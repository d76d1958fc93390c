//! The journal of deliveries that a consumer received and settled, beside its inbox. Each is one
//! line, handed to the operating system before the runner sees a delivery and before the broker
//! sees a settlement, so that a crash loses none.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Disposition, Settlement, Subscription, SubscriptionError};
use uuid::Uuid;

use crate::demo::check::LogRecord;
use crate::demo::error::DemoError;

const DELIVERED: &str = "D";
const APPLIED: &str = "A";
const SUPPRESSED: &str = "S";

/// The journal of one consumer process.
pub(crate) struct Journal {
    file: Mutex<File>,
    /// Messages that this process handed to its handler and has not settled yet.
    handled: Mutex<HashSet<Uuid>>,
    /// Without the guard nothing is suppressed.
    guarded: bool,
}

impl Journal {
    /// A new file.
    pub(crate) fn create(path: &Path, guarded: bool) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Mutex::new(file), handled: Mutex::new(HashSet::new()), guarded })
    }

    /// The handler was called: the message was not a duplicate.
    pub(crate) fn handled(&self, id: Uuid) {
        lock(&self.handled).insert(id);
    }

    fn write(&self, lines: &str) -> Result<(), SubscriptionError> {
        // One call for all lines, so that at most the last one can be torn.
        lock(&self.file)
            .write_all(lines.as_bytes())
            .map_err(|error| SubscriptionError::lost("the journal cannot be written").with_source(error))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Files and sets are whole even if another thread panicked with them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscription that keeps a journal.
pub(crate) struct Journaled {
    inner: Box<dyn Subscription>,
    journal: Arc<Journal>,
    ids: HashMap<DeliveryToken, Uuid>,
}

impl Journaled {
    /// Keeps the journal of a new session.
    pub(crate) fn new(inner: Box<dyn Subscription>, journal: Arc<Journal>) -> Self {
        // Messages that an earlier session handled and could not settle come again, as duplicates.
        lock(&journal.handled).clear();
        Self { inner, journal, ids: HashMap::new() }
    }
}

#[async_trait]
impl Subscription for Journaled {
    fn origin(&self) -> &str {
        self.inner.origin()
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let deliveries = self.inner.receive(max, wait).await?;
        let mut lines = String::new();
        for delivery in &deliveries {
            let (id, payload) = match &delivery.message {
                Ok(message) => (message.id.to_string(), &message.payload),
                Err(malformed) => (String::from("-"), &malformed.payload),
            };
            self.ids.insert(delivery.token, delivery.subject());
            let payload = String::from_utf8_lossy(payload).replace('\n', " ");
            lines.push_str(&format!("{DELIVERED} {id} {payload}\n"));
        }
        self.journal.write(&lines)?;
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let mut lines = String::new();
        for settlement in &settlements {
            let Some(id) = self.ids.remove(&settlement.token()) else { continue };
            if *settlement.disposition() != Disposition::Done {
                continue;
            }
            let applied = lock(&self.journal.handled).remove(&id) || !self.journal.guarded;
            let word = if applied { APPLIED } else { SUPPRESSED };
            lines.push_str(&format!("{word} {id}\n"));
        }
        self.journal.write(&lines)?;
        self.inner.settle(settlements).await
    }

    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.inner.keep_alive(tokens).await
    }

    fn redelivers_after(&self) -> Option<Duration> {
        self.inner.redelivers_after()
    }

    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.inner.stop_receiving().await
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        self.inner.close().await
    }
}

/// The journals of all consumers of a run, in the order in which they ran.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    /// Every delivery.
    pub(crate) deliveries: Vec<LogRecord>,
    /// Settled deliveries whose message had taken effect before.
    pub(crate) suppressed: u64,
}

impl Journals {
    /// How often each message was delivered.
    pub(crate) fn times(&self) -> HashMap<Uuid, u64> {
        let mut times = HashMap::new();
        for id in self.deliveries.iter().filter_map(|record| record.id) {
            *times.entry(id).or_default() += 1;
        }
        times
    }

    fn read(&mut self, text: &str) {
        for line in text.lines() {
            let mut parts = line.splitn(3, ' ');
            match (parts.next(), parts.next(), parts.next()) {
                (Some(DELIVERED), Some(id), Some(payload)) => {
                    let id = Uuid::parse_str(id).ok();
                    self.deliveries.push(LogRecord { id, payload: payload.as_bytes().to_vec() });
                }
                (Some(SUPPRESSED), Some(_), None) => self.suppressed += 1,
                _ => {}
            }
        }
    }
}

/// Reads journals.
///
/// # Errors
/// [`DemoError::Unavailable`] when a file cannot be read. One that is missing is an empty one: its process has
/// received nothing.
pub(crate) fn read_journals(paths: &[PathBuf]) -> Result<Journals, DemoError> {
    let mut journals = Journals::default();
    for path in paths {
        match std::fs::read(path) {
            Ok(bytes) => journals.read(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(DemoError::during("read a consumer's journal")(error)),
        }
    }
    Ok(journals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_and_suppressed_duplicates_are_counted() {
        let id = Uuid::from_u128(7);
        let mut journals = Journals::default();
        journals.read(&format!("D {id} {{\"a\": 1}}\nA {id}\nD - x\nD {id} {{\"a\": 1}}\nS {id}\nS"));
        assert_eq!(journals.deliveries.len(), 3);
        assert_eq!(journals.deliveries[0].payload, b"{\"a\": 1}");
        assert_eq!((journals.times()[&id], journals.suppressed), (2, 1));
    }
}
