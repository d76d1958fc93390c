//! Sends one batch to one queue, and answers each of its messages.

use std::sync::Arc;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};

use message::{FaultScope, PublishError};
use tokio::time::Instant;

use super::answers::Answers;
use super::backlog::Item;
use super::fault::{Failure, Kind};
use super::limits::Limits;
use super::queues::Queues;
use super::throttle::{Pauses, THROTTLED_MAX};

/// The state that the requests of a session share.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) queues: Queues,
    pub(super) answers: Answers,
    pub(super) limits: Limits,
}

type Outcome = Result<(), Failure>;

fn is_throttled(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(|failure| failure.kind == Kind::Throttled)
}

impl Sender {
    /// Sends a batch and answers its messages.
    pub(super) async fn send(self: Arc<Self>, queue: String, batch: Vec<Item>) {
        let begun_at = Instant::now();
        let outcomes = self.outcomes_in_time(&queue, &batch).await;
        let is_answered = |outcome: &Outcome| {
            outcome.as_ref().err().is_none_or(|failure| !matches!(failure.kind, Kind::Lost | Kind::Away))
        };
        if outcomes.iter().any(is_answered) {
            self.answers.note(&queue, Instant::now());
        }
        for (item, outcome) in batch.into_iter().zip(outcomes) {
            let outcome = outcome.map_err(|failure| self.error(&failure, &item, &queue, begun_at));
            item.pending.answer(outcome);
        }
    }

    fn error(&self, failure: &Failure, item: &Item, queue: &str, begun_at: Instant) -> PublishError {
        match failure.kind {
            Kind::Missing => self.queues.forget(queue),
            Kind::Lost => match self.answers.reach(queue, begun_at) {
                FaultScope::Session => {}
                scope => return failure.to_silence(queue, scope),
            },
            _ => {}
        }
        failure.to_publish_error(&item.topic, queue)
    }

    /// Sends a batch, and sends throttled messages again, each time a little later. Meanwhile their
    /// groups are busy, the request keeps its place among those in flight, and the queue stays open
    /// to others.
    async fn outcomes_in_time(&self, queue: &str, batch: &[Item]) -> Vec<Outcome> {
        let mut pauses = Pauses::new(THROTTLED_MAX);
        let mut outcomes = self.attempt(queue, &batch.iter().collect::<Vec<_>>()).await;
        loop {
            let again: Vec<usize> =
                (0..batch.len()).filter(|at| outcomes.get(*at).is_some_and(is_throttled)).collect();
            if again.is_empty() || !pauses.wait().await {
                return outcomes;
            }
            let left: Vec<&Item> = again.iter().filter_map(|at| batch.get(*at)).collect();
            let answers = self.attempt(queue, &left).await;
            for (at, outcome) in again.into_iter().zip(answers) {
                if let Some(slot) = outcomes.get_mut(at) {
                    *slot = outcome;
                }
            }
        }
    }

    /// Sends a batch once. The answer decides how many requests its queue may have in flight.
    async fn attempt(&self, queue: &str, batch: &[&Item]) -> Vec<Outcome> {
        let sent_at = Instant::now();
        let outcomes = self.outcomes(queue, batch).await;
        if outcomes.iter().any(is_throttled) {
            self.limits.throttled(queue, sent_at, Instant::now());
        } else if outcomes.iter().any(Result::is_ok) {
            self.limits.stored(queue, sent_at, Instant::now());
        }
        outcomes
    }

    async fn outcomes(&self, queue: &str, batch: &[&Item]) -> Vec<Outcome> {
        let url = match self.queues.url(&self.client, queue).await {
            Ok(url) => url,
            Err(failure) => return vec![Err(failure); batch.len()],
        };
        match self.request(&url, batch).await {
            Ok(outcomes) => outcomes,
            // SQS refuses a whole request for one message in it, or for its size. Sent alone, each
            // message gets its own answer.
            Err(failure) if failure.kind == Kind::Refused && batch.len() > 1 => {
                let mut outcomes = Vec::with_capacity(batch.len());
                for item in batch {
                    let alone = self.request(&url, &[*item]).await;
                    outcomes.push(alone.and_then(|mut outcomes| outcomes.remove(0)));
                }
                outcomes
            }
            Err(failure) => vec![Err(failure); batch.len()],
        }
    }

    /// Sends one request. Returns an outcome for each entry, or the reason why the whole request
    /// failed. The status 200 means only that SQS has processed every entry.
    async fn request(&self, url: &str, batch: &[&Item]) -> Result<Vec<Outcome>, Failure> {
        let entries =
            batch.iter().enumerate().map(|(index, item)| entry(index, item)).collect::<Result<_, _>>()?;
        let sent = self.client.send_message_batch().queue_url(url).set_entries(Some(entries)).send().await;
        let answer = sent.map_err(|error| Failure::of_request(&error))?;
        let mut outcomes = vec![Err(Failure::unanswered()); batch.len()];
        let mut set = |id: &str, outcome: Outcome| {
            if let Some(slot) = id.parse::<usize>().ok().and_then(|index| outcomes.get_mut(index)) {
                *slot = outcome;
            }
        };
        for stored in answer.successful() {
            set(stored.id(), Ok(()));
        }
        for failed in answer.failed() {
            let message = failed.message().unwrap_or_default();
            set(failed.id(), Err(Failure::of_code(failed.code(), message, failed.sender_fault())));
        }
        Ok(outcomes)
    }
}

