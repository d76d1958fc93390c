//! Tables of frameworks, with quoted names and messages inside envelopes.

mod kinds;

use std::time::Duration;

use harness::plain::PlainRecord;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool, Postgres};
use tests::brokers::Broker;
use tests::facts::{Fact, Order, all_stored};
use tests::relay_process::Config;
use tests::{Backend, Database, Failure, Outcome, RelayProcess, Role, Stage, brokers, eventually};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{ACCOUNTS, RELAY, Writers, adopted, at_least, placed};
use crate::commands::Ran;
use kinds::{FRAMEWORKS, Framework};

/// The framework's own delivery. It sends waiting messages in batches and marks them as sent.
struct Delivery {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Vec<Fact>, Failure>>,
}

impl Delivery {
    fn start(pool: &PgPool, framework: &'static Framework, topic: &str) -> Self {
        let (stop, stopped) = watch::channel(false);
        let pool = pool.clone();
        let payloads = framework.text(framework.deliver, topic);
        let delivered: Vec<String> =
            framework.delivered.iter().map(|sql| framework.text(sql, topic)).collect();
        let task = tokio::spawn(async move {
            let mut sent = Vec::new();
            while !*stopped.borrow() {
                // No other process delivers, and no row gets in between the statements. The
                // framework itself has in memory what it has read.
                let mut tx = pool.begin().await?;
                let lock = format!("LOCK TABLE {} IN EXCLUSIVE MODE", framework.messages());
                sqlx::query(AssertSqlSafe(lock)).execute(&mut *tx).await?;
                let batch: Vec<Vec<u8>> =
                    sqlx::query_scalar(AssertSqlSafe(payloads.clone())).fetch_all(&mut *tx).await?;
                for payload in &batch {
                    sent.push(fact(payload)?);
                }
                for statement in &delivered {
                    sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut *tx).await?;
                }
                tx.commit().await?;
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
            Ok(sent)
        });
        Self { stop, task }
    }

