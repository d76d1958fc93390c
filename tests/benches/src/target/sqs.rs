//! SQS: bare concurrent batches.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::error::BuildError;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use brokers::sqs;
use message::Connector;
use tokio::task::JoinSet;

use super::rows::BareRow;
use super::{Rows, Target};
use crate::Failure;

/// Number of concurrent requests, the default of the adapter.
const CONCURRENCY: usize = 16;

/// The attributes that the adapter repeats beside the body.
const REPEATED: [&str; 4] = ["ce_id", "ce_type", "ce_source", "content-type"];

pub(super) struct Sqs {
    endpoint: String,
}

impl Sqs {
    pub(super) fn new(endpoint: String) -> Self {
        Self { endpoint }
    }

    fn config(&self) -> Result<sqs::Config, Failure> {
        Ok(serde_json::from_value(serde_json::json!({
            "endpoint_url": self.endpoint, "region": "elasticmq", "access_key_id": "x", "secret_access_key": "x",
        }))?)
    }

    fn client(&self) -> Client {
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .endpoint_url(&self.endpoint)
            .region(Region::new("elasticmq"))
            .credentials_provider(Credentials::new("x", "x", None, None, "bench"))
            .build();
        Client::from_conf(config)
    }
}

#[async_trait]
impl Target for Sqs {
    fn name(&self) -> &'static str {
        "sqs"
    }

    async fn prepare(&self, topic: &str) -> Result<(), Failure> {
        self.client().create_queue().queue_name(topic).send().await?;
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(sqs::Connector::new(&self.config()?)?))
    }

    async fn bare(&self, mut rows: Rows) -> Result<u64, Failure> {
        let client = self.client();
        let url = client.get_queue_url().queue_name(&rows.topic).send().await?;
        let url = url.queue_url().ok_or("no queue URL")?.to_owned();
        let (mut confirmed, mut requests) = (0, JoinSet::new());
        loop {
            let page = rows.next().await?;
            if page.is_empty() {
                break;
            }
            for batch in page.chunks(10) {
                let entries: Vec<_> =
                    batch.iter().enumerate().map(|(at, row)| entry(at, row)).collect::<Result<_, _>>()?;
                while requests.len() >= CONCURRENCY {
                    confirmed += next(&mut requests).await?;
                }
                let request = client.send_message_batch().queue_url(&url).set_entries(Some(entries));
                requests.spawn(
                    async move { request.send().await.map(|answer| answer.successful().len() as u64) },
                );
            }
        }
        while !requests.is_empty() {
            confirmed += next(&mut requests).await?;
        }
        Ok(confirmed)
    }

    async fn remove(&self, topic: &str) -> Result<(), Failure> {
        let client = self.client();
        let url = client.get_queue_url().queue_name(topic).send().await?;
        client.delete_queue().set_queue_url(url.queue_url().map(str::to_owned)).send().await?;
        Ok(())
    }
}

/// Builds one message with the attributes of the adapter's wire format: they cost the server more
/// than the body.
fn entry(at: usize, row: &BareRow) -> Result<SendMessageBatchRequestEntry, BuildError> {
    let mut entry = SendMessageBatchRequestEntry::builder().id(at.to_string()).message_body(row.envelope());
    for (name, value) in row.attributes().into_iter().filter(|(name, _)| REPEATED.contains(name)) {
        let text = MessageAttributeValue::builder().data_type("String").string_value(value);
        entry = entry.message_attributes(name, text.build()?);
    }
    entry.build()
}

async fn next<E>(requests: &mut JoinSet<Result<u64, E>>) -> Result<u64, Failure>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match requests.join_next().await {
        Some(answer) => Ok(answer??),
        None => Ok(0),
    }
}