fn entry(index: usize, item: &Item) -> Result<SendMessageBatchRequestEntry, Failure> {
    let incomplete =
        |error: aws_sdk_sqs::error::BuildError| Failure::of_code("Incomplete", &error.to_string(), true);
    let mut entry = SendMessageBatchRequestEntry::builder()
        .id(index.to_string())
        .message_body(&item.record.body)
        .set_message_group_id(item.group.clone())
        .set_message_deduplication_id(item.deduplication.clone());
    for (name, value) in &item.record.attributes {
        let text = MessageAttributeValue::builder().data_type("String").string_value(value);
        entry = entry.message_attributes(*name, text.build().map_err(incomplete)?);
    }
    entry.build().map_err(incomplete)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use message::{Connector as _, EventType, Fault, Message, Receipts, Submission, Ticket, Topic};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::pending::Pending;
    use crate::sqs::wire::Record;
    use crate::sqs::{Config, Connector};

    /// Reads an HTTP 1.1 request. Returns its text in lower case.
    async fn read(stream: &mut TcpStream) -> std::io::Result<String> {
        let (mut request, mut some) = (Vec::new(), [0; 4_096]);
        loop {
            let count = stream.read(&mut some).await?;
            request.extend_from_slice(some.get(..count).unwrap_or_default());
            let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let length =
                text.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next()?.parse().ok());
            let body = text.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
            if count == 0 || length.is_some_and(|length: usize| body >= length) {
                return Ok(text);
            }
        }
    }

    async fn answer(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
        let head = "content-type: application/x-amz-json-1.0\r\nconnection: close";
        let length = body.len();
        let text = format!("HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).await
    }

    const STORED: &str = r#"{"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":"x"}],"Failed":[]}"#;

    /// Starts a server with the queue `orders`, which `send` answers with a status and a body when
    /// messages are sent. Returns the settings of its clients.
    async fn serve(mut send: impl FnMut(String) -> (&'static str, &'static str) + Send + 'static) -> Config {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let queue = format!(r#"{{"QueueUrl":"{endpoint}/orders"}}"#);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = read(&mut stream).await.unwrap();
                if request.contains("getqueueurl") {
                    answer(&mut stream, "200 OK", &queue).await.unwrap();
                } else {
                    let (status, body) = send(request);
                    answer(&mut stream, status, body).await.unwrap();
                }
            }
        });
        Config::default()
            .region("r".to_owned())
            .endpoint_url(endpoint)
            .access_key_id("a".to_owned())
            .secret_access_key(secrecy::SecretString::from("s"))
            .attempts(1)
    }

    fn message() -> Message {
        Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "{}")
    }

    /// Sends a message and waits until it is stored.
    async fn publish(config: &Config, message: Message) {
        publish_by(&Connector::new(config).unwrap(), message).await;
    }

    /// Sends a message in a session of its own.
    async fn publish_by(connector: &Connector, message: Message) {
        let (receipts, mut received) = Receipts::channel();
        let mut publisher = connector.connect(receipts).await.unwrap();
        publisher.submit(vec![Submission { ticket: Ticket(1), message: message.into() }]).await;
        received.recv().await.unwrap().outcome.unwrap();
    }

    /// Goal: messages that SQS throttles for longer than the client retries are still stored, with
    /// one receipt and no failure. Oracle: the receipt; the number of requests to the test's own
    /// server.
    #[tokio::test]
    async fn what_is_throttled_is_sent_again_a_little_later() {
        const THROTTLED: usize = 3;
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let slow_down = r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"slow down"}"#;
        let config = serve(move |_| {
            let is_throttled = counter.fetch_add(1, Ordering::Relaxed) < THROTTLED;
            if is_throttled { ("400 Bad Request", slow_down) } else { ("200 OK", STORED) }
        })
        .await;
        publish(&config, message()).await;
        assert_eq!(asked.load(Ordering::Relaxed), THROTTLED + 1);
    }

    /// Goal: a throttle lowers the limit of its queue, and a success raises it. Oracle: the limit
    /// after each answer of the test's own server.
    #[tokio::test]
    async fn a_throttle_and_a_success_change_the_limit_of_their_queue() {
        let slow_down = r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"slow down"}"#;
        let mut is_first = true;
        let config = serve(move |_| {
            let is_throttled = std::mem::take(&mut is_first);
            if is_throttled { ("400 Bad Request", slow_down) } else { ("200 OK", STORED) }
        })
        .await;
        let client = super::super::client::ClientFactory::new(&config).unwrap().client().await.unwrap();
        let queues = Queues::of_config(&config);
        let sender = Sender { client, queues, answers: Answers::default(), limits: Limits::new(16) };
        let sender = Arc::new(sender);
        // The first is throttled, and stored when it is sent again.
        for expected in [9, 10] {
            let (receipts, mut received) = Receipts::channel();
            let item = Item {
                topic: Topic::new("orders").unwrap(),
                record: Record { body: String::from("x"), attributes: Vec::new() },
                group: None,
                deduplication: None,
                pending: Pending::new(Ticket(1), receipts),
            };
            Arc::clone(&sender).send(String::from("orders"), vec![item]).await;
            received.recv().await.unwrap().outcome.unwrap();
            assert_eq!(sender.limits.lock().of("orders"), expected);
        }
    }

    /// Goal: a standard queue gets the key as message group only if `fair_queues` says so, because
    /// some servers refuse it. Oracle: the requests to the test's own server.
    #[tokio::test]
    async fn a_standard_queue_gets_groups_only_if_it_is_fair() {
        let (requests, mut told) = tokio::sync::mpsc::unbounded_channel();
        let config = serve(move |request| {
            requests.send(request).unwrap();
            ("200 OK", STORED)
        })
        .await;
        let keyed = || message().with_key(message::OrderingKey::new("customer-7").unwrap());
        for (is_fair, message, group) in [
            (false, keyed(), None),
            (true, keyed(), Some(r#""messagegroupid":"customer-7""#)),
            (true, message(), None),
        ] {
            publish(&config.clone().fair_queues(is_fair), message).await;
            let request = told.recv().await.unwrap();
            assert_eq!(request.contains("messagegroupid"), group.is_some(), "{is_fair}: {request}");
            assert!(request.contains(group.unwrap_or_default()), "{request}");
            assert!(!request.contains("messagededuplicationid"), "{request}");
        }
    }

    /// Goal: an access key in files is read for each session, because a rotation replaces both
    /// halves while the relay runs. Oracle: the key that the requests to the test's own server
    /// name, and the errors for halves that are gone.
    #[tokio::test]
    async fn an_access_key_in_files_is_read_for_each_session() {
        let (requests, mut told) = tokio::sync::mpsc::unbounded_channel();
        let config = serve(move |request| {
            requests.send(request).unwrap();
            ("200 OK", STORED)
        })
        .await;
        let file = |half: &str| std::env::temp_dir().join(format!("{}-{half}", uuid::Uuid::now_v7()));
        let files = [file("id"), file("secret")];
        let [id, secret] = &files;
        let config = Config {
            access_key_id: None,
            access_key_id_file: Some(id.clone()),
            secret_access_key: None,
            secret_access_key_file: Some(secret.clone()),
            ..config
        };
        let connector = Connector::new(&config).unwrap();
        for key in ["first-key", "second-key"] {
            std::fs::write(id, format!("{key}\n")).unwrap();
            std::fs::write(secret, "s").unwrap();
            publish_by(&connector, message()).await;
            let request = told.recv().await.unwrap();
            assert!(request.contains(&format!("credential={key}/")), "{request}");
        }
        for (half, setting) in [(secret, "sqs.secret_access_key_file"), (id, "sqs.access_key_id_file")] {
            std::fs::remove_file(half).unwrap();
            let error = connector.connect(Receipts::channel().0).await.err().unwrap();
            assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Session), "{error}");
            assert!(error.to_string().contains(setting), "{error}");
        }
    }

    /// Goal: a temporary key is used with its session token, which an agent replaces in its file,
    /// and queues that are given by name are looked up in their owner's account. Oracle: the
    /// requests to the test's own server.
    #[tokio::test]
    async fn a_session_token_and_the_owner_of_the_queues_reach_sqs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (requests, mut told) = tokio::sync::mpsc::unbounded_channel();
        let url = endpoint.clone();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                requests.send(read(&mut stream).await.unwrap()).unwrap();
                answer(&mut stream, "200 OK", &format!(r#"{{"QueueUrl":"{url}/orders"}}"#)).await.unwrap();
            }
        });
        let file = std::env::temp_dir().join(format!("{}-session", uuid::Uuid::now_v7()));
        let config = Config::default()
            .region("r".to_owned())
            .endpoint_url(endpoint)
            .access_key_id("a".to_owned())
            .secret_access_key(secrecy::SecretString::from("s"))
            .session_token_file(file.clone())
            .queue_owner("000000000007".to_owned());
        for token in ["first-session", "second-session"] {
            std::fs::write(&file, token).unwrap();
            let _publisher = Connector::new(&config).unwrap().connect(Receipts::channel().0).await.unwrap();
            let probe = told.recv().await.unwrap();
            assert!(probe.contains(&format!("x-amz-security-token: {token}")), "{probe}");
        }
        let client = super::super::client::ClientFactory::new(&config).unwrap().client().await.unwrap();
        Queues::of_config(&config).url(&client, "orders").await.unwrap();
        let lookup = told.recv().await.unwrap();
        assert!(lookup.contains(r#""queueownerawsaccountid":"000000000007""#), "{lookup}");
        std::fs::remove_file(file).unwrap();
        server.abort();
    }
}
