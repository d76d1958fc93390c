//! A client against servers that misbehave.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use message::Fault;

use super::*;
use crate::secret::Secret;

/// A server on this machine: each connection is handled by `answer`, after its request was read.
struct Server {
    port: u16,
    requests: Receiver<String>,
}

impl Server {
    fn start(answer: impl Fn(&mut TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (heard, requests) = channel();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let request = read(&mut client);
                answer(&mut client);
                if heard.send(request).is_err() {
                    return;
                }
            }
        });
        Self { port, requests }
    }

    fn says(text: &'static str) -> Self {
        Self::start(move |client| drop(client.write_all(text.as_bytes())))
    }

    fn endpoint(&self, timeout: Duration) -> Endpoint {
        endpoint(&format!("http://127.0.0.1:{}/realm/token?key=s3cret", self.port), timeout)
    }
}

fn endpoint(url: &str, timeout: Duration) -> Endpoint {
    let client = Client {
        url: Url::parse(url).unwrap(),
        id: String::from("re lay"),
        secret: Secret::Text(SecretString::from("s3cret:~é")),
        scope: Some(String::from("kafka.write kafka.read")),
        audience: Some(String::from("https://kafka")),
        ca_file: None,
    };
    Endpoint { client, prefix: String::from("kafka.sasl.oauth"), timeout }
}

/// Reads a request to its end.
fn read(client: &mut TcpStream) -> String {
    let (mut request, mut part) = (String::new(), [0; 4_096]);
    loop {
        let read = client.read(&mut part).unwrap_or(0);
        request.push_str(&String::from_utf8_lossy(&part[..read]));
        let (head, body) = request.split_once("\r\n\r\n").unwrap_or((&request, ""));
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        if read == 0 || length.is_some_and(|length| body.len() >= length) {
            return request;
        }
    }
}

/// Long enough for a machine that is busy: only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_request_is_that_of_the_standard() {
    let body = r#"{"access_token":"t0ken","token_type":"Bearer","expires_in":300}"#;
    let server = Server::start(move |client| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        drop(client.write_all((head + body).as_bytes()));
    });
    let token = server.endpoint(PATIENCE).ask().unwrap();
    assert_eq!(token.value().expose_secret(), "t0ken");
    let request = server.requests.recv().unwrap();
    let (head, form) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /realm/token?key=s3cret HTTP/1.1\r\n"), "{head}");
    // re+lay:s3cret%3A~%C3%A9
    let basic = "authorization: basic cmUrbGF5OnMzY3JldCUzQX4lQzMlQTk=";
    assert!(head.to_lowercase().contains(&basic.to_lowercase()), "{head}");
    assert!(head.contains("cmUrbGF5OnMzY3JldCUzQX4lQzMlQTk="), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/x-www-form-urlencoded"), "{head}");
    let expected = "grant_type=client_credentials&scope=kafka.write+kafka.read&audience=https%3A%2F%2Fkafka";
    assert_eq!(form, expected);
}

/// Goal: `http` is only for this machine, so no proxy elsewhere learns the secret. Oracle: the test
/// above, in a process whose environment names a proxy that is not there.
#[test]
fn no_proxy_of_the_environment_sees_the_secret() {
    proxy::tests::without_the_proxy("oauth::endpoint::tests::the_request_is_that_of_the_standard");
}

/// Oracle: the error's text and party; that it comes at all, within the patience of the test.
#[test]
fn an_endpoint_that_does_not_behave_is_bounded_in_time_and_size() {
    let endless = |client: &mut TcpStream| {
        drop(client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"));
        while client.write_all(&[b' '; 65_536]).is_ok() {}
    };
    let trickles = |client: &mut TcpStream| {
        drop(client.write_all(b"HTTP/1.1 200 OK\r\n\r\n"));
        while client.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let silent = |client: &mut TcpStream| drop(client.read(&mut [0; 1]));
    let short = Duration::from_millis(300);
    for (server, timeout, fault, named) in [
        (Server::start(endless), PATIENCE, Fault::Operator, "more than 131072 bytes"),
        (Server::start(trickles), short, Fault::Broker, "within 300 ms"),
        (Server::start(silent), short, Fault::Broker, "within 300 ms"),
        (
            Server::says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
            PATIENCE,
            Fault::Broker,
            "does not answer",
        ),
        (Server::says("SSH-2.0-OpenSSH_9.2\r\n"), PATIENCE, Fault::Broker, "does not answer"),
        (Server::says(""), PATIENCE, Fault::Broker, "does not answer"),
        (
            Server::says(
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/s3cret\r\nContent-Length: 0\r\n\r\n",
            ),
            PATIENCE,
            Fault::Operator,
            "redirect",
        ),
        (
            Server::says(
                "HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/s3cret\r\nContent-Length: 0\r\n\r\n",
            ),
            PATIENCE,
            Fault::Operator,
            "redirect",
        ),
        (
            Server::says("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
            PATIENCE,
            Fault::Operator,
            "not a JSON object",
        ),
    ] {
        let asked_at = Instant::now();
        let error = server.endpoint(timeout).ask().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(named), "{named}: {text}");
        assert_eq!(error.fault(), fault, "{text}");
        assert!(text.starts_with("kafka.sasl.oauth.token_url: http://127.0.0.1:"), "{text}");
        assert!(text.contains("; ") && !text.contains("s3cret") && !text.contains("cmUr"), "{text}");
        assert!(asked_at.elapsed() < PATIENCE, "{text}");
    }
}

#[test]
fn an_endpoint_that_cannot_be_reached_says_what_to_correct() {
    let error = endpoint("http://127.0.0.1:1/", PATIENCE).ask().unwrap_err();
    assert!(error.to_string().contains("nothing listens there: start the issuer"), "{error}");
    assert_eq!(error.fault(), Fault::Broker);
}

#[test]
fn a_secret_that_cannot_be_read_is_named() {
    let mut endpoint = endpoint("http://127.0.0.1:1/", PATIENCE);
    endpoint.client.secret = Secret::File("/does/not/exist".into());
    let error = endpoint.check().unwrap_err();
    assert!(error.to_string().starts_with("kafka.sasl.oauth.client_secret_file: /does/not/exist"), "{error}");
    endpoint.client.secret = Secret::Text("x".into());
    endpoint.client.ca_file = Some("/does/not/exist".into());
    let error = endpoint.check().unwrap_err();
    assert!(error.to_string().starts_with("kafka.sasl.oauth.ca_file: /does/not/exist"), "{error}");
}
