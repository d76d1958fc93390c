//! Resident memory of a consumer whose messages are far larger than a limit. The modules `sizes`
//! and `page` measure the relay and its page.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use brokers::kafka::GroupConfig;
use conformance::Foreign;
use inbox::{Consumer, ConsumerName, Inbox, InboxOptions};
use message::{HEADER_VALUE_BYTES_MAX, MessageId};
use sqlx::Postgres;
use tests::brokers::{patient_kafka, patient_rabbitmq};
use tests::eventually::when;
use tests::relay_process::{Config, memory_peak};
use tests::workload::Workload;
use tests::{Backend, Broker, Failure, Outcome, RelayProcess, Role, Stage, eventually};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::chunks::Apply;
use crate::sizes::MEMORY_BYTES;

tests::cases! { "{case}/{on}":
    postgres kafka { a_consumer_of_large_messages_keeps_its_memory = large_messages }
    postgres rabbitmq { a_consumer_of_large_messages_keeps_its_memory = large_messages }
}

/// URL of the database of a child process. When it is set, this program runs a consumer instead of
/// tests.
const DATABASE: &str = "OUTBOX_MEASURED_CONSUMER";
/// The topic of that consumer, and its broker.
const TOPIC: &str = "OUTBOX_MEASURED_CONSUMER_TOPIC";
const BROKER: &str = "OUTBOX_MEASURED_CONSUMER_BROKER";

/// A hundred times the largest value of a header. A record of Kafka has room for one of these.
const LARGE_BYTES: usize = 100 * HEADER_VALUE_BYTES_MAX;
/// RabbitMQ accepts no headers that do not fit into a frame of 128 KiB.
const FRAME_BYTES: usize = 100_000;
/// Orders of this size. Each is followed by a small one of another key.
const ORDERS: usize = 8;
/// Messages of other producers with a payload of this size, and as many with such a header.
const FOREIGN: usize = 3;

/// Runs the consumer if this program was started as one.
pub(crate) fn consumer() -> Option<ExitCode> {
    let url = std::env::var(DATABASE).ok()?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let run = || -> Outcome { tokio::runtime::Runtime::new()?.block_on(Box::pin(consume(&url))) };
    let ended = run();
    if let Err(failure) = &ended {
        tracing::error!("{failure}");
    }
    Some(ended.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

async fn consume(url: &str) -> Outcome {
    let topic = std::env::var(TOPIC)?;
    let pool = outbox::pool::<Postgres>(url).await?;
    let inbox = Inbox::open(pool, InboxOptions::default()).await?;
    let builder = Consumer::builder(inbox, ConsumerName::new("workload")?).handler(Apply);
    let builder = if std::env::var(BROKER)? == Backend::Kafka.as_str() {
        let config = patient_kafka(&Backend::Kafka.address()?);
        builder.subscribe(brokers::kafka::Subscriber::new(config, GroupConfig::new("workload", [topic]))?)
    } else {
        let config = patient_rabbitmq(&Backend::Rabbitmq.address()?);
        builder.subscribe(brokers::rabbitmq::Subscriber::new(&config, [topic])?)
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let stop = async move {
        terminated.recv().await;
    };
    Ok(builder.build()?.run(stop).await?)
}

/// A consumer in a process of its own. It is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(stage: &Stage, workload: &Workload<Postgres>) -> Result<Self, Failure> {
        let log = stage.folder().join("consumer.log");
        stage.show_on_failure(&log);
        let child = Command::new(std::env::current_exe()?)
            .env(DATABASE, Role::Consumer.url(&workload.database.url)?)
            .env(TOPIC, &workload.topic)
            .env(BROKER, workload.broker.backend().as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self(child))
    }

    /// Returns its peak resident memory in bytes.
    fn memory_peak(&self) -> Result<u64, Failure> {
        memory_peak(self.0.id().ok_or("the consumer has ended")?)
    }

    /// Asks it to stop, and waits until it has ended with success.
    async fn stop(mut self) -> Outcome {
        let pid = self.0.id().ok_or("the consumer has ended")?;
        let sent = Command::new("kill").arg("-TERM").arg(pid.to_string()).status().await?;
        assert!(sent.success(), "the signal did not reach the consumer");
        let ended = self.0.wait().await?;
        if ended.success() { Ok(()) } else { Err(format!("the consumer ended with {ended}").into()) }
    }
}

/// Returns a message of another producer, which is no order.
fn foreign(header_bytes: usize, payload_bytes: usize) -> Foreign {
    Foreign {
        id: Some(MessageId::new().to_string()),
        key: String::from("foreign"),
        header: (String::from("note"), "n".repeat(header_bytes)),
        payload: vec![b'x'; payload_bytes],
    }
}

/// Goal: G7 and the memory bound, at a consumer with default settings. Messages a hundred times as
/// large as a limit take effect, or are dead letters if no producer of ours wrote them, and the
/// small ones between them take effect. Oracle: the checker, the number of dead letters, and the
/// kernel's peak of the memory of a process that only consumes, and of the relay.
async fn large_messages(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let header_bytes = match workload.broker.backend() {
        Backend::Kafka => LARGE_BYTES,
        _ => FRAME_BYTES,
    };
    for _ in 0..ORDERS {
        let mut tx = workload.begin().await?;
        workload.place_large_in(&mut tx, "large", LARGE_BYTES).await?;
        tx.commit().await?;
        workload.place("small").await?;
    }
    for _ in 0..FOREIGN {
        workload.broker.put(&workload.topic, &foreign(1, LARGE_BYTES)).await?;
        workload.broker.put(&workload.topic, &foreign(header_bytes, 1)).await?;
    }
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, "orders", &url, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = Process::start(&stage, &workload)?;
    workload.settled().await?;
    let letters = i64::try_from(2 * FOREIGN)?;
    eventually("the others are dead letters", || async {
        let found = workload.database.integer("SELECT count(*) FROM inbox_dead_letter").await?;
        Ok(when(found == letters))
    })
    .await?;
    for (process, peak) in [("consumer", consumer.memory_peak()?), ("relay", relay.memory_peak()?)] {
        assert!(peak < MEMORY_BYTES, "the {process} took {} MiB", peak >> 20);
    }
    consumer.stop().await?;
    relay.stop().await
}
