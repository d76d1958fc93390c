//! Chooses among the addresses of a server's host.
//!
//! The client library waits for the first address until the kernel gives up, which takes longer
//! than any limit here. It has one setting for the host and for the name that TLS compares and
//! sends, so an address replaces the name only without TLS. Where TLS is optional, a proxy may
//! still choose the server by the name, so the name stays as long as its first address answers.

use std::net::SocketAddr;

use message::addresses::{addresses_of, first_to_answer};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::net::TcpStream;

/// Returns options that name the first address that answers, if the host has several and its name
/// is not needed for TLS; otherwise the same options. Errors are left to the connect itself. Has no
/// time limit: use one limit for this call and the connect together. Cancel-safe.
pub async fn answering(options: &PgConnectOptions) -> PgConnectOptions {
    let options = options.clone();
    if options.get_socket().is_some() || needs_name(&options) {
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
        Ok(address) if may_replace_name(&options, address, addresses) => {
            options.host(&address.ip().to_string())
        }
        _ => options,
    }
}

fn may_replace_name(options: &PgConnectOptions, address: SocketAddr, addresses: &[SocketAddr]) -> bool {
    let is_prefer = matches!(options.get_ssl_mode(), PgSslMode::Prefer);
    // The text of an address has no room for the network interface of a link-local one.
    let is_scoped = matches!(address, SocketAddr::V6(address) if address.scope_id() != 0);
    let keeps_name = is_prefer && addresses.first() == Some(&address);
    !is_scoped && !keeps_name
}

/// Returns whether the connection is made with the host's name, because TLS compares or sends it.
#[must_use]
pub fn needs_name(options: &PgConnectOptions) -> bool {
    match options.get_ssl_mode() {
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => false,
        PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::options::postgres_options;

    fn options(url: &str) -> PgConnectOptions {
        postgres_options(url, true).unwrap()
    }

    async fn chosen(url: &str) -> String {
        answering(&options(url)).await.get_host().to_owned()
    }

    #[tokio::test]
    async fn a_silent_address_is_passed_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        // An address of documentation (RFC 5737): packets to it are dropped, or refused at once.
        let silent = SocketAddr::from(([192, 0, 2, 1], there.port()));
        let plain = options("postgres://u@db.example.com/d?sslmode=disable");
        assert_eq!(among(plain.clone(), &[silent, there]).await.get_host(), "127.0.0.1");
        assert_eq!(among(plain, &[there, silent]).await.get_host(), "127.0.0.1");
        let optional = options("postgres://u@localhost/d?sslmode=prefer");
        assert_eq!(among(optional.clone(), &[silent, there]).await.get_host(), "127.0.0.1");
        assert_eq!(among(optional, &[there, silent]).await.get_host(), "localhost");
    }

    #[test]
    fn a_name_that_is_needed_is_kept() {
        for mode in ["require", "verify-ca", "verify-full"] {
            assert!(needs_name(&options(&format!("postgres://u@db.example.com/d?sslmode={mode}"))), "{mode}");
        }
        assert!(needs_name(&options("postgres://u@db.example.com/d")), "verify-full is the default");
        assert!(!needs_name(&options("postgres://u@db.example.com/d?sslmode=disable")));
    }

    #[test]
    fn an_address_without_a_text_is_no_replacement() {
        let plain = options("postgres://u@db.example.com/d?sslmode=disable");
        let here = |scope_id| {
            let address = "fe80::1".parse().unwrap();
            SocketAddr::from(std::net::SocketAddrV6::new(address, 5432, 0, scope_id))
        };
        assert!(may_replace_name(&plain, here(0), &[here(0)]));
        assert!(!may_replace_name(&plain, here(2), &[here(2)]));
    }

    #[tokio::test]
    async fn an_unknown_name_is_kept() {
        assert_eq!(chosen("postgres://u@127.0.0.1/d").await, "127.0.0.1");
        let unknown = "postgres://u@nowhere.invalid/d?sslmode=disable";
        assert_eq!(chosen(unknown).await, "nowhere.invalid");
    }
}
