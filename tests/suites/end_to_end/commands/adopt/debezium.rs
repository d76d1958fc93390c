//! A table of Debezium's outbox event router: producers insert a row and delete it at once, and a
//! replication slot reports the insert.

use std::sync::Arc;
use std::time::Duration;

use migrations::{Line, Migrator};
use sqlx::{PgPool, Postgres};
use tests::facts::{Fact, Order, all_stored};
use tests::relay_process::Config;
use tests::{
    Backend, Broker, Cluster, Failure, Outcome, RelayProcess, Role, Stage, brokers, eventually, roles,
};

use super::{ACCOUNTS, RELAY, Writers, adopt, adopted, fact, placed};
use crate::commands::Ran;

const TABLE: &str = "\
CREATE TABLE outboxevent (
    id            uuid         PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype varchar(255) NOT NULL,
    aggregateid   varchar(255) NOT NULL,
    type          varchar(255) NOT NULL,
    payload       jsonb
);
CREATE PUBLICATION dbz_publication FOR TABLE outboxevent;";

const SLOT: &str = "SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')";

/// A reader of the slot in place of Debezium. Like the connector, it reads what the publication
/// lets through.
struct Slot<'a>(&'a PgPool);

impl Slot<'_> {
    /// Reads all committed changes, and confirms them.
    async fn read(&self) -> Result<Vec<Fact>, Failure> {
        let changes: Vec<Vec<u8>> = sqlx::query_scalar(
            "SELECT data FROM pg_logical_slot_get_binary_changes('debezium', NULL, NULL,
                'proto_version', '1', 'publication_names', 'dbz_publication')",
        )
        .fetch_all(self.0)
        .await?;
        let inserts = changes.iter().filter(|change| change.first() == Some(&b'I'));
        inserts.map(|change| fact(last_column(change)?)).collect()
    }
}

/// Returns the last column of an insert message. Its format is `I`, relation, `N`, the number of
/// columns, then a kind and a length before each text.
fn last_column(insert: &[u8]) -> Result<&[u8], Failure> {
    let mut rest = insert.get(8..).ok_or("a short insert")?;
    let mut last = None;
    while let Some((b't', text)) = rest.split_first() {
        let (length, text) = text.split_at_checked(4).ok_or("a column without a length")?;
        let length = usize::try_from(u32::from_be_bytes(length.try_into()?))?;
        let (column, further) = text.split_at_checked(length).ok_or("a short column")?;
        (last, rest) = (Some(column), further);
    }
    last.ok_or_else(|| "an insert without columns".into())
}

/// The producers' database on its own server, the topic, and the relay's configuration.
pub(super) struct Site {
    pub(super) cluster: Cluster,
    /// URL of the database as the owner of its tables.
    pub(super) owner: String,
    pub(super) admin: PgPool,
    /// Pool for the database as a producer.
    pub(super) producer: PgPool,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) topic: String,
    /// The topic without the router's prefix.
    pub(super) aggregate: String,
    pub(super) config: Config,
}

impl Site {
    pub(super) async fn make(stage: &Stage) -> Result<Self, Failure> {
        let cluster = Cluster::start(stage, &[("OUTBOX_POSTGRES_WAL_LEVEL", "logical")]).await?;
        let owner = cluster.url();
        let admin = outbox::pool_options::<Postgres>().max_connections(8).connect(&owner).await?;
        let mut connection = admin.acquire().await?;
        Migrator::<Postgres>::new(Line::Outbox).up(&mut connection).await?;
        roles::grant(&mut connection, &[Line::Outbox], None).await?;
        drop(connection);
        let user = Role::Producer.user();
        cluster.execute(&format!("{ACCOUNTS}{TABLE}")).await?;
        cluster
            .execute(&format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON account, placed, outboxevent TO {user}"
            ))
            .await?;
        let broker = brokers::open(stage, Backend::Kafka).await?;
        let topic = broker.topic_name("outbox.event.accounts");
        broker.create_topic(&topic).await?;
        let aggregate = topic.strip_prefix("outbox.event.").ok_or("a topic without the prefix")?.to_owned();
        let section = "[pipeline.adopt]\ntable = \"public.outboxevent\"\ntopic_prefix = \"outbox.event.\"\n\
                       publication = \"dbz_publication\"\n";
        let url = Role::Relay.url(&owner)?;
        let config = Config::write(stage, RELAY, &url, broker.as_ref(), section)?;
        let producer = Role::Producer.url(&owner)?;
        let producer = outbox::pool_options::<Postgres>().max_connections(8).connect(&producer).await?;
        Ok(Self { cluster, owner, admin, producer, broker, topic, aggregate, config })
    }

    /// Returns the statement of a producer, for [`Writers`].
    pub(super) fn insert(&self) -> String {
        format!(
            "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
             VALUES ('{}', $1, 'account.changed', jsonb_build_object('key', $1::text, 'seq', $2::bigint))",
            self.aggregate
        )
    }

    /// Waits until this many rows have been handed over.
    pub(super) async fn handed_over(&self, wanted: i64) -> Outcome {
        eventually("rows are handed over", || async {
            let count = "SELECT count(*) FROM outbox_message";
            let count: i64 = sqlx::query_scalar(count).fetch_one(&self.admin).await?;
            Ok((count >= wanted).then_some(()))
        })
        .await
    }
}

