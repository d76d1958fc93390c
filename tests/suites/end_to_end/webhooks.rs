//! HTTP endpoints as the destination: a receiver whose answers are lost, and one that is slow.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brokers::http::Verifier;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
use message::{MaxInFlightPerKey, MessageId};
use outbox::NewMessage;
use tests::brokers::Memory;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Database, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

tests::cases! { "{case}/{on}":
    databases { a_receiver_whose_answers_are_lost_applies_each_message_once }
    night databases { a_slow_endpoint_delays_no_other_topic }
}

const ORDERS: usize = 30;
const KEYS: usize = 6;
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How a receiver behaves after it has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// It answers with success.
    Answers,
    /// It answers 500.
    AnswersAnError,
    /// It never answers.
    Hangs,
    /// It is killed, with everything that it has in hand, and starts again.
    Dies,
}

/// Returns the behaviour for the first attempt of the `n`-th message.
fn after(n: usize) -> After {
    match n {
        1 | 5 | 9 => After::AnswersAnError,
        2 => After::Hangs,
        3 | 7 => After::Dies,
        _ => After::Answers,
    }
}

/// The messages whose first attempts do not get their answer.
const LOST: i64 = 6;

struct Receiver<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: ConsumerName,
    verifier: Verifier,
    seen: Mutex<HashSet<MessageId>>,
    dies: Notify,
}

impl<DB: Dialect> Receiver<DB> {
    /// Accepts connections. A receiver that dies drops all of them and begins again.
    async fn run(self: Arc<Self>, first: TcpListener, address: SocketAddr) {
        let mut next = Some(first);
        loop {
            let Some(listener) = next.take() else {
                // The address may still be in use by connections of the previous run.
                match TcpListener::bind(address).await {
                    Ok(listener) => next = Some(listener),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
                continue;
            };
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        let receiver = Arc::clone(&self);
                        let service = service_fn(move |request| Arc::clone(&receiver).answer(request));
                        let connection = hyper::server::conn::http1::Builder::new();
                        connections.spawn(connection.serve_connection(TokioIo::new(stream), service));
                    }
                    () = self.dies.notified() => break,
                }
            }
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Empty<Bytes>>, Infallible> {
        let status = match self.apply(request).await {
            Ok(After::Answers) => StatusCode::NO_CONTENT,
            Ok(After::AnswersAnError) => StatusCode::INTERNAL_SERVER_ERROR,
            Ok(After::Hangs) => std::future::pending().await,
            Ok(After::Dies) => {
                self.dies.notify_one();
                std::future::pending().await
            }
            Err(failure) => {
                tracing::info!("the receiver refuses a request: {failure}");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let mut response = Response::new(Empty::new());
        *response.status_mut() = status;
        Ok(response)
    }

    /// Applies a message in the transaction of the inbox. Returns once that is committed.
    async fn apply(&self, request: Request<Incoming>) -> Result<After, Failure> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let message =
            self.verifier.read("unknown", &head.headers, body)?.map_err(|malformed| malformed.problem)?;
        let order: serde_json::Value = serde_json::from_slice(&message.payload)?;
        let key = order["key"].as_str().ok_or("an order without a key")?;
        let seq = &order["seq"];
        let mut tx = self.inbox.begin().await?;
        let table = match tx.admit(&self.consumer, &Tenant::none(), &message).await? {
            Admission::Fresh(_) => "effect",
            Admission::Duplicate(_) => "repeated",
        };
        let effect = format!("INSERT INTO {table} (fact) VALUES ('{key}#{seq}')");
        <DB as Dialect>::execute(&mut tx, &effect).await?;
        tx.commit().await?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let n = seen.len();
        Ok(if seen.insert(message.id) { after(n) } else { After::Answers })
    }
}

/// Goal: G2, G4 and G5 over HTTP. A receiver that has committed and then answers 500, hangs, or is
/// killed leaves the outcome unknown. The relay sends the message again under its id, and the inbox
/// recognizes it. Oracle: the checker on orders and effects; the inbox saw the repetitions.
async fn a_receiver_whose_answers_are_lost_applies_each_message_once<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    // Only for the name of the topic: nothing is sent through it.
    let broker = Arc::new(Memory::new(&stage, MaxInFlightPerKey::One));
    let workload = Workload::<DB>::on(database, broker).await?;
    let secret = stage.folder().join("webhook-secret");
    std::fs::write(&secret, SECRET)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let receiver = Arc::new(Receiver::<DB> {
        inbox: Inbox::open(workload.database.consumer.clone(), InboxOptions::default()).await?,
        consumer: ConsumerName::new("webhooks")?,
        verifier: Verifier::new(std::slice::from_ref(&secret))?,
        seen: Mutex::default(),
        dies: Notify::new(),
    });
    let _serving = AbortOnDropHandle::new(tokio::spawn(receiver.run(listener, address)));
    let section = format!(
        "[pipeline.http]\nurl = \"http://{address}/events?token=s3cret\"\nsecret_files = [{secret:?}]\n\
         private_networks = [\"127.0.0.1\"]\nconnect_timeout_ms = 1000\nrequest_timeout_ms = 1000\n"
    );
    let url = workload.database.relay_url()?;
    let config = Config::with_section(&stage, "orders", &url, &section, "")?;
    workload.place_many(KEYS, ORDERS).await?;
    let relay = RelayProcess::start(&stage, &config)?;
    workload.settled().await?;
    let repeated = workload.repeated().await?;
    assert!(repeated >= LOST, "the inbox saw {repeated} repetitions");
    relay.stop().await
}

