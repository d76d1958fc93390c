//! An HTTP proxy in front of the real server: it forwards requests, or answers them itself.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, client, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::protocol;
use crate::Failure;
use crate::journal::Journal;
use crate::serving::serve;

/// The way in which requests are answered. Shares are between 0 and 1; the choice is independent
/// for each request, or for each entry.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Mood {
    /// Every request is answered by the server.
    #[default]
    Fair,
    /// A share of the entries of a batch fails, and the server never receives them.
    Partial(f64),
    /// A share of the entries of a batch is done, but reported as failed.
    PartialDone(f64),
    /// A share of the requests fails with status 500 or 503.
    Errors(f64),
    /// A share of the requests is throttled.
    Throttled(f64),
    /// A share of the requests is done, but not answered while this lasts.
    Silent(f64),
    /// Every request that sends messages is done, but not answered while this lasts.
    SilentSends,
}

/// A running gateway. Dropping it stops the gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    mood: watch::Sender<Mood>,
    spoilt: Arc<AtomicU64>,
    journal: Arc<OnceLock<Journal>>,
    _accepting: JoinSet<()>,
}

impl Gateway {
    /// Listens on a free port of this machine, in front of `server` (`host:port`).
    ///
    /// # Errors
    /// No port is available.
    pub async fn start(server: impl Into<Arc<str>>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (mood, spoilt) = (watch::Sender::new(Mood::Fair), Arc::new(AtomicU64::new(0)));
        let journal = Arc::new(OnceLock::new());
        let visit = Visit {
            server: server.into(),
            mood: mood.subscribe(),
            spoilt: Arc::clone(&spoilt),
            journal: Arc::clone(&journal),
        };
        let mut accepting = JoinSet::new();
        accepting.spawn(serve(listener, move |request| visit.clone().answer(request)));
        Ok(Self { address, mood, spoilt, journal, _accepting: accepting })
    }

    /// Returns the address at which the gateway listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Records every entry of a batch in this journal from now on. A second journal is ignored.
    pub fn write_to(&self, journal: Journal) {
        let _ = self.journal.set(journal);
    }

    /// Sets the mood in which the gateway answers from now on.
    pub fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// Returns the number of requests whose answer differed from the server's.
    #[must_use]
    pub fn spoilt(&self) -> u64 {
        self.spoilt.load(Relaxed)
    }
}

/// The state that a connection needs.
#[derive(Clone)]
struct Visit {
    server: Arc<str>,
    mood: watch::Receiver<Mood>,
    spoilt: Arc<AtomicU64>,
    journal: Arc<OnceLock<Journal>>,
}

type Answer = Response<Full<Bytes>>;

impl Visit {
    async fn answer(mut self, request: Request<Incoming>) -> Result<Answer, Failure> {
        // When the server is unreachable, the gateway answers like a load balancer.
        let answered = self.respond(request).await;
        Ok(answered.unwrap_or_else(|error| plain(StatusCode::BAD_GATEWAY, error.to_string())))
    }

