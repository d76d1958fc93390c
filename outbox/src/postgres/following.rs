//! A pool that follows the primary among several hosts.
//!
//! The client library's pool connects to one host, without asking whether it is the primary. So a
//! task beside it keeps a session with the primary, asks in it once a second, and gives the pool
//! another host when the primary has changed. While there is none, the pool's own retries wait: it
//! reads its host before each attempt.

use std::time::Duration;

use message::Backoff;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::time::{sleep, timeout};

use crate::pool_error::PoolError;
use crate::postgres::hosts::{Hosts, Primary, Unfit, check, place};

/// Interval at which the primary is asked whether it still is one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pauses after searches that found nothing. Many pools must not overwhelm a server that has just
/// started.
const PAUSES: Backoff = Backoff { first: Duration::from_millis(200), max: Duration::from_secs(2) };
/// Maximum time of a search.
const SEARCH_MAX: Duration = Duration::from_secs(10);
/// Maximum time to close the session with the primary.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Opens a pool whose connections are made with the primary.
pub(super) async fn pool(hosts: Hosts, options: PgPoolOptions) -> Result<PgPool, PoolError> {
    let found = timeout(SEARCH_MAX, hosts.primary()).await;
    let late = |_| PoolError::Connect(Box::from(format!("{} did not answer in time", hosts.place())));
    let primary = found.map_err(late)?.map_err(|error| PoolError::Connect(Box::new(error)))?;
    let opened = options.connect_with(primary.options.clone()).await;
    let pool = opened.map_err(|error| PoolError::Connect(Box::new(error)))?;
    tokio::spawn(follow(pool.clone(), hosts, primary));
    Ok(pool)
}

/// Follows the primary until the pool is closed.
async fn follow(pool: PgPool, hosts: Hosts, primary: Primary) {
    let mut known = Some(primary);
    let followed = pool.close_event().do_until(keep_following(&pool, &hosts, &mut known)).await;
    // The pool is closed, and nothing else ends it.
    drop(followed);
    if let Some(primary) = known {
        // A failure to close has no consequence.
        let _ = timeout(CLOSE_MAX, primary.connection.close()).await;
    }
}

async fn keep_following(pool: &PgPool, hosts: &Hosts, known: &mut Option<Primary>) {
    loop {
        if let Some(primary) = known {
            let why = no_longer(pool, hosts, primary).await;
            let host = place(&primary.options);
            tracing::warn!(%host, error = %why, "a pool has lost its primary; all hosts are asked");
            *known = None;
        }
        // With the password that the service may have set since.
        let primary = search(|| hosts.with(&pool.connect_options())).await;
        let host = place(&primary.options);
        tracing::info!(%host, "a pool has found its primary");
        point(pool, &primary.options);
        *known = Some(primary);
    }
}

/// Asks all hosts until there is a primary.
async fn search(hosts: impl Fn() -> Hosts) -> Primary {
    let mut failures = 0;
    loop {
        match timeout(SEARCH_MAX, hosts().primary()).await {
            Ok(Ok(primary)) => return primary,
            Ok(Err(error)) if failures == 0 => {
                tracing::warn!(%error, "a pool finds no primary; all hosts are asked until there is one");
            }
            Ok(Err(_)) | Err(_) => {}
        }
        failures += 1;
        sleep(PAUSES.delay(failures, rand::random())).await;
    }
}

/// Gives the pool the host of the primary. Everything else stays as it is now: the service may have
/// set another password since, perhaps with the host that it read before.
fn point(pool: &PgPool, primary: &PgConnectOptions) {
    let present = pool.connect_options();
    if place(&present) == place(primary) {
        return;
    }
    // The client library cannot turn options of a socket into those of a host.
    let is_socket = present.get_socket().is_some() || primary.get_socket().is_some();
    pool.set_connect_options(if is_socket {
        primary.clone()
    } else {
        let moved = (*present).clone().host(primary.get_host()).port(primary.get_port());
        moved.ssl_mode(primary.get_ssl_mode())
    });
}

/// Waits until a server can no longer be used, and returns why. Until then the pool stays with it.
async fn no_longer(pool: &PgPool, hosts: &Hosts, primary: &mut Primary) -> Unfit {
    loop {
        sleep(LOOK_EVERY).await;
        match timeout(ANSWER_MAX, check(&mut primary.connection, hosts.needs())).await {
            Ok(Ok(())) => point(pool, &primary.options),
            Ok(Err(unfit)) => return unfit,
            Err(_) => {
                return Unfit::Unconnected(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Goal: while there is no primary, the pools of many replicas do not cause a storm of
    /// connects. Oracle: the number of searches in a minute, in virtual time; without pauses that
    /// grow they are 300.
    #[tokio::test(start_paused = true)]
    async fn searches_in_vain_become_rarer() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("postgres://u@127.0.0.1:{free},localhost:{free}/d");
        let nobody = Hosts::of(&url, false).unwrap();
        let searches = AtomicUsize::new(0);
        let hosts = || {
            searches.fetch_add(1, Ordering::Relaxed);
            nobody.clone()
        };
        assert!(timeout(Duration::from_secs(60), search(hosts)).await.is_err());
        let searches = searches.into_inner();
        assert!((6..160).contains(&searches), "{searches}");
    }
}
