//! Sessions with a server of the test, whose answers are scripted.

mod answers;
mod connecting;
mod failing;
mod shares;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use message::{
    Connector as _, EventType, Fault, FaultScope, Message, OrderingKey, PublishError, Receipt, Receipts,
    Submission, Ticket, Topic,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::{AllowedHost, Config, Connector};

/// A step of the script: what the server does with the next request.
#[derive(Debug, Clone)]
enum Step {
    /// Answers with this text and keeps the connection.
    Answer(String),
    /// Answers with this text, then with a body that does not end.
    Endless(String),
    /// Reads the request and closes the connection.
    Close,
    /// Reads the request and never answers.
    Hang,
    /// Answers once the test opens the gate.
    Gate,
}

fn status(line: &str) -> Step {
    Step::Answer(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n"))
}

#[derive(Default)]
struct State {
    script: Mutex<VecDeque<Step>>,
    requests: Mutex<Vec<String>>,
    connections: AtomicUsize,
    gate: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server that follows a script, and answers 204 after its end.
struct Server {
    state: Arc<State>,
    address: String,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    async fn start(script: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State { script: Mutex::new(script.into_iter().collect()), ..State::default() });
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { state, address, accepting }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        lock(&self.state.requests).clone()
    }

    async fn after(&self, count: usize) -> Vec<String> {
        while self.requests().len() < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.requests()
    }
}

/// Reads one request. Returns its text; `None` at the end of the connection.
async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut some = [0; 4_096];
    loop {
        let count = stream.read(&mut some).await.ok().filter(|count| *count > 0)?;
        request.extend_from_slice(some.get(..count)?);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap_or("0"));
        if body.len() >= length.parse().ok()? {
            return Some(text);
        }
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    while let Some(request) = read(&mut stream).await {
        lock(&state.requests).push(request);
        let step = lock(&state.script).pop_front();
        let text = match step.unwrap_or_else(|| status("204 No Content")) {
            Step::Answer(text) => text,
            Step::Endless(text) => {
                let block = vec![b'x'; 64 << 10];
                let mut written = stream.write_all(text.as_bytes()).await;
                while written.is_ok() {
                    written = stream.write_all(&block).await;
                }
                return;
            }
            Step::Close => return,
            Step::Hang => std::future::pending().await,
            Step::Gate => {
                state.gate.notified().await;
                String::from("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            }
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A session and its receipts.
struct Session {
    publisher: Box<dyn message::Publisher>,
    receipts: mpsc::UnboundedReceiver<Receipt>,
    tickets: u64,
}

impl Session {
    async fn open(config: &Config) -> Self {
        Self::of(&Connector::new(config).unwrap()).await
    }

    async fn of(connector: &Connector) -> Self {
        let (sender, receipts) = Receipts::channel();
        Self { publisher: connector.connect(sender).await.unwrap(), receipts, tickets: 0 }
    }

    async fn submit(&mut self, messages: impl IntoIterator<Item = Message>) {
        let mut batch = Vec::new();
        for message in messages {
            self.tickets += 1;
            batch.push(Submission { ticket: Ticket(self.tickets), message: message.into() });
        }
        self.publisher.submit(batch).await;
    }

    async fn receipt(&mut self) -> Receipt {
        tokio::time::timeout(Duration::from_secs(60), self.receipts.recv()).await.unwrap().unwrap()
    }

    async fn send(&mut self, message: Message) -> Result<(), PublishError> {
        self.submit([message]).await;
        self.receipt().await.outcome
    }

    /// Sends a message that must fail in this way.
    async fn fails(&mut self, message: Message, fault: Fault, scope: FaultScope, text: &str) -> PublishError {
        let error = self.send(message).await.unwrap_err();
        assert_eq!((error.fault(), error.scope()), (fault, scope), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        error
    }
}

/// Settings for a server of this machine.
fn config() -> Config {
    Config::default()
        .private_networks(vec![String::from("127.0.0.0/8")])
        .request_timeout_ms(60_000)
        .connect_timeout_ms(60_000)
}

fn message(topic: &str, key: &str) -> Message {
    Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), r#"{"n":1}"#)
        .with_key(OrderingKey::new(key).unwrap())
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let head = request.split("\r\n\r\n").next().unwrap_or_default();
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

const BROKER: (Fault, FaultScope) = (Fault::Broker, FaultScope::Topic);

const OPERATOR: (Fault, FaultScope) = (Fault::Operator, FaultScope::Topic);

/// Settings under which messages name any URL of this server.
fn naming(server: &Server) -> Config {
    config()
        .endpoint_header("endpoint")
        .hosts([(server.address.clone(), AllowedHost::default())].into())
        .concurrency(4)
}

fn named(server: &Server, path: &str, key: usize) -> Message {
    let mut named = message("orders", &key.to_string());
    named.headers.insert("endpoint", server.url(path)).unwrap();
    named
}
