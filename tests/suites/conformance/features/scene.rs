//! One row of features: a producer, relays, a broker in memory, consumers, and an operator of both
//! sides. The row determines the outcome of each message. The order of a key is checked unless a
//! feature waives that order.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brokers::memory::Broker;
use engine::{DeadPolicy, EngineOptions, Filter, Rule};
use futures_util::future::BoxFuture;
use idempotency::{ClaimOptions, Ending, IdempotencyKeys, KeyId, KeyOptions};
use inbox::{
    AfterDeadLetter, Backoff, Consumer, ConsumerBuilder, DeadLetterQuery, HandlerError, Inbox, InboxOptions,
    Reason, RedriveOptions, Signature, Tenant, Tx, UnknownKinds,
};
use message::{
    Fault, FaultScope, Fingerprint, MaxInFlightPerKey, Message, MessageId, PayloadEncoding, SizeLimit,
    Splitter, Topic,
};
use operate::replay::{ReplayFilter, ReplayOptions, plan};
use operate::{Operator, Places, Role, Signed};
use outbox::{NewMessage, Outbox};
use outbox_log::admin::{ChosenEntry, Decision, LogAdmin, OperatorDecision};
use outbox_log::{EntryId, ExceptionState, LogOptions, PauseScope, RelayName};
use outbox_toolkit::Relay;
use saga::{Run, SagaQuery, Sagas, Started, StepError, Stop, WorkerOptions};
use serde::{Deserialize, Serialize};
use tests::eventually::when;
use tests::relay_process::relay_on;
use tests::{Backend, Database, Dialect, Failure, Outcome, Stage, eventually};
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::FACTORS;
use super::transactions::Cluster;

const KEYS: u32 = 4;
const OF_EACH_KEY: u32 = 12;
/// The position, in the two keys below, of the message that the broker refuses or that its handler
/// cannot process.
const PLACE: u32 = 4;
const REFUSED_KEY: u32 = 2;
const FAILING_KEY: u32 = 3;
const LIMIT: SizeLimit = SizeLimit { destination: "the test", message_bytes_max: 2_000 };
const SOON: Backoff = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(20) };
const CONSUMER: &str = "billing";
const SAGA: &str = "follow-up";
/// The key of the effects of messages that sagas send.
const ANNOUNCED: u32 = KEYS + 1;
/// The keys whose sagas need an operator.
const RETRIED_KEY: u32 = 0;
const SKIPPED_KEY: u32 = 1;
const CANCELLED_KEY: u32 = 2;

