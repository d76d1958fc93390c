//! RabbitMQ queues that the shared cases do not cover: several at once, streams, and the view of a
//! user who lost a permission.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::brokers::rabbitmq::{Admin, Config, Connector, QueueOptions, Subscriber, Unroutable};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use conformance::consuming::{BATCH, WAIT, done, handle, ids, receive, settle, within};
use conformance::{relaying, sample};
use harness::plain::rabbitmq::Rabbitmq;
use lapin::BasicProperties;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use message::{
    Connector as _, Fault, FaultScope, Message, Receipts, Submission, Subscription, SubscriptionError, Ticket,
};
use tests::{Backend, Failure, Outcome, Stage, brokers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

tests::cases! { "{on}/{case}":
    rabbitmq {
        several_quorum_queues_are_read_side_by_side = several,
        a_stream_is_refused_by_name = stream,
        a_queue_that_is_made_anew_as_a_stream_is_refused = became_a_stream,
        the_look_for_a_stream_takes_no_message_of_a_queue = out_of_a_stream,
        the_look_for_a_stream_keeps_the_order_of_a_backlog = backlog_out_of_a_stream,
        the_look_for_a_stream_goes_on_when_a_call_is_dropped = interrupted_look,
        an_orderly_end_logs_no_error = orderly,
        what_no_queue_takes_passes_waits_or_is_dead_by_topic = unlistened,
    }
    rabbitmq + rabbitmq_management { a_withdrawn_permission_ends_the_session = withdrawn }
}

const MESSAGES: i64 = 5;

fn config() -> Result<Config, Failure> {
    Ok(brokers::patient_rabbitmq(&Backend::Rabbitmq.address()?))
}

/// Goal: of messages that an exchange routes to no queue, those of a topic with `pass` are
/// confirmed and counted, those with `dead` are refused for good, and any other topic stops. A
/// message that a queue takes is stored, whatever is set for its topic, and not counted. Oracle:
/// the receipts, the counts, and the deliveries of the queue.
async fn unlistened(stage: Stage) -> Outcome {
    let base = config()?;
    let admin = Admin::connect(&base).await?;
    let exchange = stage.unique("events");
    admin.declare_exchange(&exchange).await?;
    let queue = stage.unique("listener");
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    brokers::remove_rabbitmq_queue(&stage, &base, &queue);
    admin.bind(&queue, &exchange, "audit.heard").await?;
    let rules = [("audit.*", Unroutable::Pass), ("audit.dead", Unroutable::Dead)];
    let rules: BTreeMap<_, _> = rules.map(|(topic, rule)| (topic.to_owned(), rule)).into();
    let connector = Connector::new(&base.clone().exchange(exchange).unroutable_topics(rules))?;
    let mut messages = Vec::new();
    for topic in ["audit.heard", "audit.unheard", "audit.dead", "orders"] {
        messages.extend(sample::orders(topic, 1, MESSAGES)?);
    }
    let sent = relaying::send(&connector, &messages).await?;
    let of =
        |topic: &'static str| messages.iter().enumerate().filter(move |(_, it)| it.topic.as_str() == topic);
    for topic in ["audit.heard", "audit.unheard"] {
        assert!(of(topic).all(|(number, _)| sent.confirmed.contains(&number)), "{topic}: {sent:?}");
    }
    for (topic, is_final, scope) in
        [("audit.dead", true, FaultScope::Message), ("orders", false, FaultScope::Topic)]
    {
        let refused = sent.refused.iter().filter(|(number, _)| of(topic).any(|(at, _)| at == *number));
        let refused: Vec<_> = refused.map(|(_, error)| (error.is_final(), error.scope())).collect();
        assert_eq!(refused, vec![(is_final, scope); of(topic).count()], "{topic}: {sent:?}");
    }
    let counted: Vec<_> =
        connector.take_unrouted().into_iter().map(|it| (it.topic.to_string(), it.messages)).collect();
    let passed = u64::try_from(of("audit.unheard").count())?;
    assert_eq!(counted, [(String::from("audit.unheard"), passed)]);
    assert_eq!(connector.take_unrouted(), [], "each is counted once");
    let mut member: Box<dyn Subscription> = Subscriber::new(&base, [queue])?.subscribe().await?;
    let received = receive(&mut member, of("audit.heard").count()).await?;
    assert_eq!(ids(&received), of("audit.heard").map(|(_, message)| message.id).collect());
    Ok(member.close().await?)
}

/// Goal: one subscription reads several quorum queues, and a delivery is settled in the queue it
/// came from. Oracle: the ids that are received; the broker's count for each queue after the
/// deliveries of one queue were settled.
async fn several(stage: Stage) -> Outcome {
    let config = config()?;
    let admin = Admin::connect(&config).await?;
    let (mut queues, mut sent) = (Vec::new(), Vec::new());
    for name in ["first", "second"] {
        let queue = stage.unique(name);
        admin.declare_queue(&queue, QueueOptions::default().quorum(true)).await?;
        brokers::remove_rabbitmq_queue(&stage, &config, &queue);
        let messages = sample::orders(&queue, 1, MESSAGES)?;
        assert!(relaying::send(&Connector::new(&config)?, &messages).await?.refused.is_empty());
        queues.push(queue);
        sent.push(messages.iter().map(|message| message.id).collect::<BTreeSet<_>>());
    }
    let mut member: Box<dyn Subscription> = Subscriber::new(&config, queues.clone())?.subscribe().await?;
    let received = receive(&mut member, sent.iter().map(BTreeSet::len).sum()).await?;
    assert_eq!(ids(&received), sent.into_iter().flatten().collect());
    let of_first = received.iter().filter(|delivery| delivery.origin.ends_with(&queues[0]));
    member.settle(of_first.map(done).collect::<Result<_, _>>()?).await?;
    member.close().await?;
    for (queue, left) in queues.iter().zip([0, MESSAGES]) {
        tests::eventually("the broker has settled", || async {
            Ok((i64::from(admin.count(queue).await?) == left).then_some(()))
        })
        .await?;
    }
    admin.close().await;
    Ok(())
}

/// Goal: an orderly close logs no warning. Oracle: no line of the client library above INFO, in
/// twenty sessions of each kind, on a runtime whose every task logs to this thread.
async fn orderly(stage: Stage) -> Outcome {
    let queue = stage.unique("orderly");
    brokers::remove_rabbitmq_queue(&stage, &config()?, &queue);
    let lines = Lines::default();
    let (told, config) = (lines.clone(), config()?);
    let sessions = tokio::task::spawn_blocking(move || -> Outcome {
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("warn")
            .with_ansi(false)
            .with_writer(move || told.clone())
            .finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            for _ in 0..20 {
                sessions(&config, &queue).await?;
            }
            Ok(())
        })
    });
    sessions.await??;
    let lines = lines.0.lock().map_err(|_| "a thread panicked while it logged")?.clone();
    assert!(lines.is_empty(), "{}", String::from_utf8_lossy(&lines));
    Ok(())
}

