//! A consumer's lag, as its metric reports it.

use std::sync::Arc;
use std::time::Duration;

use inbox::{Consumer, HandlerError, Inbox, InboxOptions, Shutdown};
use message::{Backoff, Message};
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Counters, Outcome, RelayProcess, Stage, eventually};

/// More messages than any client prefetches.
const MESSAGES: i64 = 1_200;
/// Enough keys for batches when a relay sends one message of a key at a time (SQS).
const KEYS: i64 = 40;
/// Pause between two attempts at a message that holds others of its key.
const PAUSE: Duration = Duration::from_millis(200);

tests::cases! { "{case}/{on}":
    postgres kafka { the_lag_of_a_consumer_is_told_while_it_lasts }
    postgres rabbitmq { the_lag_of_a_consumer_is_told_while_it_lasts }
    postgres sqs { the_lag_of_a_consumer_is_told_while_it_lasts }
}

async fn applied(_: &mut inbox::Tx, _: &Message) -> Result<(), HandlerError> {
    Ok(())
}

/// Fails until the message is dead-lettered, which takes longer than the case.
async fn refused(_: &mut inbox::Tx, _: &Message) -> Result<(), HandlerError> {
    Err(HandlerError::retry("the test lets nothing through"))
}

/// Goal: a consumer that falls behind is visible. Oracle: the gauge while no message takes effect,
/// when all messages have, and after the end of the session, when the lag is unknown.
async fn the_lag_of_a_consumer_is_told_while_it_lasts(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let counters = Counters::installed();
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let mut tx = workload.begin().await?;
    for number in 0..MESSAGES {
        let key = format!("k-{}", number % KEYS);
        workload.outbox().enqueue(&mut tx, workload.message(&key, number)).await?;
    }
    tx.commit().await?;
    let url = workload.database.relay_url()?;
    let relay =
        RelayProcess::start(&stage, &Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?)?;

    let inbox = Inbox::open(workload.database.consumer.clone(), InboxOptions::default()).await?;
    let consumer = format!("lag-{}", workload.topic);
    let labels: [(&'static str, &str); 2] = [("consumer", &consumer), ("topic", &workload.topic)];
    let lag = || counters.gauge("inbox_lag_messages", &labels);
    for (lets_through, what) in [(false, "the lag is told"), (true, "nothing lags behind")] {
        let builder = Consumer::builder(inbox.clone(), consumer.as_str())
            .attempts_max(u32::MAX)
            .backoff(Backoff { first: PAUSE, max: PAUSE })
            .maintain_interval(None)
            .subscribe({
                let (broker, topic) = (Arc::clone(&workload.broker), workload.topic.clone());
                move || {
                    let (broker, topic) = (Arc::clone(&broker), topic.clone());
                    async move {
                        let opened = broker.join("lag", &topic).await;
                        opened.map_err(|error| message::SubscriptionError::lost(error.to_string()))
                    }
                }
            });
        let builder = if lets_through {
            builder.on_message("order.placed", applied)
        } else {
            builder.on_message("order.placed", refused)
        };
        let shutdown = Shutdown::new();
        let running = tokio::spawn(builder.build()?.run(shutdown.clone()));
        eventually(what, || async {
            let lag = lag();
            let (least, most) = if lets_through { (0.0, 0.0) } else { (600.0, 1_200.0) };
            Ok((counted(counters, &consumer) && lag >= least && lag <= most).then_some(()))
        })
        .await?;
        shutdown.graceful.cancel();
        running.await??;
        assert!(lag().is_nan(), "a lag is told without a session: {}", lag());
    }
    relay.stop().await
}

/// Returns whether the consumer has received any message yet.
fn counted(counters: &Counters, consumer: &str) -> bool {
    counters.value("inbox_received_total", &[("consumer", consumer)]) > 0
}
