//! The whole history that the checker reads.

use checker::{Forgotten, History, Operation, TopicRead};

use super::cursor;
use super::forgotten::{forget, mix_up};
use super::leaks::leaks;
use crate::Failure;
use crate::faults::database::prepared::JOURNAL;
use crate::journal::{self, SET_BACK, Step, WENT_BACK, operations};
use crate::sagas;
use crate::setup::Plot;
use crate::stage::{Role, Stage};
use harness::stores::Plain;

/// Facts from other readers.
#[derive(Debug)]
pub struct Facts {
    /// Whether nothing is in flight, or everything in flight has stopped moving.
    pub settled: bool,
    /// The broker's records.
    pub topic_read: TopicRead,
}

/// Reads both databases and the journals of producers.
///
/// # Errors
/// A database does not answer, or its rows cannot be valid.
pub async fn history(plot: &Plot, stage: &Stage, facts: Facts) -> Result<History, Failure> {
    let mut producers = Plain::open(&stage.database.producers).await?;
    let mut consumers = Plain::open(&stage.database.consumers).await?;
    let mut read = Vec::new();
    for name in plot.consumers() {
        let mut consumer = consumers.consumer(name, plot.dead_lettered_by(name)).await?;
        consumer.topics = Some(vec![plot.topics().main.into()]);
        if !plot.guarded {
            // Without the guard the inbox remembers nothing, so the history contains no claim about
            // it.
            consumer.inbox = None;
        }
        read.push(consumer);
    }
    let mut history = History {
        quiet: facts.settled,
        operations: Some(journaled(plot, stage)?),
        business: Some(producers.business(|_, _, _, _| None).await?),
        outbox: Some(cursor::mark(stage, producers.outbox().await?).await?),
        parked: Some(producers.parked().await?),
        removed: None,
        forgotten: Forgotten::default(),
        topic_read: Some(facts.topic_read),
        consumers: read,
        leases: producers.leases().await?,
        leaks: None,
        sagas: Some(sagas::read(&stage.database).await?),
    };
    let mut times = Vec::new();
    journal::read(&plot.file(WENT_BACK), |time| times.push(time))?;
    forget(&mut history, &times);
    let mut times = Vec::new();
    journal::read(&plot.file(SET_BACK), |time| times.push(time))?;
    mix_up(&mut history, &times);
    history.leaks = Some(leaks(stage, &history.forgotten).await?);
    Ok(history)
}

fn journaled(plot: &Plot, stage: &Stage) -> Result<Vec<Operation>, Failure> {
    let mut all = Vec::new();
    let producers = stage.processes.of(Role::Producer).into_iter().map(|name| format!("{name}.journal"));
    for file in producers.chain([JOURNAL.to_owned()]) {
        let mut steps: Vec<Step> = Vec::new();
        journal::read(&plot.file(&file), |step| steps.push(step))?;
        all.extend(operations(steps));
    }
    Ok(all)
}
