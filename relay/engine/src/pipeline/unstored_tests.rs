//! A database that grants leases and stores no checkpoint.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use message::testing::{BrokerScript, ScriptedBroker};
use message::{EventType, Message, MessageId, Receipts, Submission, Topic};
use outbox_log::testing::{LogScript, ScriptedLog};
use outbox_log::{
    Cursor, Difference, Entry, EntryId, ExceptionChange, Fenced, LogError, Mark, Page, PageLimit, RelayName,
};
use tokio_util::sync::CancellationToken;

use super::Pipeline;
use crate::options::EngineOptions;

const ROWS: i64 = 500;

/// A log whose disk is full: the lease's row has room for its next version, an exception has none.
struct FullDisk {
    rows: Vec<Entry>,
    is_full: AtomicBool,
    /// Whether the table is locked instead, so that a checkpoint gets no answer.
    is_locked: bool,
    /// Whether there is room again after the first failure.
    heals: bool,
    /// Checkpoints that were not stored.
    failures: AtomicUsize,
}

#[async_trait]
impl LogScript for FullDisk {
    async fn next_difference(&self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let (base, head) = (base.clone(), Mark::new("1"));
        Ok((base != head).then_some(Difference { base, head, ceiling: ROWS }))
    }

    async fn read_page(&self, _: &Difference, after: EntryId, _: PageLimit) -> Result<Page, LogError> {
        let entries = self.rows.iter().filter(|row| row.id > after).cloned().collect();
        Ok(Page { entries, exhausted: true })
    }

    async fn checkpoint(&self, _: i64, _: &Cursor, _: &[ExceptionChange]) -> Result<Fenced, LogError> {
        if !self.is_full.load(Ordering::Relaxed) {
            return Ok(Fenced::Held);
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.heals {
            self.is_full.store(false, Ordering::Relaxed);
        }
        if self.is_locked {
            std::future::pending::<()>().await;
        }
        let reason = String::from("could not extend file: No space left on device");
        Err(LogError::Unavailable { reason, source: None })
    }
}

/// Confirms everything, except messages of a silent topic, and counts the copies of each.
#[derive(Default)]
struct Counting {
    copies: Mutex<HashMap<MessageId, usize>>,
    silent: Mutex<Option<Topic>>,
}

impl BrokerScript for Counting {
    fn submit(&self, batch: Vec<Submission>, receipts: &Receipts) {
        for submission in batch {
            if self.silent.lock().unwrap().as_ref() != Some(&submission.message.topic) {
                *self.copies.lock().unwrap().entry(submission.message.id).or_default() += 1;
                receipts.send(submission.ticket, Ok(()));
            }
        }
    }
}

fn rows(topic: &str, ids: std::ops::RangeInclusive<i64>) -> Vec<Entry> {
    let rows = ids.map(|id| {
        let message = Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), "{}");
        Entry { id: EntryId(id), message: Ok(message), deliver_in: None }
    });
    rows.collect()
}

fn pipeline(disk: &Arc<FullDisk>, broker: &Arc<Counting>) -> Pipeline {
    let name = RelayName::new("orders").unwrap();
    let store = Arc::new(ScriptedLog(Arc::clone(disk)));
    let connector = Arc::new(ScriptedBroker(Arc::clone(broker)));
    Pipeline::new(name, store, connector, EngineOptions::default())
}

/// Goal: a term that follows a checkpoint that was not stored does not wait for one message whose
/// destination is silent. Oracle: the others, which were published before and are published again.
#[tokio::test(start_paused = true)]
async fn a_silent_topic_stops_no_term_in_its_trial() {
    let mut rows = rows("a", 1..=1);
    rows.extend(self::rows("b", 2..=ROWS));
    let (is_full, failures) = (true.into(), AtomicUsize::default());
    let disk = Arc::new(FullDisk { rows, is_full, is_locked: false, heals: true, failures });
    let broker = Arc::new(Counting::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn(pipeline(&disk, &broker).run(stop.clone()));
    while disk.failures.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    *broker.silent.lock().unwrap() = Some(Topic::new("a").unwrap());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let again = broker.copies.lock().unwrap().values().filter(|copies| **copies == 2).count();
    assert_eq!(again, usize::try_from(ROWS).unwrap() - 1);
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stored_is_not_published_again_and_again() {
    published_once_a_term(false, 50).await;
}

/// A checkpoint without an answer ends its term by the lease.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_lock_is_not_published_again_and_again() {
    published_once_a_term(true, 15).await;
}

/// Goal: while no checkpoint can be stored, terms do not publish the same messages again and again;
/// afterwards everything leaves at once. Oracle: the number of copies at the broker.
async fn published_once_a_term(is_locked: bool, terms_min: usize) {
    let rows = rows("orders", 1..=ROWS);
    let (is_full, failures) = (true.into(), AtomicUsize::default());
    let disk = Arc::new(FullDisk { rows, is_full, is_locked, heals: false, failures });
    let broker = Arc::new(Counting::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn(pipeline(&disk, &broker).run(stop.clone()));
    let copies = || broker.copies.lock().unwrap().values().sum::<usize>();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let failures = disk.failures.load(Ordering::Relaxed);
    assert!(failures > terms_min, "{failures} terms");
    // The first term publishes what it reads before its checkpoint fails, each later one a single
    // message.
    let (rows, published) = (usize::try_from(ROWS).unwrap(), copies());
    assert!(published < rows + failures, "{published} copies in {failures} terms");
    disk.is_full.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(if is_locked { 20 } else { 7 })).await;
    assert_eq!(broker.copies.lock().unwrap().len(), rows);
    assert!(copies() <= published + rows, "{} copies", copies());
    stop.cancel();
    running.await.unwrap();
}