    async fn respond(&mut self, request: Request<Incoming>) -> Result<Answer, Failure> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let target = parts.headers.get(protocol::TARGET).and_then(|target| target.to_str().ok());
        let is_batch = target.is_some_and(protocol::is_batch);
        let is_send = target.is_some_and(protocol::is_send);
        let request = Request::from_parts(parts, body);
        let mood = *self.mood.borrow_and_update();
        match mood {
            Mood::Partial(share) if is_batch => self.partial(request, share).await,
            Mood::PartialDone(share) if is_batch => self.partial_done(request, share).await,
            Mood::Errors(share) if rand::random_bool(share) => Ok(self.spoil(error())),
            Mood::Throttled(share) if rand::random_bool(share) => {
                Ok(self.spoil(json(StatusCode::BAD_REQUEST, &protocol::error("RequestThrottled"))))
            }
            Mood::SilentSends if is_send => self.silence(request, mood).await,
            Mood::Silent(share) if rand::random_bool(share) => self.silence(request, mood).await,
            _ => self.forward(request).await,
        }
    }

    /// Forwards the request, and returns its answer once the mood of the gateway changes.
    async fn silence(&mut self, request: Request<Bytes>, mood: Mood) -> Result<Answer, Failure> {
        let answer = self.forward(request).await?;
        self.spoilt.fetch_add(1, Relaxed);
        // This wait also ends when the gateway is dropped.
        let _ = self.mood.wait_for(|now| *now != mood).await;
        Ok(answer)
    }

    /// Keeps some entries from the server, and reports them as failed.
    async fn partial(&self, request: Request<Bytes>, share: f64) -> Result<Answer, Failure> {
        let (parts, body) = request.into_parts();
        let mut entries: Value = serde_json::from_slice(&body)?;
        let taken = protocol::take_entries(&mut entries, |_| rand::random_bool(share)).unwrap_or_default();
        let mut answer = if taken.is_empty() {
            return self.forward(Request::from_parts(parts, body)).await;
        } else if protocol::has_entries(&entries) {
            let forwarded =
                self.forward(Request::from_parts(parts, serde_json::to_vec(&entries)?.into())).await?;
            if forwarded.status() != StatusCode::OK {
                return Ok(forwarded);
            }
            serde_json::from_slice(&forwarded.into_body().collect().await?.to_bytes())?
        } else {
            protocol::nothing_done()
        };
        protocol::fail(&mut answer, &taken);
        Ok(self.spoil(json(StatusCode::OK, &answer)))
    }

    /// Forwards all entries, and reports some of the successful entries as failed.
    async fn partial_done(&self, request: Request<Bytes>, share: f64) -> Result<Answer, Failure> {
        let forwarded = self.forward(request).await?;
        if forwarded.status() != StatusCode::OK {
            return Ok(forwarded);
        }
        let mut answer: Value = serde_json::from_slice(&forwarded.into_body().collect().await?.to_bytes())?;
        let taken = protocol::take_successes(&mut answer, |_| rand::random_bool(share)).unwrap_or_default();
        protocol::fail(&mut answer, &taken);
        let answer = json(StatusCode::OK, &answer);
        Ok(if taken.is_empty() { answer } else { self.spoil(answer) })
    }

    /// Forwards the request on a separate connection, and records the answer entry by entry.
    async fn forward(&self, mut request: Request<Bytes>) -> Result<Answer, Failure> {
        let stream = TcpStream::connect(&*self.server).await?;
        let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Only the answer matters, not the end of the connection.
        let driving = tokio::spawn(async move { drop(connection.await) });
        // The new body may have a different length, and is sent whole.
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
            request.headers_mut().remove(name);
        }
        let target = request.headers().get(protocol::TARGET).and_then(|target| target.to_str().ok());
        let batch = target.filter(|target| protocol::is_batch(target)).map(str::to_owned);
        let entries = request.body().clone();
        let answer = sender.send_request(request.map(Full::new)).await?;
        let (mut parts, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Some((operation, journal)) = batch.zip(self.journal.get()) {
            journal.write(&protocol::passed(&operation, &entries, &body))?;
        }
        driving.abort();
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
            parts.headers.remove(name);
        }
        Ok(Response::from_parts(parts, Full::new(body)))
    }

    fn spoil(&self, answer: Answer) -> Answer {
        self.spoilt.fetch_add(1, Relaxed);
        answer
    }
}

/// Returns an error of the service, or of a load balancer in front of it.
fn error() -> Answer {
    if rand::random() {
        json(StatusCode::INTERNAL_SERVER_ERROR, &protocol::error("InternalFailure"))
    } else {
        plain(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable".to_owned())
    }
}

fn json(status: StatusCode, body: &Value) -> Answer {
    with_type(status, protocol::CONTENT_TYPE, body.to_string())
}

fn plain(status: StatusCode, body: String) -> Answer {
    with_type(status, "text/plain", body)
}

fn with_type(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    answer
}
