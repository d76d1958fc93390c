//! The endpoint of all topics: a load balancer, which forwards each request to one of the receivers
//! of its topic, or answers it itself.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, client, header};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Failure;
use crate::serving::serve;

/// The way in which requests are answered. Shares are between 0 and 1; the choice is independent
/// for each request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Mood {
    /// Every request is answered by a receiver.
    #[default]
    Fair,
    /// A share of the requests fails with status 500, and no receiver gets them.
    Failing(f64),
    /// A share of the requests fails with a status that says that nothing is available.
    Unavailable(f64),
    /// The same, with a wish to wait for a second.
    Later(f64),
    /// A share of the requests is answered with status 503 before its body is read, and the
    /// connection ends.
    Early(f64),
    /// A share of the requests is answered with a status that stops the topic.
    Denied(f64),
    /// A share of the requests is redirected.
    Redirected(f64),
    /// A share of the connections ends before a receiver gets the request.
    Cut(f64),
    /// A share of the requests is done, and the connection ends without the answer.
    Lost(f64),
    /// A share of the requests is done, but not answered while this lasts.
    Silent(f64),
    /// No request is done or answered while this lasts.
    Hanging,
    /// Every answer comes late, so that messages come faster than they are taken.
    Slow,
}

/// The path at which a receiver announces itself: `/register/<topic>/<port>`.
pub const REGISTER: &str = "/register/";

/// How late an answer of a slow endpoint comes.
const SLOW: Duration = Duration::from_millis(700);

/// A running gateway. Dropping it stops the gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    mood: watch::Sender<Mood>,
    spoilt: Arc<AtomicU64>,
    _accepting: JoinSet<()>,
}

impl Gateway {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mood = watch::Sender::new(Mood::Fair);
        let spoilt = Arc::new(AtomicU64::new(0));
        let visit = Visit { mood: mood.subscribe(), spoilt: Arc::clone(&spoilt), receivers: Arc::default() };
        let mut accepting = JoinSet::new();
        accepting.spawn(serve(listener, move |request| visit.clone().answer(request)));
        Ok(Self { address, mood, spoilt, _accepting: accepting })
    }

    /// Returns the address at which the gateway listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the mood in which the gateway answers from now on.
    pub fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// Returns the number of requests whose answer differed from a receiver's.
    #[must_use]
    pub fn spoilt(&self) -> u64 {
        self.spoilt.load(Relaxed)
    }
}

/// The ports of the receivers of each topic, the one that is next first.
type Receivers = Arc<Mutex<BTreeMap<String, Vec<u16>>>>;

/// The state that a connection needs.
#[derive(Clone)]
struct Visit {
    mood: watch::Receiver<Mood>,
    spoilt: Arc<AtomicU64>,
    receivers: Receivers,
}

type Answer = Response<Full<Bytes>>;

