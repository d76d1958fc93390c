//! Reads all observations for the independent checker, without using the toolkit.

use std::collections::{BTreeSet, HashMap};

use checker::{Digest, History, Occurrence, Operation, Outcome, TopicRead};
use harness::Failure;
use harness::journal::{self, Received, Settled};
use harness::stores::Plain;
use uuid::Uuid;

use crate::CONSUMER;
use crate::plan::Plan;
use crate::producer::payload;

/// The observations of one run.
pub(crate) struct Observed {
    /// The history for the checker.
    pub(crate) history: History,
    /// Number of parked messages.
    pub(crate) parked: u64,
    /// Number of the consumer's dead letters.
    pub(crate) dead_letters: u64,
}

/// The databases of a run, and its plan.
pub(crate) struct Sources<'a> {
    /// A URL of the producer's database that resolves every name.
    pub(crate) producer: &'a str,
    /// A URL of the consumer's database that resolves every name.
    pub(crate) consumer: &'a str,
    /// The plan of the run.
    pub(crate) plan: &'a Plan,
    /// Whether the inbox's guard was on, so that effects and inbox rows belong together.
    pub(crate) guarded: bool,
}

/// Reads both databases. `topic_read` holds the messages at the broker.
///
/// # Errors
/// A database does not answer, or its rows cannot be valid.
pub(crate) async fn read(sources: &Sources<'_>, topic_read: TopicRead) -> Result<Observed, Failure> {
    let mut producer = Plain::open(sources.producer).await?;
    let of_row = |row: &str, _: &str, seq, cents| Some(Digest::of(&payload(row, seq, cents)));
    let (business, outbox) = (producer.business(of_row).await?, producer.outbox().await?);
    let parked = producer.parked().await?.len() as u64;
    let mut consumer = Plain::open(sources.consumer).await?.consumer(CONSUMER, CONSUMER).await?;
    // In a demo no message needs to be parked or become a dead letter, so such messages count as
    // lost.
    let dead_letters = consumer.dead_letters.take().unwrap_or_default().len() as u64;
    if !sources.guarded {
        consumer.inbox = None;
    }
    let rows = business.iter().map(|row| row.id.to_string());
    let rows = rows.chain(outbox.iter().filter_map(|row| row.row.as_ref().map(ToString::to_string)));
    let history = History {
        quiet: true,
        operations: Some(operations(&sources.plan.rolled_back(), rows)),
        business: Some(business),
        outbox: Some(outbox),
        parked: Some(Vec::new()),
        topic_read: Some(topic_read),
        consumers: vec![consumer],
        ..History::default()
    };
    Ok(Observed { history, parked, dead_letters })
}

/// Returns the operations of a run, one for each order. Orders that were rolled back on purpose
/// have failed, and must not exist. The outcome of the others is unknown, because an operation may
/// have been retried, and the run may have ended before it.
pub(crate) fn operations(rolled_back: &BTreeSet<u64>, rows: impl Iterator<Item = String>) -> Vec<Operation> {
    let operation = |row: String, outcome| Operation {
        id: format!("order {row}").into(),
        outcome,
        rows: vec![row.into()],
        ..Operation::default()
    };
    let failed: BTreeSet<String> = rolled_back.iter().map(u64::to_string).collect();
    let tried: Vec<String> = rows.filter(|row| !failed.contains(row)).collect();
    let failed = failed.into_iter().map(|row| operation(row, Outcome::Failed));
    failed.chain(tried.into_iter().map(|row| operation(row, Outcome::Unknown))).collect()
}

/// The consumer's journal.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Every delivery, in order.
    pub(crate) deliveries: Vec<Occurrence>,
    /// Deliveries whose message had taken effect before.
    pub(crate) suppressed: u64,
}

impl Journal {
    /// Reads the journal.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(directory: &std::path::Path) -> std::io::Result<Self> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Entry {
            Settled(Settled),
            Received(Received),
        }
        let mut read = Self::default();
        journal::read(&crate::consumer::journal(directory), |entry| match entry {
            Entry::Settled(settled) => read.suppressed += u64::from(!settled.handled),
            Entry::Received(Received { id, content, .. }) => {
                let place = content.key.clone().unwrap_or_default();
                read.deliveries.push(Occurrence { id, place, content });
            }
        })?;
        Ok(read)
    }

    /// Returns how often each message was delivered.
    pub(crate) fn times(&self) -> HashMap<Uuid, u64> {
        let mut times = HashMap::new();
        for id in self.deliveries.iter().filter_map(|delivery| delivery.id) {
            *times.entry(id).or_default() += 1;
        }
        times
    }
}
