//! Debezium's own connector in Kafka Connect, on the table of Debezium's outbox event router.

use std::time::{Duration, Instant};

use harness::connect::{Connect, ConnectOptions};
use tests::facts::{Order, all_stored};
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, eventually};

use super::debezium::Site;
use super::{Writers, adopt, adopted, fact, placed};
use crate::commands::Ran;

/// Rows that exist when the connector starts, and that its snapshot publishes.
const BEFORE: i64 = 2_000;
const ACCOUNTS: i64 = 8;

/// Parameters: $1 is the aggregate, $2 the last number of each account.
const FILL: [&str; 3] = [
    "INSERT INTO placed SELECT key, n FROM account, generate_series(1, $2::bigint) AS n WHERE $1 <> ''",
    "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
     SELECT $1, key, 'account.changed', jsonb_build_object('key', key, 'seq', n)
     FROM generate_series(1, $2::bigint) AS n, account ORDER BY n",
    "UPDATE account SET seq = $2 WHERE $1 <> ''",
];

/// Deletes half of the rows. The other rows stay in the table.
const DELETE: &str = "DELETE FROM outboxevent WHERE aggregateid = $1 AND payload = \
                      jsonb_build_object('key', $1::text, 'seq', $2::bigint) AND $2::bigint % 2 = 0";

/// Settings from the document: the connector leaves its publication unchanged, and sends heartbeats
/// while the database is quiet.
const CONNECTOR: &str = "\
publication.autocreate.mode=disabled
heartbeat.interval.ms=200
snapshot.mode=initial
";

/// Offsets are stored, and so the slot's position is confirmed, every second instead of every
/// minute.
const WORKER: &str = "\
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.flush.interval.ms=1000
";

/// Options for a light start: no second compiler, and no collector threads.
const JAVA: &str = "-Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC";

fn connector(stage: &Stage, site: &Site) -> Result<ConnectOptions, Failure> {
    let options = ConnectOptions {
        folder: stage.folder().join("connect"),
        servers: Backend::Kafka.address()?,
        database: site.owner.clone(),
        table: String::from("public.outboxevent"),
        slot: stage.unique("debezium"),
        publication: String::from("dbz_publication"),
        java: JAVA.to_owned(),
        worker: WORKER.to_owned(),
        connector: CONNECTOR.to_owned(),
    };
    stage.show_on_failure(options.log());
    Ok(options)
}

/// How long a Java virtual machine may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// Waits until this many records are there, and checks that Kafka Connect still runs.
async fn published(site: &Site, connect: &mut Connect, wanted: usize) -> Outcome {
    let began = Instant::now();
    while site.broker.drain(&site.topic, 0).await?.len() < wanted {
        connect.check()?;
        if began.elapsed() > PATIENCE {
            return Err(connect.failure("Debezium has not published what was there"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Goal: producers continue without a change, from Debezium to the relay and back. Some of them
/// keep their rows, others delete them before the commit. Each message goes one way, and accounts
/// keep their order. Oracle: the checker, over the final contents of Kafka; key, value and the
/// header `id` are the same both ways. While rows have yet to leave, `status` reports that the slot
/// is behind. Once they have left, it reports that the slot is through, although the publication
/// then lets no more rows pass.
pub(super) async fn goes_over_and_back(stage: Stage) -> Outcome {
    let site = Site::make(&stage).await?;
    let Site { owner, admin, broker, topic, config, .. } = &site;
    for statement in FILL {
        let fill = sqlx::query(statement).bind(&site.aggregate).bind(BEFORE / ACCOUNTS);
        fill.execute(admin).await?;
    }
    let options = connector(&stage, &site)?;
    broker.create_topic(&format!("__debezium-heartbeat.{}", options.slot)).await?;

    // Debezium publishes existing rows first, then new rows. Writers that start earlier would be
    // part of the snapshot, which is in the order of the table's pages.
    let mut connect = options.start()?;
    let snapshot = usize::try_from(BEFORE)?;
    published(&site, &mut connect, snapshot).await?;
    let writers = Writers::start(&site.producer, &[site.insert(), DELETE.to_owned()]);
    published(&site, &mut connect, snapshot + 200).await?;

    // The handover to the relay, while the connector is paused with rows to read.
    connect.pause()?;
    let over = adopted(config, owner, "over", 0).await?;
    assert_eq!((&over["outcome"], &over["imported"]), (&"adopted".into(), &0.into()), "{over}");
    site.handed_over(50).await?;
    let status = adopted(config, owner, "status", 3).await?;
    assert_eq!(
        (&status["slots"][0]["is_active"], &status["slots"][0]["is_through"]),
        (&true.into(), &false.into())
    );
    connect.resume()?;
    eventually("the slot is through", || async {
        let status = adopt(config, owner, "status", &[]).await?;
        Ok(status.ended(0).is_ok().then_some(()))
    })
    .await?;

    // The relay publishes. Then the table goes back to Debezium.
    let relay = RelayProcess::start(&stage, config)?;
    eventually("the relay publishes", || async {
        let records = broker.drain(topic, 0).await?;
        Ok((records.iter().filter(|it| it.header("ce_id").is_some()).count() >= 200).then_some(()))
    })
    .await?;
    relay.stop().await?;
    connect.pause()?;
    assert_eq!(adopted(config, owner, "back", 0).await?["outcome"], "given back");
    Ran::with(config, &["run", "--once"]).await?.done()?;
    connect.resume()?;
    let before = placed(admin).await?.len();
    published(&site, &mut connect, before + 100).await?;
    writers.stop().await?;

    let committed = placed(admin).await?;
    let records = broker.drain(topic, committed.len()).await?;
    connect.stop().await?;
    let relayed = records.iter().filter(|it| it.header("ce_id").is_some()).count();
    let handed_over: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_message").fetch_one(admin).await?;
    assert_eq!(relayed, usize::try_from(handed_over)?, "of {} records", records.len());
    assert_eq!(records.len(), committed.len(), "no copy, and none both ways");
    let facts = records.iter().map(|it| fact(&it.payload)).collect::<Result<Vec<_>, _>>()?;
    all_stored(&committed, &facts, Order::PerKey)?;
    for (record, fact) in records.iter().zip(&facts) {
        assert_eq!(record.key.as_ref(), Some(&fact.key), "{record:?}");
        let text = format!("{{\"key\": \"{}\", \"seq\": {}}}", fact.key, fact.seq);
        assert_eq!(String::from_utf8_lossy(&record.payload), text);
    }
    let kept: Vec<String> = sqlx::query_scalar("SELECT id::text FROM outboxevent").fetch_all(admin).await?;
    let ids: std::collections::HashSet<&str> = records.iter().filter_map(|it| it.header("id")).collect();
    assert_eq!(ids.len(), records.len(), "an id for each");
    assert!(kept.len() > snapshot && kept.iter().all(|id| ids.contains(id.as_str())), "the ids of the rows");
    Ok(())
}
