//! Answers of an endpoint, or their absence: what they say about a message.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use message::{Fault, FaultScope, Message};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::{AllowedHost, Connector, Verifier};
use super::{BROKER, OPERATOR, Server, Session, Step, config, header, lock, message, status};

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

/// Goal: a receiver that asks for the length of a body, as many do (411), gets it of an empty one,
/// too. Oracle: the header.
#[tokio::test]
async fn an_empty_payload_has_a_length() {
    let server = Server::start([]).await;
    let mut session = Session::open(&config().url(server.url("/"))).await;
    session.send(Message { payload: Vec::new().into(), ..message("orders", "a") }).await.unwrap();
    session.send(message("orders", "a")).await.unwrap();
    let lengths = server
        .requests()
        .iter()
        .map(|it| header(it, "content-length").map(str::to_owned))
        .collect::<Vec<_>>();
    assert_eq!(lengths, ["0", "7"].map(|length| Some(length.to_owned())));
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

/// Goal: a status below 200 decides nothing: what follows it does, and if nothing follows, the
/// outcome is unknown. Oracle: the receipts.
#[tokio::test]
async fn an_answer_before_the_answer_decides_nothing() {
    let early = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let after = |answer: &str| Step::Answer(format!("HTTP/1.1 100 Continue\r\n\r\n{early}{answer}"));
    let changed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let script = [
        after("HTTP/1.1 204 No Content\r\n\r\n"),
        after("HTTP/1.1 422 Unprocessable Content\r\ncontent-length: 0\r\n\r\n"),
        Step::Answer(changed.to_owned()),
        after(""),
    ];
    let server = Server::start(script).await;
    let config = config().url(server.url("/")).request_timeout_ms(500).connect_timeout_ms(500);
    let mut session = Session::open(&config).await;
    session.send(message("orders", "a")).await.unwrap();
    session.fails(message("orders", "a"), Fault::Message, FaultScope::Message, "status 422").await;
    for text in ["outcome is unknown: status 101", "outcome is unknown: no answer within 1000 ms"] {
        session.fails(message("orders", "a"), BROKER.0, BROKER.1, text).await;
    }
    assert_eq!(server.requests().len(), 4);
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
