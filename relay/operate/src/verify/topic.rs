//! Reads Kafka's log without a consumer group.

use std::collections::BTreeSet;

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
    /// Reads the topics from the beginning of the range to their present ends, without a group.
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
        #[cfg_attr(
            not(any(feature = "rabbitmq", feature = "sqs")),
            expect(irrefutable_let_patterns, reason = "Kafka is the only broker of this build")
        )]
        let Broker::Kafka(config) = broker else { return Ok(read) };
        let mut topic_reader = TopicReader::new(config).map_err(of_reader)?;
        for topic in topics {
            let name = topic.clone();
            let begun: Option<Begun>;
            (topic_reader, begun) =
                blocking(topic_reader, move |topic_reader| topic_reader.begin(&name, from_ms)).await?;
            let Some(begun) = begun else { continue };
            let mut earliest: Option<i64> = None;
            loop {
                let records: Vec<ReadTopic>;
                (topic_reader, records) =
                    blocking(topic_reader, |topic_reader| topic_reader.read(PAGE_ROWS as usize)).await?;
                if records.is_empty() {
                    break;
                }
                earliest = records.iter().filter_map(|record| record.at_ms).chain(earliest).min();
                self.put_records(records, range, spool, &mut read).await?;
            }
            if begun.is_cut {
                // With no record left, nothing is known at all.
                let cut_at = earliest.map_or(Uuid::max(), |at| id_at(at.unsigned_abs()));
                read.cut_at = read.cut_at.max(Some(cut_at));
            }
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
        #[cfg_attr(
            not(any(feature = "rabbitmq", feature = "sqs")),
            expect(irrefutable_let_patterns, reason = "Kafka is the only broker of this build")
        )]
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
