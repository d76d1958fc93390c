//! PostgreSQL behind a proxy that can make its host disappear.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proxy::Proxy;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{PgPool, Postgres};

/// The application name of its sessions.
pub(crate) const PROXIED: &str = "proxied";

/// Connects a pool through a proxy, without TLS, because sqlx waits for the peer when it closes a
/// TLS connection.
pub(crate) async fn pool(url: &str, connections: u32) -> (PgPool, Proxy) {
    let options: PgConnectOptions = url.parse().unwrap();
    let wire = Proxy::start(0, format!("{}:{}", options.get_host(), options.get_port())).await.unwrap();
    let options = options.host("127.0.0.1").port(wire.address().port()).ssl_mode(PgSslMode::Disable);
    let options = options.application_name(PROXIED);
    let pool = outbox::pool_options::<Postgres>().max_connections(connections);
    (pool.connect_with(options).await.unwrap(), wire)
}
