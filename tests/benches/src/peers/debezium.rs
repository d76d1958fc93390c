//! Debezium's connector for PostgreSQL in Kafka Connect, with its outbox router: change data
//! capture, at its defaults and tuned for throughput.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;
use tokio::process::{Child, Command};
use tokio::time::sleep;
use url::Url;

use super::poller;
use crate::Failure;
use crate::rig::{Database, Shape, reach};
use crate::target::Kafka;

/// The folder with its jars, which `cargo xtask bench` gives when PostgreSQL's log can be decoded.
const JARS: &str = "OUTBOX_DEBEZIUM_JARS";
/// The key of the record that shows that everything is connected.
pub(super) const WARM: &str = "warm";
/// How long nothing may arrive: a virtual machine starts, a slot is made.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the broker is asked how much it holds.
const POLL: Duration = Duration::from_millis(50);

pub(super) fn jars() -> Option<PathBuf> {
    std::env::var_os(JARS).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// How Debezium and Kafka Connect are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tuning {
    /// Nothing is set beyond what a connector needs.
    Defaults,
    /// Larger batches and queues, shorter pauses and more memory.
    Throughput,
}

impl Tuning {
    /// The largest heap of the virtual machine.
    fn heap(self) -> &'static str {
        match self {
            Self::Defaults => "-Xmx1g",
            Self::Throughput => "-Xmx3g",
        }
    }

    /// Further lines of the connector's configuration.
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

    /// Further lines of the worker's configuration.
    fn worker(self) -> &'static str {
        match self {
            Self::Defaults => "",
            Self::Throughput => "producer.batch.size=524288\n",
        }
    }
}

/// Kafka Connect in a process of its own, reading one database.
pub(super) struct Connect {
    child: Child,
    folder: PathBuf,
    /// Of the replication slot and of the publication.
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
        let jars = jars().ok_or("there is no Debezium")?;
        let name = format!("debezium_{}", uuid::Uuid::now_v7().simple());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder)?;
        let write = |file: &str, text: String| -> Result<PathBuf, Failure> {
            let path = folder.join(file);
            std::fs::write(&path, text)?;
            Ok(path)
        };
        let offsets = folder.join("offsets").display().to_string();
        let worker = write("worker.properties", worker(kafka, &offsets) + tuning.worker())?;
        let connector = connector(&database.url.parse()?, &name, topic)? + tuning.connector();
        let connector = write("connector.properties", connector)?;
        let log = std::fs::File::create(folder.join("connect.log"))?;
        let child = Command::new("java")
            .args([tuning.heap(), "-cp"])
            .arg(format!("{}/*", jars.display()))
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .args([worker, connector])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("java cannot be run: {error}"))?;
        let mut connect = Self { child, folder, name };
        connect.warm(database, kafka, topic).await?;
        Ok(connect)
    }

    /// Writes rows until one comes through: rows written before the slot exists are not captured.
    async fn warm(&mut self, database: &Database, kafka: &Kafka, topic: &str) -> Result<(), Failure> {
        let mut connection = database.connect().await?;
        let began = Instant::now();
        while kafka.records(topic).await? == 0 {
            if let Some(status) = self.child.try_wait()? {
                return Err(self.failure(&format!("Kafka Connect has ended ({status})")));
            }
            if began.elapsed() > PATIENCE {
                return Err(self.failure(&format!("Kafka Connect has captured nothing for {PATIENCE:?}")));
            }
            sqlx::query("INSERT INTO peer (key, payload) VALUES ($1, '0')")
                .bind(WARM)
                .execute(&mut connection)
                .await?;
            sleep(Duration::from_secs(1)).await;
        }
        // The rest of what was written meanwhile.
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

    fn failure(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(self.folder.join("connect.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        format!("{what}:\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n")).into()
    }

    /// Stops it, and removes what it left in the database.
    pub(super) async fn end(mut self, database: &Database) -> Result<(), Failure> {
        self.child.kill().await?;
        let mut connection = database.connect().await?;
        // The server notices a moment later that its reader is gone.
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

/// The time from the commit of a backlog to its last record. The virtual machine runs by then; the
/// other relays start cold.
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
        return Err(connect.failure(&error.to_string()));
    }
    connect.end(database).await?;
    Ok(took)
}

fn worker(kafka: &Kafka, offsets: &str) -> String {
    format!(
        "bootstrap.servers={}\n\
         key.converter=org.apache.kafka.connect.storage.StringConverter\n\
         value.converter=org.apache.kafka.connect.converters.ByteArrayConverter\n\
         offset.storage.file.filename={offsets}\n\
         listeners=http://127.0.0.1:0\n\
         plugin.discovery=service_load\n",
        kafka.servers()
    )
}

fn connector(url: &Url, name: &str, topic: &str) -> Result<String, Failure> {
    Ok(format!(
        "name=outbox\n\
         connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
         database.hostname={}\n\
         database.port={}\n\
         database.user={}\n\
         database.password={}\n\
         database.dbname={}\n\
         topic.prefix=bench\n\
         plugin.name=pgoutput\n\
         slot.name={name}\n\
         publication.name={name}\n\
         publication.autocreate.mode=filtered\n\
         table.include.list=public.peer\n\
         snapshot.mode=no_data\n\
         transforms=outbox\n\
         transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         transforms.outbox.table.field.event.id=message_id\n\
         transforms.outbox.table.field.event.key=key\n\
         transforms.outbox.route.by.field=key\n\
         transforms.outbox.route.topic.replacement={topic}\n",
        url.host_str().ok_or("the database URL has no host")?,
        url.port().unwrap_or(5432),
        url.username(),
        url.password().unwrap_or_default(),
        url.path().trim_start_matches('/'),
    ))
}
