//! A database that is closed to all clients, so that its state can be compared with another state.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use migrations::{Identifier, Template};
use sqlx::postgres::PgConnection;
use sqlx::{Decode, Postgres, Type};
use tokio::time::{Instant, sleep};
use url::Url;

use super::session;
use crate::Failure;
use crate::clock;
use crate::faults::{millis, seconds};
use crate::journal::WentBack;

/// The database from which the server is administered while another one is closed.
const MAINTENANCE: &str = "postgres";
/// Timeout for sessions to end, and the interval at which they are terminated again.
const END: Duration = seconds(10);
const END_AGAIN: Duration = millis(50);

/// A session of the administrator in another database.
pub(super) struct Fence {
    pub(super) admin: PgConnection,
    pub(super) name: Identifier,
    url: String,
}

impl Fence {
    /// Connects to the server of the database in this URL. Its maintenance database stays open.
    pub(super) async fn around(url: &str) -> Result<Self, Failure> {
        let mut admin = session::connect(&beside(url, MAINTENANCE)?).await?;
        // Creating and dropping a database waits for a checkpoint.
        session::run(&mut admin, "SET statement_timeout = '60s'".to_owned()).await?;
        let name = Identifier::new(Url::parse(url)?.path().trim_start_matches('/'))?;
        Ok(Self { admin, name, url: url.to_owned() })
    }

    /// Ends all sessions and refuses new ones. Returns the only session that is left.
    pub(super) async fn close(&mut self) -> Result<PgConnection, Failure> {
        self.refuse_prepared().await?;
        // An earlier attempt may have left the database closed.
        self.allow("ALTER DATABASE {name} ALLOW_CONNECTIONS true").await?;
        let mut inside = session::connect(&self.url).await?;
        self.allow("ALTER DATABASE {name} ALLOW_CONNECTIONS false").await?;
        let own: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut inside).await?;
        self.end_sessions_but(own).await?;
        if let Err(error) = self.refuse_prepared().await {
            self.allow("ALTER DATABASE {name} ALLOW_CONNECTIONS true").await?;
            return Err(error);
        }
        Ok(inside)
    }

    async fn allow(&mut self, sql: &'static str) -> Result<(), Failure> {
        let statement = Template::new(sql).identifier("name", &self.name).render();
        sqlx::query(&statement).execute(&mut self.admin).await?;
        Ok(())
    }

    async fn end_sessions_but(&mut self, own: i32) -> Result<(), Failure> {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND pid <> $2 \
                   AND backend_type = 'client backend'";
        let deadline = Instant::now() + END;
        loop {
            let ending: i64 =
                sqlx::query_scalar(sql).bind(self.name.as_str()).bind(own).fetch_one(&mut self.admin).await?;
            if ending == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("{ending} sessions did not end within {END:?}").into());
            }
            sleep(END_AGAIN).await;
        }
    }

    /// Fails if there are prepared transactions, because a client that commits or rolls back such a
    /// transaction must not find the other state.
    pub(super) async fn refuse_prepared(&mut self) -> Result<(), Failure> {
        let sql = "SELECT count(*) FROM pg_prepared_xacts WHERE database = $1";
        let prepared: i64 =
            sqlx::query_scalar(sql).bind(self.name.as_str()).fetch_one(&mut self.admin).await?;
        if prepared > 0 {
            return Err(format!("{prepared} prepared transactions must be decided first").into());
        }
        Ok(())
    }
}

/// Returns the URL of another database on the same server.
pub(super) fn beside(url: &str, name: &str) -> Result<String, Failure> {
    let mut url = Url::parse(url)?;
    url.set_path(name);
    Ok(url.to_string())
}

/// Returns the messages and rows that exist in the current state of the producers' database, but
/// not in the other state. The current state must be closed.
pub(super) async fn lost(present: &mut PgConnection, other: &mut PgConnection) -> Result<WentBack, Failure> {
    Ok(WentBack {
        at: clock::now(),
        messages: missing("SELECT message_id FROM outbox_message", present, other).await?,
        rows: missing("SELECT row FROM business", present, other).await?,
    })
}

async fn missing<T>(
    sql: &'static str,
    present: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<Vec<T>, Failure>
where
    T: Eq + Hash + Send + Unpin + Type<Postgres> + for<'r> Decode<'r, Postgres>,
{
    let there: HashSet<T> = sqlx::query_scalar(sql).fetch_all(other).await?.into_iter().collect();
    let all: Vec<T> = sqlx::query_scalar(sql).fetch_all(present).await?;
    Ok(all.into_iter().filter(|one| !there.contains(one)).collect())
}
