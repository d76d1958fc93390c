//! Sessions with a server of the test, whose answers are scripted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use message::{
    Connector as _, EventType, Fault, FaultScope, Message, OrderingKey, PublishError, Receipt, Receipts,
    Submission, Ticket, Topic,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::client::Connections;
use super::dispatcher::Pace;
use super::endpoints::Endpoints;
use super::publisher::HttpPublisher;
use super::send::Sender;
use super::share::Bounds;
use super::{AllowedHost, Config, Connector, Endpoint, Mode, Verifier};

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

#[tokio::test]
async fn each_message_is_one_signed_post_on_a_connection_that_is_kept() {
    let server = Server::start([]).await;
    let path = std::env::temp_dir().join(format!("{}-whsec", uuid::Uuid::now_v7()));
    std::fs::write(&path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let config = config().url(server.url("/hook?token=s3cret")).secret_files(vec![path.clone()]);
    let connector = Connector::new(&config).unwrap();
    let mut session = Session::of(&connector).await;
    let sent = message("orders", "a");
    session.send(sent.clone()).await.unwrap();
    session.send(message("orders", "a")).await.unwrap();
    let connections = server.state.connections.load(Ordering::Relaxed);
    assert_eq!(connections, 2, "one before the session, and one for both messages");
    let requests = server.requests();
    let request = &requests[0];
    assert!(request.starts_with("POST /hook?token=s3cret HTTP/1.1\r\n"), "{request}");
    assert_eq!(header(request, "host"), Some(server.address.as_str()));
    assert_eq!(header(request, "ce-id"), Some(sent.id.to_string().as_str()));
    assert_eq!(header(request, "idempotency-key"), Some(format!("\"{}\"", sent.id).as_str()));
    let mut headers = ::http::HeaderMap::new();
    for line in request.lines().skip(1).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        headers.insert(::http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    let verifier = Verifier::new(std::slice::from_ref(&path)).unwrap();
    let body = request.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(verifier.read("x", &headers, body.into()).unwrap().unwrap(), sent);
    assert!(!format!("{connector:?}").contains("MfKQ"), "no secret is shown");
    std::fs::remove_file(&path).unwrap();
}

/// Goal: an unknown outcome is never a success, and the next attempt has the same id. Oracle: the
/// receipts, and the ids that the server saw.
#[tokio::test]
async fn a_broken_or_silent_answer_is_unknown_and_the_id_stays() {
    let server = Server::start([Step::Close, Step::Hang, status("408 Request Timeout")]).await;
    let config = config().url(server.url("/s3cret")).request_timeout_ms(500).connect_timeout_ms(500);
    let mut session = Session::open(&config).await;
    let sent = message("orders", "a");
    for text in ["outcome is unknown", "no answer within 1000 ms", "status 408"] {
        session.fails(sent.clone(), BROKER.0, BROKER.1, text).await;
    }
    session.send(sent.clone()).await.unwrap();
    let id = sent.id.to_string();
    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    assert!(requests.iter().all(|request| header(request, "ce-id") == Some(id.as_str())));
}

/// Goal: an answer that begins decides, however long its body is. Oracle: the receipts come while
/// the server still writes.
#[tokio::test]
async fn a_body_without_end_is_read_to_a_bound() {
    let endless =
        |line: &str| Step::Endless(format!("HTTP/1.1 {line}\r\ncontent-length: 1073741824\r\n\r\n"));
    let hanging = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n";
    let script = [endless("200 OK"), endless("400 Bad Request"), Step::Answer(String::from(hanging))];
    let server = Server::start(script).await;
    let mut session = Session::open(&config().url(server.url("/"))).await;
    session.send(message("orders", "a")).await.unwrap();
    let error =
        session.fails(message("orders", "a"), Fault::Message, FaultScope::Message, "status 400").await;
    assert!(error.to_string().len() < 600, "{error}");
    session.send(message("orders", "a")).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_left_alone_over_sessions_until_a_restart() {
    let server = Server::start([status("410 Gone")]).await;
    let config = config().url(server.url("/s3cret"));
    let connector = Connector::new(&config).unwrap();
    for _ in 0..2 {
        let mut session = Session::of(&connector).await;
        session.fails(message("orders", "a"), OPERATOR.0, OPERATOR.1, &server.url("")).await;
        session.fails(message("bills", "a"), OPERATOR.0, OPERATOR.1, "is gone").await;
    }
    assert_eq!(server.requests().len(), 1);
    Session::open(&config).await.send(message("orders", "a")).await.unwrap();
    assert_eq!(server.requests().len(), 2);
}

/// Goal: when a URL that messages name answers 410, each of them ends, and one request is sent.
/// Oracle: the errors, and the server's requests.
#[tokio::test]
async fn a_message_that_names_an_endpoint_that_is_gone_is_dead() {
    let server = Server::start([status("410 Gone")]).await;
    let config = config()
        .endpoint_header("Webhook-Url")
        .hosts([(server.address.clone(), AllowedHost::default())].into())
        .url(server.url("/own"));
    let mut session = Session::open(&config).await;
    let mut named = message("orders", "a");
    named.headers.insert("webhook-url", server.url("/s3cret")).unwrap();
    for _ in 0..2 {
        let error = session.fails(named.clone(), Fault::Message, FaultScope::Message, "is gone").await;
        assert!(error.is_final(), "{error}");
    }
    assert_eq!(server.requests().len(), 1, "nothing more is sent to it");
    lock(&server.state.script).push_back(status("410 Gone"));
    session.fails(message("orders", "a"), Fault::Operator, FaultScope::Message, "is gone").await;
}

/// Goal: only a failure that the message may have caused is marked as such: not that of a request
/// that was never sent, nor a wish to wait. Oracle: the marks.
#[tokio::test]
async fn a_failure_is_marked_if_the_message_may_have_caused_it() {
    let wait = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n";
    let script = [
        Step::Close,
        status("503 Service Unavailable"),
        Step::Answer(String::from(wait)),
        status("301 Moved"),
    ];
    let server = Server::start(script).await;
    let mut session = Session::open(&config().url(server.url("/")).concurrency(1)).await;
    for is_marked in [true, true, false, false] {
        let error = session.send(message("orders", "a")).await.unwrap_err();
        assert_eq!(error.is_about_this_message(), is_marked, "{error}");
    }
    lock(&server.state.script).push_back(status("503 Service Unavailable"));
    session.submit((0..3).map(|key| message("orders", &key.to_string()))).await;
    let mut marks = Vec::new();
    for _ in 0..3 {
        marks.push(session.receipt().await.outcome.unwrap_err().is_about_this_message());
    }
    assert_eq!(marks.iter().filter(|mark| **mark).count(), 1, "the others were not sent");
}

/// Goal: nothing is sent before the time that an endpoint asked for. Oracle: the times of the
/// server's requests.
#[tokio::test]
async fn a_retry_after_is_respected() {
    let answer = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
    let server = Server::start([Step::Answer(String::from(answer))]).await;
    let mut session = Session::open(&config().url(server.url("/"))).await;
    let sent = message("orders", "a");
    let begun = Instant::now();
    session.fails(sent.clone(), BROKER.0, BROKER.1, "status 429").await;
    while let Err(error) = session.send(sent.clone()).await {
        assert!(error.to_string().contains("asked to wait"), "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn a_redirect_is_named_and_not_followed() {
    let elsewhere = Server::start([]).await;
    let to = elsewhere.url("/s3cret");
    let answer = format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
    let server = Server::start([Step::Answer(answer)]).await;
    let mut session = Session::open(&config().url(server.url("/"))).await;
    session
        .fails(
            message("orders", "a"),
            OPERATOR.0,
            OPERATOR.1,
            &format!("status 307 to {}", elsewhere.url("")),
        )
        .await;
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn statuses_refuse_stop_or_confirm_as_configured() {
    let refusal = "HTTP/1.1 422 Unprocessable Content\r\ncontent-length: 8\r\n\r\nno price";
    let script = [Step::Answer(String::from(refusal)), status("409 Conflict"), status("401 Unauthorized")];
    let server = Server::start(script).await;
    let config = config().url(server.url("/")).accepted_statuses(vec![409]).stopping_statuses(vec![401]);
    let mut session = Session::open(&config).await;
    let text = "refused the message with status 422: \"no price\"";
    session.fails(message("orders", "a"), Fault::Message, FaultScope::Message, text).await;
    session.send(message("orders", "a")).await.unwrap();
    session.fails(message("orders", "a"), OPERATOR.0, OPERATOR.1, "status 401").await;
}

/// Goal: a hanging endpoint keeps to its own share of the requests, whatever the bound of all.
/// Oracle: the other endpoint's receipts come although nothing of the first is answered.
#[tokio::test]
async fn a_hanging_endpoint_delays_only_itself() {
    let hanging = Server::start((0..100).map(|_| Step::Hang)).await;
    let quick = Server::start([]).await;
    let config = config()
        .endpoint("slow", Endpoint::new(hanging.url("/")))
        .endpoint("quick", Endpoint::new(quick.url("/")))
        .concurrency(4)
        .requests_max(4);
    let mut session = Session::open(&config).await;
    session.submit((0..8).map(|key| message("slow", &key.to_string()))).await;
    hanging.after(4).await;
    for _ in 0..10 {
        session.submit((0..5).map(|key| message("quick", &key.to_string()))).await;
        for _ in 0..5 {
            let receipt = session.receipt().await;
            assert!(receipt.ticket > Ticket(8) && receipt.outcome.is_ok(), "{receipt:?}");
        }
    }
    assert_eq!(hanging.requests().len(), 4, "the limit of an endpoint");
}

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

/// Goal: only messages that a slow endpoint cannot take soon are answered, at once or after half a
/// second. So they neither fill the relay's window nor seem silent. Oracle: the receipts, and the
/// server's requests.
#[tokio::test]
async fn a_slow_endpoint_keeps_a_bounded_number_of_messages_waiting() {
    let hanging = Server::start((0..100).map(|_| Step::Hang)).await;
    let quick = Server::start([]).await;
    let config = config()
        .endpoint("slow", Endpoint::new(hanging.url("/")))
        .endpoint("quick", Endpoint::new(quick.url("/")))
        .concurrency(2);
    let mut session = Session::open(&config).await;
    session.submit((0..2).map(|key| message("slow", &key.to_string()))).await;
    hanging.after(2).await;
    session.submit((2..500).map(|key| message("slow", &key.to_string()))).await;
    session.submit([message("quick", "a")]).await;
    // Two to four keep waiting, depending on how many had room when they came.
    let mut quick = 0;
    let mut refused = 0;
    while quick < 1 || refused < 494 {
        let Receipt { ticket, outcome } = session.receipt().await;
        if ticket == Ticket(501) {
            outcome.unwrap();
            quick += 1;
            continue;
        }
        refused += 1;
        let error = outcome.unwrap_err();
        assert_eq!((error.fault(), error.scope()), BROKER, "{error}");
        assert!(ticket > Ticket(4) && error.to_string().contains("of them wait"), "{error}");
        assert!(!error.is_about_this_message() && error.is_saturated(), "{error}");
    }
    assert_eq!(hanging.requests().len(), 2);
}

/// Goal: a few large messages count as much as many small ones, but one of any size fits. Oracle:
/// the receipts.
#[tokio::test]
async fn what_waits_for_a_slow_endpoint_is_bounded_in_bytes_as_well() {
    let hanging = Server::start((0..100).map(|_| Step::Hang)).await;
    let config = config()
        .endpoint("slow", Endpoint::new(hanging.url("/")))
        .endpoint("quick", Endpoint::new(hanging.url("/quick")))
        .message_bytes_max(2 << 20)
        .concurrency(2);
    let mut session = Session::open(&config).await;
    let large = |key: u64| {
        let mut large = message("slow", &key.to_string());
        large.payload = vec![b'x'; 1 << 20].into();
        large
    };
    session.submit((1..=2).map(large)).await;
    hanging.after(2).await;
    session.submit((3..=5).map(large)).await;
    let Receipt { ticket, outcome } = session.receipt().await;
    assert!(ticket == Ticket(5) && outcome.unwrap_err().to_string().contains("enough of them wait"));
}

/// Goal: a single endpoint delays no other, so its messages wait in memory as long as the window
/// has room. Oracle: the receipts.
#[tokio::test]
async fn nothing_is_refused_because_it_waits_for_the_only_endpoint() {
    let server = Server::start([]).await;
    let config = config().url(server.url("/")).endpoint("bills", Endpoint::new(server.url("/")));
    let mut session = Session::open(&config.concurrency(1)).await;
    session.submit((0..200).map(|key| message("orders", &key.to_string()))).await;
    for _ in 0..200 {
        session.receipt().await.outcome.unwrap();
    }
}

/// Goal: messages that each name another URL of one host share the requests to that host. Oracle:
/// the server's requests while it hangs, and that all are sent once it answers.
#[tokio::test]
async fn urls_of_one_host_share_its_requests() {
    let server = Server::start((0..4).map(|_| Step::Gate)).await;
    let mut session = Session::open(&naming(&server)).await;
    session.submit((0..8).map(|key| named(&server, &format!("/orders/{key}"), key))).await;
    server.after(4).await;
    // Others would have been sent by now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.requests().len(), 4);
    server.state.gate.notify_waiters();
    for _ in 0..8 {
        session.receipt().await.outcome.unwrap();
    }
}

/// Goal: the failure of a URL says nothing about the others of its host, and while one message
/// tries whether it is back, the others do not wait for its answer. Oracle: the receipts.
#[tokio::test]
async fn messages_for_a_url_that_is_tried_do_not_wait_for_the_attempt() {
    let server = Server::start([status("503 Service Unavailable"), Step::Gate]).await;
    let mut session = Session::open(&naming(&server)).await;
    session.send(named(&server, "/a", 0)).await.unwrap_err();
    session.submit([named(&server, "/a", 1)]).await;
    server.after(2).await;
    session.submit([named(&server, "/a", 2), named(&server, "/b", 3)]).await;
    let Receipt { ticket, outcome } = session.receipt().await;
    let error = outcome.unwrap_err();
    assert_eq!((ticket, error.fault(), error.scope()), (Ticket(3), Fault::Broker, FaultScope::Message));
    assert!(error.to_string().contains("another message tries") && !error.is_about_this_message(), "{error}");
    assert!(error.is_saturated(), "the endpoint is reported once, and not each message");
    let Receipt { ticket, outcome } = session.receipt().await;
    assert!(ticket == Ticket(4) && outcome.is_ok(), "the other URL has its own messages");
    server.state.gate.notify_waiters();
    let Receipt { ticket, outcome } = session.receipt().await;
    assert!(ticket == Ticket(2) && outcome.is_ok());
}

/// Goal: slow requests leave the requests of others alone, but have a bound over all endpoints, so
/// that their connections do not take all files of the process. Oracle: the server's requests.
#[tokio::test]
async fn slow_requests_have_a_bound_over_all_endpoints() {
    let server = Server::start((0..9).map(|_| Step::Hang)).await;
    let config = (0..5).fold(config(), |config, number| {
        config.endpoint(number.to_string(), Endpoint::new(server.url(&format!("/{number}"))))
    });
    let connections = Connections::new(&config, config.check().unwrap()).unwrap();
    let sender = Sender::new(&config, connections.client(), Arc::default());
    let share = Bounds { concurrency: 1, waiting_max: None };
    let pace = Pace { share, requests_max: 1, slow_max: 1 };
    let (channel, receipts) = Receipts::channel();
    let endpoints = Arc::new(Endpoints::new(&config));
    let publisher = Box::new(HttpPublisher::new(channel, endpoints, sender, pace));
    let mut session = Session { publisher, receipts, tickets: 0 };
    session.submit((0..5).map(|number| message(&number.to_string(), "a"))).await;
    server.after(2).await;
    // A third one would begin when the second one has become slow.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(server.requests().len(), 2);
}

/// Goal: a message on which the endpoint hangs does not fail those that wait, if the endpoint
/// answers others meanwhile. Oracle: the receipts.
#[tokio::test]
async fn a_message_on_which_the_endpoint_hangs_takes_no_other_with_it() {
    let server = Server::start([Step::Hang, status("204 No Content"), Step::Gate]).await;
    let config = config().url(server.url("/")).concurrency(2);
    let mut session = Session::open(&config.request_timeout_ms(500).connect_timeout_ms(2_500)).await;
    session.submit([message("orders", "hangs")]).await;
    server.after(1).await;
    // So that it is over well before the one at the gate.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    session.submit((0..3).map(|key| message("orders", &key.to_string()))).await;
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let Receipt { ticket, outcome } = session.receipt().await;
        receipts.push((ticket.0, outcome.is_ok()));
    }
    // The third one waits at the gate. The fourth one got a place only when the first one ended.
    assert_eq!(receipts, [(2, true), (1, false), (4, true)]);
    server.state.gate.notify_one();
    assert!(session.receipt().await.outcome.is_ok());
}

/// Goal: what waits behind a failure is answered with it instead of failing one by one, and one
/// request tries whether the endpoint is back. Oracle: the number of requests.
#[tokio::test]
async fn a_failing_endpoint_is_tried_by_one_request() {
    let server = Server::start((0..4).map(|_| status("503 Service Unavailable"))).await;
    let mut session = Session::open(&config().url(server.url("/")).concurrency(4)).await;
    session.submit((0..20).map(|key| message("orders", &key.to_string()))).await;
    for _ in 0..20 {
        let error = session.receipt().await.outcome.unwrap_err();
        assert!(error.to_string().contains("status 503"), "{error}");
    }
    let failed = server.requests().len();
    assert!(failed <= 4, "{failed} requests");
    lock(&server.state.script).clear();
    lock(&server.state.script).push_back(Step::Gate);
    session.submit((0..8).map(|key| message("orders", &key.to_string()))).await;
    server.after(failed + 1).await;
    // Others would have been sent by now.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.requests().len(), failed + 1);
    server.state.gate.notify_one();
    for _ in 0..8 {
        session.receipt().await.outcome.unwrap();
    }
}

/// Goal: a handler that fails on one message delays only its key: nothing is answered with that
/// failure, and the endpoint does not count as failing. Oracle: the receipts, and the requests that
/// are in flight together.
#[tokio::test]
async fn a_message_on_which_the_endpoint_fails_delays_only_its_key() {
    let script = [status("500 Internal Server Error"), status("204 No Content"), status("204 No Content")];
    let server = Server::start(script).await;
    let mut session = Session::open(&config().url(server.url("/")).concurrency(1)).await;
    session.submit((0..3).map(|key| message("orders", &key.to_string()))).await;
    let error = session.receipt().await.outcome.unwrap_err();
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Message), "{error}");
    assert!(error.to_string().contains("failed on the message: status 500"), "{error}");
    for _ in 0..2 {
        session.receipt().await.outcome.unwrap();
    }
    lock(&server.state.script).extend([status("500 Internal Server Error"), Step::Gate, Step::Gate]);
    let mut session = Session::open(&config().url(server.url("/")).concurrency(2)).await;
    session.fails(message("orders", "0"), Fault::Broker, FaultScope::Message, "status 500").await;
    session.submit((1..3).map(|key| message("orders", &key.to_string()))).await;
    server.after(6).await;
    server.state.gate.notify_waiters();
}

/// Returns the scopes of the receipts of messages that are sent one after the other.
async fn scopes(session: &mut Session, messages: impl IntoIterator<Item = Message>) -> Vec<FaultScope> {
    let mut scopes = Vec::new();
    for message in messages {
        let error = session.send(message).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Broker, "{error}");
        assert_eq!(error.is_about_this_message(), error.scope() == FaultScope::Topic, "{error}");
        scopes.push(error.scope());
    }
    scopes
}

/// Goal: an endpoint that answers 500 to one message after the other is failing as a whole, and is
/// tried by one message until it answers one. Oracle: the scopes, and the server's requests.
#[tokio::test]
async fn an_endpoint_that_fails_on_every_message_is_failing_itself() {
    let server = Server::start((0..8).map(|_| status("500 Internal Server Error"))).await;
    let mut session = Session::open(&config().url(server.url("/")).concurrency(6)).await;
    let messages = (0..8).map(|key| message("orders", &key.to_string()));
    let (one, topic) = (FaultScope::Message, FaultScope::Topic);
    assert_eq!(scopes(&mut session, messages).await, [one, one, one, one, one, topic, topic, topic]);
    // One message tries, and what waits behind it fails with it, unsent.
    lock(&server.state.script).extend([Step::Gate, status("500 Internal Server Error")]);
    session.submit((0..4).map(|key| message("orders", &key.to_string()))).await;
    server.after(9).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.requests().len(), 9);
    server.state.gate.notify_one();
    // The one at the gate is confirmed, which ends the failure: the next 500 concerns its message.
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(session.receipt().await.outcome.map_err(|error| error.scope()));
    }
    outcomes.sort_by_key(Result::is_ok);
    assert_eq!(outcomes, [Err(one), Ok(()), Ok(()), Ok(())]);
}