    /// Stops the delivery after its current batch. Returns what it sent.
    async fn stop(self) -> Result<Vec<Fact>, Failure> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

/// Returns a message as a fact, with or without MassTransit's envelope around it.
fn fact(payload: &[u8]) -> Result<Fact, Failure> {
    let value: Value = serde_json::from_slice(payload)?;
    super::fact(value.get("message").unwrap_or(&value).to_string().as_bytes())
}

/// Goal: producers that use a framework continue without a change while its table goes to the relay
/// and back. The framework's delivery finds no handed-over row, and no message comes twice or too
/// early. Oracle: the checker, over the messages that the delivery sent before and after and the
/// contents of Kafka; each message of the outbox; the rows that are left.
pub(super) async fn go_over_and_back(stage: Stage) -> Outcome {
    let broker = brokers::open(&stage, Backend::Kafka).await?;
    let all = FRAMEWORKS.iter().enumerate().map(async |(number, framework)| {
        let topic = broker.topic_name(&format!("accounts-{number}"));
        let went = goes_over_and_back(&stage, broker.as_ref(), framework, topic).await;
        went.map_err(|failure| Failure::from(format!("{}: {failure}", framework.name)))
    });
    futures_util::future::try_join_all(all).await?;
    Ok(())
}

async fn goes_over_and_back(
    stage: &Stage,
    broker: &dyn Broker,
    framework: &'static Framework,
    topic: String,
) -> Outcome {
    broker.create_topic(&topic).await?;
    let database = Database::<Postgres>::migrated(stage).await?;
    let own = |text: &str| framework.text(text, &topic);
    database.execute(&format!("{ACCOUNTS}{}", own(framework.tables))).await?;
    database.let_use(Role::Producer, &format!("account, placed, {}", framework.granted)).await?;
    let schemas = "DO $$ BEGIN IF to_regnamespace('cap') IS NOT NULL THEN GRANT USAGE ON SCHEMA cap TO PUBLIC; \
                   END IF; END $$";
    database.execute(schemas).await?;
    let config = Config::write(stage, RELAY, &database.relay_url()?, broker, &own(framework.section))?;
    let owner = database.url.clone();
    let insert: Vec<String> = framework.insert.iter().map(|sql| own(sql)).collect();
    let left = own(framework.left);
    let writers = Writers::start(&database.producer, &insert);

    // The framework's own delivery runs, and then there is a time without any delivery.
    let delivery = Delivery::start(&database.admin, framework, &topic);
    at_least(&database, "SELECT count(*) FROM placed", 40).await?;
    let before = delivery.stop().await?;
    at_least(&database, &left, 30).await?;

    // The handover to the relay.
    let over = adopted(&config, &owner, "over", 0).await?;
    let imported = over["imported"].as_i64().ok_or("no number of rows")?;
    assert!(over["outcome"] == "adopted" && imported >= 30, "{over}");
    assert_eq!(adopted(&config, &owner, "over", 0).await?["outcome"], "unchanged");
    let relay = RelayProcess::start(stage, &config)?;
    broker.drain(&topic, usize::try_from(imported)? + 40).await?;

    // The framework's processes still run, and may write about messages that they could not send.
    database.execute(&own(framework.late)).await?;
    let idle = Delivery::start(&database.admin, framework, &topic);
    at_least(&database, "SELECT count(*) FROM outbox_message", imported + 80).await?;
    assert_eq!(idle.stop().await?, [], "handed over, and sent by the framework as well");
    assert_eq!(database.integer(&left).await?, 0, "nothing waits for the framework");
    let status = adopted(&config, &owner, "status", 0).await?;
    assert_eq!((&status["state"], &status["waiting"]), (&"adopted".into(), &0.into()), "{status}");
    relay.stop().await?;

    // The handover back to the framework.
    assert_eq!(adopted(&config, &owner, "back", 0).await?["outcome"], "given back");
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    let handed_over = database.integer("SELECT count(*) FROM outbox_message").await?;
    at_least(&database, &left, 20).await?;
    let delivery = Delivery::start(&database.admin, framework, &topic);
    writers.stop().await?;
    eventually("the framework has sent everything", || async {
        Ok((database.integer(&left).await? == 0).then_some(()))
    })
    .await?;
    let after = delivery.stop().await?;

    let records = broker.drain(&topic, usize::try_from(handed_over)?).await?;
    assert_eq!(records.len(), usize::try_from(handed_over)?, "{}", framework.name);
    let mut relayed = Vec::new();
    for record in &records {
        let fact = fact(&record.payload)?;
        as_expected(framework, record, &fact, &topic)?;
        relayed.push(fact);
    }
    let all = [before, relayed, after].concat();
    let committed = placed(&database.admin).await?;
    assert_eq!(all.len(), committed.len(), "no copy");
    all_stored(&committed, &all, Order::PerKey)?;
    rows_of_others(&database, framework, committed.len()).await
}

/// Checks that a Kafka record is the message that the section makes of its row.
fn as_expected(framework: &Framework, record: &PlainRecord, fact: &Fact, topic: &str) -> Outcome {
    let expected = &framework.expected;
    let header = |name: &str| record.header(name);
    let old_id = header(expected.id_header).ok_or("no old id")?;
    let payload = String::from_utf8(record.payload.clone())?;
    let (key, seq) = (&fact.key, fact.seq);
    let begins = expected.payload.replace("{key}", key).replace("{seq}", &seq.to_string());
    let mut free: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    free.retain(|name| !name.starts_with("ce_") && *name != "content-type");
    free.sort_unstable();
    let is_right = record.key.as_deref() == Some(key)
        && header("ce_type") == Some(expected.kind)
        && header("content-type") == Some(expected.content_type)
        && free == expected.headers
        && payload.starts_with(&begins.replace("{id}", old_id))
        && header("cap-msg-name").is_none_or(|name| name == topic);
    if is_right { Ok(()) } else { Err(format!("{record:?} is not as expected: {begins}").into()) }
}

/// Checks that publications to other listeners are untouched.
async fn rows_of_others(database: &Database<Postgres>, framework: &Framework, committed: usize) -> Outcome {
    if framework.granted == "event_publication" {
        let others = "SELECT count(*) FROM event_publication
            WHERE listener_id = 'shop.Bookkeeping.on(shop.AccountChanged)' AND completion_date IS NULL";
        assert_eq!(database.integer(others).await?, i64::try_from(committed)?);
    }
    Ok(())
}
