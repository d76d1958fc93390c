//! A database that keeps a relay waiting although it answers: no room for a second session, and
//! tables that another session has locked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use brokers::memory::Broker;
use engine::{EngineOptions, Pipeline, Role};
use message::MaxInFlightPerKey;
use outbox_log::{LogOptions, LogStore, admin};
use sqlx::{Connection as _, Executor as _, PgConnection, Postgres};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::outbox::support::{Database, granted, relay, source};

tests::cases! { "outbox/waits/{on}/{case}":
    on_postgres {
        a_relay_with_one_session_leads_nowhere_and_keeps_nobody_out,
        a_session_that_locks_the_lease_is_named,
        a_session_that_locks_a_segment_is_named,
        a_session_that_locks_a_row_is_named,
    }
}

/// Oracle: the relay's text names the number of sessions, and another process gets the first epoch.
async fn a_relay_with_one_session_leads_nowhere_and_keeps_nobody_out(db: &Database<Postgres>) {
    let (user, group) = (format!("one_session_{}", std::process::id()), tests::Role::Relay.user());
    db.run(&format!("CREATE ROLE {user} LOGIN PASSWORD 'p' CONNECTION LIMIT 1 IN ROLE {group}")).await;
    let url = db.relay_url();
    let url = format!("postgres://{user}:p@{}", url.rsplit_once('@').unwrap().1);
    let log = outbox_log::open(url.as_str(), source(), LogOptions::default()).unwrap();
    let waiting = Waiting::until_it_says(log, "needs 2 sessions to lead").await;
    let (lease, _) = granted(&mut db.checkpoint_store("another").await).await;
    assert_eq!(lease.epoch, 1);
    waiting.end().await;
    db.run(&format!("DROP ROLE {user}")).await;
}

/// A relay that cannot lead.
struct Waiting {
    running: JoinHandle<()>,
    stop: CancellationToken,
}

impl Waiting {
    /// Runs a relay until it waits, for a reason with this part.
    async fn until_it_says(log: Arc<dyn LogStore>, part: &str) -> Self {
        let connector = Arc::new(Broker::new().connector(MaxInFlightPerKey::One));
        let pipeline = Pipeline::new(relay(), log, connector, EngineOptions::default());
        let (mut status, stop) = (pipeline.status(), CancellationToken::new());
        let running = tokio::spawn(pipeline.run(stop.clone()));
        let says = |role: &Role| matches!(role, Role::Waiting { reason, .. } if reason.contains(part));
        let waiting =
            tokio::time::timeout(Duration::from_mins(1), status.wait_for(|status| says(&status.role)));
        let is_told = waiting.await.is_ok();
        let role = status.borrow().role.clone();
        assert!(is_told, "{role:?}");
        Self { running, stop }
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

/// Oracle: the relay's own text names the session, and its first epoch follows the end of the lock.
async fn a_session_that_locks_the_lease_is_named(db: &Database<Postgres>) {
    let mut locker = locking(db, "LOCK TABLE outbox_relay IN ACCESS EXCLUSIVE MODE").await;
    let options = LogOptions::default().call_timeout(Duration::from_secs(2));
    let log = outbox_log::open(db.relay_url().as_str(), source(), options).unwrap();
    let waiting = Waiting::until_it_says(log, "outbox_relay is locked by session").await;
    waiting.end().await;
    locker.execute("ROLLBACK").await.unwrap();
    let (lease, _) = granted(&mut db.checkpoint_store("another").await).await;
    assert_eq!(lease.epoch, 1);
    locker.close().await.unwrap();
}

/// Begins a transaction of this statement, in a session with a name.
async fn locking(db: &Database<Postgres>, statement: &str) -> PgConnection {
    let mut session = PgConnection::connect(&db.url).await.unwrap();
    session.execute("SET application_name = 'vacuum by hand'").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut session).await.unwrap();
    session
}

async fn a_session_that_locks_a_segment_is_named(db: &Database<Postgres>) {
    let limit = Duration::from_secs(2);
    let options = LogOptions::default().call_timeout(limit);
    let log = admin::open(db.relay_url().as_str(), source(), options).unwrap();
    let patient = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    assert_eq!(patient.lock_holder().await.unwrap(), None);
    granted(&mut db.checkpoint_store("a").await).await;
    let mut locker = locking(db, "LOCK TABLE outbox_message_3 IN ACCESS EXCLUSIVE MODE").await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut locker).await.unwrap();
    let told = log.relays().await.unwrap_err().to_string();
    let named = format!("outbox_message_3 is locked by session {pid} (\"vacuum by hand\"");
    assert!(told.contains(&named) && told.contains("pg_terminate_backend"), "{told}");
    locker.execute("ROLLBACK").await.unwrap();
    patient.relays().await.unwrap();
    assert_eq!(patient.lock_holder().await.unwrap(), None);
    locker.close().await.unwrap();
}

/// Oracle: a waiting writer's blocker is named, with the table of the row.
async fn a_session_that_locks_a_row_is_named(db: &Database<Postgres>) {
    granted(&mut db.checkpoint_store("a").await).await;
    let mut locker = locking(db, "SELECT FROM outbox_relay FOR UPDATE").await;
    let admin = db.admin.clone();
    let waiting = tokio::spawn(async move {
        sqlx::query("UPDATE outbox_relay SET holder = holder").execute(&admin).await.unwrap()
    });
    let log = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let named = async {
        loop {
            match log.lock_holder().await.unwrap() {
                Some(told) => break told,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_mins(1), named).await.unwrap();
    assert!(told.starts_with("outbox_relay is locked by") && told.contains("\"vacuum by hand\""), "{told}");
    locker.execute("ROLLBACK").await.unwrap();
    waiting.await.unwrap();
    locker.close().await.unwrap();
}
