//! A relay at three in the morning: one pipeline is healthy, one has 2,009 dead messages of three
//! causes, one holds 41 keys because an operator has paused a topic, and the database of one does
//! not answer. A consumer has twelve dead letters.

use std::time::Duration;

use sqlx::Postgres;
use tests::workload::Workload;
use tests::{Backend, Failure, RelayProcess, Stage, brokers, eventually};

use super::{SERVING, Served, USERS, config};

/// The pipelines beside `orders` that read the same outbox.
const OTHERS: [&str; 2] = ["shipping", "billing"];

/// Number of dead messages, 1,407 of which have the first cause.
pub(crate) const DEAD: usize = 2_009;
/// Number of keys that `billing` holds.
const HELD: usize = 41;

const PARKED: &str = "\
INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, fault, attempts, created_at, updated_at)
SELECT 'shipping', 1000000 + n, gen_random_uuid(), 'parcels', 'customer-' || n, 'dead',
    CASE WHEN n % 10 < 7 THEN 'the carrier refused parcel ' || n || ': its address is not complete'
        WHEN n % 10 < 9 THEN 'no price for zone ' || n ELSE 'customer ' || n || ' is unknown' END,
    'message', 10, clock_timestamp() - interval '7 hours 3 minutes', clock_timestamp() - interval '7 hours 3 minutes'
FROM generate_series(1, 2009) AS n";

const LETTERS: &str = "\
INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, headers, payload,
    reason, error, attempts, origin, dead_at)
SELECT gen_random_uuid(), 'workload', '', s.id, sha256(convert_to(s.id::text, 'UTF8')), s.id, 'invoices', 'account-7', '[]',
    'x', 'poison', 'the account is closed', 10, 'invoices/0', clock_timestamp() - interval '1 hour'
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 12)) AS s";

impl Served {
    /// Starts the relay of the scene, and waits until the page knows all of it.
    pub(crate) async fn at_night(stage: &Stage) -> Result<Self, Failure> {
        let workload =
            Workload::<Postgres>::open(stage, brokers::open(stage, Backend::KafkaMock).await?).await?;
        let url = workload.database.relay_url()?;
        let section = workload.broker.relay_section().ok_or("no section")?;
        let pipeline = |name: &str, url: &str| {
            format!("[[pipeline]]\nname = {name:?}\n[pipeline.database]\nurl = {url:?}\n{section}\n")
        };
        let mut text = String::from(USERS);
        for name in OTHERS {
            text.push_str(&pipeline(name, &url));
        }
        text.push_str(&pipeline("returns", "postgres://relay@127.0.0.1:1/returns"));
        let dashboard = "dashboard_url = \"https://graphs.example/d/relay?var-pipeline={pipeline}\"\n";
        let config = config(stage, &workload, &text, dashboard)?;
        let relay = RelayProcess::start(stage, &config)?;
        let address = relay.address(SERVING).await?;
        let served = Self { workload, relay, config, address };
        let database = &served.workload.database;
        eventually("three pipelines are led", || async {
            let led = "SELECT count(*) FROM outbox_relay WHERE lease_until > clock_timestamp()";
            Ok((database.integer(led).await? == 3).then_some(()))
        })
        .await?;
        let topic = served.workload.topic.as_str();
        let pause = [("pipeline", "billing"), ("scope", "topic"), ("name", topic)];
        let pause = [&pause[..], &[("reason", "prices of May are not checked")]].concat();
        served.ann().post("/pause", &pause).await?;
        // Relays check for pauses several times a second; messages that they have already read are
        // published.
        tokio::time::sleep(Duration::from_secs(2)).await;
        // The other relays publish them.
        served.workload.place_many(HELD, HELD).await?;
        database.execute(PARKED).await?;
        database.execute(LETTERS).await?;
        eventually("the page knows all of it", || async {
            let page = served.ann().get("/").await?.body;
            let parts = [
                "2,009 messages are dead",
                "is paused by ann",
                "41 messages are held",
                "does not answer",
                "12 messages are dead",
            ];
            Ok(parts.iter().all(|part| page.contains(part)).then_some(()))
        })
        .await?;
        Ok(served)
    }
}
