//! An HTTP server in front of SQS that answers no request for a silenced queue.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tests::Failure;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Larger than any request.
const BODY_BYTES_MAX: usize = 4 << 20;

/// The gateway. Dropping it stops the server.
pub(crate) struct Gateway {
    address: SocketAddr,
    silent: watch::Sender<bool>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Visit {
    server: Arc<str>,
    queue: Arc<str>,
    is_silent: watch::Receiver<bool>,
}

impl Gateway {
    pub(crate) async fn start(endpoint: &str, queue: &str) -> Result<Self, Failure> {
        let server = endpoint.trim_start_matches("http://").trim_end_matches('/');
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (silent, is_silent) = watch::channel(false);
        let visit = Visit { server: server.into(), queue: queue.into(), is_silent };
        let router = Router::new().fallback(pass).with_state(visit);
        let serving = tokio::spawn(async move {
            // The server ends with the test.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, silent, _serving: AbortOnDropHandle::new(serving) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops answering batches for the queue, or answers the waiting batches.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.silent.send_replace(is_silent);
    }
}

async fn pass(State(visit): State<Visit>, request: Request) -> Response {
    match forward(visit, request).await {
        Ok(response) => response,
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

async fn forward(mut visit: Visit, request: Request) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX).await?;
    if is_batch(&parts.headers) && String::from_utf8_lossy(&body).contains(&*visit.queue) {
        // When the client has hung up, this future is dropped and nothing is passed on.
        visit.is_silent.wait_for(|is_silent| !is_silent).await?;
    }
    let stream = TcpStream::connect(&*visit.server).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let answer = sender.send_request(axum::http::Request::from_parts(parts, Body::from(body))).await?;
    let (parts, body) = answer.into_parts();
    let body = to_bytes(Body::new(body), BODY_BYTES_MAX).await?;
    Ok(Response::from_parts(parts, Body::from(body)))
}

fn is_batch(headers: &HeaderMap) -> bool {
    headers.get("x-amz-target").is_some_and(|target| target.as_bytes().ends_with(b"SendMessageBatch"))
}
