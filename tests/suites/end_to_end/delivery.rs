//! Delivery: which messages arrive, and when.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use message::TraceContext;
use sqlx::Postgres;
use tests::facts::Fact;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};
use time::OffsetDateTime;

tests::cases! { "{case}/{on}":
    everywhere {
        rolled_back_work_leaves_no_message,
        the_trace_context_arrives,
        a_scheduled_message_leaves_at_its_time,
    }
    every_broker { an_open_transaction_delays_only_its_own_rows }
    postgres rabbitmq { rows_of_one_id_are_all_delivered }
    night everywhere { a_scheduled_message_delays_no_other_and_is_not_late }
}

const RELAY: &str = "orders";

/// Goal: G1 and G3, nothing is published that did not commit. Oracle: the checker. A message of
/// rolled-back work would be an effect without an order, or a duplicate, because the next order
/// takes the same number again.
async fn rolled_back_work_leaves_no_message<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    for _ in 0..5 {
        let mut abandoned = workload.begin().await?;
        workload.place_in(&mut abandoned, "a").await?;
        abandoned.rollback().await?;

        let mut partly = workload.begin().await?;
        workload.place_in(&mut partly, "a").await?;
        DB::execute(&mut partly, "SAVEPOINT before").await?;
        workload.place_in(&mut partly, "a").await?;
        DB::execute(&mut partly, "ROLLBACK TO SAVEPOINT before").await?;
        partly.commit().await?;

        let mut dropped = workload.begin().await?;
        workload.place_in(&mut dropped, "b").await?;
        drop(dropped);
        workload.place("b").await?;
    }
    workload.settled().await?;
    consumer.stop().await?;
    relay.stop().await
}

/// Goal: the producer's trace context reaches the consumer unchanged.
/// Oracle: the delivery's own `traceparent` and `tracestate`.
async fn the_trace_context_arrives<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = TraceContext::new(parent, Some(String::from("vendor=1")))?;
    let mut tx = workload.begin().await?;
    outbox::trace::scope(context.clone(), workload.place_in(&mut tx, "a")).await?;
    tx.commit().await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let mut subscription = workload.broker.join("trace", &workload.topic).await?;
    let deliveries = loop {
        let deliveries = subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await?;
        if !deliveries.is_empty() {
            break deliveries;
        }
    };
    let message = deliveries[0].message.as_ref().map_err(|malformed| malformed.problem.clone())?;
    assert_eq!(message.trace.as_ref(), Some(&context));
    assert_eq!(message.source.as_str(), "/orders");
    subscription.close().await?;
    relay.stop().await
}

/// The times of a scheduled message, and of one of its key that was written after it.
struct Scheduled {
    due: OffsetDateTime,
    /// When the effect of the other message was seen.
    other: OffsetDateTime,
    /// When the effects of both were seen.
    both: OffsetDateTime,
}

/// Publishes a scheduled message, and another one of its key.
async fn scheduled<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Result<Scheduled, Failure> {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    // The broker session and the subscription are opened before the clock starts.
    workload.place("warm-up").await?;
    workload.applied(1).await?;
    let due = OffsetDateTime::now_utc() + Duration::from_secs(4);
    let mut tx = workload.begin().await?;
    workload.outbox().enqueue(&mut tx, workload.message("later", 1).deliver_at(due)).await?;
    tx.commit().await?;
    workload.place("later").await?; // also number 1 of its key
    workload.applied(2).await?;
    let other = OffsetDateTime::now_utc();
    workload.applied(3).await?;
    let both = OffsetDateTime::now_utc();
    assert_eq!(workload.effects().await?.iter().filter(|fact| fact.key == "later").count(), 2);
    consumer.stop().await?;
    relay.stop().await?;
    Ok(Scheduled { due, other, both })
}

/// Goal: a scheduled message is published no earlier than its time. Oracle: this machine's clock,
/// which the database uses as well, when its effect is first seen.
async fn a_scheduled_message_leaves_at_its_time<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let Scheduled { due, both, .. } = scheduled::<DB>(stage, broker).await?;
    assert!(both >= due, "the scheduled message came {} early", due - both);
    Ok(())
}

/// Goal: a scheduled message delays no other one of its key, and leaves soon after its time.
/// Oracle: the same clock.
async fn a_scheduled_message_delays_no_other_and_is_not_late<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let Scheduled { due, other, both } = scheduled::<DB>(stage, broker).await?;
    assert!(other < due, "an unscheduled message of the same key had to wait");
    assert!(both < due + Duration::from_secs(5), "the scheduled message came {} late", both - due);
    Ok(())
}

/// Goal: G7, a long transaction delays only its own rows, and they are not lost. Oracle: rows that
/// are committed later take effect while the transaction is open; the checker at the end.
async fn an_open_transaction_delays_only_its_own_rows(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    let mut long = workload.begin().await?;
    workload.place_in(&mut long, "held-open").await?;
    let mut longer = workload.begin().await?;
    workload.place_in(&mut longer, "held-open-too").await?;
    workload.place_many(5, 40).await?;
    workload.applied(40).await?;
    assert!(workload.effects().await?.iter().all(|fact| !fact.key.starts_with("held-open")));
    workload.place_in(&mut long, "held-open").await?;
    longer.commit().await?;
    long.commit().await?;
    workload.place("held-open").await?;
    workload.settled().await?;
    let last = Fact::new("held-open", 3);
    eventually("the last order took effect", || async {
        Ok(workload.effects().await?.contains(&last).then_some(()))
    })
    .await?;
    consumer.stop().await?;
    relay.stop().await
}

/// Goal: G1, after a sequence went back and was ahead again before a relay read the log. The relay
/// notices nothing until it reads two rows with one id. Oracle: the checker.
async fn rows_of_one_id_are_all_delivered(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    // Makes the messages look days old, so that their rows are in another segment.
    const MAKE_OLDER: &str = "UPDATE outbox_message AS m SET message_id = encode(
            set_byte(set_byte(uuid_send(m.message_id), 1, hours / 256), 2, hours % 256), 'hex')::uuid
        FROM (SELECT id, get_byte(uuid_send(message_id), 1) * 256 + get_byte(uuid_send(message_id), 2) - 12 AS hours
            FROM outbox_message) AS older WHERE older.id = m.id";
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let consumer = workload.consume().await?;
    workload.place_many(5, 40).await?;
    workload.database.execute(MAKE_OLDER).await?;
    workload.database.execute("SELECT setval('outbox_message_id_seq', 3)").await?;
    workload.place_many(5, 20).await?;
    workload.database.execute("SELECT setval('outbox_message_id_seq', 100)").await?;
    let shared = "SELECT count(*) - count(DISTINCT id) FROM outbox_message";
    assert_eq!(workload.database.integer(shared).await?, 20);
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    workload.settled().await?;
    assert_eq!((workload.effects().await?.len(), workload.database.integer(shared).await?), (60, 0));
    consumer.stop().await?;
    relay.stop().await
}
