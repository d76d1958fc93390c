//! The listener and its bounds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use brokers::Secret;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::app::{App, routes};
use super::guard::Hosts;
use super::session::Cookie;
use super::users::Users;
use super::{Own, tls};
use crate::config::{Config, PageConfig, PageCredential, PageUser};
use crate::listener::{self, Admitted, Bounds};

/// Connections at once.
const CONNECTIONS_MAX: usize = 128;
/// Connections of one peer at once: more than event streams, which stay. A browser opens six.
const PER_PEER_MAX: usize = 64;
/// For TLS, and for the head of a request; also how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// No connection lasts longer, streams included: a browser opens another one.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(900);
/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The page, listening.
pub struct Page {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    bounds: Bounds,
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

/// Checks the secrets that the configuration itself holds. Those in files, and the certificate, may
/// be mounted later.
///
/// # Errors
/// [`PageError::Setting`].
pub fn check_settings(page: &PageConfig) -> Result<(), PageError> {
    let is_given = |user: &&PageUser| {
        let (PageCredential::Password(secret) | PageCredential::Token(secret)) = &user.credential;
        matches!(secret, Secret::Text(_))
    };
    let users: Vec<PageUser> = page.users.iter().filter(is_given).cloned().collect();
    Users::load(&users).map_err(PageError::Setting)?;
    Ok(())
}

impl Page {
    /// Listens at the address of the configuration.
    ///
    /// # Errors
    /// [`PageError`]; nothing is served then.
    pub async fn bind(config: &Config, page: &PageConfig, own: Own) -> Result<Self, PageError> {
        let users = Users::load(&page.users).map_err(PageError::Setting)?;
        let tls = page.tls.as_ref().map(tls::acceptor).transpose().map_err(PageError::Setting)?;
        let listener = TcpListener::bind(page.listen)
            .await
            .map_err(|error| PageError::Address { address: page.listen, error })?;
        let address =
            listener.local_addr().map_err(|error| PageError::Address { address: page.listen, error })?;
        let hosts = Hosts::new(page.listen, &page.hosts);
        let places = (config.pipelines.clone(), config.verify.clone());
        let cookie = Cookie::new(page.is_encrypted(), address.port());
        let app = Arc::new(App::new(places, own, (hosts, users, cookie)));
        let bounds = Bounds {
            connections_max: CONNECTIONS_MAX,
            // A proxy stands for everybody.
            per_peer_max: (!page.behind_proxy).then_some(PER_PEER_MAX),
            counts_loopback: false,
            // A stream of events is an answer that takes long.
            may_cut_answers: false,
            lifetime: CONNECTION_LIFETIME,
        };
        Ok(Self { listener, tls, bounds, app })
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
        let Self { listener, tls, bounds, app } = self;
        let mut observing = JoinSet::new();
        let observed = Arc::clone(&app);
        observing.spawn(async move { observed.observer.keep().await });
        let service = TowerToHyperService::new(routes(app));
        let answer = |stream, admitted| answer(stream, admitted, tls.clone(), service.clone());
        listener::serve(listener, "the page", bounds, answer).await;
    }
}

/// Answers the requests of a connection, which speaks TLS where there is a certificate.
async fn answer(
    stream: TcpStream,
    admitted: Arc<Admitted>,
    tls: Option<TlsAcceptor>,
    service: TowerToHyperService<axum::Router>,
) {
    let _ = stream.set_nodelay(true);
    match tls {
        Some(tls) => {
            // An error is the client's: it has gone, or does not speak TLS.
            if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
                answer_requests(stream, admitted, service).await;
            }
        }
        None => answer_requests(stream, admitted, service).await,
    }
}

async fn answer_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    admitted: Arc<Admitted>,
    service: TowerToHyperService<axum::Router>,
) {
    let service = service_fn(move |mut request: hyper::Request<_>| {
        // The gate finds out who it is, and so whether the connection keeps its place.
        request.extensions_mut().insert(Arc::clone(&admitted));
        service.call(request)
    });
    // An error is the client's: it has gone, or does not speak HTTP.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
