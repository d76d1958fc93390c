//! A relay whose server's clock is wrong by days for a while.

use std::time::Duration;

use brokers::memory::Broker;
use engine::EngineOptions;
use message::{Fault, FaultScope, MaxInFlightPerKey, MessageId, SizeLimit, Source, Topic};
use outbox::{NewMessage, Outbox, Signature};
use outbox_log::admin::{self, ChosenEntry, Decision, OperatorDecision};
use outbox_log::{EntryId, ExceptionState, LogOptions, RelayName, retention};
use outbox_toolkit::Relay;
use sqlx::Postgres;
use tests::eventually::when;
use tests::{Cluster, Database, Failure, Outcome, Stage, eventually};
use time::OffsetDateTime;
use tokio::task::JoinHandle;

use super::{DAY, set_clock};

tests::cases! { "clocks/{on}/{case}":
    night postgres + xtask {
        a_relay_keeps_order_and_history_through_days_ahead_and_back = days_ahead_and_back,
    }
}

const RELAY: &str = "main";
const TOPIC: &str = "orders";
const ONE_DAY: Duration = Duration::from_secs(86_400);
/// The statement in docs/operations/histories.md that the tables' owner runs once the clock is
/// right again.
const MAKE_DUE: &str = "UPDATE outbox_exception SET due_at = now() WHERE state IN ('retrying', 'discarded') \
    AND due_at > now() + interval '1 day'";

/// A log, a relay's broker, and the names of messages.
struct Scene {
    database: Database<Postgres>,
    broker: Broker,
    topic: Topic,
}

impl Scene {
    /// Starts a relay. It retries a message once, within a day.
    fn relay(&self) -> Result<JoinHandle<()>, Failure> {
        let limit = SizeLimit { destination: "the test", message_bytes_max: 1 << 20 };
        let settings = |settings: &mut EngineOptions| {
            settings.lease_ttl = Duration::from_secs(2);
            settings.retry_initial = ONE_DAY;
            settings.retry_max = ONE_DAY;
            settings.attempts_max = 2;
            settings.checkpoint_interval = Duration::from_millis(20);
        };
        let builder = Relay::builder(self.database.url.as_str()).name(RELAY);
        let builder = builder.connector(self.broker.connector(MaxInFlightPerKey::One), limit);
        let relay = builder.settings(settings).build()?;
        Ok(tokio::spawn(relay.run(std::future::pending())))
    }

