//! SQS: batches that fail partially, errors, throttling, silence.

use std::sync::Arc;
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, retry::RetryConfig};
use aws_sdk_sqs::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_sqs::operation::send_message_batch::{SendMessageBatchError, SendMessageBatchOutput};
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use libtest_mimic::Trial;
use storm::faults::broker::sqs::{Gateway, Mood, SqsErrors};
use tests::{Backend, Failure, Outcome, Stage, trial};

use crate::scene::{empty, heal, inject};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Backend::Sqs];
    vec![
        trial("sqs/a_batch_fails_in_part", needs, a_batch_fails_in_part),
        trial("sqs/a_batch_is_done_and_said_to_have_failed", needs, a_batch_is_done_and_said_to_have_failed),
        trial("sqs/requests_fail_and_are_throttled", needs, requests_fail_and_are_throttled),
        trial("sqs/a_request_is_done_and_not_answered", needs, a_request_is_done_and_not_answered),
        trial("sqs/a_queue_answers_nothing_that_is_sent", needs, a_queue_answers_nothing),
        trial("sqs/every_error_passes", needs, every_error_passes),
    ]
}

struct Scene {
    gateway: Arc<Gateway>,
    client: Client,
    queue: String,
}

impl Scene {
    async fn open(test: &Stage) -> Result<Self, Failure> {
        let endpoint = Backend::Sqs.address()?;
        let server = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let gateway = Arc::new(Gateway::start(server).await?);
        let config = aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(format!("http://{}", gateway.address()))
            .region(Region::new("elasticmq"))
            .credentials_provider(Credentials::new("x", "x", None, None, "test"))
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_secs(2)).build());
        let client = Client::new(&config.load().await);
        let created = client.create_queue().queue_name(test.unique("gateway")).send().await?;
        let queue = created.queue_url.ok_or("a queue without an address")?;
        let (removing, removed) = (client.clone(), queue.clone());
        let keeping = Arc::clone(&gateway);
        test.afterwards("the queue", async move {
            keeping.set(Mood::Fair);
            removing.delete_queue().queue_url(removed).send().await?;
            Ok(())
        });
        Ok(Self { gateway, client, queue })
    }

    async fn send(&self) -> Result<SendMessageBatchOutput, SdkError<SendMessageBatchError>> {
        let mut batch = self.client.send_message_batch().queue_url(&self.queue);
        for number in 0..10 {
            let entry = SendMessageBatchRequestEntry::builder().id(number.to_string()).message_body("x");
            batch = batch.entries(entry.build().map_err(SdkError::construction_failure)?);
        }
        batch.send().await
    }

    async fn held(&self) -> Result<usize, Failure> {
        self.gateway.set(Mood::Fair);
        let wanted = aws_sdk_sqs::types::QueueAttributeName::ApproximateNumberOfMessages;
        let asked = self.client.get_queue_attributes().queue_url(&self.queue).attribute_names(wanted.clone());
        let attributes = asked.send().await?.attributes.unwrap_or_default();
        Ok(attributes.get(&wanted).ok_or("no count")?.parse()?)
    }
}

async fn a_batch_fails_in_part(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    scene.gateway.set(Mood::Partial(0.5));
    let (mut done, mut failed) = (0, 0);
    while done == 0 || failed == 0 {
        let answer = scene.send().await?;
        assert_eq!(answer.successful().len() + answer.failed().len(), 10);
        assert!(answer.failed().iter().all(|entry| entry.code() == "InternalError" && !entry.sender_fault()));
        done += answer.successful().len();
        failed += answer.failed().len();
    }
    assert_eq!(scene.held().await?, done);
    Ok(())
}

async fn a_batch_is_done_and_said_to_have_failed(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    scene.gateway.set(Mood::PartialDone(1.0));
    assert_eq!(scene.send().await?.failed().len(), 10);
    assert_eq!(scene.gateway.spoilt(), 1);
    assert_eq!(scene.held().await?, 10);
    Ok(())
}

async fn requests_fail_and_are_throttled(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    scene.gateway.set(Mood::Errors(1.0));
    let error = scene.send().await.err().ok_or("it did not fail")?;
    let status = error.raw_response().ok_or("no response")?.status().as_u16();
    assert!(status == 500 || status == 503, "{status}");
    scene.gateway.set(Mood::Throttled(1.0));
    let error = scene.send().await.err().ok_or("it was not throttled")?;
    assert_eq!(error.code(), Some("RequestThrottled"));
    assert_eq!(scene.held().await?, 0);
    Ok(())
}

async fn a_request_is_done_and_not_answered(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    scene.gateway.set(Mood::Silent(1.0));
    let error = scene.send().await.err().ok_or("it was answered")?;
    assert!(matches!(error, SdkError::TimeoutError(_)), "{error}");
    assert_eq!(scene.held().await?, 10);
    Ok(())
}

async fn a_queue_answers_nothing(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    let journal = test.folder().join("gateway.journal");
    scene.gateway.write_to(storm::journal::Journal::open(&journal)?);
    scene.gateway.set(Mood::SilentSends);
    assert!(matches!(scene.send().await, Err(SdkError::TimeoutError(_))));
    // Readers still get answers.
    assert_eq!(scene.held().await?, 10);
    scene.gateway.set(Mood::Fair);
    scene.send().await?;
    let mut done = 0;
    storm::journal::read(&journal, |passed: storm::journal::Passed| done += u32::from(passed.is_done))?;
    assert_eq!(done, 20, "of both batches");
    Ok(())
}

async fn every_error_passes(test: Stage) -> Outcome {
    let scene = Scene::open(&test).await?;
    let mut stage = empty(&test);
    stage.broker.gateway = Some(Arc::clone(&scene.gateway));
    for mut fault in SqsErrors::all() {
        heal(&mut fault, &stage).await?;
        inject(&mut fault, &stage, 1).await?;
        let before = scene.gateway.spoilt();
        while scene.gateway.spoilt() == before {
            // The outcome depends on the fault.
            drop(scene.send().await);
        }
        heal(&mut fault, &stage).await?;
        assert_eq!(scene.send().await?.successful().len(), 10);
    }
    Ok(())
}
