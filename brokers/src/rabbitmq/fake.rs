//! A broker for tests: as much of AMQP 0-9-1 as a client needs to connect.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Methods (AMQP 0-9-1 specification, sections 1.4.2, 1.5.2, 1.8.3; connection.blocked and
/// confirm.select: rabbitmq.com/docs): class, method and arguments.
pub(super) const START: &[u8] = b"\0\x0a\0\x0a\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05en_US";
pub(super) const TUNE: &[u8] = b"\0\x0a\0\x1e\x07\xff\0\x02\0\0\0\x14";
pub(super) const CONNECTION_OPEN_OK: &[u8] = b"\0\x0a\0\x29\0";
pub(super) const CONNECTION_BLOCKED: &[u8] = b"\0\x0a\0\x3c\x03low";
const CONNECTION_UNBLOCKED: &[u8] = b"\0\x0a\0\x3d";
/// The reply code 403.
const LOGIN_REFUSED: &[u8] = b"\0\x0a\0\x32\x01\x93\x07refused\0\x0a\0\x0b";
const CONNECTION_CLOSE_OK: &[u8] = b"\0\x0a\0\x33";
const CONNECTION_UPDATE_SECRET_OK: &[u8] = b"\0\x0a\0\x47";
/// The queue "q" without messages and consumers.
const QUEUE_DECLARE_OK: &[u8] = b"\0\x32\0\x0b\x01q\0\0\0\0\0\0\0\0";
pub(super) const CHANNEL_OPEN_OK: &[u8] = b"\0\x14\0\x0b\0\0\0\0";
pub(super) const CONFIRM_SELECT_OK: &[u8] = b"\0\x55\0\x0b";
const BASIC_ACK_1: &[u8] = b"\0\x3c\0\x50\0\0\0\0\0\0\0\x01\0";
const BASIC_QOS_OK: &[u8] = b"\0\x3c\0\x0b";
const BASIC_CONSUME_OK: &[u8] = b"\0\x3c\0\x15\x01c";
/// To the consumer "c", from the default exchange, with the routing key "q".
const BASIC_DELIVER: &[u8] = b"\0\x3c\0\x3c\x01c\0\0\0\0\0\0\0\x01\0\0\x01q";
/// The properties of an empty message: one header without a value, whose name is not UTF-8.
const UNREADABLE_PROPERTIES: &[u8] = b"\0\x3c\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\0\x03\x01\xffV";

/// Sends a method.
pub(super) async fn send(stream: &mut TcpStream, channel: u16, method: &[u8]) -> std::io::Result<()> {
    send_frame(stream, 1, channel, method).await
}

async fn send_frame(stream: &mut TcpStream, kind: u8, channel: u16, payload: &[u8]) -> std::io::Result<()> {
    let mut frame = vec![kind];
    frame.extend_from_slice(&channel.to_be_bytes());
    frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(payload);
    frame.push(0xce);
    stream.write_all(&frame).await
}

/// Reads a frame: its type, channel and payload.
pub(super) async fn read(stream: &mut TcpStream) -> std::io::Result<(u8, u16, Vec<u8>)> {
    let mut header = [0; 7];
    stream.read_exact(&mut header).await?;
    let [kind, high, low, size @ ..] = header;
    let mut rest = vec![0; u32::from_be_bytes(size) as usize + 1];
    stream.read_exact(&mut rest).await?;
    rest.pop();
    Ok((kind, u16::from_be_bytes([high, low]), rest))
}

mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, SystemTime};

    use message::{Connector as _, EventType, Fault, Message, Receipts, Submission, Ticket, Topic};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::oauth::{OAuth, Token, TokenError, TokenProvider};
    use crate::rabbitmq::renewal::ANSWER_MAX;
    use crate::rabbitmq::{Config, Connector, Subscriber};

    const CONFIRM_TIMEOUT_MS: u64 = 300;

    /// Serves one client. Every first message on a channel triggers an alarm that lasts for several
    /// timeouts, and is then confirmed. Every consumer gets a message that the client cannot read.
    /// Reports the secrets that it receives, refuses the login with the password "wrong", and
    /// confirms the secret "late" after the client has stopped waiting.
    async fn serve(
        mut stream: TcpStream,
        published: &AtomicUsize,
        secrets: &UnboundedSender<String>,
    ) -> std::io::Result<()> {
        stream.read_exact(&mut [0; 8]).await?;
        send(&mut stream, 0, START).await?;
        loop {
            let (kind, channel, frame) = read(&mut stream).await?;
            let method = frame.get(..4).filter(|_| kind == 1).unwrap_or_default();
            match method {
                // start-ok, open
                [0, 10, 0, 11] if frame.windows(6).any(|part| part == b"\0wrong") => {
                    _ = secrets.send(String::from("refused"));
                    send(&mut stream, 0, LOGIN_REFUSED).await?;
                }
                [0, 10, 0, 11] => send(&mut stream, 0, TUNE).await?,
                [0, 10, 0, 40] => send(&mut stream, 0, CONNECTION_OPEN_OK).await?,
                // close: a login that was only tried does not wait for its end
                [0, 10, 0, 50] => send(&mut stream, 0, CONNECTION_CLOSE_OK).await?,
                // update-secret: a long string first
                [0, 10, 0, 70] => {
                    let text = String::from_utf8_lossy(frame.get(8..).unwrap_or_default()).into_owned();
                    let delay = if text.starts_with("late") { ANSWER_MAX * 3 / 2 } else { Duration::ZERO };
                    _ = secrets.send(text);
                    tokio::time::sleep(delay).await;
                    send(&mut stream, 0, CONNECTION_UPDATE_SECRET_OK).await?;
                }
                // channel.open, confirm.select
                [0, 20, 0, 10] => send(&mut stream, channel, CHANNEL_OPEN_OK).await?,
                [0, 85, 0, 10] => send(&mut stream, channel, CONFIRM_SELECT_OK).await?,
                // queue.declare, basic.qos, basic.consume
                [0, 50, 0, 10] => send(&mut stream, channel, QUEUE_DECLARE_OK).await?,
                [0, 60, 0, 10] => send(&mut stream, channel, BASIC_QOS_OK).await?,
                [0, 60, 0, 20] => {
                    send(&mut stream, channel, BASIC_CONSUME_OK).await?;
                    send(&mut stream, channel, BASIC_DELIVER).await?;
                    send_frame(&mut stream, 2, channel, UNREADABLE_PROPERTIES).await?;
                }
                // basic.publish
                [0, 60, 0, 40] => {
                    published.fetch_add(1, Ordering::Relaxed);
                    send(&mut stream, 0, CONNECTION_BLOCKED).await?;
                    tokio::time::sleep(Duration::from_millis(CONFIRM_TIMEOUT_MS * 4)).await;
                    send(&mut stream, 0, CONNECTION_UNBLOCKED).await?;
                    send(&mut stream, channel, BASIC_ACK_1).await?;
                }
                _ => {}
            }
        }
    }

    /// Starts a broker that accepts any number of clients. Returns its URL, the number of messages
    /// that it received, and the secrets that it received.
    async fn broker() -> (String, Arc<AtomicUsize>, UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("amqp://relay@{}", listener.local_addr().unwrap());
        let (published, (secrets, told)) = (Arc::new(AtomicUsize::new(0)), unbounded_channel());
        let counter = Arc::clone(&published);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (counter, secrets) = (Arc::clone(&counter), secrets.clone());
                // It ends when its client disconnects.
                tokio::spawn(async move { _ = serve(stream, &counter, &secrets).await });
            }
        });
        (url, published, told)
    }

    /// Goal: an alarm that lasts longer than the confirm timeout ends no session and causes no
    /// copies. It is reported while it lasts. Oracle: the receipt; how often the broker received
    /// the message; the error of the client.
    #[tokio::test]
    async fn an_alarm_collects_no_copies() {
        let (url, published, _told) = broker().await;
        let password = Some(String::from("x").into());
        let config = Config { confirm_timeout_ms: CONFIRM_TIMEOUT_MS, password, ..Config::new(url) };
        let (receipts, mut received) = Receipts::channel();
        let connector = Connector::new(&config).unwrap();
        let mut publisher = connector.connect(receipts).await.unwrap();
        assert_eq!(connector.last_error(), None);
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}");
        publisher.submit(vec![Submission { ticket: Ticket(1), message: message.into() }]).await;
        let told = loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if let Some(told) = connector.last_error() {
                break told;
            }
        };
        assert!(told.contains("blocks publishers (memory or disk alarm)"), "{told}");
        received.recv().await.unwrap().outcome.unwrap();
        assert_eq!(connector.last_error(), None, "the alarm is over");
        assert_eq!(published.load(Ordering::Relaxed), 1);
    }

    /// Goal: a session without messages notices that its broker has stopped. Oracle: a broker whose
    /// process ends.
    #[tokio::test]
    async fn an_idle_session_ends_with_its_connection() {
        let host =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (url, _published, _told) = host.spawn(broker()).await.unwrap();
        let config = Config { password: Some(String::from("x").into()), ..Config::new(url) };
        let connector = Connector::new(&config).unwrap();
        let mut publisher = connector.connect(Receipts::channel().0).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), publisher.ended()).await;
        assert!(early.is_err(), "the broker is there");
        host.shutdown_background();
        let ended = tokio::time::timeout(Duration::from_secs(60), publisher.ended()).await;
        ended.expect("the end of the connection is noticed");
        publisher.close(Duration::ZERO).await;
    }

    /// Goal: a message that the client library cannot read, and that is redelivered after every end
    /// of its connection, is reported to the operator with the remedy. Oracle: the error.
    #[tokio::test]
    async fn an_unreadable_message_is_left_to_the_operator() {
        let (url, _published, _told) = broker().await;
        let password = Some(String::from("x").into());
        let config = Config { password, ..Config::new(url) };
        let mut subscription = Subscriber::new(&config, ["q"]).unwrap().subscribe().await.unwrap();
        let received = subscription.receive(NonZeroUsize::MIN, Duration::from_secs(20)).await;
        let error = received.map(drop).unwrap_err();
        assert_eq!(error.fault(), Fault::Operator, "{error}");
        assert!(error.to_string().contains("not UTF-8: remove it"), "{error}");
    }

    /// Gives the answers of a test, and then none.
    #[derive(Debug)]
    struct Script(std::sync::Mutex<Vec<Result<&'static str, TokenError>>>);

    #[async_trait::async_trait]
    impl TokenProvider for Script {
        async fn token(&self) -> Result<Token, TokenError> {
            let next = { self.0.lock().unwrap().pop() };
            match next {
                // So that each is replaced after a second, but for a steady one and the late one.
                Some(Ok(token)) => {
                    let secs = match token {
                        "late" => 3_600,
                        "steady" => 6,
                        _ => 3,
                    };
                    Token::new(token, SystemTime::now() + Duration::from_secs(secs))
                }
                Some(Err(error)) => Err(error),
                None => std::future::pending().await,
            }
        }
    }

    fn with_tokens(url: String, mut answers: Vec<Result<&'static str, TokenError>>) -> Config {
        answers.reverse();
        let script = Arc::new(Script(std::sync::Mutex::new(answers)));
        Config::new(url).oauth(OAuth::provider(script).timeout_ms(200))
    }

    /// Goal: a token is replaced before it expires, on the existing connection, but never by one
    /// that the broker refuses. An issuer that refuses or hangs meanwhile ends nothing. Oracle: the
    /// secrets that the broker receives.
    #[tokio::test]
    async fn a_token_is_replaced_before_it_expires() {
        let (url, _published, mut told) = broker().await;
        let down = TokenError::unavailable("the issuer is down; start it");
        let answers = vec![Ok("first"), Ok("wrong"), Err(down), Ok("second")];
        let publisher =
            Connector::new(&with_tokens(url, answers)).unwrap().connect(Receipts::channel().0).await.unwrap();
        assert_eq!(told.recv().await.unwrap(), "refused");
        let secret = told.recv().await.unwrap();
        assert!(secret.starts_with("second"), "{secret:?}");
        drop(publisher);
    }

    /// Goal: a secret that the broker did not confirm does not count as the connection's: the next
    /// one comes in time for the one before. Oracle: the secrets that the broker receives.
    #[tokio::test]
    async fn a_secret_that_is_not_confirmed_is_replaced_soon() {
        let (url, _published, mut told) = broker().await;
        let answers = vec![Ok("steady"), Ok("late"), Ok("second")];
        let tokens = Connector::new(&with_tokens(url, answers)).unwrap();
        let publisher = tokens.connect(Receipts::channel().0).await.unwrap();
        for expected in ["late", "second"] {
            let secret = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
            let secret = secret.expect("a secret is given in time").unwrap();
            assert!(secret.starts_with(expected), "{secret:?}");
        }
        drop(publisher);

        let (url, _published, mut told) = broker().await;
        let file = std::env::temp_dir().join(format!("{}-token", uuid::Uuid::now_v7()));
        std::fs::write(&file, "first").unwrap();
        let config = Config { password_file: Some(file.clone()), ..Config::new(url) };
        let publisher = Connector::new(&config).unwrap().connect(Receipts::channel().0).await.unwrap();
        std::fs::write(&file, "late").unwrap();
        for _ in 0..2 {
            let secret = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
            let secret = secret.expect("it is given again").unwrap();
            assert!(secret.starts_with("late"), "{secret:?}");
        }
        drop(publisher);
        std::fs::remove_file(file).unwrap();
    }

    /// Goal: without a token there is no session, and the reason is that of its source. Oracle: the
    /// errors of publisher and subscriber, within the time limit of an issuer that hangs.
    #[tokio::test]
    async fn without_a_token_there_is_no_session() {
        let (url, _published, _told) = broker().await;
        let refused = || Err(TokenError::refused("unknown client; register it"));
        let config = with_tokens(url, vec![refused(), refused()]);
        let connector = Connector::new(&config).unwrap();
        let error = connector.connect(Receipts::channel().0).await.err().unwrap();
        let told = (error.fault(), error.to_string());
        assert_eq!(told, (Fault::Operator, String::from("unknown client; register it")));
        let error = Subscriber::new(&config, ["q"]).unwrap().subscribe().await.err().unwrap();
        assert_eq!(error.to_string(), "unknown client; register it");
        let error = connector.connect(Receipts::channel().0).await.err().unwrap();
        assert_eq!(error.fault(), Fault::Broker);
        assert!(
            error.to_string().contains("within 200 ms; ") && error.to_string().contains("rabbitmq.oauth")
        );
    }

    /// Goal: a token that the broker refuses is named by its owner, and not shown. Oracle: the
    /// error.
    #[tokio::test]
    async fn a_token_that_the_broker_refuses_is_named_by_its_owner() {
        let (url, _published, _told) = broker().await;
        let config = with_tokens(url, vec![Ok("wrong")]);
        let error = Connector::new(&config).unwrap().connect(Receipts::channel().0).await.err().unwrap();
        let text = error.to_string();
        assert_eq!(error.fault(), Fault::Operator, "{text}");
        assert!(text.contains("the token of an unnamed client from rabbitmq.oauth"), "{text}");
        assert!(
            text.contains("; check that rabbitmq trusts the issuer's key") && !text.contains("wrong"),
            "{text}"
        );
    }

    /// Goal: a token that is replaced in its file reaches the broker on the existing connection,
    /// and one that cannot log in does not. Oracle: the secrets that the broker receives.
    #[tokio::test]
    async fn a_replaced_password_goes_to_the_broker() {
        let (url, _published, mut told) = broker().await;
        let file = std::env::temp_dir().join(format!("{}-token", uuid::Uuid::now_v7()));
        std::fs::write(&file, "first").unwrap();
        let config = Config { password_file: Some(file.clone()), ..Config::new(url) };
        let publisher = Connector::new(&config).unwrap().connect(Receipts::channel().0).await.unwrap();
        std::fs::write(&file, "wrong").unwrap();
        assert_eq!(told.recv().await.unwrap(), "refused");
        std::fs::write(&file, "second").unwrap();
        let mut secret = told.recv().await.unwrap();
        while secret == "refused" {
            secret = told.recv().await.unwrap();
        }
        assert!(secret.starts_with("second"), "{secret:?}");
        drop(publisher);
        std::fs::remove_file(file).unwrap();
    }
}
