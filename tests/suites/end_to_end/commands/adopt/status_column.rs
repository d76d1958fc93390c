//! A table with a status column that a poller reads.

use sqlx::{PgPool, Postgres};
use tests::facts::{Fact, Order, all_stored};
use tests::relay_process::Config;
use tests::{Backend, Database, Failure, Outcome, RelayProcess, Role, Stage, brokers, eventually};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{ACCOUNTS, RELAY, Writers, adopt, adopted, at_least, fact, placed};
use crate::commands::{Ran, column};

const TABLE: &str = "\
CREATE TABLE event_outbox (
    id           bigserial   PRIMARY KEY,
    topic        text        NOT NULL,
    aggregate_id text        NOT NULL,
    type         text        NOT NULL,
    payload      jsonb       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    sent_at      timestamptz
);";

const SECTION: &str = "\
[pipeline.adopt]
table = \"event_outbox\"
columns = { topic = \"topic\", key = \"aggregate_id\" }
pending = \"sent_at\"
";

/// The old relay: reads waiting rows in the order of ids, and marks them.
struct Poller {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Vec<Fact>, Failure>>,
}

impl Poller {
    fn start(pool: &PgPool) -> Self {
        let (stop, stopped) = watch::channel(false);
        let pool = pool.clone();
        let task = tokio::spawn(async move {
            let mut sent = Vec::new();
            while !*stopped.borrow() {
                let rows: Vec<(Vec<u8>,)> = sqlx::query_as(
                    "WITH marked AS (UPDATE event_outbox SET sent_at = clock_timestamp() WHERE id IN
                        (SELECT id FROM event_outbox WHERE sent_at IS NULL ORDER BY id LIMIT 50)
                        RETURNING id, payload)
                     SELECT convert_to(payload::text, 'UTF8') FROM marked ORDER BY id",
                )
                .fetch_all(&pool)
                .await?;
                for (payload,) in rows {
                    sent.push(fact(&payload)?);
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Ok(sent)
        });
        Self { stop, task }
    }

    /// Stops the poller after its current batch. Returns what it sent.
    async fn stop(self) -> Result<Vec<Fact>, Failure> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

/// Goal: producers continue without a change while their table goes from a poller to the relay and
/// back. Nothing is lost or sent twice, each account keeps its order, and waiting rows are
/// published first. Oracle: the checker, over the messages that the poller sent before and
/// afterwards and the contents of Kafka; positions, old ids and marks in the database; the audit;
/// exit codes.
pub(super) async fn goes_over_and_back(stage: Stage) -> Outcome {
    let broker = brokers::open(&stage, Backend::Kafka).await?;
    let topic = broker.topic_name("accounts");
    broker.create_topic(&topic).await?;
    let database = Database::<Postgres>::migrated(&stage).await?;
    database.execute(&format!("{ACCOUNTS}{TABLE}")).await?;
    database.let_use(Role::Producer, "account, placed, event_outbox").await?;
    let config = Config::write(&stage, RELAY, &database.relay_url()?, broker.as_ref(), SECTION)?;
    let owner = database.url.clone();
    let insert = format!(
        "INSERT INTO event_outbox (topic, aggregate_id, type, payload)
         VALUES ('{topic}', $1, 'account.changed', jsonb_build_object('key', $1::text, 'seq', $2::bigint))"
    );
    let writers = Writers::start(&database.producer, &[insert]);

    // The poller delivers.
    let poller = Poller::start(&database.admin);
    at_least(&database, "SELECT count(*) FROM event_outbox WHERE sent_at IS NOT NULL", 100).await?;
    let before = poller.stop().await?;
    at_least(&database, "SELECT count(*) FROM event_outbox WHERE sent_at IS NULL", 50).await?;
    assert_eq!(adopted(&config, &owner, "status", 2).await?["state"], "not-adopted");

    // The handover to the relay. Repeating it changes nothing.
    let over = adopted(&config, &owner, "over", 0).await?;
    let imported = over["imported"].as_i64().ok_or("no number of rows")?;
    assert!(over["outcome"] == "adopted" && imported >= 50, "{over}");
    assert_eq!(adopted(&config, &owner, "over", 0).await?["outcome"], "unchanged");
    let status = adopted(&config, &owner, "status", 0).await?;
    assert_eq!((&status["state"], &status["waiting"]), (&"adopted".into(), &0.into()), "{status}");
    the_imported_come_first(&database, imported).await?;

    // The relay delivers.
    let relay = RelayProcess::start(&stage, &config)?;
    broker.drain(&topic, usize::try_from(imported)? + 150).await?;
    relay.stop().await?;

    // The handover back. Repeating it changes nothing.
    assert_eq!(adopted(&config, &owner, "back", 0).await?["outcome"], "given back");
    assert_eq!(adopted(&config, &owner, "back", 0).await?["outcome"], "unchanged");
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    let poller = Poller::start(&database.admin);
    let marked =
        "SELECT count(*) - (SELECT count(*) FROM outbox_message) FROM event_outbox WHERE sent_at IS NOT NULL";
    at_least(&database, marked, i64::try_from(before.len())? + 50).await?;
    writers.stop().await?;
    eventually("the poller has sent everything", || async {
        let waiting = database.integer("SELECT count(*) FROM event_outbox WHERE sent_at IS NULL").await?;
        Ok((waiting == 0).then_some(()))
    })
    .await?;
    let after = poller.stop().await?;

    let handed_over = database.integer("SELECT count(*) FROM outbox_message").await?;
    let records = broker.drain(&topic, usize::try_from(handed_over)?).await?;
    let relayed = records.iter().map(|record| fact(&record.payload)).collect::<Result<Vec<_>, _>>()?;
    let all = [before, relayed, after].concat();
    let committed = placed(&database.admin).await?;
    assert_eq!(all.len(), committed.len(), "no copy");
    all_stored(&committed, &all, Order::PerKey)?;
    assert!(records.iter().all(|record| record.header("legacy-id").is_some()), "{:?}", records.first());
    the_same_rows(&database, handed_over).await?;
    let audit = Ran::with(&config, &["dead", "audit", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(column(&audit, "action"), ["give back", "adopt"], "{audit}");
    assert_eq!((column(&audit, "actor"), column(&audit, "note")), (vec!["ann"; 2], vec!["a test"; 2]));
    let told = format!("table event_outbox, {imported} rows imported");
    assert_eq!(column(&audit, "selection"), ["table event_outbox", &told]);
    let ran = adopt(&config, &owner, "status", &[]).await?.ended(2)?;
    assert!(ran.out.contains("not adopted") && ran.out.contains("relay adopt over"), "{ran:?}");
    Ok(())
}

/// Checks that the lowest positions belong to one transaction, in the order of the old ids.
async fn the_imported_come_first(database: &Database<Postgres>, imported: i64) -> Outcome {
    let first = format!(
        "SELECT xid, id, (headers ->> 'legacy-id')::bigint AS old FROM outbox_message ORDER BY id LIMIT {imported}"
    );
    let transactions =
        database.integer(&format!("SELECT count(DISTINCT xid::text) FROM ({first}) AS f")).await?;
    let reversed = format!(
        "SELECT count(*) FROM (SELECT old, lag(old) OVER (ORDER BY id) AS before FROM ({first}) AS f) AS g \
         WHERE old <= before"
    );
    assert_eq!((transactions, database.integer(&reversed).await?), (1, 0));
    Ok(())
}

/// Checks that each message equals its row in key, kind, topic, payload and old id, and that each
/// row is marked.
async fn the_same_rows(database: &Database<Postgres>, handed_over: i64) -> Outcome {
    let same = "SELECT count(*) FROM outbox_message AS m JOIN event_outbox AS e
        ON e.id::text = m.headers ->> 'legacy-id' AND e.topic = m.topic AND e.aggregate_id = m.key
            AND e.type = m.kind AND e.payload::text = convert_from(m.payload, 'UTF8')
            AND m.content_type = 'application/json' AND e.sent_at IS NOT NULL";
    assert_eq!(database.integer(same).await?, handed_over);
    Ok(())
}
