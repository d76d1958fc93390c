//! Names the session whose lock keeps the relay waiting, or the standby that its commits wait for.
//!
//! Server and network are fine then, and an error that only states the time would send operators
//! there. The query runs in a separate session, because the waiting sessions cannot run it, and it
//! reads no table that may be locked. Never while a lease is held: the answer may take longer than
//! that lasts.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use sqlx::Row as _;

use crate::LogError;
use crate::failure::within;
use crate::postgres::brief::Brief;
use crate::postgres::store::PostgresLog;
use crate::postgres::unconnected;

/// Maximum duration of asking: the caller has waited long enough.
const ASKED_MAX: Duration = Duration::from_secs(3);

/// SQLSTATE of a lock that was not granted in time, and of a statement that took too long.
const WAITED_TOO_LONG: [&str; 2] = ["55P03", "57014"];

/// The session that has locked a table of the outbox, or that another one waits for. A lock on a
/// row is held by a transaction, so its table is that of the session that waits. The limit ends
/// with the statement, and also ends it on the server once the caller has stopped waiting.
const HOLDER: &str = "
SET LOCAL statement_timeout = '3s';
WITH locks AS MATERIALIZED (
    SELECT * FROM pg_locks WHERE pid IS NOT NULL AND (database IS NULL OR database = 0
        OR database = (SELECT oid FROM pg_database WHERE datname = current_database()))),
ours AS MATERIALIZED (
    SELECT oid, relname::text AS name FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass)
        AND relname LIKE 'outbox\\_%'),
holders AS (
    SELECT l.pid, o.name FROM locks AS l JOIN ours AS o ON o.oid = l.relation
    WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'AccessExclusiveLock'
    UNION ALL
    SELECT b.pid, coalesce(
        (SELECT o.name FROM ours AS o WHERE o.oid = w.relation),
        (SELECT min(o.name) FROM locks AS g JOIN ours AS o ON o.oid = g.relation
            WHERE w.relation IS NULL AND g.pid = w.pid AND g.granted AND g.mode <> 'AccessShareLock'))
    FROM locks AS w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
    WHERE NOT w.granted)
SELECT a.pid, coalesce(a.application_name, ''), h.name,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8
FROM holders AS h JOIN pg_stat_activity AS a ON a.pid = h.pid
WHERE h.name IS NOT NULL AND a.pid <> pg_backend_pid()
ORDER BY EXISTS (SELECT FROM locks AS x WHERE x.pid = a.pid AND NOT x.granted), a.xact_start, a.pid, h.name
LIMIT 1";

/// Commits that wait for a synchronous standby. They keep their locks until it answers, so their
/// sessions would be named as the cause. A standby that answers lets each commit wait for
/// milliseconds. The server shows a role its own sessions, and those of others with
/// `pg_read_all_stats`.
const UNREPLICATED: &str = "
SET LOCAL statement_timeout = '3s';
SELECT count(*), coalesce(current_setting('synchronous_standby_names', true), '')
FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '3 s'
HAVING count(*) > 0";

/// Explains why commits wait.
fn unreplicated(commits: i64, names: &str) -> String {
    let wait = if commits == 1 { "1 commit waits" } else { &format!("{commits} commits wait") };
    format!(
        "{wait} for the synchronous standby (synchronous_standby_names = {names:?}), with their locks: let \
         it reconnect, or remove its name from that setting"
    )
}

/// A session that holds a lock.
#[derive(Debug, Clone, PartialEq)]
struct LockHolder {
    pid: i32,
    application_name: String,
    relation: String,
    /// Seconds since its transaction began; `None` where the server hides it.
    seconds: Option<f64>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, application_name, relation, seconds } = self;
        write!(f, "{relation} is locked by session {pid} ({application_name:?}")?;
        if let Some(seconds) = seconds {
            write!(f, ", in a transaction since {seconds:.0} s")?;
        }
        f.write_str("); let that session end, or end it with pg_terminate_backend")
    }
}

