//! Counts the messages that wait in the consumed queue.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use message::Lag;

use super::fault::Failure;
use crate::lag::LagWatch;

/// Reads `ApproximateNumberOfMessages`, which needs the permission `sqs:GetQueueAttributes`.
pub(super) fn watch(client: Client, url: String, name: &str, origin: &str) -> LagWatch {
    let name = name.to_owned();
    LagWatch::new(origin.to_owned(), move || {
        let (client, url, name) = (client.clone(), url.clone(), name.clone());
        async move {
            let wanted = QueueAttributeName::ApproximateNumberOfMessages;
            let asked =
                client.get_queue_attributes().queue_url(url).attribute_names(wanted.clone()).send().await;
            let answer = asked
                .map_err(|error| Failure::of_request(&error).to_subscription_error(&name).to_string())?;
            let count = answer.attributes().and_then(|attributes| attributes.get(&wanted)?.parse().ok());
            Ok(vec![Lag::new(name, count.ok_or("the answer has no count")?)])
        }
    })
}
