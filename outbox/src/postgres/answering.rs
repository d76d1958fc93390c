//! Chooses among the addresses of a server's host.
//!
//! The client library waits for the first address as long as the kernel does, which is longer than
//! any limit here. It has one setting for the host and for the name in the server's certificate, so
//! an address can only replace the name where no certificate is compared with it and no proxy
//! chooses the server by the name: without TLS, or where TLS is optional.

use std::net::SocketAddr;

use message::addresses::{addresses_of, first_to_answer};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::net::TcpStream;

/// Returns options that name the first address that answers, if the host has several and its name
/// is not needed for TLS; otherwise the same options. Errors are left to the connect itself. Has no
/// time limit. Cancel-safe.
pub async fn answering(options: &PgConnectOptions) -> PgConnectOptions {
    let options = options.clone();
    if options.get_socket().is_some() || needs_name(options.get_ssl_mode()) {
        return options;
    }
    match addresses_of(options.get_host(), options.get_port()).await {
        Ok(addresses) if addresses.len() > 1 => among(options, &addresses).await,
        _ => options,
    }
}

async fn among(options: PgConnectOptions, addresses: &[SocketAddr]) -> PgConnectOptions {
    let connect = |address| async move { TcpStream::connect(address).await.map(|_| address) };
    match first_to_answer(addresses, connect).await {
        Ok(address) => options.host(&address.ip().to_string()),
        Err(_) => options,
    }
}

fn needs_name(mode: PgSslMode) -> bool {
    match mode {
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => false,
        PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::options::postgres_options;

    async fn chosen(url: &str) -> String {
        answering(&postgres_options(url, true).unwrap()).await.get_host().to_owned()
    }

    #[tokio::test]
    async fn a_silent_address_is_passed_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        // An address of documentation (RFC 5737): packets to it are dropped, or refused at once.
        let silent = SocketAddr::from(([192, 0, 2, 1], there.port()));
        let options = postgres_options("postgres://u@db.example.com/d?sslmode=disable", true).unwrap();
        assert_eq!(among(options, &[silent, there]).await.get_host(), "127.0.0.1");
    }

    #[tokio::test]
    async fn a_name_that_is_needed_or_unknown_is_kept() {
        for mode in ["require", "verify-ca", "verify-full"] {
            assert_eq!(chosen(&format!("postgres://u@localhost/d?sslmode={mode}")).await, "localhost");
        }
        assert_eq!(chosen("postgres://u@127.0.0.1/d").await, "127.0.0.1");
        let unknown = "postgres://u@nowhere.invalid/d?sslmode=disable";
        assert_eq!(chosen(unknown).await, "nowhere.invalid");
    }
}
