//! The listener and its bounds.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use brokers::Secret;
use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use operate::{InboxConfig, PipelineConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::app::{Access, App, routes};
use super::guard::Hosts;
use super::links::Links;
use super::login::OwnLogin;
use super::proxied::Proxied;
use super::session::Cookie;
use super::sessions::Sessions;
use super::users::Users;
use super::{Own, tls};
use crate::listener::{self, Admitted, Bounds};
use crate::settings::{PageConfig, PageCredential, PageUser};

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 128;
/// Maximum number of connections of one peer: more than its event streams, which stay open. A
/// browser opens six.
const PER_PEER_MAX: usize = 64;
/// Timeout for TLS and for the head of a request; also for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum age of a connection, streams included: a browser opens another one.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(900);
/// Pause after a panic of the task that keeps the figures up to date.
const OBSERVE_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Maximum size of a request's head in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The page with its listener.
pub struct Page {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    bounds: Bounds,
    app: Arc<App>,
}

/// The reason why the page cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The address is in use, or is not one of this machine.
    #[error("page.listen: {address} cannot be used: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// A certificate, a key or a secret cannot be used; the text names it.
    #[error("{0}")]
    Setting(String),
}

/// Reads the files that the page needs: the users' secrets, the certificate and its key.
///
/// # Errors
/// [`PageError::Setting`].
pub fn check(page: &PageConfig) -> Result<(), PageError> {
    Users::load(&page.users).map_err(PageError::Setting)?;
    page.proxy_login.as_ref().map(Proxied::load).transpose().map_err(PageError::Setting)?;
    page.tls.as_ref().map(tls::acceptor).transpose().map_err(PageError::Setting)?;
    Ok(())
}

/// Checks the secrets in the configuration itself. Those in files, and the certificate, may be
/// mounted later.
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
    if let Some(login) = &page.proxy_login
        && let Some(Secret::Text(_)) = &login.secret
    {
        Proxied::load(login).map_err(PageError::Setting)?;
    }
    Ok(())
}

impl Page {
    /// Listens at the configured address, for a page about these pipelines and inboxes.
    ///
    /// # Errors
    /// [`PageError`]; then nothing is served.
    pub async fn bind(
        pipelines: &[PipelineConfig],
        inboxes: &[InboxConfig],
        page: &PageConfig,
        own: Own,
    ) -> Result<Self, PageError> {
        let mut users = Users::load(&page.users).map_err(PageError::Setting)?;
        let proxy = page.proxy_login.as_ref().map(Proxied::load).transpose().map_err(PageError::Setting)?;
        if proxy.is_some() {
            users = users.closed();
        }
        let tls = page.tls.as_ref().map(tls::acceptor).transpose().map_err(PageError::Setting)?;
        let listener = TcpListener::bind(page.listen)
            .await
            .map_err(|error| PageError::Address { address: page.listen, error })?;
        let address =
            listener.local_addr().map_err(|error| PageError::Address { address: page.listen, error })?;
        let access = Access::Own(Box::new(OwnLogin {
            hosts: Hosts::new(page.listen, &page.hosts),
            users,
            cookie: Cookie::new(page.is_encrypted(), address.port()),
            proxy,
            sessions: Sessions::new(pipelines.to_vec()),
        }));
        let app = Arc::new(App::new(pipelines.to_vec(), inboxes.to_vec(), own, Links::of(page), access));
        let bounds = Bounds {
            connections_max: CONNECTIONS_MAX,
            // A proxy stands for all its clients.
            per_peer_max: (!page.behind_proxy).then_some(PER_PEER_MAX),
            counts_loopback: false,
            // A stream of events is a long response.
            may_cut_answers: false,
            lifetime: CONNECTION_LIFETIME,
        };
        Ok(Self { listener, tls, bounds, app })
    }

    /// Returns the address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is stopped, then stops its doctor, comparisons and replays, and waits until
    /// they have ended: a replay waits for the broker's answers and notes how far it came. If
    /// dropped, it leaves them as they are.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { listener, tls, bounds, app } = self;
        let mut observing = JoinSet::new();
        observing.spawn(observe(Arc::clone(&app)));
        let service = TowerToHyperService::new(routes(Arc::clone(&app)));
        let answer = |stream, admitted| answer(stream, admitted, tls.clone(), service.clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = listener::serve(listener, "the page", bounds, answer) => {}
        }
        app.end_jobs().await;
    }
}

/// Keeps the figures of the page up to date. Restarts after a panic: otherwise they would not
/// change until a restart of the process.
async fn observe(app: Arc<App>) {
    loop {
        let observing = AssertUnwindSafe(Box::pin(app.observer.keep()));
        if observing.catch_unwind().await.is_err() {
            tracing::error!("the task that collects the page's figures panicked; it restarts");
            tokio::time::sleep(OBSERVE_AGAIN_AFTER).await;
        }
    }
}

/// Answers the requests of a connection, over TLS if there is a certificate.
async fn answer(
    stream: TcpStream,
    admitted: Arc<Admitted>,
    tls: Option<TlsAcceptor>,
    service: TowerToHyperService<axum::Router>,
) {
    let _ = stream.set_nodelay(true);
    match tls {
        Some(tls) => {
            // An error is the client's: it has disconnected, or does not speak TLS.
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
        // The gate authenticates the user, and so decides whether the connection keeps its place.
        request.extensions_mut().insert(Arc::clone(&admitted));
        service.call(request)
    });
    // An error is the client's: it has disconnected, or does not speak HTTP.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
