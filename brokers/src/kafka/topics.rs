//! Finds out whether a topic exists, and how many partitions it has.

use std::sync::Arc;
use std::time::Duration;

use message::{PublishError, Topic};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer as _};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::config::Config;
use super::fault;
use super::outcomes::Outcomes;

/// Pause before asking again for a topic that has no leader yet, such as one that was just created.
const AGAIN: Duration = Duration::from_millis(100);

/// Asks the cluster for the number of partitions of a topic; waits for one that is being created.
///
/// # Errors
/// [`PublishError`] when the topic is missing or forbidden (operator), or the cluster does not
/// answer.
pub(super) async fn count_partitions(
    producer: &Arc<BaseProducer<Outcomes>>,
    topic: &Topic,
    config: &Config,
) -> Result<usize, PublishError> {
    let deadline = Instant::now() + config.connect_timeout();
    loop {
        let code = match ask(producer, topic, config.connect_timeout()).await? {
            Ok(count) => return Ok(count),
            Err(code) => code,
        };
        let outcomes = producer.context();
        if outcomes.failed() {
            return Err(outcomes.lost());
        }
        let coming = match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => config.create_topics,
            code => fault::classify(code).0 == message::Fault::Broker,
        };
        if !coming || Instant::now() >= deadline {
            return Err(fault::delivery(code, topic.as_str()));
        }
        sleep(AGAIN).await;
    }
}

/// Asks once. Returns the number of partitions, or the reason why there is none.
async fn ask(
    producer: &Arc<BaseProducer<Outcomes>>,
    topic: &Topic,
    timeout: Duration,
) -> Result<Result<usize, Code>, PublishError> {
    let (asked, name) = (Arc::clone(producer), topic.clone());
    let answer = spawn_blocking(move || {
        let metadata = asked.client().fetch_metadata(Some(name.as_str()), timeout)?;
        let found = metadata.topics().first();
        Ok::<_, KafkaError>(match found.map(|found| (found.error(), found.partitions().len())) {
            Some((None, count)) if count > 0 => Ok(count),
            Some((Some(error), _)) => Err(Code::from(error)),
            _ => Err(Code::LeaderNotAvailable),
        })
    });
    match answer.await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Ok(Err(error.rdkafka_error_code().unwrap_or(Code::Unknown))),
        Err(error) => {
            Err(PublishError::session_lost("asking kafka for a topic was interrupted").with_source(error))
        }
    }
}