/// Runs one session of each kind: an administrator's, a publisher's, a subscriber's.
async fn sessions(config: &Config, queue: &str) -> Outcome {
    let admin = Admin::connect(config).await?;
    admin.declare_queue(queue, QueueOptions::default()).await?;
    admin.close().await;
    let messages = sample::orders(queue, 2, 4)?;
    assert!(relaying::send(&Connector::new(config)?, &messages).await?.refused.is_empty());
    let mut member: Box<dyn Subscription> = Subscriber::new(config, [queue.to_owned()])?.subscribe().await?;
    let received = receive(&mut member, messages.len()).await?;
    member.settle(received.iter().map(done).collect::<Result<_, _>>()?).await?;
    member.stop_receiving().await?;
    Ok(member.close().await?)
}

/// The captured log.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Declares a stream of this name.
async fn declare_stream(name: &str) -> Outcome {
    let session = Rabbitmq::new(Backend::Rabbitmq.address()?).open().await?;
    let mut arguments = FieldTable::default();
    arguments.insert(ShortString::try_new("x-queue-type")?, AMQPValue::LongString("stream".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    session.channel.queue_declare(ShortString::try_new(name)?, durable, arguments).await?;
    session.close().await
}

/// Publishes one message to a stream, and checks that a new session refuses to read it: the fault
/// is the operator's, and the error has its name.
async fn refuses_stream(subscriber: &Subscriber, config: &Config, name: &str) -> Outcome {
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let sent = relaying::send(&Connector::new(config)?, &sample::orders(name, 1, 1)?).await?;
    assert!(sent.refused.is_empty(), "{:?}", sent.refused);
    let error = ended(&mut member).await?;
    assert_eq!(error.fault(), Fault::Operator, "{error}");
    assert!(error.to_string().contains(&format!("{name} is a stream")), "{error}");
    Ok(())
}

/// Waits until a session that gets no message ends. Returns the reason.
async fn ended(member: &mut Box<dyn Subscription>) -> Result<SubscriptionError, Failure> {
    within("the session ends", async {
        loop {
            match member.receive(NonZeroUsize::MIN, WAIT).await {
                Ok(none) if none.is_empty() => {}
                Ok(_) => return Err("a message was received".into()),
                Err(error) => return Ok(error),
            }
        }
    })
    .await
}

/// Goal: a stream is refused as a queue, because it would be read from its end after every pause.
/// Oracle: the operator's fault, with the queue's name.
async fn stream(stage: Stage) -> Outcome {
    let config = config()?;
    let queue = stage.unique("stream");
    declare_stream(&queue).await?;
    brokers::remove_rabbitmq_queue(&stage, &config, &queue);
    let subscriber = Subscriber::new(&config, [queue.clone()])?;
    refuses_stream(&subscriber, &config, &queue).await
}

/// Goal: a queue is deleted under a session and declared again as a stream. The session ends, a new
/// one waits for the queue, and once there is a stream it is refused as any other one. Oracle: the
/// fault and the reason of each end.
async fn became_a_stream(stage: Stage) -> Outcome {
    let config = config()?;
    let queue = stage.unique("remade");
    let admin = Admin::connect(&config).await?;
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    brokers::remove_rabbitmq_queue(&stage, &config, &queue);
    let subscriber = Subscriber::new(&config, [queue.clone()])?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let sent = relaying::send(&Connector::new(&config)?, &sample::orders(&queue, 1, 1)?).await?;
    assert!(sent.refused.is_empty(), "{:?}", sent.refused);
    assert_eq!(handle(&mut member, 1).await?.len(), 1);
    admin.delete_queue(&queue).await?;
    let error = ended(&mut member).await?;
    assert_eq!(error.fault(), Fault::Broker, "{error}");
    assert!(error.to_string().contains(&queue), "{error}");
    let missing = subscriber.subscribe().await.err().ok_or("a queue that is gone is consumed")?;
    assert!(missing.to_string().contains(&queue), "{missing}");
    declare_stream(&queue).await?;
    admin.close().await;
    refuses_stream(&subscriber, &config, &queue).await
}

/// Makes messages as a shovel takes them out of a stream, with these numbers as payloads.
fn shovelled(numbers: Range<usize>) -> impl Iterator<Item = (BasicProperties, Vec<u8>)> {
    let mut headers = FieldTable::default();
    headers.insert("x-stream-offset".into(), AMQPValue::LongLongInt(7));
    let properties = BasicProperties::default().with_headers(headers);
    numbers.map(move |number| (properties.clone(), number.to_string().into_bytes()))
}

/// Goal: the look at a queue whose messages a shovel took out of a stream takes none of them. One
/// that it handed back would arrive after later ones of its key. Oracle: no message is redelivered.
async fn out_of_a_stream(stage: Stage) -> Outcome {
    const MANY: usize = 3_000;
    let (config, queue) = (config()?.prefetch(4_000), stage.unique("shovelled"));
    Admin::connect(&config).await?.declare_queue(&queue, QueueOptions::default()).await?;
    brokers::remove_rabbitmq_queue(&stage, &config, &queue);
    let mut member: Box<dyn Subscription> = Subscriber::new(&config, [queue.clone()])?.subscribe().await?;
    let plain = Rabbitmq::new(Backend::Rabbitmq.address()?);
    let sending = plain.publish("", &queue, shovelled(0..MANY));
    let (received, sent) = tokio::join!(receive(&mut member, MANY), sending);
    sent?;
    let handed_back = received?.iter().filter(|delivery| delivery.redelivered).count();
    assert_eq!(handed_back, 0, "of {MANY}");
    Ok(())
}

/// Goal: the look at such a queue takes what the real consumer has no room for, and hands it back
/// before later messages arrive. Oracle: the order of the messages of a backlog and of those that
/// follow while the session begins.
async fn backlog_out_of_a_stream(stage: Stage) -> Outcome {
    const MANY: usize = 3_000;
    for is_quorum in [false, true] {
        let name = if is_quorum { "shovelled-quorum" } else { "shovelled" };
        let (config, queue) = (config()?.prefetch(20), stage.unique(name));
        let options = QueueOptions::default().quorum(is_quorum);
        Admin::connect(&config).await?.declare_queue(&queue, options).await?;
        brokers::remove_rabbitmq_queue(&stage, &config, &queue);
        let plain = Rabbitmq::new(Backend::Rabbitmq.address()?);
        plain.publish("", &queue, shovelled(0..MANY)).await?;
        let subscriber = Subscriber::new(&config, [queue.clone()])?;
        let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
        let following = plain.publish("", &queue, shovelled(MANY..MANY + 500));
        let (received, sent) = tokio::join!(handle(&mut member, MANY + 500), following);
        sent?;
        let received = received?;
        let payloads = received.iter().map(|delivery| match &delivery.message {
            Ok(message) => message.payload.clone(),
            Err(malformed) => malformed.payload.clone(),
        });
        let expected = (0..MANY + 500).map(|number| number.to_string());
        assert!(payloads.eq(expected), "quorum: {is_quorum}; they came in another order");
        member.close().await?;
    }
    Ok(())
}

/// Goal: a consumer whose calls are dropped while it looks, because its handlers end meanwhile,
/// leaves none of its looks behind: they would take what the real consumer has no room for. Oracle:
/// the whole backlog comes, in its order.
async fn interrupted_look(stage: Stage) -> Outcome {
    const MANY: usize = 3_000;
    let (config, queue) = (config()?.prefetch(20), stage.unique("interrupted"));
    Admin::connect(&config).await?.declare_queue(&queue, QueueOptions::default()).await?;
    brokers::remove_rabbitmq_queue(&stage, &config, &queue);
    Rabbitmq::new(Backend::Rabbitmq.address()?).publish("", &queue, shovelled(0..MANY)).await?;
    let subscriber = Subscriber::new(&config, [queue.clone()])?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let first = within("a delivery comes", async {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
                received = member.receive(BATCH, WAIT) => return Ok(received?),
            }
        }
    });
    let mut received = first.await?;
    settle(&mut member, &received).await?;
    let left = MANY - received.len();
    received.extend(handle(&mut member, left).await?);
    let payloads = received.iter().map(|delivery| match &delivery.message {
        Ok(message) => message.payload.clone(),
        Err(malformed) => malformed.payload.clone(),
    });
    let expected = (0..MANY).map(|number| number.to_string());
    assert!(payloads.eq(expected), "they came in another order");
    member.close().await?;
    Ok(())
}

