//! A database that moves to another server, and to a newer version, by logical replication.

use std::sync::Arc;

use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Cluster, Database, Outcome, RelayProcess, Stage, brokers, cluster, eventually};

use super::{ORDERS, key, repeated_key, saga};
use crate::commands::Ran;

tests::cases! { "environments/moved/{case}":
    anywhere + postgres xtask rabbitmq {
        an_upgrade_by_logical_replication_repeats_no_effect = upgraded,
    }
}

/// The tables without those of the outbox.
const TABLES: &str = "SELECT string_agg(format('%I', relname), ', ' ORDER BY relname) FROM pg_class \
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition \
        AND relpersistence = 'p' AND relname NOT LIKE 'outbox\\_%'";

/// Tables of a subscription that are not copied yet.
const NOT_COPIED: &str = "SELECT count(*)::text FROM pg_subscription_rel WHERE srsubstate <> 'r'";

/// One text of everything that has to be equal on both servers.
const CONTENT: &str = "SELECT concat_ws(' ', (SELECT count(*) FROM placed), (SELECT sum(seq) FROM counter), \
    (SELECT count(*) FROM effect), (SELECT count(*) FROM inbox_message), (SELECT count(*) FROM inbox_day), \
    (SELECT count(*) FROM inbox_retention), (SELECT count(*) FROM idempotency_key), \
    (SELECT count(*) FROM saga WHERE state = 'finished'), (SELECT count(*) FROM saga_step))";

/// Sequences are not replicated. A sequence without rows stays as it is.
const SEQUENCES: &str = "\
    SELECT setval('inbox_dead_letter_seq_seq', (SELECT max(seq) FROM inbox_dead_letter)); \
    SELECT setval('effect_n_seq', (SELECT max(n) FROM effect)); \
    SELECT setval('repeated_n_seq', (SELECT max(n) FROM repeated))";

/// Goal: inbox, keys and sagas move to a newer server as the documents say, while orders take
/// effect, and the outbox is drained and begins anew there. No effect is repeated, although every
/// earlier message comes again after the move, and the order of keys goes on. Oracle: the checker,
/// over the orders and effects of both servers, and the number of messages that came again.
async fn upgraded(stage: Stage) -> Outcome {
    let old = Cluster::start(&stage, &[("OUTBOX_POSTGRES_WAL_LEVEL", "logical")]).await?;
    let new = Cluster::start(&stage, &[(cluster::MAJOR, "18")]).await?;
    let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
    let database = Database::<Postgres>::migrated_at(&stage, old.url()).await?;
    let before = Workload::<Postgres>::on(database, Arc::clone(&broker)).await?;
    let database = Database::<Postgres>::migrated_at(&stage, new.url()).await?;
    let mut after = Workload::<Postgres>::on(database, broker).await?;
    after.topic.clone_from(&before.topic);
    let url = before.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, before.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = before.consume().await?;
    before.place_many(3, ORDERS).await?;
    before.settled().await?;
    key(&before.database).await?;
    saga(&before.database).await?;

    // The days on both sides, those of the past as well; then the rows.
    let first = old.text("SELECT min(day)::text FROM inbox_day").await?;
    let days = format!("SELECT inbox_create_days('{first}', current_date + 5)");
    old.execute(&days).await?;
    new.execute(&days).await?;
    new.execute("TRUNCATE inbox_day").await?;
    let tables = old.text(TABLES).await?;
    old.execute(&format!("CREATE PUBLICATION upgrade FOR TABLE {tables}")).await?;
    let subscribe = format!("CREATE SUBSCRIPTION upgrade CONNECTION '{}' PUBLICATION upgrade", old.url());
    new.execute(&subscribe).await?;
    before.place_many(3, ORDERS).await?;
    before.settled().await?;

    // Producers, relay and consumers have stopped, and the log is drained.
    relay.stop().await?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    consumer.stop().await?;
    eventually("the new server has everything", || async {
        let is_copied = new.text(NOT_COPIED).await? == "0";
        Ok(when(is_copied && new.text(CONTENT).await? == old.text(CONTENT).await?))
    })
    .await?;
    new.execute("DROP SUBSCRIPTION upgrade").await?;
    new.execute(SEQUENCES).await?;

    // A relay that is new to the old log sends every message again.
    let again = Config::write(&stage, "again", &url, before.broker.as_ref(), "")?;
    let again = RelayProcess::start(&stage, &again)?;
    let consumer = after.consume().await?;
    let earlier = i64::try_from(2 * ORDERS)?;
    eventually("every earlier message has come again", || async {
        Ok(when(after.repeated().await? >= earlier))
    })
    .await?;
    again.stop().await?;
    let url = after.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, after.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    after.place_many(3, ORDERS).await?;
    after.settled().await?;
    assert_eq!(after.placed().await?.len(), 3 * ORDERS);
    repeated_key(&after.database).await?;
    consumer.stop().await?;
    relay.stop().await
}