/// Goal: neither one message on which a handler throws, however often, nor several among others
/// that are answered stop a topic. Oracle: the scopes.
#[tokio::test]
async fn some_messages_on_which_the_endpoint_fails_do_not_make_it_failing() {
    let failed = || status("500 Internal Server Error");
    let server = Server::start((0..20).map(|_| failed())).await;
    let mut session = Session::open(&config().url(server.url("/")).concurrency(4)).await;
    let poison = message("orders", "a");
    let same = scopes(&mut session, std::iter::repeat_n(poison, 20)).await;
    assert!(same.iter().all(|scope| *scope == FaultScope::Message), "{same:?}");
    for answer in ["204 No Content", "422 Unprocessable Content"] {
        for _ in 0..3 {
            lock(&server.state.script).extend([failed(), failed(), status(answer)]);
            let two = (0..2).map(|key| message("orders", &key.to_string()));
            assert_eq!(scopes(&mut session, two).await, [FaultScope::Message; 2], "{answer}");
            let _ = session.send(message("orders", "good")).await;
        }
    }
}

/// Goal: URLs of customers that answer 500 to every message are tried by one message each. Oracle:
/// the receipts, and the server's requests.
#[tokio::test]
async fn a_named_url_that_fails_on_every_message_is_tried_by_one() {
    let mut script: Vec<_> = (0..4).map(|_| status("500 Internal Server Error")).collect();
    script.push(Step::Gate);
    let server = Server::start(script).await;
    let mut session = Session::open(&naming(&server)).await;
    for key in 0..4 {
        let error = session.send(named(&server, "/a", key)).await.unwrap_err();
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Message), "{error}");
    }
    session.submit([named(&server, "/a", 4)]).await;
    server.after(5).await;
    session.fails(named(&server, "/a", 5), Fault::Broker, FaultScope::Message, "another message tries").await;
    session.send(named(&server, "/b", 6)).await.unwrap();
    server.state.gate.notify_one();
    session.receipt().await.outcome.unwrap();
    session.send(named(&server, "/a", 7)).await.unwrap();
}

