//! The promises of `docs/operations/histories.md` about servers that crash behind a pooler, are
//! restored, promoted or replicated. Each case has its own servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use idempotency::{IdempotencyKey, KeyId, Operation};
use inbox::Tenant;
use message::MessageId;
use migrations::{Line, Migrator};
use outbox::{NewMessage, Outbox, RetryPolicy, UnknownCommit};
use outbox_log::{
    CheckpointStore, DueKind, EntryId, Fenced, HeldAsk, LogError, LogOptions, LogStore, QueueName,
};
use sqlx::{Connection as _, Postgres};
use tests::cluster::run;
use tests::{Cluster, Outcome, Role, Stage, eventually};
use tokio::process::Command;

use crate::outbox::cost::a_late_row_costs_no_walk;
use crate::outbox::support::{Database, Follower, SMALL, TTL, granted, relay, source};

tests::cases! { "outbox/clusters/{on}/{case}":
    postgres + xtask {
        a_pooler_that_hands_on_prepared_statements_is_refused_by_name,
        a_relay_in_a_service_is_refused_where_sessions_are_shared,
        a_client_that_a_pooler_keeps_through_a_crash_trusts_no_mark_of_before,
        a_relay_behind_a_pooler_loses_nothing_when_the_server_crashes,
        a_dump_restored_into_another_cluster_loses_nothing,
        a_promoted_standby_that_lagged_is_gone_on_from,
        a_recovery_to_a_point_in_time_is_gone_on_from,
        a_subscriber_is_refused_by_name_until_its_subscription_ends,
        a_late_row_is_found_without_walking_the_log,
        a_synchronous_standby_that_is_gone_is_named,
    }
}

/// Goal: where commits wait for a standby that is not connected, that is reported as the cause, not
/// a session that waits as well. Oracle: the cause, before and after the name is removed.
async fn a_synchronous_standby_that_is_gone_is_named(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let db = database(&cluster).await;
    let late = LogError::Timeout { waited: Duration::from_secs(1) };
    assert_eq!(db.log.cause_of(&late).await, None);
    let require = |names: &str| format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
    cluster.execute(&require("gone")).await?;
    cluster.execute("SELECT pg_reload_conf()").await?;
    let named = async {
        let cause = eventually("a commit waits", || async { Ok(db.log.cause_of(&late).await) }).await?;
        cluster.execute(&require("")).await?;
        cluster.execute("SELECT pg_reload_conf()").await?;
        Ok::<_, tests::Failure>(cause)
    };
    // Its grant returns when the name is removed.
    let (leader, cause) = tokio::join!(Leader::of(&db.log), named);
    drop(leader);
    let cause = cause?;
    assert!(cause.contains(" for the synchronous standby (synchronous_standby_names"), "{cause}");
    assert!(cause.contains("synchronous_standby_names = \"gone\""), "{cause}");
    assert_eq!(db.log.cause_of(&late).await, None);
    db.close().await;
    Ok(())
}

async fn a_late_row_is_found_without_walking_the_log(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    a_late_row_costs_no_walk(&database(&cluster).await).await;
    Ok(())
}

/// Opens the migrated database of a server. It is removed with the server.
async fn database(cluster: &Cluster) -> Database<Postgres> {
    Database::at(cluster.url()).await
}

fn orders(range: std::ops::Range<i32>) -> impl Iterator<Item = NewMessage> + Send {
    range.map(|n| NewMessage::new("orders").key(n.to_string()))
}