/// The number of messages of each key that wait in an old table when it is adopted. Later ones go
/// through that table as well.
const ADOPTED_FROM: u32 = 3;
const OLD_TABLE: &str = "\
CREATE TABLE old_outbox (
    id text PRIMARY KEY, place bigserial, topic text NOT NULL, key text NOT NULL, kind text NOT NULL,
    tenant text NOT NULL, payload text NOT NULL, sent_at timestamptz
)";
const ADOPTION: &str = "\
[pipeline.adopt]
table = \"old_outbox\"
columns = { id = \"id\", topic = \"topic\", key = \"key\", kind = \"kind\", payload = \"payload\" }
headers = { tenant = \"tenant\" }
pending = \"sent_at\"
order_by = \"place\"
id_header = \"old-id\"
";

/// A row: for each factor, the index of its level.
struct Row(Vec<usize>);

impl Row {
    fn is(&self, factor: &str, level: &str) -> bool {
        let at = FACTORS.iter().position(|(name, _)| *name == factor).expect("a factor of this name");
        let (_, levels) = FACTORS[at];
        assert!(levels.contains(&level), "{factor} has no level {level}");
        levels[self.0[at]] == level
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FACTORS
            .iter()
            .zip(&self.0)
            .try_for_each(|((name, levels), level)| write!(f, "{name}: {}; ", levels[*level]))
    }
}

/// The payload of a message.
#[derive(Serialize, Deserialize)]
struct Order {
    key: u32,
    place: u32,
    fails: bool,
    padding: String,
}

/// Returns a handler that writes the effect of a message, unless it has to fail, and starts the
/// saga that follows.
fn applying<DB: Dialect>(
    sagas: Option<Sagas<DB>>,
) -> impl for<'t> Fn(&'t mut Tx<DB>, &'t Message) -> BoxFuture<'t, Result<(), HandlerError>> + Clone + Send + Sync
{
    move |tx, message| {
        let sagas = sagas.clone();
        Box::pin(async move {
            let (key, place) = applied(tx, message).await?;
            if let Some(sagas) = sagas.filter(|_| key != ANNOUNCED) {
                let started = sagas.start(tx, SAGA, &message.id.to_string(), &(key, place)).await?;
                if started != Started::Started {
                    return Err(HandlerError::reject(format!(
                        "a saga of an effect that is new: {started:?}"
                    )));
                }
            }
            Ok(())
        })
    }
}

/// Returns the message that a saga sends.
fn announcement(number: u32) -> NewMessage {
    let order = Order { key: ANNOUNCED, place: number, fails: false, padding: String::new() };
    NewMessage::new("a").kind("wanted").header("tenant", "t1").json(&order)
}

/// A saga of two steps. The second sends a message back to the consumer.
async fn follow_up<DB: Dialect>(saga: &mut Run<DB>, (key, place): (u32, u32)) -> Result<(), Stop> {
    let number = saga.step("number", async |_| Ok(key * OF_EACH_KEY + place)).await?;
    saga.step("announce", async |tx| {
        tx.enqueue(announcement(number)).await?;
        Ok(())
    })
    .await
}

/// A saga that may need an operator: its first step fails until it is retried after a change, or
/// until it is skipped, or the saga sleeps until it is cancelled. A cancelled one sends its message
/// when it is undone, so each sends one.
async fn decided_upon<DB: Dialect>(saga: &mut Run<DB>, (key, place): (u32, u32)) -> Result<(), Stop> {
    let number: u32 = saga
        .step("number", async |tx| {
            let opened = DB::integers(&mut **tx, "SELECT count(*) FROM opened").await?;
            match key {
                RETRIED_KEY if opened == [0] => Err(StepError::retry("the office is closed")),
                SKIPPED_KEY => Err(StepError::retry("the office does not know the number")),
                _ => Ok(key * OF_EACH_KEY + place),
            }
        })
        .undo(async |tx, number: &u32| {
            tx.enqueue(announcement(*number)).await?;
            Ok(())
        })
        .await?;
    if key == CANCELLED_KEY {
        saga.sleep("pause", Duration::from_secs(3_600)).await?;
    }
    saga.step("announce", async |tx| {
        tx.enqueue(announcement(number)).await?;
        Ok(())
    })
    .await
}

/// Writes the effect itself. Returns key and position of the order.
async fn applied<DB: Dialect>(tx: &mut Tx<DB>, message: &Message) -> Result<(u32, u32), HandlerError> {
    let order: Order = serde_json::from_slice(&message.payload)?;
    let healed = DB::integers(&mut **tx, "SELECT count(*) FROM healed").await?;
    if order.fails && healed == [0] {
        return Err(HandlerError::retry("there is no such price yet"));
    }
    // A message from the old table keeps its id of that table.
    let id = message.headers.get("old-id").map_or_else(|| message.id.to_string(), str::to_owned);
    let insert =
        format!("INSERT INTO effect (id, key, place) VALUES ('{id}', {}, {})", order.key, order.place);
    <DB as Dialect>::execute(&mut **tx, &insert).await?;
    Ok((order.key, order.place))
}

struct Scene<DB: Dialect> {
    row: Row,
    database: Database<DB>,
    broker: Broker,
    transactions: Cluster,
    inbox: Inbox<DB>,
    keys: IdempotencyKeys<DB>,
    sagas: Sagas<DB>,
    folder: PathBuf,
    /// The administration of each relay that has its own name.
    admins: Vec<(RelayName, Arc<dyn LogAdmin>)>,
}

/// A task, and the signal that stops it.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    async fn stop(mut self) -> Outcome {
        drop(self.stop.take());
        Ok(self.task.await?)
    }

    /// Aborts the task, as a crash would, without any shutdown.
    async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Goal: features that work alone work together. Oracle: each message has one effect if it should
/// have one, and otherwise none; keys keep their order; nothing is parked, dead or unsettled at the
/// end; the broker saw no violation.
pub(super) async fn plays<DB: Dialect>(stage: Stage, row: Vec<usize>) -> Outcome {
    let row = Row(row);
    let told = row.to_string();
    let scene = Scene::<DB>::open(&stage, row).await?;
    match scene.play().await {
        Ok(()) => Ok(()),
        Err(failure) => Err(format!("{told}\n{failure}\n{}", scene.left().await?).into()),
    }
}

impl<DB: Dialect> Scene<DB> {
    async fn open(stage: &Stage, row: Row) -> Result<Self, Failure> {
        let database = Database::<DB>::migrated(stage).await?;
        let identity = match DB::BACKEND {
            Backend::Sqlite => "INTEGER PRIMARY KEY",
            _ => "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        };
        database
            .execute(&format!(
                "CREATE TABLE effect (n {identity}, id text NOT NULL, key bigint NOT NULL, place bigint NOT NULL);
                 CREATE TABLE healed (at text);
                 CREATE TABLE opened (at text)"
            ))
            .await?;
        if row.is("producer", "into an adopted table") && DB::BACKEND == Backend::Postgres {
            database.execute(OLD_TABLE).await?;
        }
        let inbox = Inbox::open(database.admin.clone(), InboxOptions::default()).await?;
        let names = if row.is("relays", "divided by filters") { &["a", "b"][..] } else { &["all"] };
        let admins = names.iter().map(|name| {
            let source = message::Source::new("/test")?;
            Ok((
                RelayName::new(*name)?,
                outbox_log::admin::open(&database.url, source, LogOptions::default())?,
            ))
        });
        let admins = admins.collect::<Result<_, Failure>>()?;
        let broker = Broker::new();
        broker.create_group(CONSUMER, topics()?);
        let keys = IdempotencyKeys::open(database.admin.clone(), KeyOptions::default())
            .await?
            .with_outbox(Outbox::builder().limit(SizeLimit::CHUNKED).build());
        let mut options = WorkerOptions::default();
        options.poll_max = Duration::from_millis(20);
        let is_decided = row.is("sagas", "decided by operators");
        if is_decided {
            options.attempts_max = 3;
            options.backoff = SOON;
        }
        let sagas = Sagas::builder(database.admin.clone(), Outbox::new()).options(options);
        let sagas = if is_decided {
            sagas.saga(SAGA, 1, decided_upon::<DB>)
        } else {
            sagas.saga(SAGA, 1, follow_up::<DB>)
        };
        let sagas = sagas.open().await?;
        let folder = stage.folder().to_owned();
        let transactions = Cluster::new(broker.clone());
        Ok(Self { row, database, broker, transactions, inbox, keys, sagas, folder, admins })
    }

    /// Returns a connector for relays and operators.
    fn connector(&self) -> impl message::Connector + use<DB> {
        let window = if self.row.is("window of a key", "one") {
            MaxInFlightPerKey::One
        } else {
            MaxInFlightPerKey::Pipelined
        };
        self.broker.connector(window)
    }

    fn filter(&self, name: &RelayName) -> Result<Filter, Failure> {
        if !self.row.is("relays", "divided by filters") {
            return Ok(Filter::default());
        }
        let topics = vec![name.as_str().to_owned()];
        Ok(Filter::any_of(vec![Rule { topics, ..Rule::default() }])?)
    }

    fn splitter(&self) -> Option<Splitter> {
        let is_on = self.row.is("large messages", "in chunks");
        is_on.then_some(Splitter { limit: LIMIT, encoding: PayloadEncoding::Raw, chunked_bytes_max: 1 << 20 })
    }

    fn relay(&self, name: &RelayName) -> Result<Running, Failure> {
        let chunking = self.splitter();
        let passes = self.row.is("after a dead message", "pass");
        let settings = move |settings: &mut EngineOptions| {
            settings.lease_ttl = Duration::from_secs(2);
            settings.retry_initial = SOON.first;
            settings.retry_max = SOON.max;
            settings.attempts_max = 2;
            settings.page_entries = 7;
            settings.checkpoint_interval = Duration::from_millis(20);
            settings.on_dead = if passes { DeadPolicy::Pass } else { DeadPolicy::Hold };
            settings.chunking = chunking;
        };
        let builder = Relay::builder(self.database.url.as_str()).name(name.as_str());
        let builder = if self.row.is("publishing", "in transactions") {
            builder.transactions(self.transactions.connector(), LIMIT)
        } else {
            builder.connector(self.connector(), LIMIT)
        };
        let builder = builder.settings(settings);
        let relay = builder.filter(self.filter(name)?).build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(relay.run(async { drop(stopped.await) }));
        Ok(Running { stop: Some(stop), task })
    }

    fn consumer(&self) -> Result<Running, Failure> {
        let builder: ConsumerBuilder<DB> = Consumer::builder(self.inbox.clone(), CONSUMER);
        let mut builder = builder
            .on_message("wanted", applying(self.has_sagas().then(|| self.sagas.clone())))
            .subscribe(self.broker.subscriber(CONSUMER, topics()?))
            .attempts_max(2)
            .backoff(SOON)
            .redrive_interval(Some(Duration::from_millis(50)));
        if self.row.is("batches", "of four") {
            builder = builder.batch(4.try_into()?);
        }
        if self.row.is("after a dead letter", "the key is held") {
            builder = builder.after_dead_letter(AfterDeadLetter::HoldKey);
        }
        if self.row.is("unknown kinds", "skipped") {
            builder = builder.unknown_kinds(UnknownKinds::Skip);
        }
        if self.row.is("tenants", "two") {
            builder =
                builder.try_tenant(|message| Tenant::new(message.headers.get("tenant").unwrap_or_default()));
        }
        let consumer = builder.build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { drop(consumer.run(async { drop(stopped.await) }).await) });
        Ok(Running { stop: Some(stop), task })
    }

    /// Starts every relay of the row.
    fn relays(&self) -> Result<Vec<Running>, Failure> {
        let mut relays = Vec::new();
        for (name, _) in &self.admins {
            relays.push(self.relay(name)?);
        }
        if self.row.is("relays", "with a standby") {
            relays.push(self.relay(&self.admins[0].0)?);
        }
        Ok(relays)
    }

    async fn play(&self) -> Outcome {
        let expected = self.enqueue().await?;
        self.pause().await?;
        let mut relays = self.relays()?;
        let mut consumers = vec![self.consumer()?];
        if self.row.is("consumers", "two") {
            consumers.push(self.consumer()?);
        }
        let worker = self.worker();
        eventually("effects begin", || async { Ok(when(!self.effects().await?.is_empty())) }).await?;
        if self.row.is("crash of a relay", "one") {
            relays.remove(0).crash().await;
            relays.push(self.relay(&self.admins[0].0)?);
        }
        if self.row.is("crash of a consumer", "one") {
            consumers.remove(0).crash().await;
            consumers.push(self.consumer()?);
        }
        if self.is_rebased() {
            for relay in relays.drain(..) {
                relay.crash().await;
            }
            // As after a restore of the log into another cluster. The next relay repairs all
            // cursors.
            self.database.execute("UPDATE outbox_identity SET system_identifier = '1'").await?;
            relays = self.relays()?;
        }
        self.resume().await?;
        self.decided_until_done(&expected).await?;
        if self.row.is("replay by command", "of all") {
            self.replay().await?;
            self.decided_until_done(&expected).await?;
        }
        if self.row.is("copies", "all again") {
            for topic in topics()? {
                self.broker.replay(&topic);
            }
            self.decided_until_done(&expected).await?;
        }
        if self.has_retention() {
            self.expire_all().await?;
        }
        for running in consumers.into_iter().chain(relays).chain([worker]) {
            running.stop().await?;
        }
        self.compare(&expected).await
    }

    /// Enqueues everything. Returns the ids of the messages that should have an effect.
    async fn enqueue(&self) -> Result<BTreeSet<String>, Failure> {
        let is_refused = !self.row.is("message that the broker refuses", "none");
        let fails = !self.row.is("message that its handler cannot do", "none");
        let mut expected = BTreeSet::new();
        for place in 0..OF_EACH_KEY {
            if place == ADOPTED_FROM && self.is_adopted() {
                self.adopt().await?;
            }
            let (mut messages, mut rows) = (Vec::new(), Vec::new());
            for key in 0..KEYS {
                let is_wanted = place % 5 != 2;
                let is_chosen = |chosen| (key, place) == (chosen, PLACE);
                let is_large = self.row.is("large messages", "in chunks") && place % 4 == 3;
                let order = Order {
                    key,
                    place,
                    fails: fails && is_chosen(FAILING_KEY),
                    padding: "x".repeat(if is_large { 5_000 } else { 10 }),
                };
                let id = MessageId::new();
                let (topic, key_name) = (["a", "b"][key as usize % 2], format!("key-{key}"));
                let kind = if is_wanted { "wanted" } else { "unwanted" };
                let tenant = ["t1", "t2"][key as usize / 2];
                if is_refused && is_chosen(REFUSED_KEY) {
                    self.broker.faults().refuse_id(id, Fault::Message, FaultScope::Message);
                    self.transactions.refuse(id);
                }
                let is_given_up = (self.row.is("message that the broker refuses", "discarded")
                    && is_chosen(REFUSED_KEY))
                    || (self.row.is("message that its handler cannot do", "discarded")
                        && is_chosen(FAILING_KEY));
                if is_wanted && !is_given_up {
                    expected.insert(id.to_string());
                }
                // The database assigns the message id of a row, so the test cannot make the broker
                // refuse it by its id.
                if self.is_adopted() && !(is_refused && is_chosen(REFUSED_KEY)) {
                    let payload = serde_json::to_string(&order)?;
                    rows.push(format!(
                        "INSERT INTO old_outbox (id, topic, key, kind, tenant, payload) \
                         VALUES ('{id}', '{topic}', '{key_name}', '{kind}', '{tenant}', '{payload}')"
                    ));
                } else {
                    let message = NewMessage::new(topic).id(id).key(key_name).kind(kind);
                    messages.push(message.header("tenant", tenant).json(&order));
                }
            }
            if self.row.is("scheduled messages", "some") && place % 4 == 0 {
                let order = Order { key: KEYS, place, fails: false, padding: String::new() };
                let id = MessageId::new();
                let at = OffsetDateTime::now_utc() + Duration::from_millis(300 + 50 * u64::from(place));
                let message = NewMessage::new("a").id(id).kind("wanted").header("tenant", "t1").json(&order);
                messages.push(message.deliver_at(at));
                expected.insert(id.to_string());
            }
            self.store(place, messages, &rows).await?;
        }
        Ok(expected)
    }

    /// Stores the messages of one request, and repeats the request where it has a key.
    async fn store(&self, place: u32, messages: Vec<NewMessage>, rows: &[String]) -> Outcome {
        let outbox = Outbox::<DB>::builder().limit(SizeLimit::CHUNKED).build();
        let id = KeyId::of_texts("shop", "place", &place.to_string())?;
        let (asked, options) = (Fingerprint::of_parts("place", "", b""), ClaimOptions::default());
        if self.row.is("producer", "under a held key") {
            let mut tx = self.keys.begin(&id, asked, &options).await?.acquired().ok_or("a new key")?;
            for message in messages {
                tx.enqueue(message).await?;
            }
            tx.commit(Ending::Succeeded, b"").await?;
            let again = self.keys.begin(&id, asked, &options).await?;
            return again.acquired().map_or(Ok(()), |_| Err("a key was held twice".into()));
        }
        let is_leased = self.row.is("producer", "under a leased key");
        let claim = if is_leased {
            Some(self.keys.claim(&id, asked, &options).await?.acquired().ok_or("a new key")?)
        } else {
            None
        };
        let mut tx = outbox.begin(&self.database.admin).await?;
        for row in rows {
            <DB as Dialect>::execute(tx.connection(), row).await?;
        }
        for message in messages {
            tx.enqueue(message).await?;
        }
        tx.commit().await?;
        let Some(claim) = claim else { return Ok(()) };
        claim.complete(Ending::Succeeded, b"").await?;
        let again = self.keys.claim(&id, asked, &options).await?;
        again.acquired().map_or(Ok(()), |_| Err("a key was leased twice".into()))
    }

    /// Returns whether the log comes from another server, which only PostgreSQL notices. A relay
    /// that publishes in transactions refuses such a log until it starts over.
    fn is_rebased(&self) -> bool {
        self.row.is("log", "of another server")
            && self.row.is("publishing", "by confirmations")
            && DB::BACKEND == Backend::Postgres
    }

    fn has_retention(&self) -> bool {
        self.row.is("retention", "of all that has left")
    }

    /// Removes all messages that every relay has passed, however young they are.
    async fn expire(&self) -> Outcome {
        let source = message::Source::new("/test")?;
        let retention = outbox_log::retention::open(&self.database.url, source, LogOptions::default())?;
        retention.expire(Duration::ZERO).await?;
        Ok(())
    }

    /// Removes the whole log, which every relay has passed.
    async fn expire_all(&self) -> Outcome {
        eventually("retention has removed the log", || async {
            self.expire().await?;
            Ok(when(self.database.integer("SELECT count(*) FROM outbox_message").await? == 0))
        })
        .await
    }

    /// Returns whether messages go into an adopted table, which only PostgreSQL supports.
    fn is_adopted(&self) -> bool {
        self.row.is("producer", "into an adopted table") && DB::BACKEND == Backend::Postgres
    }

    /// Adopts the old table with its waiting rows.
    async fn adopt(&self) -> Outcome {
        let text = format!(
            "[[pipeline]]\nname = {:?}\n[pipeline.database]\nurl = {:?}\n\
             [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n{ADOPTION}",
            self.admins[0].0.as_str(),
            self.database.url
        );
        let path = self.folder.join("adopt.toml");
        std::fs::write(&path, text)?;
        let path = path.to_str().ok_or("the path is not UTF-8")?;
        let signed = ["--actor", "ann", "--note", "a test", "--output", "json"];
        let output =
            relay_on(&self.database.url, &[&["adopt", "over", "--config", path], &signed[..]].concat())
                .await?;
        if !output.status.success() {
            return Err(
                format!("the table was not adopted: {}", String::from_utf8_lossy(&output.stderr)).into()
            );
        }
        let adopted: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(adopted["imported"], ADOPTED_FROM * KEYS, "{adopted}");
        Ok(())
    }

    /// Sends all published messages again, as an operator does.
    async fn replay(&self) -> Outcome {
        let operator = Operator::new("ann", Role::Operator);
        let signed = Signed { operator: operator.clone(), note: String::from("a test") };
        for (name, _) in &self.admins {
            let url = &self.database.url;
            // The relays connect to the scene's own broker.
            let mut pipeline = crate::outbox::support::pipeline(name, url);
            pipeline.settings.filter = self.filter(name)?;
            pipeline.settings.chunking = self.splitter();
            let places = Places::new().outbox(&pipeline).connected_to(Arc::new(self.connector()));
            let planned = plan(&places, &operator, &ReplayFilter::default()).await?;
            if planned.chosen == 0 && self.has_retention() {
                continue;
            }
            let report = planned.carry_out(&places, &signed, &ReplayOptions::default(), |_| ()).await?;
            if let Some(error) = report.error {
                return Err(format!("the replay of {}: {error}", name.as_str()).into());
            }
            assert!(report.published > 0 && report.published == planned.chosen, "{report:?}");
        }
        Ok(())
    }

    fn has_sagas(&self) -> bool {
        !self.row.is("sagas", "none")
    }

    fn worker(&self) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let sagas = self.sagas.clone();
        let task = tokio::spawn(async move { sagas.run(async { drop(stopped.await) }).await });
        Running { stop: Some(stop), task }
    }

    /// Returns the final number of effects: one for each message, and one for the message that its
    /// saga sends.
    fn effects_len(&self, expected: &BTreeSet<String>) -> usize {
        expected.len() * if self.has_sagas() { 2 } else { 1 }
    }

    fn paused(&self) -> Option<PauseScope> {
        if self.row.is("pause", "a topic") {
            Some(PauseScope::Topic(String::from("b")))
        } else {
            self.row.is("pause", "a key").then(|| PauseScope::Key(String::from("key-1")))
        }
    }

    async fn pause(&self) -> Outcome {
        let Some(scope) = self.paused() else { return Ok(()) };
        for (name, admin) in &self.admins {
            admin.pause(name, &scope, "ann", "a test").await?;
        }
        Ok(())
    }

    async fn resume(&self) -> Outcome {
        let Some(scope) = self.paused() else { return Ok(()) };
        for (name, admin) in &self.admins {
            admin.resume(name, &scope, None, "ann", "a test").await?;
        }
        Ok(())
    }

    /// Decides about dead messages as an operator does, until every message is done.
    async fn decided_until_done(&self, expected: &BTreeSet<String>) -> Outcome {
        eventually("every message is done with", || async {
            if self.has_retention() {
                // Another session may have the log's lock. Then the next call removes the rows.
                let _ = self.expire().await;
            }
            let has_ended = self.decide_about_sagas().await?;
            let is_quiet =
                self.decide_about_parked().await? && self.decide_about_letters().await? && has_ended;
            let is_done = self.effects().await?.iter().map(|(id, ..)| id).collect::<BTreeSet<_>>().len()
                >= self.effects_len(expected);
            Ok(when(is_quiet && is_done && self.broker.is_drained() && self.is_passed().await?))
        })
        .await
    }

    /// Returns whether every relay has passed the whole outbox.
    async fn is_passed(&self) -> Result<bool, Failure> {
        for (name, admin) in &self.admins {
            let relays = admin.relays().await?;
            let relay = relays.iter().find(|relay| relay.relay == name.as_str());
            if relay.ok_or("a relay without a row")?.exceptions.values().sum::<u64>() > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Requeues or discards the messages that the broker refused. Returns whether no message was
    /// dead.
    async fn decide_about_parked(&self) -> Result<bool, Failure> {
        let mut is_quiet = true;
        for (name, admin) in &self.admins {
            let dead = admin.list(name, ExceptionState::Dead, EntryId(0), 100).await?;
            if dead.is_empty() {
                continue;
            }
            is_quiet = false;
            let decision = if self.row.is("message that the broker refuses", "discarded") {
                Decision::Discard
            } else {
                self.broker.faults().heal();
                self.transactions.heal();
                Decision::Requeue
            };
            let (actor, note) = (String::from("ann"), String::from("a test"));
            let decree = OperatorDecision { decision, signature: Signature::new(actor, note) };
            let chosen: Vec<_> = dead.iter().map(ChosenEntry::from).collect();
            for verdict in admin.decide(name, &chosen, decree).await? {
                verdict?;
            }
        }
        Ok(is_quiet)
    }

    /// Redrives or discards dead letters that wait for a decision. Returns whether no dead letter
    /// was open.
    async fn decide_about_letters(&self) -> Result<bool, Failure> {
        let letters = self.inbox.dead_letters(&DeadLetterQuery::default()).await?;
        let is_quiet = letters.is_empty();
        let by = Signature { actor: String::from("ann"), note: String::from("a test"), selection: None };
        for letter in &letters {
            let is_wanted = letter.kind.as_deref() == Some("wanted");
            // A held message is released automatically. A message of an unknown kind waits for a
            // process that knows it.
            if letter.reason == Reason::Held && (is_wanted || self.row.is("unknown kinds", "skipped")) {
                continue;
            }
            if is_wanted && !self.row.is("message that its handler cannot do", "discarded") {
                self.database.execute("INSERT INTO healed VALUES ('now')").await?;
                drop(self.inbox.request_redrive(letter.id, RedriveOptions::default(), &by).await);
            } else {
                self.inbox.discard(letter.id, &by).await?;
            }
        }
        Ok(is_quiet)
    }

    /// Retries, skips and cancels sagas that wait for a decision. Returns whether every saga has
    /// ended.
    async fn decide_about_sagas(&self) -> Result<bool, Failure> {
        let by = Signature { actor: String::from("ann"), note: String::from("a test"), selection: None };
        let open = self.sagas.list(&SagaQuery::open(100.try_into()?)).await?;
        for outline in &open {
            let waits_for = outline.waits_for.as_deref();
            if outline.stuck_at.is_none() && waits_for != Some("pause") {
                continue;
            }
            let Some((saga, _)) = self.sagas.show(&outline.id).await? else { continue };
            let [key, place]: [u32; 2] = serde_json::from_str(&saga.input)?;
            // A decision that comes too late is made again, or is no longer needed.
            if outline.stuck_at.is_none() {
                drop(self.sagas.cancel(&outline.id, &by).await);
            } else if key == SKIPPED_KEY {
                let number = serde_json::Value::from(key * OF_EACH_KEY + place);
                drop(self.sagas.skip(&outline.id, "number", Some(&number), &by).await);
            } else {
                self.database.execute("INSERT INTO opened VALUES ('now')").await?;
                drop(self.sagas.retry(&outline.id, &by).await);
            }
        }
        Ok(open.is_empty())
    }

    /// Describes everything unfinished, to explain a failure.
    async fn left(&self) -> Result<String, Failure> {
        let mut left = format!("effects: {:?}\n", self.effects().await?);
        for letter in self.inbox.dead_letters(&DeadLetterQuery::default()).await? {
            let payload = String::from_utf8_lossy(&letter.payload);
            let (kind, reason) = (&letter.kind, &letter.reason);
            left.push_str(&format!("dead letter: {payload:.40} {kind:?} {reason:?} {}\n", letter.error));
        }
        for decision in self.inbox.decisions(20.try_into()?).await? {
            left.push_str(&format!("{decision:?}\n"));
        }
        for (name, admin) in &self.admins {
            let statuses = admin.relays().await?;
            left.push_str(&format!(
                "{name:?}: {:?}\n",
                statuses.iter().map(|one| &one.exceptions).collect::<Vec<_>>()
            ));
        }
        left.push_str(&format!("the broker is drained: {}", self.broker.is_drained()));
        Ok(left)
    }

    /// Returns ids, keys and places, in the order of the effects.
    async fn effects(&self) -> Result<Vec<(String, u32, u32)>, Failure> {
        let rows =
            self.database.texts("SELECT id || ' ' || key || ' ' || place FROM effect ORDER BY n").await?;
        let parse = |row: &String| -> Result<_, Failure> {
            let mut parts = row.split(' ');
            let mut next = || parts.next().ok_or("a short row");
            Ok((next()?.to_owned(), next()?.parse()?, next()?.parse()?))
        };
        rows.iter().map(parse).collect()
    }

    async fn compare(&self, expected: &BTreeSet<String>) -> Outcome {
        let effects = self.effects().await?;
        let mut times = BTreeMap::<&str, u32>::new();
        for (id, ..) in &effects {
            *times.entry(id).or_default() += 1;
        }
        let doubled: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert!(doubled.is_empty(), "effects of one message: {doubled:?}");
        let (announced, effects): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|(_, key, _)| *key == ANNOUNCED);
        if self.has_sagas() {
            let mut of_sagas: Vec<u32> = announced.iter().map(|(.., number)| *number).collect();
            let mut of_effects: Vec<u32> =
                effects.iter().map(|(_, key, place)| key * OF_EACH_KEY + place).collect();
            of_sagas.sort_unstable();
            of_effects.sort_unstable();
            assert_eq!(of_sagas, of_effects, "effects of what sagas sent, and those that began a saga");
        }
        let found: BTreeSet<String> = effects.iter().map(|(id, ..)| id.clone()).collect();
        assert_eq!(found, *expected, "effects, and messages that were to have one");
        for key in 0..KEYS {
            if self.keeps_order_of(key) {
                let of_key = effects.iter().filter(|(_, other, _)| *other == key);
                let places: Vec<u32> = of_key.map(|(_, _, place)| *place).collect();
                assert!(places.is_sorted(), "key {key}: {places:?}");
            }
        }
        assert_eq!(self.broker.violations(), Vec::<String>::new());
        let is_once =
            self.row.is("publishing", "in transactions") && self.row.is("replay by command", "none");
        let mut seen = BTreeSet::new();
        for message in topics()?.iter().flat_map(|topic| self.broker.log(topic)) {
            let is_new = seen.insert((message.id, format!("{:?}", message.chunk)));
            assert!(is_new || !is_once, "{} was committed twice", message.id);
        }
        Ok(())
    }

    /// Returns whether every feature of the row keeps the order of this key.
    fn keeps_order_of(&self, key: u32) -> bool {
        let is_passed = self.row.is("after a dead message", "pass")
            && self.row.is("message that the broker refuses", "requeued")
            && key == REFUSED_KEY;
        let is_left = self.row.is("after a dead letter", "the key goes on")
            && self.row.is("message that its handler cannot do", "redriven")
            && key == FAILING_KEY;
        !is_passed && !is_left
    }
}

fn topics() -> Result<Vec<Topic>, Failure> {
    ["a", "b"].into_iter().map(|topic| Ok(Topic::new(topic)?)).collect()
}