/// Goal: the engine learns how long an endpoint asks to wait, from the answer and, in later
/// sessions, from what is remembered of it. Oracle: the times in the errors.
#[tokio::test]
async fn a_wish_to_wait_is_passed_on() {
    let answer = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 90\r\ncontent-length: 0\r\n\r\n";
    let server = Server::start([Step::Answer(String::from(answer))]).await;
    let connector = Connector::new(&config().url(server.url("/"))).unwrap();
    let ninety = Duration::from_secs(90);
    let error = Session::of(&connector).await.send(message("orders", "a")).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(ninety), "{error}");
    let error = Session::of(&connector).await.send(message("orders", "b")).await.unwrap_err();
    let left = error.retry_after().unwrap();
    assert!(left <= ninety && left > Duration::from_secs(80), "{left:?}");
    assert_eq!(server.requests().len(), 1, "nothing more is sent");
}

/// Goal: an answer that comes before the request was read is not lost. Oracle: the errors of
/// requests that a server refuses by their head, and reads on only after that. A server that closes
/// at once may reset the connection before its answer is read: `steady` tests what can be read
/// then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_before_the_body_is_read_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let refusing = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut some = [0; 64];
                // A connection without a request comes before the session.
                if stream.read(&mut some).await.is_ok_and(|count| count > 0) {
                    let answer =
                        b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                    let _ = stream.write_all(answer).await;
                    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                }
            });
        }
    });
    let mut session =
        Session::open(&config().url(format!("http://{address}/")).message_bytes_max(16 << 20)).await;
    let mut sent = message("orders", "a");
    sent.payload = vec![b'x'; 4 << 20].into();
    for round in 0..20 {
        let error = session.send(sent.clone()).await.unwrap_err();
        assert_eq!((error.fault(), error.scope()), (Fault::Message, FaultScope::Message), "{round}: {error}");
        assert!(error.to_string().contains("status 413"), "{error}");
    }
    refusing.abort();
}

