//! Connections: to the address that was checked, encrypted as the settings say, and in time.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use message::addresses::{addresses_of, first_to_answer};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower_service::Service;

use super::config::Config;
use super::fault::Blocked;
use super::networks::Networks;
use crate::settings::InvalidSetting;

/// The client that all requests of a session share.
pub(super) type Client = legacy::Client<Connections, Full<Bytes>>;

/// How long a connection without a request is kept. Servers close theirs after 5 s and more. A
/// request on a connection that is being closed has an unknown outcome.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Maximum bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;

type BoxError = Box<dyn Error + Send + Sync>;
type Answer<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Connects to public addresses, and to those in allowed networks.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    networks: Arc<Networks>,
}

impl Guard {
    pub(super) fn new(networks: Networks) -> Self {
        Self { networks: Arc::new(networks) }
    }

    /// Connects to a host. Resolves its name once, and connects to one of the addresses that passed
    /// the check. Cancel-safe.
    async fn connect(self, uri: Uri) -> io::Result<TcpStream> {
        let host = uri.host().unwrap_or_default();
        let port =
            uri.port_u16().unwrap_or(if uri.scheme() == Some(&http::uri::Scheme::HTTP) { 80 } else { 443 });
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let resolved = addresses_of(bare, port).await?;
        let allowed: Vec<SocketAddr> =
            resolved.iter().copied().filter(|address| self.networks.allow(address.ip())).collect();
        if allowed.is_empty() && !resolved.is_empty() {
            let addresses =
                resolved.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ");
            return Err(io::Error::other(Blocked { host: host.to_owned(), addresses }));
        }
        let stream = first_to_answer(&allowed, TcpStream::connect).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Service<Uri> for Guard {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.clone().connect(uri);
        Box::pin(async move {
            let stream = connecting.await?;
            Ok::<_, BoxError>(TokioIo::new(stream))
        })
    }
}

/// Opens connections, encrypted where the URL says so, within the time of the settings.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    https: HttpsConnector<Guard>,
    timeout: Duration,
}

impl Connections {
    /// Reads the files of the TLS section.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the file, or that this machine has no certificate authorities.
    pub(super) fn new(config: &Config, networks: Networks) -> Result<Self, InvalidSetting> {
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls(config)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(Guard::new(networks));
        Ok(Self { https, timeout: Duration::from_millis(config.connect_timeout_ms) })
    }

    /// Returns a client that opens its connections here. It follows no redirects and uses no proxy.
    pub(super) fn client(&self) -> Client {
        legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(self.clone())
    }
}

impl Service<Uri> for Connections {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.https.call(uri);
        let timeout = self.timeout;
        Box::pin(async move {
            let late = |_| -> BoxError { format!("no connection within {} ms", timeout.as_millis()).into() };
            tokio::time::timeout(timeout, connecting).await.map_err(late)?
        })
    }
}

fn tls(config: &Config) -> Result<ClientConfig, InvalidSetting> {
    let https = config.tls.clone().unwrap_or_default().https("http.tls")?;
    if config.needs_authorities() {
        https.check_authorities()?;
    }
    https.hyper()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::has_cause;

    async fn connect(networks: &[&str], url: &str) -> Result<TcpStream, io::Error> {
        let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
        Guard::new(Networks::parse(&networks).unwrap()).connect(url.parse().unwrap()).await
    }

    /// Goal: no spelling of a local address gets a connection unless its network is allowed.
    /// Oracle: the error, and a listener that gets one connection.
    #[tokio::test]
    async fn a_local_address_is_not_connected_to_unless_allowed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"] {
            let error = connect(&[], &format!("http://{host}:{port}")).await.unwrap_err();
            assert!(has_cause(&error, &|cause| cause.is::<Blocked>()), "{host}: {error}");
        }
        let refused = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(refused.is_err(), "nothing connected");
        let stream = connect(&["127.0.0.0/8"], &format!("http://localhost:{port}")).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }
}