/// Messages for the slow endpoint, all of them in front of those for the quick one: more than the
/// window of the relay holds.
const SLOW: usize = 3_000;
const QUICK: usize = 60;
const PAYLOAD_BYTES: usize = 1_000;

/// Two endpoints. Each request to `/quick` lets two to `/slow` be answered, and so does the passing
/// of time: it is slow, but it never falls silent.
struct Pair {
    quick: Mutex<Vec<MessageId>>,
    slow: Mutex<Vec<(String, u64)>>,
    room: Semaphore,
}

impl Pair {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut passing = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                Ok((stream, _)) = listener.accept() => {
                    let pair = Arc::clone(&self);
                    let service = service_fn(move |request| Arc::clone(&pair).answer(request));
                    let connection = hyper::server::conn::http1::Builder::new();
                    connections.spawn(connection.serve_connection(TokioIo::new(stream), service));
                }
                _ = passing.tick() => self.room.add_permits(1),
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Failure> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let read = brokers::http::read("unknown", &head.headers, body);
        let message = read.map_err(|malformed| malformed.problem)?;
        if head.uri.path() == "/quick" {
            self.quick.lock().unwrap_or_else(PoisonError::into_inner).push(message.id);
            self.room.add_permits(2);
        } else {
            self.room.acquire().await?.forget();
            let key = message.key.as_ref().map(ToString::to_string).unwrap_or_default();
            let seq = serde_json::from_slice::<serde_json::Value>(&message.payload)?["seq"].as_u64();
            let seq = seq.ok_or("no number")?;
            self.slow.lock().unwrap_or_else(PoisonError::into_inner).push((key, seq));
        }
        let mut response = Response::new(Empty::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }

    fn quick_len(&self) -> usize {
        self.quick.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn slow(&self) -> Vec<(String, u64)> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Goal: messages of a topic wait neither in the window behind those of an endpoint that is slower
/// than they come, nor for its pace; the slow topic looks busy and not stopped, and gets all of its
/// messages in order. Oracle: how many the slow endpoint has answered when the quick one has all of
/// its messages, which were enqueued behind; the order of each key; the relay's log.
async fn a_slow_endpoint_delays_no_other_topic<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    // Only for the name of the topic: nothing is sent through it.
    let broker = Arc::new(Memory::new(&stage, MaxInFlightPerKey::One));
    let workload = Workload::<DB>::on(database, broker).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pair = Arc::new(Pair { quick: Mutex::default(), slow: Mutex::default(), room: Semaphore::new(0) });
    let _serving = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&pair).run(listener)));
    let section = format!(
        "[pipeline.http]\nprivate_networks = [\"127.0.0.1\"]\nconcurrency = 4\n\
         [pipeline.http.endpoints.slow]\nurl = \"http://{address}/slow\"\n\
         [pipeline.http.endpoints.quick]\nurl = \"http://{address}/quick\"\n"
    );
    let url = workload.database.relay_url()?;
    // A window of which the messages of the slow topic are twice as much.
    let window = "window = \"1MiB\"\npage = \"256KiB\"\n";
    let config = Config::with_section(&stage, "orders", &url, &section, window)?;
    let filling = "x".repeat(PAYLOAD_BYTES);
    let slow = (0..SLOW).map(|seq| {
        let payload = serde_json::json!({ "seq": seq, "filling": filling });
        NewMessage::new("slow").key(format!("k{}", seq % 50)).json(&payload)
    });
    let quick = (0..QUICK).map(|seq| NewMessage::new("quick").key(format!("q{seq}")).json(&seq));
    let mut tx = workload.begin().await?;
    workload.outbox().enqueue_batch(&mut tx, slow.chain(quick).collect::<Vec<_>>()).await?;
    tx.commit().await?;
    let relay = RelayProcess::start(&stage, &config)?;
    eventually("the quick endpoint has all of its messages", || async {
        Ok((pair.quick_len() >= QUICK).then_some(()))
    })
    .await?;
    let answered = pair.slow().len();
    assert!(answered < SLOW / 2, "{answered} of the messages in front had to leave before");
    pair.room.add_permits(SLOW);
    // On a busy machine some time out, and are delivered again.
    eventually("the slow endpoint has all of its messages", || async {
        let different: HashSet<_> = pair.slow().into_iter().collect();
        Ok((different.len() >= SLOW).then_some(()))
    })
    .await?;
    for key in 0..50 {
        let name = format!("k{key}");
        let of_key: Vec<_> = pair.slow().into_iter().filter(|(of, _)| *of == name).collect();
        let mut seen = HashSet::new();
        let first: Vec<_> = of_key.into_iter().map(|(_, seq)| seq).filter(|seq| seen.insert(*seq)).collect();
        assert!(first.len() == SLOW / 50 && first.is_sorted(), "{name}: {first:?}");
    }
    let log = relay.log()?;
    assert!(log.contains("topic busy") && !log.contains("topic stopped"), "{log}");
    relay.stop().await
}
