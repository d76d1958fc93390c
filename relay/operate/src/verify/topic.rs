//! Reads Kafka's log without a consumer group.

use std::collections::{BTreeMap, BTreeSet};

use brokers::kafka::{self, AdminError, Begun, ReadTopic, TopicReader};
use message::Fingerprint;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::range::{Range, id_at};
use super::reconcile::Committed;
use super::sources::{BrokerRead, PAGE_ROWS, Reading};
use super::spool::{At, Spool};
use crate::Broker;
use crate::error::{OperateError, OperateErrorKind};

impl Reading {
    /// Reads the topics from the beginning of the range to their current ends, without a group.
    /// `from_ms` lies before the first id because clocks differ.
    pub(super) async fn broker(
        &mut self,
        broker: &Broker,
        topics: &BTreeSet<String>,
        from_ms: Option<i64>,
        range: Range,
        spool: &mut Spool,
    ) -> Result<BrokerRead, OperateError> {
        let mut read = BrokerRead::default();
        let Broker::Kafka(config) = broker else { return Ok(read) };
        let mut topic_reader = TopicReader::new(config).map_err(of_reader)?;
        for topic in topics {
            let name = topic.clone();
            let begun: Option<Begun>;
            (topic_reader, begun) =
                blocking(topic_reader, move |topic_reader| topic_reader.begin(&name, from_ms)).await?;
            let Some(begun) = begun else { continue };
            let mut earliest = Earliest::new();
            loop {
                let records: Vec<ReadTopic>;
                (topic_reader, records) =
                    blocking(topic_reader, |topic_reader| topic_reader.read(PAGE_ROWS as usize)).await?;
                if records.is_empty() {
                    break;
                }
                note(&records, &mut earliest);
                self.put_records(records, range, spool, &mut read).await?;
            }
            read.cut_at.extend(cut_at(&begun.cut, &earliest).map(|from| (topic.clone(), from)));
        }
        Ok(read)
    }

    /// Returns the position of a consumer group in these topics.
    pub(super) async fn committed(
        &self,
        broker: &Broker,
        group: &str,
        topics: &BTreeSet<String>,
    ) -> Result<Committed, OperateError> {
        let Broker::Kafka(config) = broker else { return Ok(Committed::new()) };
        let (config, group, topics) = (config.clone(), group.to_owned(), topics.clone());
        let asked =
            spawn_blocking(move || kafka::committed(&config, &group, topics.iter().map(String::as_str)));
        match asked.await {
            Ok(committed) => committed.map_err(of_reader),
            Err(error) => Err(OperateError::new(
                OperateErrorKind::Broken,
                format_args!("a query to the broker failed: {error}"),
            )),
        }
    }

    async fn put_records(
        &mut self,
        records: Vec<ReadTopic>,
        range: Range,
        spool: &mut Spool,
        read: &mut BrokerRead,
    ) -> Result<(), OperateError> {
        let count = records.len();
        let mut seen: Vec<(Uuid, Fingerprint, (i32, i64))> = Vec::with_capacity(count);
        for record in records {
            match record.message {
                Some(message) if range.contains(message.id.as_uuid()) => {
                    // The last chunk stands for a chunked message: the relay publishes it after the
                    // others.
                    let fingerprint = match &message.chunk {
                        None => Fingerprint::of(&message),
                        Some(chunk) if chunk.is_last() => chunk.fingerprint(),
                        Some(_) => continue,
                    };
                    read.records += 1;
                    seen.push((message.id.as_uuid(), fingerprint, record.position));
                }
                Some(_) => {}
                None => read.unreadable += 1,
            }
        }
        let seen = seen.iter().map(|(id, fingerprint, at)| (*id, &fingerprint.as_bytes()[..], Some(*at)));
        spool.add_at(At::Broker, seen).await?;
        self.progress.rows("broker", count);
        self.pace.rows(count).await;
        Ok(())
    }
}

/// Time of the earliest record of each partition, in milliseconds since 1970.
type Earliest = BTreeMap<i32, i64>;

/// Records the times of records.
fn note(records: &[ReadTopic], earliest: &mut Earliest) {
    for record in records {
        let Some(at) = record.at_ms else { continue };
        let (partition, _) = record.position;
        earliest.entry(partition).and_modify(|known| *known = at.min(*known)).or_insert(at);
    }
}

/// Returns the first id from which on the topic has every published message; `None` when no
/// partition is cut. Each cut partition shows only messages newer than its own earliest record: the
/// others may go back further. Verify does not know the partition of a missing message, so the
/// partition that was cut last decides.
fn cut_at(cut: &BTreeSet<i32>, earliest: &Earliest) -> Option<Uuid> {
    let begins_at = |partition| earliest.get(partition).map(|at| id_at(at.unsigned_abs()));
    // Nothing is known about a partition that has no record left.
    cut.iter().map(|partition| begins_at(partition).unwrap_or(Uuid::max())).max()
}

fn of_reader(error: AdminError) -> OperateError {
    match error {
        AdminError::Setting(error) => error.into(),
        error => OperateError::new(OperateErrorKind::Unavailable, error),
    }
}

/// Calls into the client library, which blocks.
async fn blocking<T: Send + 'static>(
    mut topic_reader: TopicReader,
    call: impl FnOnce(&mut TopicReader) -> Result<T, AdminError> + Send + 'static,
) -> Result<(TopicReader, T), OperateError> {
    let called = spawn_blocking(move || call(&mut topic_reader).map(|value| (topic_reader, value))).await;
    match called {
        Ok(done) => done.map_err(of_reader),
        Err(error) => Err(OperateError::new(
            OperateErrorKind::Broken,
            format_args!("reading from the broker failed: {error}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(partition: i32, at_ms: Option<i64>) -> ReadTopic {
        ReadTopic { message: None, at_ms, position: (partition, 0) }
    }

    /// Two partitions: the first goes back to 30, the second to 100.
    fn read() -> Earliest {
        let mut earliest = Earliest::new();
        note(&[record(1, Some(110)), record(0, Some(30)), record(1, None)], &mut earliest);
        note(&[record(0, Some(40)), record(1, Some(100))], &mut earliest);
        earliest
    }

    #[test]
    fn a_topic_is_known_from_the_beginning_of_its_partition_that_was_cut_last() {
        for (cut, known_from) in [
            (vec![], None),
            (vec![0], Some(id_at(30))),
            // Messages between 30 and 100 may have been in the second one, whatever the first has.
            (vec![1], Some(id_at(100))),
            (vec![0, 1], Some(id_at(100))),
            // A third one has no record left.
            (vec![0, 2], Some(Uuid::max())),
        ] {
            let cut = BTreeSet::from_iter(cut);
            assert_eq!(cut_at(&cut, &read()), known_from, "{cut:?}");
        }
    }
}
