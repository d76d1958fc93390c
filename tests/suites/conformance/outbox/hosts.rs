//! URLs that name several hosts, the first of which is not a primary. The end-to-end cases
//! `environments/hosts` change the primary as well.

use std::time::Duration;

use message::host_list::hosts_of;
use outbox::PoolError;
use outbox_log::{Acquired, LogError, LogOptions};
use proxy::Proxy;
use sqlx::Postgres;
use sqlx::postgres::PgPool;
use tests::eventually::when;
use tests::{Database, Dialect as _, Failure, Outcome, Role, Stage, cluster, eventually};

use crate::outbox::support::{relay, source};

tests::cases! { "outbox/hosts/{on}/{case}":
    postgres {
        a_host_that_is_away_is_passed_over = away,
        a_host_whose_sessions_are_read_only_is_passed_over_unless_it_may_be = read_only,
        no_host_at_all_is_told_with_each_of_them = nowhere,
    }
    night postgres { a_host_that_is_gone_costs_an_acquire_little = gone }
}

/// Returns the URL with a host before its own on which nothing listens.
fn behind_one_that_is_away(url: &str) -> Result<String, Failure> {
    let hosts = hosts_of(url);
    Ok(url.replacen(hosts, &format!("127.0.0.1:{},{hosts}", cluster::free_port()?), 1))
}

async fn leads(url: &str) -> Result<bool, LogError> {
    let log = outbox_log::open(url, source(), LogOptions::default())?;
    let mut store = log.checkpoint_store(&relay(), "a").await?;
    Ok(matches!(store.acquire(Duration::from_secs(30)).await?, Acquired::Granted { .. }))
}

/// Goal: the first host of a list is away. A relay leads at the second one, and so does a pool,
/// whose task beside it ends with the pool. Options that a service sets keep everything but their
/// host. Oracle: the lease, a row, the pool's options, and the sessions that the server has of the
/// pool's user.
async fn away(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    assert!(leads(&behind_one_that_is_away(&db.relay_url()?)?).await?);
    let url = behind_one_that_is_away(&Postgres::url_of(Role::Producer, &db.url)?)?;
    let pool: PgPool = outbox::pool_with(&url, |options| options.max_connections(2)).await?;
    assert_eq!(sqlx::query_scalar::<_, i32>("SELECT 1").fetch_one(&pool).await?, 1);
    let of_pool = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND usename = '{}'",
        db.name()?,
        Role::Producer.user()
    );
    assert_eq!(db.integer(&of_pool).await?, 2, "a connection, and the session that asks");
    let port = pool.connect_options().get_port();
    pool.set_connect_options((*pool.connect_options()).clone().port(1).application_name("renewed"));
    let is_mended = || async {
        let present = pool.connect_options();
        Ok(when(present.get_port() == port && present.get_application_name() == Some("renewed")))
    };
    eventually("the pool is at the primary again", is_mended).await?;
    pool.close().await;
    eventually("no session is left", || async { Ok(when(db.integer(&of_pool).await? == 0)) }).await
}

/// Goal: a server whose sessions are read-only by default is not taken for the primary, unless
/// `target_session_attrs` excludes only standbys. Oracle: the lease; the reason in the error.
async fn read_only(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let (name, user) = (db.name()?, Role::Relay.user());
    db.execute(&format!("ALTER ROLE {user} IN DATABASE {name} SET default_transaction_read_only = on"))
        .await?;
    let url = behind_one_that_is_away(&db.relay_url()?)?;
    for query in ["", "?target_session_attrs=any", "?target_session_attrs=read-write"] {
        let error = leads(&format!("{url}{query}")).await.err().ok_or("a read-only server is led")?;
        let text = error.to_string();
        assert!(matches!(error, LogError::Unavailable { .. }), "{text}");
        assert!(
            text.contains("its sessions are read-only") && text.contains("no host of the list"),
            "{text}"
        );
    }
    assert!(leads(&format!("{url}?target_session_attrs=primary")).await?);
    // A pool keeps such a session instead of connecting for each use.
    let pool: PgPool = outbox::pool_with(&format!("{url}?target_session_attrs=primary"), |options| {
        options.max_connections(1)
    })
    .await?;
    let session = "SELECT pg_backend_pid()";
    let first: i32 = sqlx::query_scalar(session).fetch_one(&pool).await?;
    // The check on return runs after the answer.
    for _ in 0..3 {
        assert_eq!(sqlx::query_scalar::<_, i32>(session).fetch_one(&pool).await?, first);
    }
    pool.close().await;
    Ok(())
}

/// Goal: a service whose callers wait less than ten seconds loses none of them after a failover,
/// however many idle connections lead to the host that is gone. Oracle: `acquire` within its
/// timeout, which was below the former limit of a check.
async fn gone(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let url = Postgres::url_of(Role::Producer, &db.url)?;
    let wire = Proxy::start(0, hosts_of(&url).to_owned()).await?;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", wire.address().port(), cluster::free_port()?);
    let separator = if url.contains('?') { '&' } else { '?' };
    // Without TLS, because sqlx waits for the peer when it closes a TLS connection.
    let url = format!("{}{separator}sslmode=disable", url.replacen(hosts_of(&url), &hosts, 1));
    let in_time = Duration::from_secs(8);
    let pool: PgPool =
        outbox::pool_with(&url, |options| options.max_connections(2).acquire_timeout(in_time)).await?;
    let both = [pool.acquire().await?, pool.acquire().await?];
    drop(both);
    // Longer than a connection is trusted without a check.
    tokio::time::sleep(Duration::from_secs(1)).await;
    wire.abandon(proxy::End::Server);
    assert_eq!(sqlx::query_scalar::<_, i32>("SELECT 1").fetch_one(&pool).await?, 1);
    wire.end_abandonment();
    pool.close().await;
    Ok(())
}

/// Goal: when no host can be used, the error has the reason of each and no password. Oracle: the
/// texts for a pool and for a relay.
async fn nowhere(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::migrated(&stage).await?;
    let url = behind_one_that_is_away(&db.relay_url()?)?;
    let (_, rest) = url.rsplit_once('@').ok_or("a URL without a user")?;
    let url = format!("postgres://nobody:CANARY@{rest}");
    let of_pool = outbox::pool::<Postgres>(&url).await.err().ok_or("nobody may log in")?;
    assert!(matches!(of_pool, PoolError::Connect(_)), "{of_pool:?}");
    let of_relay = leads(&url).await.err().ok_or("nobody may lead")?;
    for text in [message::error_text::chain(&of_pool), of_relay.to_string()] {
        for host in hosts_of(&url).split(',') {
            assert!(text.contains(&format!("{host}: ")), "{text}");
        }
        assert!(!text.contains("CANARY"), "{text}");
    }
    Ok(())
}