/// Goal: producers that delete their rows before the commit continue without a change, from
/// Debezium to the relay and back. Each message goes one way, and accounts keep their order.
/// Oracle: the checker, over what the slot reported before and after, and the contents of Kafka;
/// the slot's state that `status` reports; `over` is refused while a relay runs.
pub(super) async fn goes_over_and_back(stage: Stage) -> Outcome {
    let site = Site::make(&stage).await?;
    let Site { owner, admin, broker, topic, config, .. } = &site;
    site.cluster.execute(SLOT).await?;
    let delete = String::from("DELETE FROM outboxevent WHERE aggregateid = $1 AND $2::bigint > 0");
    let statements = [site.insert(), delete];
    let writers = Writers::start(&site.producer, &statements);
    let slot = Slot(admin);

    // Debezium's slot is read before a relay starts, which would overtake it.
    let mut before = slot.read().await?;
    while before.len() < 60 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        before.extend(slot.read().await?);
    }
    let relay = RelayProcess::start(&stage, config)?;
    relay.tells("leading").await?;
    adopt(config, owner, "over", &[])
        .await?
        .refused(2, &["the relay accounts is running", "relay pause --all"])?;
    relay.stop().await?;

    // The handover to the relay, before the slot has read everything.
    let over = adopted(config, owner, "over", 0).await?;
    assert_eq!((&over["outcome"], &over["imported"]), (&"adopted".into(), &0.into()), "{over}");
    assert_eq!(over["publication"], "dbz_publication");
    let status = adopted(config, owner, "status", 3).await?;
    assert_eq!(status["slots"][0]["is_through"], false, "{status}");
    let relay_url = Role::Relay.url(owner)?;
    let status = adopted(config, &relay_url, "status", 3).await?;
    let doubt = status["slots"][0]["doubt"].as_str().unwrap_or_default();
    assert!(doubt.contains("could not read its log") && doubt.ends_with("REPLICATION"), "{status}");
    site.handed_over(50).await?;
    before.extend(slot.read().await?);
    assert!(slot.read().await?.is_empty(), "new rows go the new way only");
    assert_eq!(adopted(config, owner, "status", 0).await?["slots"][0]["is_through"], true);

    // The relay publishes. Then the table goes back to Debezium.
    let relay = RelayProcess::start(&stage, config)?;
    broker.drain(topic, 200).await?;
    relay.stop().await?;
    let back = adopted(config, owner, "back", 0).await?;
    assert_eq!((&back["outcome"], &back["publication"]), (&"given back".into(), &"dbz_publication".into()));
    Ran::with(config, &["run", "--once"]).await?.done()?;
    let mut after = Vec::new();
    while after.len() < 60 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        after.extend(slot.read().await?);
    }
    writers.stop().await?;
    after.extend(slot.read().await?);

    let messages: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_message").fetch_one(admin).await?;
    let records = broker.drain(topic, usize::try_from(messages)?).await?;
    let relayed = records.iter().map(|record| fact(&record.payload)).collect::<Result<Vec<_>, _>>()?;
    let all = [before, relayed, after].concat();
    let committed = placed(admin).await?;
    assert_eq!(all.len(), committed.len(), "no copy, and none both ways");
    all_stored(&committed, &all, Order::PerKey)?;
    let is_uuid = |id: &str| uuid::Uuid::parse_str(id).is_ok();
    assert!(records.iter().all(|it| it.header("id").is_some_and(is_uuid)), "{:?}", records.first());

    // On start, Debezium resets the publication to the table, unless it is configured not to.
    adopted(config, owner, "over", 0).await?;
    site.cluster.execute("ALTER PUBLICATION dbz_publication SET TABLE outboxevent").await?;
    let status = adopted(config, owner, "status", 2).await?;
    assert_eq!(status["state"], "differs", "{status}");
    let back = adopted(config, owner, "back", 0).await?;
    assert_eq!(back["outcome"], "given back", "{back}");
    Ok(())
}
