//! Tests that show that every fault happens: on real sockets, from both ends.

#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use proxy::{Conditions, End, Flow, Pass, Proxy, Way};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// An observation of the server on one connection.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Bytes(Vec<u8>),
    End,
    Broken(ErrorKind),
}

/// A server that answers every chunk with the same bytes in capitals, and a proxy in front of it.
struct Scene {
    proxy: Proxy,
    seen: mpsc::UnboundedReceiver<Seen>,
}

impl Scene {
    async fn open() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = server.local_addr().expect("address").to_string();
        let (tell, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((connection, _)) = server.accept().await {
                tokio::spawn(answer(connection, tell.clone()));
            }
        });
        Self { proxy: Proxy::start(0, address).await.expect("proxy"), seen }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.proxy.address()).await.expect("connect")
    }

    async fn server_saw(&mut self) -> Seen {
        within(self.seen.recv()).await.expect("the server lives")
    }
}

async fn answer(mut connection: TcpStream, tell: mpsc::UnboundedSender<Seen>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let seen = match connection.read(&mut buffer).await {
            Ok(0) => Seen::End,
            Ok(count) => Seen::Bytes(buffer[..count].to_vec()),
            Err(error) => Seen::Broken(error.kind()),
        };
        let bytes = if let Seen::Bytes(bytes) = &seen { Some(bytes.to_ascii_uppercase()) } else { None };
        if tell.send(seen).is_err() {
            return;
        }
        let Some(bytes) = bytes else { return };
        if connection.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(4), future).await.expect("in time")
}

async fn read(client: &mut TcpStream, count: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; count];
    within(client.read_exact(&mut buffer)).await.map(|_| buffer)
}

async fn talk(client: &mut TcpStream, text: &str) -> std::io::Result<Vec<u8>> {
    client.write_all(text.as_bytes()).await?;
    read(client, text.len()).await
}

/// Returns conditions that affect only the answers.
fn answers(flow: Flow) -> Conditions {
    Conditions { answers: flow, ..Conditions::default() }
}

#[tokio::test]
async fn a_healthy_network_changes_nothing() {
    let mut scene = Scene::open().await;
    let mut client = scene.connect().await;
    assert_eq!(talk(&mut client, "hello").await.expect("answer"), b"HELLO");
    client.shutdown().await.expect("end");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"hello".to_vec()));
    assert_eq!(scene.server_saw().await, Seen::End);
    assert!(read(&mut client, 1).await.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof));
    let counts = scene.proxy.counts();
    assert_eq!((counts.connected, counts.request_bytes, counts.answer_bytes, counts.reset), (1, 5, 5, 0));
}

#[tokio::test]
async fn latency_and_jitter_delay_every_chunk() {
    let scene = Scene::open().await;
    let mut client = scene.connect().await;
    talk(&mut client, "warm").await.expect("answer");
    let (delay, jitter) = (Duration::from_millis(60), Duration::from_millis(20));
    let slow = Flow { delay, jitter, ..Flow::default() };
    scene.proxy.set(Conditions { requests: slow, answers: slow, refuse: false });
    let begun = Instant::now();
    talk(&mut client, "slow").await.expect("answer");
    assert!(begun.elapsed() >= 2 * delay, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn bandwidth_is_limited() {
    let scene = Scene::open().await;
    let mut client = scene.connect().await;
    let rate = NonZeroU32::new(20_000);
    scene.proxy.set(answers(Flow { bytes_per_second: rate, ..Flow::default() }));
    let begun = Instant::now();
    talk(&mut client, &"x".repeat(6_000)).await.expect("answer");
    assert!(begun.elapsed() >= Duration::from_millis(240), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_cut_resets_both_ends_and_new_connections_live() {
    let mut scene = Scene::open().await;
    let mut client = scene.connect().await;
    talk(&mut client, "hello").await.expect("answer");
    scene.proxy.cut();
    assert_eq!(read(&mut client, 1).await.expect_err("cut").kind(), ErrorKind::ConnectionReset);
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"hello".to_vec()));
    assert_eq!(scene.server_saw().await, Seen::Broken(ErrorKind::ConnectionReset));
    let mut next = scene.connect().await;
    assert_eq!(talk(&mut next, "again").await.expect("answer"), b"AGAIN");
    assert_eq!(scene.proxy.counts().reset, 1);
}

#[tokio::test]
async fn a_cut_in_the_middle_of_a_frame_lets_its_beginning_through() {
    for way in [Way::Requests, Way::Answers] {
        let mut scene = Scene::open().await;
        let mut client = scene.connect().await;
        talk(&mut client, "whole").await.expect("answer");
        let mut conditions = Conditions::default();
        conditions.flow_mut(way).pass = Pass::CutAfter(3);
        scene.proxy.set(conditions);
        client.write_all(b"frame").await.expect("write");
        assert_eq!(scene.server_saw().await, Seen::Bytes(b"whole".to_vec()));
        let mut arrived = Vec::new();
        let end = within(client.read_to_end(&mut arrived)).await.expect_err("cut");
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        let at_server = scene.server_saw().await;
        if way == Way::Requests {
            // A reset may overtake bytes that were sent just before it.
            assert!(at_server == Seen::Bytes(b"fra".to_vec()) || matches!(at_server, Seen::Broken(_)));
        } else {
            assert_eq!(at_server, Seen::Bytes(b"frame".to_vec()));
            assert!(arrived.is_empty() || arrived == b"FRA");
        }
        let counts = scene.proxy.counts();
        let (requests, answers) = if way == Way::Requests { (8, 5) } else { (10, 8) };
        assert_eq!(counts.request_bytes, requests, "{way:?}");
        assert!(counts.answer_bytes >= answers && counts.answer_bytes < 10, "{way:?} {counts:?}");
    }
}

#[tokio::test]
async fn lost_answers_leave_the_request_done_and_the_connection_unusable() {
    let mut scene = Scene::open().await;
    let mut client = scene.connect().await;
    let mut unaffected = scene.connect().await;
    talk(&mut unaffected, "early").await.expect("answer");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"early".to_vec()));
    scene.proxy.set(answers(Flow { pass: Pass::Lose, ..Flow::default() }));
    client.write_all(b"pay").await.expect("write");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"pay".to_vec()));
    while scene.proxy.counts().lost_bytes < 3 {
        tokio::task::yield_now().await;
    }
    scene.proxy.heal();
    assert_eq!(read(&mut client, 1).await.expect_err("a hole").kind(), ErrorKind::ConnectionReset);
    assert_eq!(talk(&mut unaffected, "later").await.expect("it lost nothing"), b"LATER");
}