impl PostgresLog {
    /// Waits for the database up to `limit`. The error names the session whose lock was in the way.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, LogError>>,
    ) -> Result<T, LogError> {
        match within(limit, call).await {
            // Boxed: it opens a connection, whose future is large.
            Err(error) => {
                let holder = Box::pin(self.lock_in_the_way(&error)).await;
                Err(error.caused_by(holder))
            }
            answered => answered,
        }
    }

    /// Returns the standby or the lock that has caused the error, as a text with the remedy.
    pub(super) async fn lock_in_the_way(&self, error: &LogError) -> Option<String> {
        if waited_too_long(error) { self.asked_for_lock().await.ok()? } else { None }
    }

    /// Returns the standby that commits wait for, or the session that locks a table of the outbox,
    /// as a text with the remedy.
    pub(super) async fn asked_for_lock(&self) -> Result<Option<String>, LogError> {
        let asked = Box::pin(async {
            let hosts = self.hosts()?.application_name("relay locks");
            let mut session = Brief::new(hosts.connect().await.map_err(unconnected)?);
            let failed = || LogError::during("find the holder of a lock");
            // In the simple protocol, so that nothing is prepared in a pooler's session.
            let waiting = sqlx::raw_sql(UNREPLICATED).fetch_optional(&mut *session).await.map_err(failed())?;
            if let Some(row) = waiting {
                let commits = row.try_get(0).map_err(failed())?;
                let names: String = row.try_get(1).map_err(failed())?;
                return Ok(Some(unreplicated(commits, &names)));
            }
            let asked = sqlx::raw_sql(&self.render(HOLDER)).fetch_optional(&mut *session);
            let row = asked.await.map_err(failed())?;
            let Some(row) = row else { return Ok(None) };
            let read = || -> Result<LockHolder, sqlx::Error> {
                Ok(LockHolder {
                    pid: row.try_get(0)?,
                    application_name: row.try_get(1)?,
                    relation: row.try_get(2)?,
                    seconds: row.try_get(3)?,
                })
            };
            read().map(|holder| Some(holder.to_string())).map_err(failed())
        });
        within(ASKED_MAX, asked).await
    }
}

/// Returns whether a lock may be the cause.
fn waited_too_long(error: &LogError) -> bool {
    if matches!(error, LogError::Timeout { .. }) {
        return true;
    }
    // An error that is explained already.
    if error.source().is_some_and(|cause| cause.is::<LogError>()) {
        return false;
    }
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let mut answers = causes.filter_map(|cause| cause.downcast_ref::<sqlx::Error>()?.as_database_error());
    answers.any(|answer| answer.code().is_some_and(|code| WAITED_TOO_LONG.contains(&code.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_before_the_remedy() {
        let holder = LockHolder {
            pid: 7,
            application_name: String::from("vacuum\nfull"),
            relation: String::from("outbox_message_3"),
            seconds: Some(41.4),
        };
        let text = holder.to_string();
        let (named, remedy) = text.rsplit_once("; ").unwrap();
        assert_eq!(
            named,
            "outbox_message_3 is locked by session 7 (\"vacuum\\nfull\", in a transaction since 41 s)"
        );
        assert!(remedy.contains("pg_terminate_backend") && !remedy.contains('7'), "{remedy}");
        let hidden = LockHolder { seconds: None, ..holder };
        assert!(!hidden.to_string().contains("since"), "{hidden}");
    }

    #[test]
    fn a_standby_is_named_by_the_setting_that_requires_it() {
        let one = unreplicated(1, "FIRST 1 (b)");
        assert!(one.starts_with("1 commit waits for the synchronous standby"), "{one}");
        assert!(one.contains("synchronous_standby_names = \"FIRST 1 (b)\""), "{one}");
        assert!(unreplicated(2, "").starts_with("2 commits wait "));
    }

    #[test]
    fn only_waiting_too_long_is_asked_about() {
        assert!(waited_too_long(&LogError::Timeout { waited: ASKED_MAX }));
        assert!(!waited_too_long(&LogError::operator("no")));
        assert!(!waited_too_long(&LogError::during("connect")(sqlx::Error::PoolClosed)));
    }
}
