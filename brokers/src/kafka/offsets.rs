//! Commits the group's offsets with the mark of their topic (`topic_ids.rs`), and checks the marks
//! before a partition is read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use message::SubscriptionError;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};

use super::callbacks::Callbacks;
use super::inflow::Inflow;
use super::ledger::Place;

/// Commits positions.
pub(super) fn commit(
    consumer: &BaseConsumer<Callbacks>,
    inflow: &Inflow,
    positions: &[(Place, i64)],
    mode: CommitMode,
) -> Result<(), KafkaError> {
    let mut list = TopicPartitionList::with_capacity(positions.len());
    for ((topic, partition), offset) in positions {
        let mut element = list.add_partition(topic, *partition);
        element.set_offset(Offset::Offset(*offset))?;
        if let Some(mark) = inflow.lock().topic_ids.mark(topic) {
            element.set_metadata(mark);
        }
    }
    consumer.commit(&list, mode)
}

/// Resets offsets that were committed in an earlier topic of the same name to the beginning, and
/// adds marks where they are missing. For partitions with an offset, returns where they begin. Must
/// be called before librdkafka asks for the offsets. Blocks for about `timeout` at most for the
/// request, and until the commit is answered.
///
/// # Errors
/// [`SubscriptionError`] when the coordinator does not answer: then the start position is unknown.
pub(super) fn correct(
    consumer: &BaseConsumer<Callbacks>,
    inflow: &Inflow,
    places: &[Place],
    timeout: Duration,
) -> Result<Vec<(Place, i64)>, SubscriptionError> {
    let failed = |verb: &str, error: KafkaError| {
        let text = format!("cannot {verb} the committed offsets of {places:?}: {error}");
        SubscriptionError::lost(text).with_source(error)
    };
    let (mut begins, mut corrected, mut is_elsewhere) = (Vec::new(), Vec::new(), false);
    for found in ask(consumer, places, timeout).map_err(|error| failed("learn", error))? {
        let (topic, partition) = &found.place;
        let right = inflow.lock().topic_ids.correct(topic, found.offset, &found.mark);
        if let Some(right) = right {
            corrected.push((found.place.clone(), right));
        }
        if right.is_some_and(|right| right != found.offset) {
            is_elsewhere = true;
            tracing::warn!(
                target: "brokers::kafka", %topic, partition, offset = found.offset,
                "the committed offset belongs to an earlier topic with this name; the partition is read from its beginning"
            );
        }
        begins.push((found.place, right.unwrap_or(found.offset)));
    }
    if corrected.is_empty() {
        return Ok(begins);
    }
    match commit(consumer, inflow, &corrected, CommitMode::Sync) {
        Err(error) if is_elsewhere => Err(failed("correct", error)),
        Err(error) => {
            tracing::debug!(target: "brokers::kafka", %error, "offsets get their topic ids at the next commit");
            Ok(begins)
        }
        Ok(()) => Ok(begins),
    }
}

/// Moves positions past offsets without a message. librdkafka's position of a partition is behind
/// everything that polling has returned, and behind the markers that polling has skipped. Seeking
/// resets it (2.12.1).
pub(super) fn pass_markers(consumer: &BaseConsumer<Callbacks>, inflow: &Inflow) {
    match consumer.position() {
        Ok(read) => inflow.lock().passed(&read),
        Err(error) => tracing::debug!(target: "brokers::kafka", %error, "positions are unknown"),
    }
}

/// Forgets the start of recently assigned partitions for which librdkafka still has the position of
/// an earlier assignment. It resets that position on another thread, once it has stopped the
/// earlier fetcher (2.12.1, `rd_kafka_toppar_fetch_stopped`). Until then the position would pass
/// messages that this assignment has not delivered.
pub(super) fn distrust_earlier(consumer: &BaseConsumer<Callbacks>, inflow: &Inflow, places: &[Place]) {
    let read = consumer.position();
    let is_known = |(topic, partition): &Place| match &read {
        Ok(read) => read.find_partition(topic, *partition).is_none_or(|it| it.offset() != Offset::Invalid),
        Err(_) => true,
    };
    let mut state = inflow.lock();
    for place in places.iter().filter(|place| is_known(place)) {
        state.ledger.forget(place);
    }
}

/// The committed offset of a partition.
struct Found {
    place: Place,
    offset: i64,
    mark: String,
}

/// Returns the committed offsets of those partitions that have one.
fn ask(
    consumer: &BaseConsumer<Callbacks>,
    places: &[Place],
    timeout: Duration,
) -> Result<Vec<Found>, KafkaError> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = TopicPartitionList::with_capacity(places.len());
    for (topic, partition) in places {
        list.add_partition(topic, *partition);
    }
    let list = consumer.committed_offsets(list, timeout)?;
    let mut found = Vec::new();
    for element in list.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            let place = (Arc::from(element.topic()), element.partition());
            found.push(Found { place, offset, mark: mark_of(&element) });
        }
    }
    Ok(found)
}

/// Returns the text beside an offset. `rdkafka` panics on text that is not UTF-8, which any client
/// of the group can have written.
fn mark_of(element: &TopicPartitionListElem<'_>) -> String {
    catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned())).unwrap_or_default()
}
