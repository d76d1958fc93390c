//! One batch to one queue, and an answer for each of its messages.

use std::sync::Arc;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};

use message::{FaultScope, PublishError};
use tokio::time::Instant;

use super::answers::Answers;
use super::backlog::Item;
use super::fault::{Failure, Kind};
use super::queues::Queues;

/// The state that the requests of a session share.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) queues: Queues,
    pub(super) answers: Answers,
}

type Outcome = Result<(), Failure>;

impl Sender {
    /// Sends a batch and answers its messages.
    pub(super) async fn send(self: Arc<Self>, queue: String, batch: Vec<Item>) {
        let begun_at = Instant::now();
        let outcomes = self.outcomes(&queue, &batch).await;
        let is_answered = |outcome: &Outcome| {
            outcome.as_ref().err().is_none_or(|failure| !matches!(failure.kind, Kind::Lost | Kind::Away))
        };
        if outcomes.iter().any(is_answered) {
            self.answers.note(&queue, Instant::now());
        }
        for (item, outcome) in batch.into_iter().zip(outcomes) {
            let outcome = outcome.map_err(|failure| self.error(&failure, &item, &queue, begun_at));
            item.pending.answer(outcome);
        }
    }

    fn error(&self, failure: &Failure, item: &Item, queue: &str, begun_at: Instant) -> PublishError {
        match failure.kind {
            Kind::Missing => self.queues.forget(queue),
            Kind::Lost => match self.answers.reach(queue, begun_at) {
                FaultScope::Session => {}
                scope => return failure.to_silence(queue, scope),
            },
            _ => {}
        }
        failure.to_publish_error(&item.topic, queue)
    }

    async fn outcomes(&self, queue: &str, batch: &[Item]) -> Vec<Outcome> {
        let url = match self.queues.url(&self.client, queue).await {
            Ok(url) => url,
            Err(failure) => return vec![Err(failure); batch.len()],
        };
        match self.request(&url, batch).await {
            Ok(outcomes) => outcomes,
            // A whole request is refused for one message in it, or for its size: alone, each gets
            // its own answer.
            Err(failure) if failure.kind == Kind::Refused && batch.len() > 1 => {
                let mut outcomes = Vec::with_capacity(batch.len());
                for item in batch {
                    let alone = self.request(&url, std::slice::from_ref(item)).await;
                    outcomes.push(alone.and_then(|mut outcomes| outcomes.remove(0)));
                }
                outcomes
            }
            Err(failure) => vec![Err(failure); batch.len()],
        }
    }

    /// One request: an outcome for each entry, or why the whole of it failed. The status 200 means
    /// only that SQS has looked at every entry.
    async fn request(&self, url: &str, batch: &[Item]) -> Result<Vec<Outcome>, Failure> {
        let entries =
            batch.iter().enumerate().map(|(index, item)| entry(index, item)).collect::<Result<_, _>>()?;
        let sent = self.client.send_message_batch().queue_url(url).set_entries(Some(entries)).send().await;
        let answer = sent.map_err(|error| Failure::of_request(&error))?;
        let mut outcomes = vec![Err(Failure::unanswered()); batch.len()];
        let mut set = |id: &str, outcome: Outcome| {
            if let Some(slot) = id.parse::<usize>().ok().and_then(|index| outcomes.get_mut(index)) {
                *slot = outcome;
            }
        };
        for stored in answer.successful() {
            set(stored.id(), Ok(()));
        }
        for failed in answer.failed() {
            let message = failed.message().unwrap_or_default();
            set(failed.id(), Err(Failure::of_code(failed.code(), message, failed.sender_fault())));
        }
        Ok(outcomes)
    }
}

fn entry(index: usize, item: &Item) -> Result<SendMessageBatchRequestEntry, Failure> {
    let incomplete =
        |error: aws_sdk_sqs::error::BuildError| Failure::of_code("Incomplete", &error.to_string(), true);
    let mut entry = SendMessageBatchRequestEntry::builder()
        .id(index.to_string())
        .message_body(&item.record.body)
        .set_message_group_id(item.group.clone())
        .set_message_deduplication_id(item.deduplication.clone());
    for (name, value) in &item.record.attributes {
        let text = MessageAttributeValue::builder().data_type("String").string_value(value);
        entry = entry.message_attributes(*name, text.build().map_err(incomplete)?);
    }
    entry.build().map_err(incomplete)
}