fn keys(range: std::ops::Range<i32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

fn keys_of(entries: &[outbox_log::Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.key().unwrap().to_owned()).collect()
}

/// Opens the relay's log at another address of the same database.
fn log_at(url: &str) -> Arc<dyn LogStore> {
    outbox_log::open(url, source(), LogOptions::default()).unwrap()
}

/// A leading relay that reads through `log`.
struct Leader {
    checkpoint_store: Box<dyn CheckpointStore>,
    epoch: i64,
    follower: Follower,
}

impl Leader {
    async fn of(log: &Arc<dyn LogStore>) -> Self {
        let mut checkpoint_store = log.checkpoint_store(&relay(), "a").await.unwrap();
        let (lease, cursor) = granted(&mut checkpoint_store).await;
        let follower = Follower::new(log.reader(&relay()).await.unwrap(), cursor);
        Self { checkpoint_store, epoch: lease.epoch, follower }
    }

    /// Reads everything there is.
    async fn read(&mut self) -> Vec<String> {
        keys_of(&self.follower.all().await)
    }

    async fn store(&mut self) -> Fenced {
        self.checkpoint_store.checkpoint(self.epoch, &self.follower.cursor(), &[]).await.unwrap()
    }

    /// Reads everything there is, and stores that it is settled.
    async fn pass(&mut self) -> Vec<String> {
        let read = self.read().await;
        assert_eq!(self.store().await, Fenced::Held);
        read
    }
}

/// Consumes transaction ids until other servers are far behind.
async fn spend_transaction_ids(cluster: &Cluster) -> Outcome {
    let spend = "DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    cluster.execute(spend).await
}

async fn a_pooler_that_hands_on_prepared_statements_is_refused_by_name(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let db = database(&cluster).await;
    cluster.start_pooler("transaction").await?;
    let log = log_at(&Role::Relay.url(&cluster.pooler_url())?);
    // The first client is alone in the server's session.
    let mut checkpoint_store = log.checkpoint_store(&relay(), "a").await?;
    granted(&mut checkpoint_store).await;
    let refused = |error: LogError| {
        assert!(matches!(error, LogError::Operator { .. }), "{error}");
        let words = error.to_string();
        assert!(words.contains("session mode") && words.contains("max_prepared_statements"), "{words}");
    };
    refused(log.reader(&relay()).await.err().unwrap());
    // When that session ends, the pooler assigns another session, which lacks the prepared
    // statements.
    db.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'outbox_test_relay'")
        .await;
    eventually("its session is gone", || async {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'outbox_test_relay'";
        Ok((db.number(sessions).await == 0).then_some(()))
    })
    .await?;
    refused(checkpoint_store.acquire(TTL).await.err().unwrap());
    Ok(())
}

/// Goal: the session settings of a relay never reach statements of the service that lent its pool
/// to the relay. Oracle: a refusal through a pooler in transaction mode, no refusal in session
/// mode, and the settings of the service's connections beside a relay that reads.
async fn a_relay_in_a_service_is_refused_where_sessions_are_shared(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let db = database(&cluster).await;
    db.run("ALTER SYSTEM SET default_transaction_isolation = 'serializable'").await;
    db.run("SELECT pg_reload_conf()").await;
    for (mode, is_refused) in [("transaction", true), ("session", false)] {
        cluster.start_pooler(mode).await?;
        let options = outbox::connect::postgres_options(&cluster.pooler_url(), false)?;
        let pool = outbox::pool_options::<Postgres>().max_connections(1).connect_lazy_with(options);
        let log = outbox_log::open(&pool, source(), LogOptions::default())?;
        match log.reader(&relay()).await {
            Ok(_reader) => {
                assert!(!is_refused, "{mode}");
                let own: String =
                    sqlx::query_scalar("SHOW default_transaction_isolation").fetch_one(&pool).await?;
                assert_eq!(own, "serializable", "the service's own sessions are as they were");
            }
            Err(error) => {
                assert!(is_refused, "{mode}: {error}");
                assert!(matches!(error, LogError::Operator { .. }), "{error}");
                assert!(error.to_string().contains("give the relay its own URL"), "{error}");
            }
        }
        pool.close().await;
        cluster.stop_pooler().await?;
    }
    Ok(())
}

/// Each client has its own pool of the pooler, so that no prepared statements clash and the pooler
/// keeps the clients through the crash.
async fn a_client_that_a_pooler_keeps_through_a_crash_trusts_no_mark_of_before(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let db = database(&cluster).await;
    cluster.execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await?;
    cluster.execute("SELECT pg_reload_conf()").await?;
    cluster.start_pooler("transaction").await?;
    db.enqueue(orders(0..10)).await;
    let mut checkpoint_store =
        log_at(&Role::Relay.url(&cluster.pooler_url())?).checkpoint_store(&relay(), "a").await?;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut kept_reader = log_at(&cluster.pooler_url()).reader(&relay()).await?;
    let mut follower = Follower::new(db.reader().await, cursor.clone());
    assert_eq!(follower.all().await.len(), 10);
    let difference = db.reader().await.next_difference(&cursor.base).await?.ok_or("nothing to read")?;
    // No disk has these transaction ids yet, so the server assigns them again after the crash.
    db.enqueue(orders(10..11)).await;
    for _ in 0..20 {
        db.run("SELECT pg_current_xact_id()").await;
    }
    assert_eq!(keys_of(&follower.all().await), ["10"]);
    let memory = follower.cursor();
    cluster.crash().await?;
    cluster.resume().await?;
    let db = database(&cluster).await;
    db.enqueue(orders(11..14)).await;
    let error = kept_reader.next_difference(&memory.base).await.unwrap_err();
    assert!(error.to_string().contains("before it crashed"), "{error}");
    // If the reader returned an entry of this difference now, it could skip an entry that was never
    // read.
    let ask = HeldAsk { queue: QueueName::of("orders", Some("1")), from: EntryId(1) };
    let refused = [
        kept_reader.read_page(&difference, EntryId::default(), SMALL).await.err(),
        kept_reader.read_due(DueKind::Scheduled, None, SMALL).await.err(),
        kept_reader.read_due(DueKind::Retrying, None, SMALL).await.err(),
        kept_reader.read_held(&[ask], SMALL).await.err(),
        kept_reader.held_queues(None, 10).await.err(),
        kept_reader.stuck(EntryId::default(), 10, true).await.err(),
    ];
    for (place, error) in refused.into_iter().enumerate() {
        assert!(error.is_some(), "call {place} was answered");
    }
    assert_eq!(checkpoint_store.renew(lease.epoch, TTL).await?, Fenced::Lost);
    // Nothing was stored before the crash, so all of these are published again, together with the
    // later entries.
    assert_eq!(Leader::of(&db.log).await.pass().await, keys(0..14));
    Ok(())
}

async fn a_relay_behind_a_pooler_loses_nothing_when_the_server_crashes(stage: Stage) -> Outcome {
    let cluster = Cluster::start(&stage, &[]).await?;
    let db = database(&cluster).await;
    cluster.start_pooler("session").await?;
    let log = log_at(&Role::Relay.url(&cluster.pooler_url())?);
    db.enqueue(orders(0..10)).await;
    let mut leader = Leader::of(&log).await;
    assert_eq!(leader.pass().await, keys(0..10));
    db.enqueue(orders(10..12)).await;
    assert_eq!(leader.read().await, keys(10..12));
    cluster.crash().await?;
    cluster.resume().await?;
    let db = database(&cluster).await;
    db.enqueue(orders(12..14)).await;
    let base = leader.follower.cursor().base;
    let error = leader.follower.reader.next_difference(&base).await.unwrap_err();
    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
    assert_eq!(Leader::of(&log).await.pass().await, keys(10..14));
    Ok(())
}

async fn a_dump_restored_into_another_cluster_loses_nothing(stage: Stage) -> Outcome {
    let (old, new) = tokio::try_join!(Cluster::start(&stage, &[]), Cluster::start(&stage, &[]))?;
    spend_transaction_ids(&old).await?;
    let db = database(&old).await;
    let mut late = db.outbox.begin(&db.pool).await?;
    late.enqueue(NewMessage::new("orders").key("late")).await?;
    db.enqueue(orders(0..10)).await;
    let mut leader = Leader::of(&db.log).await;
    assert_eq!(leader.pass().await, keys(0..10));
    late.commit().await?;
    db.enqueue(orders(10..13)).await;
    let file = stage.folder().join("dump.sql");
    run(Command::new("pg_dump").arg("--dbname").arg(old.url()).arg("--file").arg(&file)).await?;
    // This entry is written after the dump, so it is lost together with its business rows.
    db.enqueue(orders(13..14)).await;
    let mut restore = Command::new("psql");
    restore.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"]).arg(&file);
    run(restore.arg("--dbname").arg(new.url())).await?;
    let db = database(&new).await;
    let mut leader = Leader::of(&db.log).await;
    let mut left = leader.pass().await;
    left.retain(|key| key.parse::<i32>().map_or(true, |n| n >= 10));
    assert_eq!(left, ["late", "10", "11", "12"]);
    db.enqueue(orders(20..22)).await;
    assert_eq!(leader.pass().await, keys(20..22));
    Ok(())
}

/// Waits until a server accepts writes.
async fn promoted(cluster: &Cluster) -> Outcome {
    eventually("the server has left recovery", || async {
        Ok((cluster.text("SELECT pg_is_in_recovery()::text").await? == "false").then_some(()))
    })
    .await
}

/// A producer asks for the outcome of a commit, and the name of the server leads to a standby. The
/// standby does not have the commit yet, and must not deny it.
async fn assert_knows_no_outcome(standby: &Cluster) -> Outcome {
    let pool = sqlx::PgPool::connect(&standby.url()).await?;
    let patience = RetryPolicy::default().resolve_timeout(Duration::from_secs(3));
    let outbox = Outbox::<Postgres>::builder().retry(patience).build();
    let commit =
        UnknownCommit { message_ids: vec![MessageId::new()], transaction: Some("4000000000".into()) };
    let error = outbox.resolve(&pool, &commit).await.unwrap_err();
    assert!(error.reason.contains("standby"), "{error}");
    pool.close().await;
    Ok(())
}

pub(crate) async fn migrate(cluster: &Cluster, line: Line) -> Outcome {
    let mut connection = sqlx::PgConnection::connect(&cluster.url()).await?;
    Migrator::<Postgres>::new(line).up(&mut connection).await?;
    Ok(connection.close().await?)
}

pub(crate) fn key(name: &str) -> KeyId {
    let operation = Operation::new("place-order").unwrap();
    KeyId::new(Tenant::new("tenant-7").unwrap(), operation, IdempotencyKey::new(name).unwrap()).unwrap()
}

async fn a_promoted_standby_that_lagged_is_gone_on_from(stage: Stage) -> Outcome {
    let primary = Cluster::start(&stage, &[]).await?;
    let db = database(&primary).await;
    let standby = primary.standby(&stage).await?;
    db.enqueue(orders(0..10)).await;
    let mut leader = Leader::of(&db.log).await;
    assert_eq!(leader.pass().await, keys(0..10));
    let written = primary.text("SELECT pg_current_wal_flush_lsn()::text").await?;
    eventually("the standby has what was written", || async {
        let replayed = format!("SELECT (pg_last_wal_replay_lsn() >= '{written}')::text");
        Ok((standby.text(&replayed).await? == "true").then_some(()))
    })
    .await?;
    standby.execute("ALTER SYSTEM SET primary_conninfo = ''").await?;
    standby.execute("SELECT pg_reload_conf()").await?;
    eventually("the standby follows nobody", || async {
        let receivers = standby.text("SELECT count(*)::text FROM pg_stat_wal_receiver").await?;
        Ok((receivers == "0").then_some(()))
    })
    .await?;
    // They are published, but the standby does not have them.
    db.enqueue(orders(10..15)).await;
    assert_eq!(leader.pass().await, keys(10..15));
    let memory = leader.follower.cursor();
    assert_knows_no_outcome(&standby).await?;
    primary.crash().await?;
    standby.execute("SELECT pg_promote()").await?;
    promoted(&standby).await?;
    let db = database(&standby).await;
    db.enqueue(orders(20..25)).await;
    let mut leader = Leader::of(&db.log).await;
    assert_eq!(leader.read().await, keys(20..25));
    // The difference that the relay remembers from the old primary has no meaning here.
    let error = db.reader().await.next_difference(&memory.base).await.unwrap_err();
    assert!(error.to_string().contains("another server"), "{error}");
    assert_eq!(leader.store().await, Fenced::Held);
    let admin = outbox_log::admin::open(db.relay_url().as_str(), source(), LogOptions::default())?;
    let history = admin.relays().await?.remove(0).history.ok_or("no history")?;
    assert_eq!((history.timeline, history.is_present), (2, true));
    Ok(())
}

async fn a_recovery_to_a_point_in_time_is_gone_on_from(stage: Stage) -> Outcome {
    let server = Cluster::start(&stage, &[]).await?;
    let db = database(&server).await;
    let backup = server.backup(&stage).await?;
    db.enqueue(orders(0..10)).await;
    let mut leader = Leader::of(&db.log).await;
    assert_eq!(leader.pass().await, keys(0..10));
    db.enqueue(orders(10..15)).await;
    server.execute("SELECT pg_create_restore_point('before')").await?;
    // They are published as well, but are lost in the recovery.
    db.enqueue(orders(15..20)).await;
    assert_eq!(leader.pass().await, keys(10..20));
    server.execute("SELECT pg_switch_wal()").await?;
    server.crash().await?;
    let archive = server.data().join("pg_wal");
    backup
        .recover(&format!(
            "restore_command = 'cp {}/%f %p'\nrecovery_target_name = 'before'\nrecovery_target_action = 'promote'",
            archive.display()
        ))
        .await?;
    promoted(&backup).await?;
    let db = database(&backup).await;
    let mut leader = Leader::of(&db.log).await;
    assert_eq!(leader.pass().await, keys(10..15));
    db.enqueue(orders(20..22)).await;
    assert_eq!(leader.pass().await, keys(20..22));
    Ok(())
}

async fn a_subscriber_is_refused_by_name_until_its_subscription_ends(stage: Stage) -> Outcome {
    let logical = [("OUTBOX_POSTGRES_WAL_LEVEL", "logical")];
    let (old, new) = tokio::try_join!(Cluster::start(&stage, &logical), Cluster::start(&stage, &[]))?;
    spend_transaction_ids(&old).await?;
    let (db, subscriber) = (database(&old).await, database(&new).await);
    let publish = "CREATE PUBLICATION log FOR TABLE outbox_message WITH (publish_via_partition_root = true)";
    old.execute(publish).await?;
    new.execute(&format!("CREATE SUBSCRIPTION log CONNECTION '{}' PUBLICATION log", old.url())).await?;
    db.enqueue(orders(0..10)).await;
    eventually("the rows are replicated", || async { Ok((subscriber.rows().await == 10).then_some(())) })
        .await?;
    let error = subscriber.log.checkpoint_store(&relay(), "a").await.err().unwrap();
    assert!(matches!(error, LogError::Operator { .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("outbox_message") && words.contains("DROP SUBSCRIPTION"), "{words}");
    new.execute("DROP SUBSCRIPTION log").await?;
    let mut leader = Leader::of(&subscriber.log).await;
    assert_eq!(leader.pass().await, keys(0..10));
    subscriber.enqueue(orders(10..12)).await;
    assert_eq!(leader.pass().await, keys(10..12));
    Ok(())
}
