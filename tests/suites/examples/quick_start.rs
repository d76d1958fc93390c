//! The program of the README: a producer, a relay and a consumer in one service.

use libtest_mimic::Trial;
use sqlx::Postgres;
use tests::eventually::when;
use tests::{Backend, Database, Outcome, Stage, brokers, eventually, trial};

use crate::program::Running;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("quick_start/postgres/kafka", &[Backend::Postgres, Backend::Kafka], bills)]
}

/// Orders of this database whose message has taken effect: the topic may hold others, of earlier
/// runs.
const BILLED: &str = "SELECT count(*) FROM outbox_message JOIN inbox_message USING (message_id)";

/// Goal: the program places, relays and bills its orders once; asked to end and started again, it
/// goes on. Oracle: the tables.
async fn bills(stage: Stage) -> Outcome {
    let kafka = brokers::open(Backend::Kafka).await?;
    kafka.create_topic(&stage, "orders").await?;
    let database = Database::<Postgres>::empty(&stage).await?;
    let address = Backend::Kafka.address()?;
    let settings = [("DATABASE_URL", database.url.as_str()), ("KAFKA", &address)];
    for orders in [3, 6] {
        let service = Running::start(&stage, "quick_start", &settings)?;
        eventually(&format!("{orders} orders are billed"), || async {
            // Nothing is there before the program has made the tables.
            Ok(when(database.integer(BILLED).await.is_ok_and(|billed| billed == orders)))
        })
        .await?;
        let ended = service.terminate().await?;
        assert!(ended.success(), "{ended}");
    }
    let effects = "SELECT (SELECT count(*) FROM invoice) - (SELECT count(*) FROM inbox_message)";
    assert_eq!(database.integer(effects).await?, 0, "one invoice for each message");
    let unbilled = "SELECT count(*) FROM orders WHERE id NOT IN (SELECT order_id FROM invoice)";
    assert_eq!(database.integer(unbilled).await?, 0, "every order is billed");
    Ok(())
}
