//! Stages with only the parts that one fault needs.

use std::time::{Duration, Instant};

use harness::faults::{Fault, Injected};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use storm::pair::{BrokerKind, DatabaseKind, Pair};
use storm::stage::{Broker, Database, Processes, Services, Stage, Topic, Wires};
use storm::workload::Workload;
use tests::{Dialect, Failure, Outcome};

/// Returns a stage with only a folder.
pub(crate) fn empty(test: &tests::Stage) -> Stage {
    Stage {
        pair: Pair { database: DatabaseKind::Postgres, broker: BrokerKind::Kafka },
        processes: Processes::default(),
        wires: Wires::default(),
        services: Services::new("false".into()),
        database: Database::default(),
        broker: Broker {
            address: String::new(),
            topics: Vec::new(),
            groups: Vec::new(),
            exchange: None,
            inner_exchange: None,
            gateway: None,
            endpoint: None,
            confirms: None,
            topic_reader: None,
            mock: None,
        },
        length: Duration::from_secs(240),
        folder: test.folder().to_owned(),
    }
}

/// Returns a stage with one database for producers and consumers, and this number of accounts.
pub(crate) async fn with_database<DB: Dialect + Workload>(
    test: &tests::Stage,
    accounts: u32,
) -> Result<(Stage, tests::Database<DB>), Failure> {
    let database = tests::Database::<DB>::migrated(test).await?;
    DB::create_business(&mut *database.admin.acquire().await?).await?;
    for account in 0..accounts {
        let name = Database::account(account);
        database.execute(&format!("INSERT INTO account VALUES ('{name}', 0)")).await?;
    }
    let url = database.url.clone();
    let reached = Database { producers: url.clone(), consumers: url, accounts, ..Database::default() };
    Ok((Stage { database: reached, ..empty(test) }, database))
}

/// Returns a stage with one topic.
pub(crate) fn with_topic(test: &tests::Stage, address: &str, topic: &str) -> Stage {
    let mut stage = empty(test);
    stage.broker.address = address.to_owned();
    stage.broker.topics = vec![Topic { name: topic.to_owned(), queues: Vec::new() }];
    stage
}

/// Injects a fault with random numbers from this seed.
pub(crate) async fn inject(
    fault: &mut dyn Fault<Stage>,
    stage: &Stage,
    seed: u64,
) -> Result<Injected, Failure> {
    fault.inject(stage, &mut StdRng::seed_from_u64(seed)).await
}

/// Heals twice, because healing must do nothing before `inject`, and nothing when it is repeated.
pub(crate) async fn heal(fault: &mut dyn Fault<Stage>, stage: &Stage) -> Outcome {
    fault.heal(stage).await?;
    fault.heal(stage).await
}

/// Timeout of a condition. Only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Repeats `ask` until there is an answer. Unlike with `tests::eventually`, the call may have
/// effects.
pub(crate) async fn until<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(format!("not within {PATIENCE:?}: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
