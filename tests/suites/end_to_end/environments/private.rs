//! Servers of a test's own: one that becomes read-only under its sessions, and PostgreSQL 18.

use libtest_mimic::Trial;
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::trial::at_night;
use tests::workload::Workload;
use tests::{Backend, Cluster, Database, Outcome, RelayProcess, Stage, brokers, cluster, eventually, trial};

use super::{ORDERS, key, saga};
use crate::verify::{self, verify};

pub(super) fn trials() -> Vec<Trial> {
    let needs = [Backend::Postgres, Backend::Xtask, Backend::Rabbitmq];
    at_night(vec![
        trial("environments/private/a_server_that_becomes_read_only_is_waited_out", &needs, read_only),
        trial("environments/private/postgres_18", &needs, on_18),
        trial("environments/private/pgbouncer_in_session_mode", &needs, behind_a_pooler),
    ])
}

/// Every session of the server, also those that are open, reads only by default from now on, or
/// writes again.
async fn set_read_only(cluster: &Cluster, value: &str) -> Outcome {
    cluster.execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).await?;
    cluster.execute("SELECT pg_reload_conf()").await?;
    eventually("the setting is in force", || async {
        Ok(when(cluster.text("SHOW default_transaction_read_only").await? == value))
    })
    .await
}

/// Goal: a server whose sessions become read-only (a primary that is about to be demoted, a full
/// disk at a cloud) loses nothing and spends no attempt of a message or a saga; all go on by
/// themselves once it writes again. Oracle: the server's own refusals, the checker, no dead letter
/// and no stuck saga, `relay verify`.
async fn read_only(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let broker = brokers::open(Backend::Rabbitmq).await?;
    let workload = Workload::<Postgres>::on(&stage, database, broker).await?;
    let database = &workload.database;
    let config = Config::write(&stage, "orders", &database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;

    set_read_only(&cluster, "on").await?;
    let refused = workload.place_many(1, 1).await;
    assert!(refused.is_err(), "a producer was served by a server that reads only");
    // Orders of an administrator, who overrules the setting, meet a consumer that does not.
    let orders = format!(
        "BEGIN READ WRITE; INSERT INTO outbox_message (topic, key, kind, content_type, payload) \
         SELECT '{}', 'key-9', 'order.placed', 'application/json', \
            convert_to(format('{{\"key\":\"key-9\",\"seq\":%s}}', n), 'UTF8') FROM generate_series(1, {ORDERS}) AS n; \
         INSERT INTO placed SELECT 'key-9', n FROM generate_series(1, {ORDERS}) AS n; \
         COMMIT",
        workload.topic
    );
    database.execute(&orders).await?;
    eventually("a consumer meets a server that reads only", || async {
        Ok(when(cluster.log()?.matches("cannot execute INSERT in a read-only transaction").count() > 2))
    })
    .await?;
    let unserved = key(database).await.map_err(|error| error.to_string());
    assert!(unserved.is_err(), "a key was claimed on a server that reads only");

    set_read_only(&cluster, "off").await?;
    workload.settled().await?;
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;
    key(database).await?;
    saga(database).await?;
    consumer.stop().await?;
    relay.stop().await?;
    assert_eq!(database.integer("SELECT count(*) FROM inbox_dead_letter").await?, 0);
    assert_eq!(database.integer("SELECT count(*) FROM inbox_attempt WHERE attempts > 0").await?, 0);
    let config = verify::config(&stage, &workload, &database.url, "")?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    Ok(())
}

/// Goal: behind a pooler as it is installed, in session mode, everything works, tables are made and
/// operators are answered. Oracle: that of the short way.
async fn behind_a_pooler(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    cluster.start_pooler("session").await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.pooler_url()).await?;
    let broker = brokers::open(Backend::Rabbitmq).await?;
    let workload = Workload::<Postgres>::on(&stage, database, broker).await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;
    key(&workload.database).await?;
    saga(&workload.database).await?;
    consumer.stop().await?;
    relay.stop().await?;
    let config = verify::config(&stage, &workload, &workload.database.url, "")?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    Ok(())
}

/// Goal: the short way through everything holds on PostgreSQL 18, in each environment, with the
/// settings that are new there. Oracle: the cases of this suite, run on such a server.
async fn on_18(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[(cluster::MAJOR, "18")]).await?;
    cluster.passes("environments/postgres/").await
}
