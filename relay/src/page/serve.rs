//! The listener and its bounds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use super::app::{App, routes};
use super::guard::Hosts;
use super::peers::Peers;
use super::tls;
use super::users::Users;
use crate::config::{Config, PageConfig};

/// Connections at once; more wait in the system's queue.
const CONNECTIONS: usize = 128;
/// For TLS, and for the head of a request; also how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// No connection lasts longer, streams included: a browser opens another one.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(900);
/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// After the system had no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The page, listening.
pub struct Page {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    peers: Peers,
    app: Arc<App>,
}

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The address is in use or not of this machine.
    #[error("page.listen: {address} cannot be used: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        error: io::Error,
    },
    /// A certificate, a key or a secret cannot be used; the text names it.
    #[error("{0}")]
    Setting(String),
}

/// Reads what the page needs besides its address: the users' secrets, the certificate and its key.
///
/// # Errors
/// [`PageError::Setting`].
pub fn check(page: &PageConfig) -> Result<(), PageError> {
    Users::load(&page.users).map_err(PageError::Setting)?;
    page.tls.as_ref().map(tls::acceptor).transpose().map_err(PageError::Setting)?;
    Ok(())
}

impl Page {
    /// Listens at the address of the configuration.
    ///
    /// # Errors
    /// [`PageError`]; nothing is served then.
    pub async fn bind(config: &Config, page: &PageConfig) -> Result<Self, PageError> {
        let users = Users::load(&page.users).map_err(PageError::Setting)?;
        let tls = page.tls.as_ref().map(tls::acceptor).transpose().map_err(PageError::Setting)?;
        let listener = TcpListener::bind(page.listen)
            .await
            .map_err(|error| PageError::Address { address: page.listen, error })?;
        let hosts = Hosts::new(page.listen, &page.hosts);
        let places = (config.pipelines.clone(), config.verify.clone());
        let app = Arc::new(App::new(places, (hosts, users, page.is_encrypted())));
        Ok(Self { listener, tls, peers: Peers::new(page.behind_proxy), app })
    }

    /// Returns the address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn serve(self) {
        let Self { listener, tls, peers, app } = self;
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        let observed = Arc::clone(&app);
        connections.spawn(async move { observed.observer.keep().await });
        let service = TowerToHyperService::new(routes(app));
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!("a connection for the page could not be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Closed at once: a peer that has as many gets no more.
            let Some(connected) = peers.connect(peer.ip()) else { continue };
            let (service, tls) = (service.clone(), tls.clone());
            connections.spawn(async move {
                let _ = stream.set_nodelay(true);
                let served = async {
                    match tls {
                        Some(tls) => {
                            // An error is the client's: it has gone, or does not speak TLS.
                            if let Ok(Ok(stream)) =
                                tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await
                            {
                                answer(stream, service).await;
                            }
                        }
                        None => answer(stream, service).await,
                    }
                };
                let _ = tokio::time::timeout(CONNECTION_LIFETIME, served).await;
                drop((connected, permit));
            });
            while connections.try_join_next().is_some() {}
        }
    }
}

/// Answers the requests of a connection.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: TowerToHyperService<axum::Router>,
) {
    // An error is the client's: it has gone, or does not speak HTTP.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
