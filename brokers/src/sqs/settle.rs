//! Deletes, releases and extends deliveries, in batches of 10 with an answer for each entry.

use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::BuildError;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};

use tokio::task::JoinSet;

use super::backlog::BATCH_ENTRIES_MAX;
use super::fault::{Failure, Kind};
use super::throttle::patiently;

/// A queue in which deliveries are settled.
#[derive(Debug, Clone)]
pub(super) struct Settler {
    pub(super) client: Client,
    pub(super) url: String,
    /// How long a throttled request is sent again: less than the visibility timeout, because
    /// nothing is kept alive meanwhile.
    pub(super) patience: Duration,
}

impl Settler {
    /// Deletes these deliveries from the queue.
    pub(super) async fn delete(&self, receipts: Vec<String>) -> Result<(), Failure> {
        self.in_batches(receipts, Self::delete_batch).await
    }

    /// Sets the time until these deliveries are redelivered; zero hands them back.
    pub(super) async fn hide(&self, receipts: Vec<String>, seconds: i32) -> Result<(), Failure> {
        self.in_batches(receipts, move |settler, batch| settler.hide_batch(batch, seconds)).await
    }

    /// Sends all batches at once: 500 deliveries are 50 requests, each a round trip. Every batch is
    /// tried, then the first failure is reported.
    async fn in_batches<F, R>(&self, receipts: Vec<String>, settle: F) -> Result<(), Failure>
    where
        F: Fn(Self, Vec<String>) -> R + Copy + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let mut requests = JoinSet::new();
        for batch in receipts.chunks(BATCH_ENTRIES_MAX) {
            let (settler, batch) = (self.clone(), batch.to_vec());
            requests.spawn(async move {
                patiently(settler.patience, || settle(settler.clone(), batch.clone())).await
            });
        }
        let mut outcome = Ok(());
        while let Some(settled) = requests.join_next().await {
            let settled = settled.unwrap_or_else(|error| Err(Failure::of_task(&error)));
            outcome = outcome.and(settled);
        }
        outcome
    }

    async fn delete_batch(self, batch: Vec<String>) -> Result<(), Failure> {
        let entries = batch.iter().enumerate().map(|(index, receipt)| {
            DeleteMessageBatchRequestEntry::builder().id(index.to_string()).receipt_handle(receipt).build()
        });
        let entries = entries.collect::<Result<Vec<_>, _>>().map_err(incomplete)?;
        let request = self.client.delete_message_batch().queue_url(self.url).set_entries(Some(entries));
        check(request.send().await.map_err(|error| Failure::of_request(&error))?.failed())
    }

    async fn hide_batch(self, batch: Vec<String>, seconds: i32) -> Result<(), Failure> {
        let entries = batch.iter().enumerate().map(|(index, receipt)| {
            ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(index.to_string())
                .receipt_handle(receipt)
                .visibility_timeout(seconds)
                .build()
        });
        let entries = entries.collect::<Result<Vec<_>, _>>().map_err(incomplete)?;
        let request = self.client.change_message_visibility_batch().queue_url(self.url);
        let sent = request.set_entries(Some(entries)).send().await;
        check(sent.map_err(|error| Failure::of_request(&error))?.failed())
    }
}

/// Checks failed entries. A delivery that SQS has taken back (its visibility timeout expired) is
/// redelivered; everything else is an error.
fn check(failed: &[BatchResultErrorEntry]) -> Result<(), Failure> {
    for entry in failed {
        let message = entry.message().unwrap_or_default();
        let failure = Failure::of_code(entry.code(), message, entry.sender_fault());
        if failure.kind != Kind::Refused {
            return Err(failure);
        }
        tracing::debug!(
            code = entry.code(),
            message,
            "a delivery is no longer valid at sqs; it will be redelivered"
        );
    }
    Ok(())
}

fn incomplete(error: BuildError) -> Failure {
    Failure::of_code("Incomplete", &error.to_string(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: &str, sender_fault: bool) -> BatchResultErrorEntry {
        BatchResultErrorEntry::builder().id("0").code(code).sender_fault(sender_fault).build().unwrap()
    }

    #[test]
    fn an_expired_receipt_is_skipped_and_everything_else_is_reported() {
        check(&[failed("ReceiptHandleIsInvalid", true), failed("MessageNotInflight", true)]).unwrap();
        let internal = check(&[failed("ReceiptHandleIsInvalid", true), failed("InternalError", false)]);
        assert_eq!(internal.unwrap_err().kind, Kind::Busy);
        assert_eq!(check(&[failed("AccessDenied", true)]).unwrap_err().kind, Kind::Forbidden);
    }
}