    async fn enqueue(&self, message: NewMessage) -> Outcome {
        let mut tx = Outbox::new().begin(&self.database.service).await?;
        tx.enqueue(message).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Enqueues a message that the broker refuses until it is healed.
    async fn enqueue_refused(&self, name: &str, key: &str) -> Outcome {
        let id = MessageId::new();
        self.broker.faults().refuse_id(id, Fault::Message, FaultScope::Message);
        self.enqueue(named(name).id(id).key(key)).await
    }

    /// Returns the names of the messages at the broker, in their order.
    fn names(&self) -> Result<Vec<String>, Failure> {
        let published = self.broker.log(&self.topic);
        published.iter().map(|message| Ok(serde_json::from_slice(&message.payload)?)).collect()
    }

    /// Waits until a message is at the broker.
    async fn has_left(&self, name: &str) -> Outcome {
        eventually(&format!("the message {name} has left"), || async {
            Ok(when(self.names()?.iter().any(|left| left == name)))
        })
        .await
    }

    /// Waits until this many messages are parked in a state.
    async fn are_parked(&self, state: &str, messages: i64) -> Outcome {
        let count = format!("SELECT count(*) FROM outbox_exception WHERE state = '{state}'");
        eventually(&format!("{messages} messages are {state}"), || async {
            Ok(when(self.database.integer(&count).await? == messages))
        })
        .await
    }

    /// Removes the history that is older than a day. Returns the number of rows that stay.
    async fn rows_after_retention(&self) -> Result<i64, Failure> {
        let options = LogOptions::default();
        let retention = retention::open(&self.database.url, Source::new("/main")?, options)?;
        retention.expire(ONE_DAY).await?;
        self.database.integer("SELECT count(*) FROM outbox_message").await
    }

    /// Requeues every dead message, as an operator does.
    async fn requeue(&self) -> Outcome {
        let admin = admin::open(&self.database.url, Source::new("/main")?, LogOptions::default())?;
        let relay = RelayName::new(RELAY)?;
        let dead = admin.list(&relay, ExceptionState::Dead, EntryId(0), 10).await?;
        let chosen: Vec<_> = dead.iter().map(ChosenEntry::from).collect();
        let signature = Signature::new(String::from("ann"), String::from("a test"));
        let decree = OperatorDecision { decision: Decision::Requeue, signature };
        for verdict in admin.decide(&relay, &chosen, decree).await? {
            verdict?;
        }
        Ok(())
    }
}

/// Returns a message whose payload is its name.
fn named(name: &str) -> NewMessage {
    NewMessage::new(TOPIC).kind("order.placed").json(&name)
}

/// Ends a relay as a crash does.
async fn crash(relay: JoinHandle<()>) {
    relay.abort();
    drop(relay.await);
}

/// Goal: while the server's clock is three days ahead, a relay keeps its lease, publishes, reads
/// what is due, and holds what waits behind another message; nothing that is young by the machine's
/// clock is removed. Once the clock is right, another relay takes the lease from the future after
/// its length, retries from that period become due by the documented statement, and every key keeps
/// its order. Oracle: the messages at the broker, the states of parked ones, the rows of the log.
async fn days_ahead_and_back(stage: Stage) -> Outcome {
    let cluster = Cluster::start_with_clock(&stage).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let topic = Topic::new(TOPIC)?;
    let broker = Broker::new();
    broker.create_group("watch", [topic.clone()]);
    let scene = Scene { database, broker, topic };
    let relay = scene.relay()?;
    scene.enqueue(named("first")).await?;
    scene.has_left("first").await?;
    scene.enqueue_refused("dead", "a").await?;
    scene.are_parked("retrying", 1).await?;
    scene.enqueue(named("behind the dead").key("a")).await?;
    scene.are_parked("held", 1).await?;
    let in_two_days = OffsetDateTime::now_utc() + 2 * ONE_DAY;
    scene.enqueue(named("scheduled").deliver_at(in_two_days)).await?;
    scene.are_parked("scheduled", 1).await?;

    set_clock(&cluster, &scene.database, 3 * DAY).await?;
    scene.has_left("scheduled").await?;
    scene.are_parked("dead", 1).await?;
    scene.enqueue(named("ahead")).await?;
    scene.has_left("ahead").await?;
    scene.enqueue_refused("later", "b").await?;
    scene.are_parked("retrying", 1).await?;
    scene.enqueue(named("behind the later").key("b")).await?;
    scene.are_parked("held", 2).await?;
    assert_eq!(scene.rows_after_retention().await?, 7, "history was removed by one clock");
    crash(relay).await;

    set_clock(&cluster, &scene.database, 0).await?;
    let relay = scene.relay()?;
    scene.enqueue(named("back")).await?;
    scene.has_left("back").await?;
    let far = "SELECT count(*) FROM outbox_exception WHERE state = 'retrying' AND due_at > now() + interval '1 day'";
    assert_eq!(scene.database.integer(far).await?, 1, "it is due by the clock that was ahead");
    let mut left = scene.names()?;
    left.sort_unstable();
    left.dedup();
    assert_eq!(left, ["ahead", "back", "first", "scheduled"]);

    scene.broker.faults().heal();
    scene.database.execute(MAKE_DUE).await?;
    crash(relay).await;
    let relay = scene.relay()?;
    scene.has_left("behind the later").await?;
    scene.requeue().await?;
    scene.has_left("behind the dead").await?;
    eventually("nothing is parked", || async {
        Ok(when(scene.database.integer("SELECT count(*) FROM outbox_exception").await? == 0))
    })
    .await?;
    let names = scene.names()?;
    let place = |name: &str| names.iter().position(|left| left == name);
    for [first, second] in [["dead", "behind the dead"], ["later", "behind the later"]] {
        assert!(place(first).is_some() && place(first) < place(second), "{names:?}");
    }
    assert_eq!(scene.rows_after_retention().await?, 8, "history was removed too early");
    crash(relay).await;
    Ok(())
}
