//! Tests on private servers: a server that becomes read-only under its sessions, a server that its
//! standby replaces, poolers, and PostgreSQL 18.

use libtest_mimic::Trial;
use proxy::Proxy;
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Cluster, Database, Outcome, RelayProcess, Stage, brokers, cluster, eventually, trial};

use super::{ORDERS, key, nothing_is_missing, saga};
use crate::commands::Ran;

tests::cases! { "environments/private/{case}":
    anywhere + postgres xtask rabbitmq {
        a_server_that_becomes_read_only_is_waited_out = read_only,
        a_standby_takes_the_place_of_its_primary = promoted,
        postgres_18 = on_18,
        pgbouncer_in_session_mode = behind_a_pooler,
    }
    also { [behind_a_pooler_that_prepares()] }
}

/// Makes all sessions of the server read-only by default, including open ones, or writable again.
async fn set_read_only(cluster: &Cluster, value: &str) -> Outcome {
    cluster.execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).await?;
    cluster.execute("SELECT pg_reload_conf()").await?;
    eventually("the setting is in force", || async {
        Ok(when(cluster.text("SHOW default_transaction_read_only").await? == value))
    })
    .await
}

/// Goal: a server's sessions become read-only, as on a primary that is about to be demoted, or in a
/// cloud when the disk is full. Nothing is lost, no message or saga loses an attempt, and all
/// continue automatically once the server accepts writes again. Oracle: the server's own refusals,
/// the checker, no dead letter and no stuck saga, `relay verify`.
async fn read_only(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
    let workload = Workload::<Postgres>::on(database, broker).await?;
    let database = &workload.database;
    let config = Config::write(&stage, "orders", &database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;

    set_read_only(&cluster, "on").await?;
    let refused = workload.place_many(1, 1).await;
    assert!(refused.is_err(), "a producer was served by a server that reads only");
    // Orders of an administrator, who overrides the setting, reach a consumer that cannot write.
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
    nothing_is_missing(&stage, &workload).await
}

/// Goal: a primary stops and its standby is promoted at the same address. Everything that the
/// standby has, published or not, is kept. Relay, consumer, keys and sagas continue automatically,
/// and the relay reports the promotion. Oracle: the checker on the contents of the promoted server,
/// the relay's log, `relay status`, `relay verify`.
async fn promoted(stage: Stage) -> Outcome {
    let primary = Cluster::start(&stage, &[]).await?;
    // The only address that services know, like a DNS name or a virtual address.
    let way = Proxy::start(0, primary.address()).await?;
    let url = primary.url().replace(&primary.address(), &way.address().to_string());
    let database = Database::<Postgres>::migrated_at(&stage, url).await?;
    let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
    let workload = Workload::<Postgres>::on(database, broker).await?;
    let database = &workload.database;
    let standby = primary.standby(&stage).await?;
    let config = Config::write(&stage, "orders", &database.relay_url()?, workload.broker.as_ref(), "")?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;

    // When the primary stops, some of these are published or applied and some are not.
    workload.place_many(3, 10 * ORDERS).await?;
    let written = primary.text("SELECT pg_current_wal_lsn()::text").await?;
    eventually("the standby has what was committed", || async {
        let has = format!("SELECT (pg_last_wal_replay_lsn() >= '{written}')::text");
        Ok(when(standby.text(&has).await? == "true"))
    })
    .await?;
    primary.crash().await?;
    way.down();
    standby.execute("SELECT pg_promote()").await?;
    way.redirect(standby.address());
    way.heal();

    workload.settled().await?;
    assert_eq!(workload.placed().await?.len(), 11 * ORDERS);
    workload.place_many(3, ORDERS).await?;
    workload.settled().await?;
    key(database).await?;
    saga(database).await?;
    assert!(relay.has_ended()?.is_none(), "the relay has ended: {}", relay.log()?);
    relay.tells("the server was promoted since the cursor was stored").await?;
    let status = Ran::with(&config, &["status", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(status[0]["cursor_timeline"], 2, "{status}");
    assert_eq!(status[0]["cursor_is_of_this_server"], true, "{status}");
    consumer.stop().await?;
    relay.stop().await?;
    nothing_is_missing(&stage, &workload).await
}

/// Goal: everything works behind a pooler in session mode, its default, including migrations and
/// commands of operators. Oracle: that of the short path.
async fn behind_a_pooler(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    cluster.start_pooler("session").await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.pooler_url()).await?;
    through_everything(stage, database).await
}

/// First version of the pooler that supports prepared statements.
const PREPARES_FROM: (u32, u32) = (1, 21);

/// Lists the trial as ignored if the installed pooler is older, with the reason in its name. That
/// is not a failure even where everything is required, because Debian 12 has no newer one.
fn behind_a_pooler_that_prepares() -> Trial {
    let name = "environments/private/pgbouncer_in_transaction_mode_that_prepares";
    let version = installed_pooler().unwrap_or_default();
    if version < PREPARES_FROM {
        let (major, minor) = version;
        let name = format!("{name} [PgBouncer {major}.{minor} is installed, and 1.21 is needed]");
        return Trial::test(name, || Ok(())).with_ignored_flag(true);
    }
    trial(name, &[Backend::Postgres, Backend::Xtask, Backend::Rabbitmq], prepared)
}

/// Returns the major and minor version of the pooler that the task runner would start.
fn installed_pooler() -> Option<(u32, u32)> {
    let told = std::process::Command::new("pgbouncer").arg("--version").output().ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let mut numbers = told.split_ascii_whitespace().nth(1)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Goal: everything works behind a pooler in transaction mode that supports prepared statements, as
/// our errors recommend. Oracle: that of the short path. A test in `conformance: outbox/clusters`
/// shows that a pooler without this support is refused by name.
async fn prepared(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let direct = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    cluster.start_pooler_that_prepares(100).await?;
    let database = direct.reached_at(&stage, cluster.pooler_url())?;
    through_everything(stage, database).await
}

/// Runs the short path of this suite.
async fn through_everything(stage: Stage, database: Database<Postgres>) -> Outcome {
    let broker = brokers::open(&stage, Backend::Rabbitmq).await?;
    let workload = Workload::<Postgres>::on(database, broker).await?;
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
    nothing_is_missing(&stage, &workload).await
}

/// Goal: the short path through everything works on PostgreSQL 18, in each environment, with the
/// settings that are new there. Oracle: the cases of this suite, run on such a server.
async fn on_18(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[(cluster::MAJOR, "18")]).await?;
    cluster.passes("environments/postgres/").await
}
