//! Waits for the rows of a statement that may take arbitrarily long.
//!
//! A host that has disappeared also sends no row. So while no row arrives, another session checks
//! whether the statement's session still works.

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use outbox_log::LogError;
use outbox_log::read_only::ReadOnly;
use secrecy::ExposeSecret as _;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use tokio::time::timeout;

use super::bounded::Bound;
use super::sources::APPLICATION;
use crate::InboxConfig;
use crate::error::OperateError;

const OWN_SESSION: &str = "
SELECT pid, backend_start::text AS begun_at, pg_postmaster_start_time()::text AS started_at,
    inet_server_addr()::text || ' ' || inet_server_port() AS address
FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// A session that waits for its client has sent an answer that did not arrive: its client waits
/// too. The state is hidden from some roles.
const LOOK: &str = "
SELECT pg_postmaster_start_time()::text AS started_at,
    inet_server_addr()::text || ' ' || inet_server_port() AS address,
    (SELECT coalesce(state NOT LIKE 'idle%' AND wait_event IS DISTINCT FROM 'ClientWrite', true)
    FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2) AS works";

/// SQLSTATE of a server, database or role whose connections are all in use.
const TOO_MANY_CONNECTIONS: &str = "53300";

/// Maximum duration of a check, in addition to the time for connecting.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// This many checks in a row must find that the session does not work. A single one may have come
/// between the statement's end and the arrival of its last rows.
const DOUBTS_MAX: u32 = 2;

/// The session of a statement in the database of an inbox.
pub(super) struct Watch<'a> {
    inbox: &'a InboxConfig,
    bound: &'a Bound,
    own: Session,
}

struct Session {
    pid: i32,
    begun_at: String,
    server: Server,
}

/// A run of a server.
struct Server {
    started_at: String,
    /// Its own address and port; `None` for a socket of this machine.
    address: Option<String>,
}

impl Server {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self { started_at: row.try_get("started_at")?, address: row.try_get("address")? })
    }
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Works,
    /// The check found out nothing about the session.
    Unknown,
    /// The session does not work, for this reason.
    Lost(String),
}

impl Session {
    /// Classifies the answer of a server; `works` is `None` if it does not have the session.
    fn classify(&self, server: &Server, works: Option<bool>) -> Look {
        // Several servers may share a name, for example behind a load balancer.
        if server.started_at != self.server.started_at {
            if server.address != self.server.address {
                return Look::Unknown;
            }
            return Look::Lost(String::from("its server was restarted"));
        }
        match works {
            Some(true) => Look::Works,
            Some(false) => Look::Lost(String::from("its session has sent them, and they did not arrive")),
            None => Look::Lost(String::from("its session has ended")),
        }
    }
}

/// Returns whether the server answered that it has no connection left for a check.
fn is_full(error: &LogError) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<sqlx::Error>());
    let answer = cause.and_then(sqlx::Error::as_database_error);
    answer.and_then(|answer| answer.code()).is_some_and(|code| code == TOO_MANY_CONNECTIONS)
}

impl<'a> Watch<'a> {
    /// Reads which session this is.
    pub(super) async fn of(
        connection: &mut PgConnection,
        inbox: &'a InboxConfig,
        bound: &'a Bound,
    ) -> Result<Self, sqlx::Error> {
        let row = sqlx::query(OWN_SESSION).fetch_one(connection).await?;
        let server = Server::read(&row)?;
        let own = Session { pid: row.try_get("pid")?, begun_at: row.try_get("begun_at")?, server };
        Ok(Self { inbox, bound, own })
    }

    /// Waits for a row for as long as the session works.
    ///
    /// # Errors
    /// [`OperateError`] when no row arrived and the session does not work.
    pub(super) async fn next<T>(&self, row: impl Future<Output = T>) -> Result<T, OperateError> {
        let Some(limit) = self.bound.limit() else { return Ok(row.await) };
        let mut row = pin!(row);
        let mut doubts = 0;
        loop {
            if let Ok(row) = timeout(limit, row.as_mut()).await {
                return Ok(row);
            }
            let looked = tokio::select! {
                biased;
                row = row.as_mut() => return Ok(row),
                looked = timeout(LOOK_MAX, self.look()) => looked,
            };
            let why = match looked {
                Ok(Look::Works) => {
                    doubts = 0;
                    continue;
                }
                Ok(Look::Unknown) => continue,
                Ok(Look::Lost(why)) => why,
                Err(_) => String::from("the database does not answer another session"),
            };
            doubts += 1;
            if doubts == DOUBTS_MAX {
                return Err(self.bound.lost(format_args!("no row of the effects within {limit:?}: {why}")));
            }
        }
    }

    /// Checks from another session whether the first one still works.
    async fn look(&self) -> Look {
        let url = match self.inbox.url.load("verify.inbox.url") {
            Ok(url) => url,
            Err(error) => return Look::Lost(error.to_string()),
        };
        let opened = ReadOnly::open(url.expose_secret(), self.inbox.allow_plaintext, APPLICATION).await;
        match opened {
            Ok(ReadOnly::Postgres(mut connection)) => {
                let looked = self.ask(&mut connection).await;
                looked.unwrap_or_else(|error| Look::Lost(message::error_text::chain(&error)))
            }
            Ok(_) => Look::Unknown,
            Err(error) if is_full(&error) => Look::Unknown,
            Err(error) => Look::Lost(error.to_string()),
        }
    }

    async fn ask(&self, connection: &mut PgConnection) -> Result<Look, sqlx::Error> {
        let look = sqlx::query(LOOK).bind(self.own.pid).bind(&self.own.begun_at).persistent(false);
        let row = look.fetch_one(connection).await?;
        Ok(self.own.classify(&Server::read(&row)?, row.try_get("works")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(started_at: &str, address: Option<&str>) -> Server {
        Server { started_at: started_at.to_owned(), address: address.map(str::to_owned) }
    }

    #[test]
    fn another_server_behind_the_same_name_knows_nothing_of_the_session() {
        let own = Session { pid: 7, begun_at: "10:00".into(), server: server("9:00", Some("10.0.0.1 5432")) };
        let lost = |look| matches!(look, Look::Lost(_));
        let same = server("9:00", Some("10.0.0.1 5432"));
        assert_eq!(own.classify(&same, Some(true)), Look::Works);
        assert!(lost(own.classify(&same, Some(false))) && lost(own.classify(&same, None)));
        // A server has several addresses.
        assert_eq!(own.classify(&server("9:00", Some("::1 5432")), Some(true)), Look::Works);
        assert_eq!(own.classify(&server("9:01", Some("10.0.0.2 5432")), None), Look::Unknown);
        assert!(lost(own.classify(&server("9:30", Some("10.0.0.1 5432")), None)), "restarted");
        let local = Session { server: server("9:00", None), ..own };
        assert!(lost(local.classify(&server("9:30", None), None)), "restarted");
    }
}
