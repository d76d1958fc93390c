//! The path of one message through producer, relay and consumer, with every error that can be
//! provoked.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use inbox::{
    Cause, ConsumerName, DeadLetterQuery, Handler, HandlerError, Inbox, InboxOptions, Reason, Shutdown,
    Tenant, Tx,
};
use message::{Message, MessageId};
use outbox::NewMessage;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Postgres};
use tests::brokers::Broker;
use tests::relay_process::{Config, relay, relay_on};
use tests::stage::random;
use tests::workload::Workload;
use tests::{Backend, Failure, Outcome, RelayProcess, Role, Stage, eventually};

use crate::capture::{DIRECTIVES, Told};

struct Canaries {
    payload: String,
    header: String,
    password: String,
}

impl Canaries {
    fn new() -> Self {
        let canary = |what: &str| format!("CANARY{what}{}", random());
        Self { payload: canary("payload"), header: canary("header"), password: canary("password") }
    }

    fn all(&self) -> [&str; 3] {
        [&self.payload, &self.header, &self.password]
    }
}

/// Goal: nothing that is logged or printed holds a payload, a header's value or a secret. Oracle:
/// all text of every part, while the message itself arrives with payload and header, over a
/// connection that needs the password.
pub(crate) async fn play(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let (canaries, mut told) = (Canaries::new(), Told::default());
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let url = login(&stage, &workload, &canaries).await?;
    produce(&workload, &canaries, &mut told).await?;
    publish(&stage, &workload, &url, &canaries, &mut told).await?;
    consume(&workload, &canaries, &mut told).await?;
    strangers(&stage, &workload, &url, &canaries, &mut told).await?;
    let own = tests::log::logged();
    assert!(own.contains("inbox") && own.contains(&workload.topic), "nothing was logged here");
    told.add("this process' log", own);
    match told.leaks(&canaries.all()).as_slice() {
        [] => Ok(()),
        leaks => Err(leaks.join("\n\n").into()),
    }
}

/// Creates a relay's user whose password is a canary. Returns the database URL for it.
async fn login(stage: &Stage, workload: &Workload<Postgres>, canaries: &Canaries) -> Result<String, Failure> {
    let user = stage.unique("outbox_canary");
    let (group, password) = (Role::Relay.user(), &canaries.password);
    // This statement holds the password, and the client library logs statements.
    let options = workload.database.url.parse::<PgConnectOptions>()?.disable_statement_logging();
    let mut silent = options.connect().await?;
    let create = format!("CREATE ROLE {user} LOGIN PASSWORD '{password}' IN ROLE {group}");
    silent.execute(AssertSqlSafe(create)).await?;
    silent.close().await?;
    let database = workload.database.clone();
    let drop = format!("DROP ROLE {user}");
    stage.afterwards("the canary's user", async move { database.execute(&drop).await });
    let (_, place) = workload.database.url.rsplit_once('@').ok_or("a URL without a user")?;
    Ok(format!("postgres://{user}:{password}@{place}"))
}

fn message(topic: &str, canaries: &Canaries) -> NewMessage {
    NewMessage::new(topic).key("k").header("authorization", &canaries.header).json(&canaries.payload)
}

/// Enqueues a good message, one that the broker refuses and one for a missing topic. Also makes the
/// mistakes that a producer can make.
async fn produce(workload: &Workload<Postgres>, canaries: &Canaries, told: &mut Told) -> Outcome {
    let id = MessageId::new();
    let mut messages = vec![message(&workload.topic, canaries).id(id)];
    if let Some(bytes) = workload.broker.oversize_bytes() {
        let payload = canaries.payload.repeat(bytes / canaries.payload.len() + 1);
        messages.push(message(&workload.topic, canaries).key("large").payload(payload));
    }
    messages.push(message("nosuchtopic", canaries).key("lost"));
    told.add("a new message", format!("{messages:?}"));
    let mut tx = workload.begin().await?;
    workload.outbox().enqueue_batch(&mut tx, messages).await?;
    tx.commit().await?;

    for (place, wrong) in [
        (
            "a header that is refused",
            message(&workload.topic, canaries).header("x", format!("{}\n", canaries.header)),
        ),
        (
            "an id that is used again",
            message(&workload.topic, canaries).id(id).payload(format!("{}!", canaries.payload)),
        ),
        ("a topic that is refused", NewMessage::new("or ders").payload(canaries.payload.clone())),
    ] {
        let mut tx = workload.begin().await?;
        let Err(error) = workload.outbox().enqueue(&mut tx, wrong).await else { return Err(place.into()) };
        told.error(place, &error);
    }
    Ok(())
}

