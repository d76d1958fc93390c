//! Relays that crash.

use std::sync::Arc;

use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Broker, Dialect, Outcome, RelayProcess, Stage};

tests::cases! { "{case}/{on}":
    everywhere { a_relay_that_is_killed_again_and_again_loses_nothing }
}

const KILLS: i64 = 4;
const ORDERS: usize = 60;
const KEYS: usize = 7;

/// Goal: G2 and G5, a relay that is killed between publishing and storing its cursor loses nothing,
/// and nothing takes effect twice. The cursor is stored every 1.9 s, so every kill hits that
/// window. Oracle: the checker; the consumer received duplicates, which proves that the window was
/// hit (a FIFO queue of SQS drops them itself).
async fn a_relay_that_is_killed_again_and_again_loses_nothing<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let slow = "checkpoint_interval = \"1900ms\"\n";
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), slow)?;
    let consumer = workload.consume().await?;
    let mut expected = 0;
    for _ in 0..KILLS {
        let relay = RelayProcess::start(&stage, &config)?;
        relay.tells("connected").await?;
        workload.place_many(KEYS, ORDERS / 2).await?;
        expected += i64::try_from(ORDERS / 2)?;
        workload.applied(expected).await?;
        // The second half is being published when the relay dies.
        workload.place_many(KEYS, ORDERS / 2).await?;
        expected += i64::try_from(ORDERS / 2)?;
        relay.kill().await?;
    }
    let relay = RelayProcess::start(&stage, &config)?;
    workload.settled().await?;
    if workload.broker.backend() != Backend::SqsFifo {
        assert!(
            workload.repeated().await? > 0,
            "no kill hit the window between publishing and the checkpoint"
        );
    }
    consumer.stop().await?;
    relay.stop().await
}
