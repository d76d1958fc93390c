//! Waits for the rows of a statement that may take any time.
//!
//! A host that has disappeared sends no row either. So while none comes, another session looks
//! whether that of the statement still works.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use outbox_log::read_only::ReadOnly;
use sqlx::{PgConnection, Row as _};
use tokio::time::timeout;

use super::bounded::Bound;
use super::sources::session;
use crate::InboxConfig;
use crate::error::OperateError;

const OWN_SESSION: &str =
    "SELECT pid, backend_start::text AS begun_at FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// A session that waits for its client has sent an answer that did not arrive: its client waits
/// too. The state is hidden from some roles.
const WORKS: &str =
    "SELECT coalesce(state NOT LIKE 'idle%' AND wait_event IS DISTINCT FROM 'ClientWrite', true)
    FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2";

/// Maximum duration of a look beyond that of its connect.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// This many looks in succession must find that the session does not work. One alone may have come
/// between the statement's end and the arrival of its last rows, or in a moment without a free
/// connection.
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
}

impl<'a> Watch<'a> {
    /// Reads which session this is.
    pub(super) async fn of(
        connection: &mut PgConnection,
        inbox: &'a InboxConfig,
        bound: &'a Bound,
    ) -> Result<Self, sqlx::Error> {
        let row = sqlx::query(OWN_SESSION).fetch_one(connection).await?;
        let own = Session { pid: row.try_get("pid")?, begun_at: row.try_get("begun_at")? };
        Ok(Self { inbox, bound, own })
    }

    /// Waits for a row for as long as the session works.
    ///
    /// # Errors
    /// [`OperateError`] when no row came and the session does not work.
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
                Ok(Ok(())) => {
                    doubts = 0;
                    continue;
                }
                Ok(Err(why)) => why,
                Err(_) => String::from("the database does not answer another session"),
            };
            doubts += 1;
            if doubts == DOUBTS_MAX {
                return Err(self.bound.lost(format_args!("no row of the effects within {limit:?}: {why}")));
            }
        }
    }

    /// Returns why the session does not work.
    async fn look(&self) -> Result<(), String> {
        let opened = session(self.inbox, self.bound).await.map_err(|error| error.to_string())?;
        let ReadOnly::Postgres(mut connection) = opened else { return Ok(()) };
        let works = sqlx::query_scalar(WORKS).bind(self.own.pid).bind(&self.own.begun_at).persistent(false);
        match works.fetch_optional(&mut connection).await {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(String::from("its session has sent them, and they did not arrive")),
            Ok(None) => Err(String::from("its session is gone")),
            Err(error) => Err(message::error_text::chain(&error)),
        }
    }
}