#[tokio::test]
async fn the_end_of_a_connection_is_lost_like_its_bytes() {
    let mut scene = Scene::open().await;
    let mut client = scene.connect().await;
    talk(&mut client, "before").await.expect("answer");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"before".to_vec()));
    let lost = Flow { pass: Pass::Lose, ..Flow::default() };
    scene.proxy.set(Conditions { requests: lost, ..Conditions::default() });
    client.shutdown().await.expect("end");
    let unseen = tokio::time::timeout(Duration::from_millis(100), scene.seen.recv()).await;
    assert!(unseen.is_err(), "the end came through: {unseen:?}");
    scene.proxy.heal();
    assert_eq!(scene.server_saw().await, Seen::Broken(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_partition_holds_one_way_and_delivers_afterwards() {
    let mut scene = Scene::open().await;
    let mut client = scene.connect().await;
    talk(&mut client, "before").await.expect("answer");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"before".to_vec()));
    scene.proxy.set(answers(Flow { pass: Pass::Hold, ..Flow::default() }));
    client.write_all(b"during").await.expect("write");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"during".to_vec()));
    let nothing = tokio::time::timeout(Duration::from_millis(100), read(&mut client, 1)).await;
    assert!(nothing.is_err(), "an answer came through: {nothing:?}");
    scene.proxy.heal();
    assert_eq!(read(&mut client, 6).await.expect("delivered"), b"DURING");
    let both = Flow { pass: Pass::Hold, ..Flow::default() };
    scene.proxy.set(Conditions { requests: both, answers: both, refuse: false });
    client.write_all(b"after").await.expect("write");
    let unseen = tokio::time::timeout(Duration::from_millis(100), scene.seen.recv()).await;
    assert!(unseen.is_err(), "a request came through: {unseen:?}");
    scene.proxy.heal();
    assert_eq!(read(&mut client, 5).await.expect("delivered"), b"AFTER");
}

#[tokio::test]
async fn a_half_open_connection_is_known_to_one_end_only() {
    let mut scene = Scene::open().await;
    let mut client = scene.connect().await;
    talk(&mut client, "hello").await.expect("answer");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"hello".to_vec()));
    scene.proxy.abandon(End::Server);
    assert_eq!(scene.server_saw().await, Seen::Broken(ErrorKind::ConnectionReset));
    client.write_all(b"anyone?").await.expect("it does not know");
    let nothing = tokio::time::timeout(Duration::from_millis(100), read(&mut client, 1)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    scene.proxy.heal();
    assert_eq!(read(&mut client, 1).await.expect_err("healed").kind(), ErrorKind::ConnectionReset);

    let mut client = scene.connect().await;
    talk(&mut client, "again").await.expect("answer");
    assert_eq!(scene.server_saw().await, Seen::Bytes(b"again".to_vec()));
    scene.proxy.abandon(End::Client);
    assert_eq!(read(&mut client, 1).await.expect_err("gone").kind(), ErrorKind::ConnectionReset);
    let unseen = tokio::time::timeout(Duration::from_millis(100), scene.seen.recv()).await;
    assert!(unseen.is_err(), "the server knows: {unseen:?}");
    scene.proxy.heal();
    assert_eq!(scene.server_saw().await, Seen::Broken(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn while_it_is_down_nobody_comes_through() {
    let scene = Scene::open().await;
    let mut client = scene.connect().await;
    talk(&mut client, "hello").await.expect("answer");
    scene.proxy.down();
    assert_eq!(read(&mut client, 1).await.expect_err("cut").kind(), ErrorKind::ConnectionReset);
    let refused = async { talk(&mut TcpStream::connect(scene.proxy.address()).await?, "hello").await };
    assert!(refused.await.is_err());
    assert_eq!(scene.proxy.counts().refused, 1);
    scene.proxy.heal();
    assert_eq!(talk(&mut scene.connect().await, "hello").await.expect("answer"), b"HELLO");
}

#[tokio::test]
async fn new_connections_go_to_another_server_and_open_ones_stay() {
    let (mut first, mut second) = (Scene::open().await, Scene::open().await);
    let mut open = first.connect().await;
    open.write_all(b"before").await.expect("write");
    assert_eq!(first.server_saw().await, Seen::Bytes(b"before".to_vec()));
    first.proxy.redirect(second.proxy.address().to_string());
    let mut fresh = first.connect().await;
    fresh.write_all(b"new").await.expect("write");
    assert_eq!(second.server_saw().await, Seen::Bytes(b"new".to_vec()));
    open.write_all(b"old").await.expect("write");
    assert_eq!(first.server_saw().await, Seen::Bytes(b"old".to_vec()));
}
