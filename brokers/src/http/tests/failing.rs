//! Endpoints that fail, and those that fail on some messages only.

use std::time::Duration;

use message::{Fault, FaultScope, Message, Receipt, Ticket};

use super::{Server, Session, Step, config, lock, message, named, naming, status};

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

/// Goal: a message on which the endpoint hangs does not fail those that wait, if the endpoint
/// answers others meanwhile. Oracle: the receipts.
#[tokio::test]
async fn a_message_on_which_the_endpoint_hangs_takes_no_other_with_it() {
    let server = Server::start([Step::Hang, status("204 No Content"), Step::Gate]).await;
    let config = config().url(server.url("/")).concurrency(2);
    let mut session = Session::open(&config.request_timeout_ms(1_500).connect_timeout_ms(7_500)).await;
    session.submit([message("orders", "hangs")]).await;
    server.after(1).await;
    // So that it is over well before the one at the gate.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
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