impl Visit {
    async fn answer(mut self, request: Request<Incoming>) -> Result<Answer, Failure> {
        if let Some(receiver) = request.uri().path().strip_prefix(REGISTER) {
            return Ok(self.register(receiver));
        }
        let mood = *self.mood.borrow_and_update();
        if let Mood::Early(share) = mood
            && rand::random_bool(share)
        {
            let mut early = self.spoil(StatusCode::SERVICE_UNAVAILABLE);
            early.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            return Ok(early);
        }
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, body.collect().await?.to_bytes());
        match mood {
            Mood::Failing(share) if rand::random_bool(share) => {
                Ok(self.spoil(StatusCode::INTERNAL_SERVER_ERROR))
            }
            Mood::Unavailable(share) if rand::random_bool(share) => Ok(self.spoil(unavailable())),
            Mood::Later(share) if rand::random_bool(share) => {
                let mut later = self.spoil(unavailable());
                later.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
                Ok(later)
            }
            Mood::Denied(share) if rand::random_bool(share) => Ok(self.spoil(StatusCode::UNAUTHORIZED)),
            Mood::Redirected(share) if rand::random_bool(share) => {
                let mut moved = self.spoil(StatusCode::TEMPORARY_REDIRECT);
                let to = header::HeaderValue::from_static("http://127.0.0.1:1/elsewhere");
                moved.headers_mut().insert(header::LOCATION, to);
                Ok(moved)
            }
            Mood::Cut(share) if rand::random_bool(share) => {
                self.spoilt.fetch_add(1, Relaxed);
                Err("the connection is cut".into())
            }
            Mood::Lost(share) if rand::random_bool(share) => {
                self.forward(request).await?;
                self.spoilt.fetch_add(1, Relaxed);
                Err("the answer is lost".into())
            }
            Mood::Silent(share) if rand::random_bool(share) => {
                let answer = self.forward(request).await?;
                self.outlast(mood).await;
                Ok(answer)
            }
            Mood::Hanging => {
                self.outlast(mood).await;
                Err("it was never done".into())
            }
            Mood::Slow => {
                let answer = self.forward(request).await?;
                self.spoilt.fetch_add(1, Relaxed);
                tokio::time::sleep(SLOW).await;
                Ok(answer)
            }
            _ => self.forward(request).await,
        }
    }

    /// Waits until the mood of the gateway changes, or the gateway is dropped.
    async fn outlast(&mut self, mood: Mood) {
        self.spoilt.fetch_add(1, Relaxed);
        let _ = self.mood.wait_for(|now| *now != mood).await;
    }

    fn receivers(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u16>>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a receiver, `<topic>/<port>`.
    fn register(&self, receiver: &str) -> Answer {
        let Some((topic, port)) = receiver.split_once('/') else { return plain(StatusCode::NOT_FOUND) };
        let Ok(port) = port.parse() else { return plain(StatusCode::NOT_FOUND) };
        let mut receivers = self.receivers();
        let ports = receivers.entry(topic.to_owned()).or_default();
        if !ports.contains(&port) {
            ports.push(port);
        }
        plain(StatusCode::NO_CONTENT)
    }

    /// Returns the receiver whose turn it is.
    fn next(&self, topic: &str) -> Option<u16> {
        let mut receivers = self.receivers();
        let ports = receivers.get_mut(topic).filter(|ports| !ports.is_empty())?;
        ports.rotate_left(1);
        ports.first().copied()
    }

    /// Forwards a request on a connection of its own. A receiver that accepts none is forgotten: it
    /// comes back under another port.
    async fn forward(&self, request: Request<Bytes>) -> Result<Answer, Failure> {
        let topic = request.uri().path().trim_start_matches('/').to_owned();
        while let Some(port) = self.next(&topic) {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                Ok(stream) => {
                    return Ok(forward(stream, request)
                        .await
                        .unwrap_or_else(|_| plain(StatusCode::BAD_GATEWAY)));
                }
                Err(_) => {
                    if let Some(ports) = self.receivers().get_mut(&topic) {
                        ports.retain(|known| *known != port);
                    }
                }
            }
        }
        Ok(plain(StatusCode::BAD_GATEWAY))
    }

    fn spoil(&self, status: StatusCode) -> Answer {
        self.spoilt.fetch_add(1, Relaxed);
        plain(status)
    }
}

async fn forward(stream: TcpStream, mut request: Request<Bytes>) -> Result<Answer, Failure> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Only the answer matters, not the end of the connection.
    let driving = tokio::spawn(async move { drop(connection.await) });
    for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        request.headers_mut().remove(name);
    }
    let answer = sender.send_request(request.map(Full::new)).await?;
    let (parts, body) = answer.into_parts();
    body.collect().await?;
    driving.abort();
    Ok(plain(parts.status))
}

/// Returns a status that says that the endpoint is not available.
fn unavailable() -> StatusCode {
    const ALL: [StatusCode; 4] = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    ALL[rand::random_range(0..ALL.len())]
}

fn plain(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = status;
    answer
}
