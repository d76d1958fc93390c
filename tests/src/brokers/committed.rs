//! A reader of the committed records of a Kafka topic. It is a plain client, so that our own code
//! does not verify itself.

use std::time::Duration;

use harness::plain::kafka::{Kafka, Reading};
use rdkafka::Message as _;

use crate::trial::Failure;

const PATIENCE: Duration = Duration::from_secs(240);
/// Time for Kafka to write the ends of transactions: it answers a commit before it writes them.
const SETTLE: Duration = Duration::from_secs(3);

/// Returns the payloads up to the present end, those of each partition in their order. Waits up to
/// three seconds for the ends of transactions.
///
/// # Errors
/// Kafka does not answer.
pub async fn read(servers: &str, topic: &str) -> Result<Vec<Vec<u8>>, Failure> {
    read_within(servers, topic, SETTLE).await
}

/// As [`read`], without waiting: records of open transactions are left out.
///
/// # Errors
/// Kafka does not answer.
pub async fn read_now(servers: &str, topic: &str) -> Result<Vec<Vec<u8>>, Failure> {
    read_within(servers, topic, Duration::ZERO).await
}

async fn read_within(servers: &str, topic: &str, settle: Duration) -> Result<Vec<Vec<u8>>, Failure> {
    let reading = Reading::default().committed(settle).silence(PATIENCE);
    let records = Kafka::new(servers).read_all(topic, reading).await?;
    Ok(records.iter().map(|record| record.payload().unwrap_or_default().to_vec()).collect())
}