/// Goal: no error shows the path of a URL, although the receiver repeats it. Oracle: the error of a
/// 404 as Express writes it, and of one that repeats the payload.
#[tokio::test]
async fn a_body_that_repeats_the_url_or_the_payload_is_not_quoted() {
    let answer = |body: &str| {
        Step::Answer(format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    };
    let express = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Error</title>\n\
                   </head>\n<body>\n<pre>Cannot POST /services/T0/s3cret</pre>\n</body>\n</html>\n";
    let server = Server::start([answer(express), answer("no customer anna-4711")]).await;
    let mut session = Session::open(&config().url(server.url("/services/T0/s3cret"))).await;
    let text = "with status 404 and a body that is not shown;";
    session.fails(message("orders", "a"), Fault::Message, FaultScope::Message, text).await;
    let mut sent = message("orders", "a");
    sent.payload = r#"{"customer":"anna-4711"}"#.into();
    session.fails(sent, Fault::Message, FaultScope::Message, text).await;
}

#[tokio::test]
async fn a_url_in_a_message_is_used_if_its_host_is_allowed_and_stops_its_key_only() {
    let server = Server::start([status("503 Service Unavailable")]).await;
    let config = config()
        .endpoint_header("endpoint")
        .hosts([(server.address.clone(), AllowedHost::default())].into())
        .mode(Mode::Structured);
    let mut session = Session::open(&config).await;
    let mut named = message("orders", "a");
    named.headers.insert("endpoint", server.url("/customer/s3cret")).unwrap();
    session.fails(named.clone(), Fault::Broker, FaultScope::Message, "status 503").await;
    session.send(named.clone()).await.unwrap();
    let request = server.requests().pop().unwrap();
    assert!(
        request.starts_with("POST /customer/s3cret ") && request.contains("\"specversion\":\"1.0\""),
        "{request}"
    );
    assert_eq!(request.matches("s3cret").count(), 1, "the header itself is not sent");
    let mut forbidden = message("orders", "a");
    forbidden.headers.insert("endpoint", "http://169.254.169.254/s3cret").unwrap();
    let error = session.fails(forbidden, Fault::Message, FaultScope::Message, "is not allowed").await;
    assert!(error.is_final());
}

#[tokio::test]
async fn a_local_address_is_refused_and_nothing_is_sent() {
    let server = Server::start([]).await;
    let port = server.address.rsplit_once(':').unwrap().1;
    let config = Config::new(format!("http://localhost:{port}/s3cret"));
    let error = Connector::new(&config).unwrap().connect(Receipts::channel().0).await.err().unwrap();
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Session), "{error}");
    assert!(
        error.to_string().contains("localhost resolves to") && !error.to_string().contains("s3cret"),
        "{error}"
    );
    // Beside an endpoint that is there, only its own topic stops.
    let config = self::config()
        .private_networks(vec![String::from("127.0.0.1")])
        .endpoint("there", Endpoint::new(server.url("/")))
        .endpoint("forbidden", Endpoint::new(format!("http://127.0.0.2:{port}/s3cret")));
    let mut session = Session::open(&config).await;
    session.fails(message("forbidden", "a"), OPERATOR.0, OPERATOR.1, "127.0.0.2 resolves to 127.0.0.2").await;
    session.send(message("there", "a")).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_away_or_speaks_no_tls_is_told_apart() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = Server::start([]).await;
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_address = plain.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = plain.accept().await {
            // The client may be gone already.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let config = config()
        .endpoint("there", Endpoint::new(server.url("/")))
        .endpoint("away", Endpoint::new(format!("http://{closed}/s3cret")))
        .endpoint("plain", Endpoint::new(format!("https://{plain_address}/s3cret")));
    let mut session = Session::open(&config).await;
    session.fails(message("away", "a"), BROKER.0, BROKER.1, "cannot be reached").await;
    session.fails(message("plain", "a"), OPERATOR.0, OPERATOR.1, "could not verify the identity").await;
    session.send(message("there", "a")).await.unwrap();
    answering.abort();
    let config = self::config().url(format!("http://{closed}/s3cret"));
    let error = Connector::new(&config).unwrap().connect(Receipts::channel().0).await.err().unwrap();
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
}

