//! Which addresses are connected to, and how a session begins and ends.

use std::time::Duration;

use message::{Connector as _, Fault, FaultScope, Receipt, Receipts};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::super::{AllowedHost, Config, Connector, Endpoint, Mode};
use super::{BROKER, OPERATOR, Server, Session, Step, config, message, named, naming, status};

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

/// Goal: where messages name endpoints, one of the settings keeps none of them from a session, and
/// can be tried beforehand nevertheless. Oracle: the session, and the error.
#[tokio::test]
async fn an_endpoint_of_the_settings_is_tried_beside_those_that_messages_name() {
    let server = Server::start([]).await;
    let naming = naming(&server).private_networks(vec![String::from("127.0.0.1")]);
    for config in [naming.clone(), naming.clone().url(server.url("/"))] {
        Connector::new(&config).unwrap().try_configured().await.unwrap();
    }
    let port = server.address.rsplit_once(':').unwrap().1;
    let connector = Connector::new(&naming.url(format!("http://127.0.0.2:{port}/s3cret"))).unwrap();
    let error = connector.try_configured().await.unwrap_err();
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Session), "{error}");
    assert!(error.to_string().contains("127.0.0.2 resolves to 127.0.0.2"), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    let mut session = Session::of(&connector).await;
    session.send(named(&server, "/x", 1)).await.unwrap();
    assert_eq!(server.requests().len(), 1);
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
    let facts = super::super::inspect(&config, &topics).await.unwrap().topics;
    let there = facts[0].facts.as_ref().unwrap();
    assert_eq!(
        (there.endpoint.as_str(), there.is_encrypted, &there.secrets),
        (server.url("").as_str(), false, &Ok(0))
    );
    let faults: Vec<_> = facts[1..].iter().map(|asked| asked.facts.as_ref().unwrap_err().fault).collect();
    assert_eq!(faults, [Fault::Broker, Fault::Operator]);
    assert!(server.requests().is_empty());
}
