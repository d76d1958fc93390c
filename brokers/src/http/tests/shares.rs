//! The share of each receiver in the requests and in what waits.

use std::sync::Arc;
use std::time::Duration;

use message::{Receipt, Receipts, Ticket};

use super::super::Endpoint;
use super::super::client::Connections;
use super::super::dispatcher::Pace;
use super::super::endpoints::Endpoints;
use super::super::publisher::HttpPublisher;
use super::super::send::Sender;
use super::super::share::Bounds;
use super::{BROKER, Server, Session, Step, config, message, named, naming};

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