/// Goal: a host that is away does not keep others from a session, however many topics or hosts
/// there are. Oracle: the session, and the message that arrives.
#[tokio::test]
async fn a_host_that_is_away_keeps_no_other_from_a_session() {
    let server = Server::start([]).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let there = config().endpoint("there", Endpoint::new(server.url("/")));
    // One host with many topics counts once.
    let topics = (0..400).fold(there.clone(), |config, number| {
        config.endpoint(number.to_string(), Endpoint::new(format!("http://{closed}/{number}")))
    });
    Session::open(&topics).await.send(message("there", "a")).await.unwrap();
    // Of many hosts, only some are tried.
    let hosts = (2..250).fold(there, |config, number| {
        let url = format!("http://127.0.0.{number}:{}/", closed.port());
        config.endpoint(number.to_string(), Endpoint::new(url))
    });
    for _ in 0..3 {
        Session::open(&hosts).await.send(message("there", "a")).await.unwrap();
    }
}

#[tokio::test]
async fn an_unreadable_secret_stops_its_own_endpoint() {
    let server = Server::start([]).await;
    let unsigned = Endpoint::new(server.url("/")).secret_files(vec!["/does/not/exist".into()]);
    let config = config().url(server.url("/")).endpoint("signed", unsigned);
    let mut session = Session::open(&config).await;
    session.fails(message("signed", "a"), OPERATOR.0, OPERATOR.1, "/does/not/exist").await;
    session.send(message("orders", "a")).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

/// Goal: a closed session answers everything once, what was in flight as unknown. Oracle: the
/// receipts.
#[tokio::test]
async fn a_close_answers_what_is_in_flight_and_what_waits() {
    let server = Server::start((0..100).map(|_| Step::Hang)).await;
    let Session { mut publisher, mut receipts, .. } = {
        let mut session = Session::open(&config().url(server.url("/")).concurrency(2)).await;
        session.submit((0..10).map(|key| message("orders", &key.to_string()))).await;
        session
    };
    server.after(2).await;
    publisher.submit(Vec::new()).await;
    publisher.close(Duration::from_millis(10)).await;
    let mut tickets = Vec::new();
    while let Some(Receipt { ticket, outcome }) = receipts.recv().await {
        let error = outcome.unwrap_err();
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
        tickets.push(ticket.0);
    }
    tickets.sort_unstable();
    assert_eq!(tickets, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_inspection_connects_and_sends_nothing() {
    let server = Server::start([]).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = config()
        .endpoint("there", Endpoint::new(server.url("/s3cret")))
        .endpoint("away", Endpoint::new(format!("http://{closed}/s3cret")));
    let topics = ["there", "away", "unknown"].map(String::from);
    let facts = super::inspect(&config, &topics).await.unwrap().topics;
    let there = facts[0].facts.as_ref().unwrap();
    assert_eq!(
        (there.endpoint.as_str(), there.is_encrypted, &there.secrets),
        (server.url("").as_str(), false, &Ok(0))
    );
    let faults: Vec<_> = facts[1..].iter().map(|asked| asked.facts.as_ref().unwrap_err().fault).collect();
    assert_eq!(faults, [Fault::Broker, Fault::Operator]);
    assert!(server.requests().is_empty());
}
