//! Debezium's connector for PostgreSQL in Kafka Connect, with its outbox router: change data
//! capture, at its defaults and tuned for throughput.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::connect::ConnectOptions;
pub(super) use harness::connect::jars;
use sqlx::AssertSqlSafe;
use tokio::time::sleep;

use super::poller;
use crate::Failure;
use crate::rig::{Database, Shape, reach};
use crate::target::Kafka;

/// The key of the record that shows that everything is connected.
pub(super) const WARM: &str = "warm";
/// Maximum time without a new record: a virtual machine starts, a replication slot is created.
const PATIENCE: Duration = Duration::from_secs(90);
/// Interval between queries of the broker's number of records.
const POLL: Duration = Duration::from_millis(50);

/// The configuration of Debezium and Kafka Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tuning {
    /// Only the settings that a connector requires.
    Defaults,
    /// Larger batches and queues, shorter pauses and more memory.
    Throughput,
}

impl Tuning {
    /// Returns the option of the virtual machine for its maximum heap.
    fn heap(self) -> &'static str {
        match self {
            Self::Defaults => "-Xmx1g",
            Self::Throughput => "-Xmx3g",
        }
    }

    /// Returns additional lines of the connector's configuration.
    fn connector(self) -> &'static str {
        match self {
            Self::Defaults => "",
            Self::Throughput => {
                "max.batch.size=16384\n\
                 max.queue.size=65536\n\
                 poll.interval.ms=10\n"
            }
        }
    }

    /// Returns additional lines of the worker's configuration.
    fn worker(self) -> &'static str {
        match self {
            Self::Defaults => "",
            Self::Throughput => "producer.batch.size=524288\n",
        }
    }
}

/// Kafka Connect in a separate process that reads one database.
pub(super) struct Connect {
    process: harness::connect::Connect,
    folder: PathBuf,
    /// The name of the replication slot and of the publication.
    name: String,
}

impl Connect {
    /// Starts it, and waits until a first record has come through.
    pub(super) async fn start(
        database: &Database,
        kafka: &Kafka,
        topic: &str,
        tuning: Tuning,
    ) -> Result<Self, Failure> {
        let name = format!("debezium_{}", uuid::Uuid::now_v7().simple());
        let folder = std::env::temp_dir().join(&name);
        let options = ConnectOptions {
            folder: folder.clone(),
            servers: kafka.servers().to_owned(),
            database: database.url.clone(),
            table: String::from("public.peer"),
            slot: name.clone(),
            publication: name.clone(),
            java: tuning.heap().to_owned(),
            worker: tuning.worker().to_owned(),
            connector: router(topic) + tuning.connector(),
        };
        let mut connect = Self { process: options.start()?, folder, name };
        connect.warm(database, kafka, topic).await?;
        Ok(connect)
    }

    /// Writes rows until one arrives: rows written before the slot exists are not captured.
    async fn warm(&mut self, database: &Database, kafka: &Kafka, topic: &str) -> Result<(), Failure> {
        let mut connection = database.connect().await?;
        let began = Instant::now();
        while kafka.records(topic).await? == 0 {
            self.process.check()?;
            if began.elapsed() > PATIENCE {
                let what = format!("Kafka Connect has captured nothing for {PATIENCE:?}");
                return Err(self.process.failure(&what));
            }
            sqlx::query("INSERT INTO peer (key, payload) VALUES ($1, '0')")
                .bind(WARM)
                .execute(&mut connection)
                .await?;
            sleep(Duration::from_secs(1)).await;
        }
        // Waits for the remaining records written meanwhile.
        let written: i64 = sqlx::query_scalar("SELECT count(*) FROM peer").fetch_one(&mut connection).await?;
        let mut last = 0;
        while last < written.unsigned_abs() {
            let now = kafka.records(topic).await?;
            if now == last {
                break;
            }
            last = now;
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// Stops it, and removes its slot and its publication from the database.
    pub(super) async fn end(self, database: &Database) -> Result<(), Failure> {
        self.process.kill().await?;
        let mut connection = database.connect().await?;
        // The server notices only shortly afterwards that its reader has disconnected.
        sqlx::query("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = $1 AND active")
            .bind(&self.name)
            .execute(&mut connection)
            .await?;
        sqlx::query("SELECT pg_drop_replication_slot($1)").bind(&self.name).execute(&mut connection).await?;
        sqlx::query(AssertSqlSafe(format!("DROP PUBLICATION {}", self.name)))
            .execute(&mut connection)
            .await?;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

/// Returns the time from the commit of a backlog to its last record. The virtual machine is running
/// by then; the other relays start cold.
pub(super) async fn drain(
    database: &Database,
    kafka: &Kafka,
    topic: &str,
    shape: Shape,
    tuning: Tuning,
) -> Result<Duration, Failure> {
    let connect = Connect::start(database, kafka, topic, tuning).await?;
    let before = kafka.records(topic).await?;
    poller::insert(database, shape).await?;
    let committed = Instant::now();
    let all = before + u64::from(shape.messages);
    let reached = reach(all, PATIENCE, POLL, async || kafka.records(topic).await).await;
    let took = committed.elapsed();
    if let Err(error) = reached {
        return Err(connect.process.failure(&error.to_string()));
    }
    connect.end(database).await?;
    Ok(took)
}

/// Returns the router's configuration: the columns of the table, and the topic.
fn router(topic: &str) -> String {
    format!(
        "transforms.outbox.table.field.event.id=message_id\n\
         transforms.outbox.table.field.event.key=key\n\
         transforms.outbox.route.by.field=key\n\
         transforms.outbox.route.topic.replacement={topic}\n"
    )
}
