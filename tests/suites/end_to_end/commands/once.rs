//! `relay run --once`.

use std::sync::Arc;
use std::time::Duration;

use outbox::NewMessage;
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Broker, Dialect, Outcome, RelayProcess, Stage, brokers, eventually};

use super::Ran;

tests::cases! { "{case}/{on}":
    pairs { a_run_ends_when_everything_has_left }
    postgres kafka { a_run_ends_when_an_operator_has_to_act }
    postgres rabbitmq { a_run_ends_when_a_queue_is_missing }
}

/// Goal: a run ends on its own when everything has been published, and leaves messages that are due
/// later, but no message that is due. Oracle: exit code 0 without messages, with a hundred messages
/// and with scheduled messages; the records, read with a plain client; the lease is released.
async fn a_run_ends_when_everything_has_left<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    workload.place_many(5, 100).await?;
    let mut tx = workload.begin().await?;
    let later = NewMessage::new(&workload.topic)
        .key("later")
        .json(&1)
        .deliver_at(time::OffsetDateTime::now_utc() + Duration::from_secs(3_600));
    workload.outbox().enqueue(&mut tx, later).await?;
    tx.commit().await?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    let records = workload.broker.drain(&workload.topic, 100).await?;
    assert_eq!(records.len(), 100, "each left once, and the scheduled one did not");
    let status = Ran::with(&config, &["status", "--output", "json"]).await?.done()?.json()?;
    assert_eq!((status[0]["state"].as_str(), status[0]["oldest_pending_id"].as_i64()), (Some("idle"), None));
    assert_eq!(status[0]["exceptions"]["scheduled"], 1, "{status}");

    let mut tx = workload.begin().await?;
    let soon = time::OffsetDateTime::now_utc() + Duration::from_secs(2);
    let soon = NewMessage::new(&workload.topic).key("soon").json(&2).deliver_at(soon);
    workload.outbox().enqueue(&mut tx, soon).await?;
    tx.commit().await?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    let due = "SELECT count(*) FROM outbox_exception WHERE key = 'soon' AND due_at > ";
    let now = if DB::BACKEND == Backend::Postgres { "now()" } else { "unixepoch('subsec') * 1000000" };
    eventually("the message is due", || async {
        Ok((workload.database.integer(&format!("{due}{now}")).await? == 0).then_some(()))
    })
    .await?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    let parked = workload.database.texts("SELECT key FROM outbox_exception").await?;
    assert_eq!(parked, ["later"], "the run did not end before the one that is due has left");
    Ok(())
}

/// Goal: a run that cannot lead until an operator acts ends, and reports what is needed. It waits
/// only for temporary problems. Oracle: its exit code and its log, without the right to take the
/// lease.
async fn a_run_ends_when_an_operator_has_to_act(stage: Stage) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Kafka).await?).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?;
    workload.place_many(1, 1).await?;
    let relay = "REVOKE INSERT, UPDATE ON outbox_relay FROM outbox_test_relay";
    workload.database.execute(relay).await?;
    let ran = Ran::with(&config, &["run", "--once"]).await?.ended(3)?;
    assert!(ran.err.contains("until an operator acts") && ran.err.contains("permission denied"), "{ran:?}");
    Ok(())
}

/// Goal: a run whose last messages wait for an operator ends, and reports this. If a signal ends a
/// run earlier, the run does not report success. Oracle: exit codes and the log, with a missing
/// queue.
async fn a_run_ends_when_a_queue_is_missing(stage: Stage) -> Outcome {
    let workload =
        Workload::<Postgres>::open(&stage, brokers::open(&stage, Backend::Rabbitmq).await?).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?;
    workload.database.append("no-such-queue", "a", "{}").await?;
    let mut signalled = RelayProcess::start_command(&stage, &config, &["run", "--once"])?;
    signalled.tells("topic stopped").await?;
    signalled.signal("TERM").await?;
    assert_eq!(signalled.ended().await?.code(), Some(3), "{}", signalled.log()?);
    let ran = Ran::with(&config, &["run", "--once"]).await?.ended(3)?;
    assert!(ran.err.contains("blocked=1") && ran.err.contains("--state retrying"), "{ran:?}");
    Ok(())
}
