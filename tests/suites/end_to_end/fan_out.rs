//! Several relays on one outbox. Each relay publishes the rows that its filter accepts.

use std::collections::BTreeMap;

use harness::plain::PlainRecord;
use proxy::Proxy;
use serde_json::{Value, json};
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::{Backend, Database, Failure, Outcome, RelayProcess, Stage, brokers, eventually};

use crate::commands::{Ran, column};

tests::cases! { "{case}/{on}/kafka-and-sqs-fifo":
    postgres + kafka sqs_fifo { relays_divide_an_outbox_by_filters }
}

/// Rows of each kind, together an hour at five a second. The queue is slow, so few rows are for it.
const ORDERS: usize = 12_000;
const INTERNAL: usize = 4_000;
const AUDIT: usize = 1_500;
const COPIED: usize = 500;
const KEYS: usize = 20;

/// Goal: relays with filters by topic, kind and header divide an outbox. If the broker of one relay
/// is unreachable, the other relays are not delayed, and that relay misses nothing when its broker
/// is back. The cursor passes rows that a filter leaves out, and commands do not report them as
/// published or lost. Oracle: the records that plain clients find in both brokers; the cursors;
/// `show`, `replay` and `verify`.
async fn relays_divide_an_outbox_by_filters(stage: Stage) -> Outcome {
    let kafka = brokers::open(&stage, Backend::Kafka).await?;
    let sqs = brokers::open(&stage, Backend::SqsFifo).await?;
    let (orders, audit) = (kafka.topic_name("orders"), sqs.topic_name("audit"));
    kafka.create_topic(&orders).await?;
    kafka.create_topic(&audit).await?;
    sqs.create_topic(&audit).await?;
    let server = Backend::SqsFifo.address()?;
    let host = server.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let wire = Proxy::start(0, host.clone()).await?;
    wire.down();
    let section = sqs.relay_section().ok_or("no section")?.replace(&host, &wire.address().to_string());
    let database = Database::<Postgres>::migrated(&stage).await?;
    let url = database.relay_url()?;
    // A lease that outlasts delays on a busy machine. A relay that loses its lease publishes again,
    // which is allowed, but not expected here.
    let pipeline = |name: &str, section: &str, filter: &str| {
        let engine =
            "[pipeline.engine]\nlease_ttl = \"30s\"\nretry_initial = \"50ms\"\nretry_max = \"500ms\"\n";
        format!(
            "[[pipeline]]\nname = {name:?}\n[pipeline.database]\nurl = {url:?}\n{section}\n{engine}{filter}\n"
        )
    };
    let stream = pipeline(
        "stream",
        &kafka.relay_section().ok_or("no section")?,
        &format!(
            "[[pipeline.filter]]\ntopics = [{orders:?}]\nkinds = [\"order.*\", \"!order.internal\"]\n\
             [[pipeline.filter]]\nheaders = {{ copy = \"stream\" }}\n"
        ),
    );
    let queue = pipeline("queue", &section, "[[pipeline.filter]]\ntopics = [\"!orders*\"]\n");
    let config = Config::text(&stage, &format!("{stream}{queue}"))?;
    let relay = RelayProcess::start(&stage, &config)?;
    for (topic, kind, headers, count) in [
        (&orders, "order.placed", "{}", ORDERS),
        (&orders, "order.internal", "{}", INTERNAL),
        (&audit, "audit.noted", "{}", AUDIT),
        (&audit, "audit.noted", r#"{"copy": "stream"}"#, COPIED),
    ] {
        // Each number has its own transaction, so that the numbers of a key are in the order of the
        // log.
        database
            .execute(&format!(
                "INSERT INTO outbox_message (topic, key, kind, headers, payload)
                 SELECT '{topic}', 'k' || n % {KEYS}, '{kind}', '{headers}', convert_to(n::text, 'UTF8')
                 FROM generate_series(1, {count}) AS n"
            ))
            .await?;
    }
    let has_passed_all = |pipeline: &'static str| {
        let config = &config;
        move || async move {
            let status = Ran::with(config, &["status", "--output", "json"]).await?.json()?;
            let at = column(&status, "pipeline").iter().position(|name| *name == pipeline);
            let at = at.ok_or("the pipeline is not listed")?;
            Ok(when(status[at]["state"] == "leading" && status[at]["oldest_pending_id"].is_null()))
        }
    };
    eventually("the stream has passed everything", has_passed_all("stream")).await?;
    let published = kafka.drain(&orders, ORDERS).await?;
    assert_in_order(&published, ORDERS)?;
    assert_in_order(&kafka.drain(&audit, COPIED).await?, COPIED)?;
    let waiting = Ran::with(&config, &["status", "--output", "json"]).await?.json()?;
    assert!(waiting[1]["oldest_pending_id"].is_number(), "the queue is away: {waiting}");

    wire.heal();
    eventually("the queue has passed everything", has_passed_all("queue")).await?;
    let queued = sqs.drain(&audit, AUDIT + COPIED).await?;
    assert_eq!(queued.len(), AUDIT + COPIED, "nothing is missing, and nothing doubled");
    assert_eq!(kafka.drain(&orders, ORDERS).await?.len(), ORDERS, "nothing came afterwards");
    commands(&config, &database).await?;
    relay.stop().await
}

/// Checks that each number occurs once, and that the numbers of each key ascend.
fn assert_in_order(records: &[PlainRecord], count: usize) -> Outcome {
    assert_eq!(records.len(), count, "all of them, and nothing else");
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records {
        let number: usize = String::from_utf8_lossy(&record.payload).parse()?;
        let key = record.key.as_deref().ok_or("a record without a key")?;
        let before = last.insert(key, number).unwrap_or_default();
        assert!(number > before, "{key}: {number} behind {before}");
    }
    Ok(())
}

async fn commands(config: &Config, database: &Database<Postgres>) -> Outcome {
    let internal = database.texts("SELECT min(id)::text FROM outbox_message WHERE kind = 'order.internal'");
    let internal = internal.await?.remove(0);
    let story = Ran::with(config, &["show", &internal, "--output", "json"]).await?.done()?.json()?;
    let state_in = |pipeline: &str| -> Result<Value, Failure> {
        let parts = story["outboxes"].as_array().ok_or("no outboxes")?;
        let part = parts.iter().find(|part| part["pipeline"] == pipeline).ok_or("no such pipeline")?;
        Ok(part["state"].clone())
    };
    assert_eq!((state_in("stream")?, state_in("queue")?), (json!("left out"), json!("left out")), "{story}");

    let signed = ["--actor", "ann", "--note", "a test", "--output", "json"];
    let replay = |more: &'static [&'static str]| {
        let arguments = [&["replay", "--pipeline", "stream", "--dry-run"], more, &signed].concat();
        async move { Ran::with(config, &arguments).await }
    };
    let dry = replay(&["--all"]).await?.done()?.json()?;
    assert_eq!(dry["chosen"], ORDERS + COPIED, "{dry}");
    assert_eq!(dry["skipped"]["left out"], INTERNAL + AUDIT, "{dry}");
    let named = ["replay", "--pipeline", "stream", "--dry-run", "--id", &internal];
    Ran::with(config, &[&named[..], &signed].concat())
        .await?
        .refused(2, &["excluded by the pipeline's filter"])?;

    let (code, report) = crate::verify::verify(config, &["--grace", "1s"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    let enqueued: Vec<_> =
        report["pipelines"].as_array().into_iter().flatten().map(|of| &of["enqueued"]).collect();
    assert_eq!(enqueued, [ORDERS + COPIED, AUDIT + COPIED], "{report:#}");
    Ok(())
}