/// Runs the relay at its most verbose log level, and the commands that operators run.
async fn publish(
    stage: &Stage,
    workload: &Workload<Postgres>,
    url: &str,
    canaries: &Canaries,
    told: &mut Told,
) -> Outcome {
    let section = workload.broker.relay_section().ok_or("no section")?;
    let section =
        section.replace("secret_access_key = \"x\"", &format!("secret_access_key = {:?}", canaries.password));
    let config = Config::with_section(stage, "orders", url, &section, "")?;
    let relay_process = RelayProcess::start_with(stage, &config, &[("RELAY_LOG", DIRECTIVES)])?;
    relay_process.tells("nosuchtopic").await?;
    let path = config.path().display().to_string();
    let file = ["--config", path.as_str()];
    if workload.broker.oversize_bytes().is_some() {
        eventually("the large message is dead", || async {
            let listed = relay(&[&["dead", "list"], &file[..]].concat()).await?;
            Ok(String::from_utf8_lossy(&listed.stdout).contains("large").then_some(()))
        })
        .await?;
    }
    for command in
        [&["status"][..], &["dead", "list"], &["dead", "audit"], &["config", "check"], &["migrate", "status"]]
    {
        for format in ["table", "json"] {
            let output = relay(&[command, &file[..], &["--output", format]].concat()).await?;
            let place = format!("{command:?} --output {format}");
            told.add(format!("{place}, results"), String::from_utf8_lossy(&output.stdout));
            told.add(format!("{place}, errors"), String::from_utf8_lossy(&output.stderr));
        }
    }
    for id in ["1", "2", "3"] {
        let output = relay(&[&["dead", "show", "--id", id], &file[..]].concat()).await?;
        told.add(format!("dead show {id}"), String::from_utf8_lossy(&output.stdout));
    }
    let log = relay_process.log()?;
    assert!(log.contains("DEBUG") || log.contains("TRACE"), "{log}");
    told.add("the relay's log", log);
    relay_process.kill().await
}

/// Runs a handler that fails, and admits an id a second time with different content.
async fn consume(workload: &Workload<Postgres>, canaries: &Canaries, told: &mut Told) -> Outcome {
    let mut subscription = workload.broker.join("canary", &workload.topic).await?;
    let delivery = loop {
        let next = subscription.receive(NonZeroUsize::MIN, Duration::from_secs(5)).await?;
        if let Some(delivery) = next.into_iter().next() {
            break delivery;
        }
    };
    told.add("a delivery", format!("{delivery:?}"));
    let message = delivery.message.as_ref().map_err(|malformed| malformed.problem.clone())?;
    // The canaries arrived unchanged: the rest of the test is about them.
    assert!(String::from_utf8_lossy(&message.payload).contains(&canaries.payload));
    assert_eq!(message.headers.get("authorization"), Some(canaries.header.as_str()));

    let inbox = Inbox::open(workload.database.consumer.clone(), InboxOptions::default()).await?;
    let (consumer, scope) = (ConsumerName::new("canary")?, Tenant::none());
    let mut tx = inbox.begin().await?;
    drop(tx.admit(&consumer, &scope, message).await?);
    drop(tx.commit().await?);
    let other = Message { payload: format!("{}!", canaries.payload).into(), ..message.clone() };
    let mut tx = inbox.begin().await?;
    let Err(error) = tx.admit(&consumer, &scope, &other).await else { return Err("an id was reused".into()) };
    told.error("an id that comes with another content", &error);
    drop(tx);
    let cause = Cause::new(Reason::KeyReused, error.to_string(), 0);
    drop(inbox.dead_letter(&consumer, &scope, &delivery, cause).await?);
    subscription.close().await?;

    run(workload, &inbox).await?;
    let letters = inbox.dead_letters(&DeadLetterQuery::default()).await?;
    assert!(letters.iter().any(|letter| letter.reason == Reason::Poison), "{letters:?}");
    told.add("dead letters", format!("{letters:?}"));
    Ok(())
}

/// A handler that fails in the database, whatever it receives.
struct Fails;

#[async_trait]
impl Handler<Postgres> for Fails {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        sqlx::query("SELECT convert_from($1, 'UTF8')::integer")
            .bind(&message.payload[..0])
            .execute(&mut **tx)
            .await?;
        Ok(None)
    }
}