/// Goal: find out what an expired token does, or a permission that is withdrawn and granted again.
/// When the broker refuses a topic to which a session has published before, the session ends, and
/// the next session logs in again. Oracle: the scope of the refusal; the messages that the next
/// session publishes.
async fn withdrawn(stage: Stage) -> Outcome {
    let (admin, queue, user) = (Admin::connect(&config()?).await?, stage.unique("q"), stage.unique("relay"));
    admin.declare_queue(&queue, QueueOptions::default()).await?;
    brokers::remove_rabbitmq_queue(&stage, &config()?, &queue);
    manage("PUT", &format!("users/{user}"), r#"{"password":"relay","tags":""}"#).await?;
    let doomed = user.clone();
    stage.afterwards(format!("user {user}"), async move {
        manage("DELETE", &format!("users/{doomed}"), "").await
    });
    let permit = async |write: &str| {
        let rights = format!(r#"{{"configure":"","write":"{write}","read":""}}"#);
        manage("PUT", &format!("permissions/%2f/{user}"), &rights).await
    };
    permit(".*").await?;
    let mut own = Config::new(Backend::Rabbitmq.address()?.replace("guest:guest@", ""));
    (own.username, own.password) = (Some(user.clone()), Some(String::from("relay").into()));
    let connector = Connector::new(&own)?;
    let (receipts, mut received) = Receipts::channel();
    let mut publisher = connector.connect(receipts).await?;
    let mut outcome = async |publisher: &mut Box<dyn message::Publisher>| {
        let message: Message = sample::complete(&queue)?;
        publisher.submit(vec![Submission { ticket: Ticket(1), message: message.into() }]).await;
        Ok::<_, Failure>(received.recv().await.ok_or("no receipt")?.outcome)
    };
    outcome(&mut publisher).await??;
    permit("").await?;
    // A channel that has published keeps using its cached permission, but the session has another
    // channel.
    let refusal = within("a publish is refused", async {
        loop {
            if let Err(error) = outcome(&mut publisher).await? {
                return Ok(error);
            }
        }
    });
    let error = refusal.await?;
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    // A session that has not published to the topic yet reports an error of the topic, which the
    // operator must fix.
    let sent = relaying::send(&connector, &[sample::complete(&queue)?]).await?;
    let [(_, error)] = &sent.refused[..] else { return Err(format!("{:?}", sent.refused).into()) };
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Topic), "{error}");
    permit(".*").await?;
    assert!(relaying::send(&connector, &[sample::complete(&queue)?]).await?.refused.is_empty());
    admin.close().await;
    Ok(())
}

/// Sends a request to the broker's management API.
async fn manage(method: &str, path: &str, body: &str) -> Outcome {
    let address = Backend::RabbitmqManagement.address()?;
    let host = address.strip_prefix("http://").ok_or("no http:// URL")?.trim_end_matches('/');
    let login = STANDARD.encode("guest:guest");
    let length = body.len();
    let request = format!(
        "{method} /api/{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {login}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 2") { Ok(()) } else { Err(answer.into()) }
}
