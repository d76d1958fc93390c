//! The listener with its bounds, and the routes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use web::listener::{self, Admitted, Bounds};

use super::{Exporter, Health};

/// Every client that reaches the address may connect, and a probe without an answer gets the
/// process killed. So a silent connection keeps no other one out.
const BOUNDS: Bounds = Bounds {
    connections_max: 64,
    per_peer_max: Some(16),
    counts_loopback: true,
    may_cut_answers: true,
    lifetime: Duration::from_secs(10),
};
/// Timeout for the head of a request, which every client sends at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const EXPOSITION: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The listener of metrics and health.
pub(crate) struct Endpoint {
    listener: TcpListener,
    exporter: Arc<Exporter>,
    health: Health,
}

impl Endpoint {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address is in use, or is not one of this machine.
    pub(crate) async fn bind(
        address: SocketAddr,
        exporter: Arc<Exporter>,
        health: Health,
    ) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await?, exporter, health })
    }

    /// Returns the address, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self) {
        let Self { listener, exporter, health } = self;
        let answer = |stream, admitted| answer(stream, admitted, Arc::clone(&exporter), health.clone());
        listener::serve(listener, "metrics or health", BOUNDS, answer).await;
    }
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, admitted: Arc<Admitted>, exporter: Arc<Exporter>, health: Health) {
    let service = service_fn(move |request: Request<Incoming>| {
        admitted.heard();
        let (exporter, health) = (Arc::clone(&exporter), health.clone());
        async move { Ok::<_, Infallible>(route(&request, &exporter, &health).await) }
    });
    // An error is the client's: it has disconnected, or does not speak HTTP.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn route(request: &Request<Incoming>, exporter: &Exporter, health: &Health) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            let mut response = text(StatusCode::OK, exporter.text().await);
            response.headers_mut().insert(CONTENT_TYPE, EXPOSITION);
            response
        }
        "/livez" => text(StatusCode::OK, "alive\n"),
        "/readyz" => {
            let (is_ready, lines) = health.ready();
            text(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, lines)
        }
        _ => text(StatusCode::NOT_FOUND, "available paths: /metrics, /livez, /readyz\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}
