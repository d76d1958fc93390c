//! A plain SQS client.

use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Credentials;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;

use super::{Copy, SOURCE};
use crate::error::DemoError;
use crate::target::BrokerSpec;
use crate::{CONTENT_TYPE, KIND};

/// Maximum number of entries in a request (SQS quotas).
const BATCH: usize = 10;

async fn client(broker: &BrokerSpec) -> Client {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let BrokerSpec::Sqs { endpoint, region, key, .. } = broker {
        if let Some(region) = region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some((id, secret)) = key {
            loader = loader.credentials_provider(Credentials::new(id, secret, None, None, "demo"));
        }
    }
    Client::new(&loader.load().await)
}

/// Sends copies, and checks the answer for each.
pub(super) async fn publish(broker: &BrokerSpec, copies: &[Copy]) -> Result<(), DemoError> {
    let what = "send to SQS again";
    let client = client(broker).await;
    let url = client.get_queue_url().queue_name(broker.topic()).send().await;
    let url = url.map_err(DemoError::during(what))?.queue_url.unwrap_or_default();
    for batch in copies.chunks(BATCH) {
        let entries = batch.iter().enumerate().map(|(place, copy)| entry(place, copy, broker.is_ordered()));
        let entries = entries.collect::<Result<Vec<_>, _>>().map_err(DemoError::during(what))?;
        let sent = client.send_message_batch().queue_url(&url).set_entries(Some(entries)).send().await;
        if let Some(failed) = sent.map_err(DemoError::during(what))?.failed().first() {
            return Err(DemoError::during(what)(format!("{}: {:?}", failed.code(), failed.message())));
        }
    }
    Ok(())
}

fn entry(
    place: usize,
    copy: &Copy,
    fifo: bool,
) -> Result<SendMessageBatchRequestEntry, aws_sdk_sqs::error::BuildError> {
    let Copy { id, key, payload } = copy;
    let data = String::from_utf8_lossy(payload);
    let body = format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"{SOURCE}","type":"{KIND}","subject":"{key}","datacontenttype":"{CONTENT_TYPE}","data":{data}}}"#
    );
    let entry = SendMessageBatchRequestEntry::builder().id(place.to_string()).message_body(body);
    if !fifo {
        return entry.build();
    }
    // The deduplication id differs from the original's, because otherwise SQS itself would drop the
    // copy.
    entry.message_group_id(key).message_deduplication_id(format!("{id}-again")).build()
}