async fn run(workload: &Workload<Postgres>, inbox: &Inbox<Postgres>) -> Outcome {
    let (broker, topic) = (workload.broker.clone(), workload.topic.clone());
    let consumer = inbox::Consumer::builder(inbox.clone(), ConsumerName::new("failing")?)
        .subscribe(move || {
            let (broker, topic) = (broker.clone(), topic.clone());
            async move {
                let opened = broker.join("failing", &topic).await;
                opened.map_err(|failure| message::SubscriptionError::lost(failure.to_string()))
            }
        })
        .handler(Fails)
        .attempts_max(1)
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    eventually("the message is dead", || async {
        let letters = inbox.dead_letters(&DeadLetterQuery::default()).await?;
        Ok(letters.iter().any(|letter| letter.reason == Reason::Poison).then_some(()))
    })
    .await?;
    shutdown.graceful.cancel();
    running.await??;
    Ok(())
}

/// Uses wrong passwords for the database and for the broker.
async fn strangers(
    stage: &Stage,
    workload: &Workload<Postgres>,
    url: &str,
    canaries: &Canaries,
    told: &mut Told,
) -> Outcome {
    let section = workload.broker.relay_section().ok_or("no section")?;
    let wrong = url.replace(&canaries.password, &format!("{}x", canaries.password));
    let config = Config::with_section(stage, "orders", &wrong, &section, "")?;
    let path = config.path().display().to_string();
    for command in [["status", "--config", &path], ["run", "--config", &path]] {
        if command[0] == "run" {
            let relay_process = RelayProcess::start_with(stage, &config, &[("RELAY_LOG", DIRECTIVES)])?;
            relay_process.tells("password authentication failed").await?;
            told.add("a relay with the database's wrong password", relay_process.log()?);
            relay_process.kill().await?;
        } else {
            let output = relay(&command).await?;
            told.add("status with the database's wrong password", String::from_utf8_lossy(&output.stderr));
            told.add("status with the database's wrong password", String::from_utf8_lossy(&output.stdout));
        }
    }
    parameters(stage, url, &section, canaries, told).await?;
    let Some(section) = stranger(workload.broker.as_ref(), &section, canaries) else { return Ok(()) };
    let config = Config::with_section(stage, "orders", url, &section, "")?;
    let relay_process = RelayProcess::start_with(stage, &config, &[("RELAY_LOG", DIRECTIVES)])?;
    relay_process.tells("check ").await?;
    told.add("a relay with the broker's wrong password", relay_process.log()?);
    relay_process.kill().await
}

/// Puts secrets into URL parameters that libpq accepts and the client library would log.
async fn parameters(
    stage: &Stage,
    url: &str,
    section: &str,
    canaries: &Canaries,
    told: &mut Told,
) -> Outcome {
    let secret = &canaries.password;
    for parameter in ["sslpassword", "scram_client_key", "unknown"] {
        let url = format!("{url}?{parameter}={secret}");
        let config = Config::with_section(stage, "orders", &url, section, "")?;
        let path = config.path().display().to_string();
        for command in [
            vec!["status", "--config", &path],
            vec!["doctor", "--config", &path],
            vec!["run", "--config", &path],
            vec!["migrate", "status"],
        ] {
            let output = relay_on(&url, &command).await?;
            let place = format!("{} with {parameter} in the URL", command[0]);
            assert_eq!(output.status.code(), Some(2), "{place}: {output:?}");
            told.add(&place, String::from_utf8_lossy(&output.stderr));
            told.add(&place, String::from_utf8_lossy(&output.stdout));
        }
        let Err(error) = outbox::pool::<Postgres>(&url).await else { return Err("a pool was opened".into()) };
        told.error(parameter, &error);
    }
    Ok(())
}

/// Returns the broker's section with a password that it does not accept, or `None` for a broker
/// that accepts any.
fn stranger(broker: &dyn Broker, section: &str, canaries: &Canaries) -> Option<String> {
    let password = &canaries.password;
    match broker.backend() {
        Backend::Kafka => Some(format!(
            "{section}sasl = {{ mechanism = \"PLAIN\", username = \"u\", password = {password:?} }}\n"
        )),
        Backend::Rabbitmq => Some(section.replace("guest:guest@", &format!("guest:{password}@"))),
        _ => None,
    }
}

/// Checks that the search finds a leak.
pub(crate) async fn a_leak_is_found(_: Stage) -> Outcome {
    use base64::Engine as _;
    let canaries = Canaries::new();
    let payload = &canaries.payload;
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{{\"p\":\"{payload}\"}}"));
    for text in [format!("x {payload} y"), format!("{:?}", payload.as_bytes()), encoded] {
        let mut told = Told::default();
        told.add("here", text.as_str());
        assert_eq!(told.leaks(&canaries.all()).len(), 1, "{text}");
    }
    Ok(())
}
