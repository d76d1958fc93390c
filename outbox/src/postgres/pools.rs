//! Pools of PostgreSQL that are safe for transactions.

use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::begin::RELEASE_MAX;
use crate::pool_error::PoolError;
use crate::postgres::following;
use crate::postgres::hosts::{Hosts, Needs, check};
use crate::postgres::session::set_own_defaults;

/// How long a returned connection is reused without a check that it is still alive.
const TRUSTED_FOR: Duration = Duration::from_millis(250);

/// Maximum time for the answer of an idle connection that may lead to a host that is gone. The
/// caller of `acquire` waits for it, once for each idle connection.
const IDLE_ANSWER_MAX: Duration = Duration::from_secs(1);

/// Purpose of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A service, whose sessions keep the defaults of its role.
    Service,
    /// The same, over several hosts.
    AmongHosts(Needs),
    /// A program that does only the toolkit's work.
    Own,
}

/// Opens a pool at a URL, with the options that `adjust` returns.
pub(super) async fn open(
    url: &str,
    idle_in_transaction_max: Duration,
    adjust: impl FnOnce(PgPoolOptions) -> PgPoolOptions + Send,
) -> Result<PgPool, PoolError> {
    let hosts = Hosts::of(url, false)?;
    if hosts.are_several() {
        let options = adjust(options(idle_in_transaction_max, Use::AmongHosts(hosts.needs())));
        return following::pool(hosts, options).await;
    }
    let options = adjust(options(idle_in_transaction_max, Use::Service));
    let opened = options.connect_with(hosts.first().clone()).await;
    opened.map_err(|error| PoolError::Connect(Box::new(error)))
}

/// Returns pool options that keep an open transaction from reaching the next user of a connection.
pub(super) fn options(idle_in_transaction_max: Duration, is_for: Use) -> PgPoolOptions {
    let limit = idle_in_transaction_max.as_millis().to_string();
    PgPoolOptions::new()
        // The check on return has shown that the connection is alive. A ping right afterwards would
        // be one of seven round trips of a small transaction, and its caller would wait for it.
        .test_before_acquire(false)
        .before_acquire(move |connection, metadata| {
            Box::pin(async move {
                if metadata.idle_for >= TRUSTED_FOR {
                    return is_usable(connection, is_for).await;
                }
                Ok(true)
            })
        })
        .after_connect(move |connection, _| {
            let limit = limit.clone();
            Box::pin(async move {
                sqlx::query("SELECT set_config('idle_in_transaction_session_timeout', $1, false)")
                    .bind(limit)
                    .execute(&mut *connection)
                    .await?;
                match is_for {
                    Use::Service => Ok(()),
                    // The pool then connects again, perhaps to the host that was found meanwhile.
                    Use::AmongHosts(needs) => check(connection, needs).await.map_err(sqlx::Error::from),
                    Use::Own => set_own_defaults(connection).await,
                }
            })
        })
        .after_release(move |connection, _| {
            Box::pin(async move {
                // A cancelled begin() leaves the session inside a transaction, where the autocommit
                // statements of its next user would be lost. BEGIN comes before ROLLBACK, because a
                // ROLLBACK outside a transaction logs a warning on the server each time. In a
                // failed transaction BEGIN fails and the pool closes the connection, which is
                // equally safe. An unreachable server does not answer: without the limit, the pool
                // would wait forever and lose one connection.
                //
                // A server that became a replica keeps its sessions (Aurora), while the new writer
                // has the same name. Therefore the pool drops a session that cannot write, or one
                // with a standby where sessions may be read-only by default.
                let clean = connection.fetch_all(match is_for {
                    Use::AmongHosts(Needs::Primary) => "BEGIN; ROLLBACK; SELECT NOT pg_is_in_recovery()",
                    _ => "BEGIN; ROLLBACK; SELECT current_setting('transaction_read_only') = 'off'",
                });
                let cleaned = tokio::time::timeout(RELEASE_MAX, clean);
                let rows =
                    cleaned.await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
                rows.first().map_or(Ok(false), |row| row.try_get::<bool, _>(0))
            })
        })
}

/// Returns whether an idle connection may be lent. With several hosts, unlike the replicas of a
/// cloud under one name, its server may have become the standby of another one while the connection
/// was idle.
async fn is_usable(connection: &mut PgConnection, is_for: Use) -> Result<bool, sqlx::Error> {
    match is_for {
        Use::Service | Use::Own => {
            let pinged = tokio::time::timeout(RELEASE_MAX, connection.ping()).await;
            Ok(matches!(pinged, Ok(Ok(()))))
        }
        // A host that has gone does not answer, and another one may.
        Use::AmongHosts(needs) => {
            let checked = tokio::time::timeout(IDLE_ANSWER_MAX, check(connection, needs)).await;
            Ok(matches!(checked, Ok(Ok(()))))
        }
    }
}
