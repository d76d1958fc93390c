//! Several relays, one leader.

use std::sync::Arc;
use std::time::{Duration, Instant};

use message::MaxInFlightPerKey;
use proxy::{Conditions, Flow, Pass, Proxy};
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Broker, Dialect, Outcome, RelayProcess, Stage, brokers, eventually};

tests::cases! { "{case}/{on}":
    everywhere { a_terminated_leader_hands_over_at_once }
    night everywhere { a_stopped_leader_is_replaced_and_changes_nothing }
    night postgres rabbitmq { a_second_signal_ends_the_relay_at_once }
}

const RELAY: &str = "orders";

/// Goal: a leader that freezes for longer than its lease is replaced, and changes nothing when it
/// wakes up. Oracle: the checker, including the order per key; lease and epoch in the database are
/// the successor's.
async fn a_stopped_leader_is_replaced_and_changes_nothing<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let consumer = workload.consume().await?;
    let leader = RelayProcess::start(&stage, &config)?;
    leader.tells("connected").await?;
    let standby = RelayProcess::start(&stage, &config)?;
    standby.tells("standing by").await?;
    workload.place_many(5, 50).await?;
    workload.applied(25).await?;
    freeze(&leader, &workload).await?;
    workload.place_many(5, 50).await?;
    standby.tells("lease taken over").await?;
    let lease = "SELECT holder || '/' || epoch FROM outbox_relay";
    let taken = workload.database.texts(lease).await?;
    leader.signal("CONT").await?;
    leader.tells("lease lost").await?;
    assert_eq!(workload.database.texts(lease).await?, taken, "the former leader changed the lease");
    workload.place_many(5, 50).await?;
    workload.settled().await?;
    consumer.stop().await?;
    leader.stop().await?;
    standby.stop().await
}

/// Suspends a process while it holds no database lock. SQLite has one lock for all writers, so no
/// other process could write while the lock's owner is suspended.
async fn freeze<DB: Dialect>(process: &RelayProcess, workload: &Workload<DB>) -> Outcome {
    eventually("the process is stopped outside of a transaction", async || {
        process.signal("STOP").await?;
        let written = workload.database.execute("UPDATE outbox_relay SET epoch = epoch WHERE false").await;
        if written.is_err() {
            process.signal("CONT").await?;
        }
        Ok(written.is_ok().then_some(()))
    })
    .await
}

/// Goal: SIGTERM drains, stores the cursor and releases the lease, so a standby does not have to
/// wait for the lease to expire. Oracle: the lease lasts an hour, but the standby leads during the
/// test; the checker; nothing is sent again, because the cursor was stored last.
async fn a_terminated_leader_hands_over_at_once<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let text = std::fs::read_to_string(config.path())?.replace("lease_ttl = \"3s\"", "lease_ttl = \"1h\"");
    let config = Config::text(&stage, &text)?;
    let consumer = workload.consume().await?;
    let leader = RelayProcess::start(&stage, &config)?;
    leader.tells("connected").await?;
    let standby = RelayProcess::start(&stage, &config)?;
    standby.tells("standing by").await?;
    workload.place_many(5, 100).await?;
    leader.stop().await?;
    standby.tells("leading").await?;
    workload.place_many(5, 20).await?;
    workload.settled().await?;
    // With one message of a key in flight, some messages were sent ahead of a message that waited
    // for its key.
    let ahead_max = match workload.broker.max_in_flight_per_key() {
        MaxInFlightPerKey::One => 10,
        _ => 0,
    };
    let repeated = workload.repeated().await?;
    assert!(repeated <= ahead_max, "{repeated} repeated: the last checkpoint of the leader is missing");
    consumer.stop().await?;
    standby.stop().await
}

/// Goal: a second signal ends a relay that still waits for confirmations, and nothing is lost.
/// Oracle: messages that took effect but were never confirmed to the relay; its exit code; the
/// checker, and duplicates from the next relay.
async fn a_second_signal_ends_the_relay_at_once(stage: Stage) -> Outcome {
    let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let direct = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let address = Backend::Rabbitmq.address()?;
    let (_, server) = address.rsplit_once('@').ok_or("an address without a user")?;
    let server = server.split('/').next().unwrap_or(server).to_owned();
    let proxy = Proxy::start(0, server.as_str()).await?;
    let behind = std::fs::read_to_string(direct.path())?.replace(&server, &proxy.address().to_string());
    let mut relay = RelayProcess::start(&stage, &Config::text(&stage, &behind)?)?;
    let consumer = workload.consume().await?;
    workload.place_many(5, 20).await?;
    workload.applied(20).await?;
    eventually("the relay has heard of all confirmations", || async {
        Ok((relay.log()?.matches("telemetry: published").count() == 20).then_some(()))
    })
    .await?;
    proxy.set(Conditions { answers: Flow { pass: Pass::Lose, ..Flow::default() }, ..Conditions::default() });
    workload.place("unconfirmed").await?;
    workload.applied(21).await?;
    relay.signal("TERM").await?;
    relay.tells("waiting for outstanding confirmations").await?;
    // A signal that follows immediately counts as the same signal, because `timeout` sends it
    // twice.
    relay.signal("TERM").await?;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(relay.has_ended()?.is_none(), "{}", relay.log()?);
    relay.signal("TERM").await?;
    let asked = Instant::now();
    assert_eq!(relay.ended().await?.code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(3), "it took {:?}", asked.elapsed());
    let log = relay.log()?;
    assert!(log.contains("ERROR relay::cli::run: stopped immediately"), "{log}");
    let relay = RelayProcess::start(&stage, &direct)?;
    workload.place_many(5, 5).await?;
    workload.settled().await?;
    assert!(workload.repeated().await? > 0, "unconfirmed messages were not sent again");
    consumer.stop().await?;
    relay.stop().await
}
