//! How long messages are delayed when the leader is asked to end and a standby takes over, under
//! load.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::task::AbortOnDropHandle;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::{Database, PATIENCE, RelayProcess};
use crate::target::{Kafka, Target as _, fresh_topic};

/// Maximum time from the signal to the successor's first message.
const MS_MAX: f64 = 1_000.0;
/// Messages per second: [`TOGETHER`] in a transaction, one transaction every [`EVERY`].
const RATE: u64 = 1_000;
const TOGETHER: u64 = 10;
const EVERY: Duration = Duration::from_millis(1_000 * TOGETHER / RATE);
/// Time before the signal, and after it: longer than a hand-over may take.
const WATCH: Duration = Duration::from_secs(3);

/// One hand-over, in milliseconds.
struct HandOver {
    /// Time from the signal to the end of the leader's process.
    ended: f64,
    /// Longest time without a message.
    silence: f64,
    /// Time from the signal to the end of that silence.
    resumed: f64,
}

pub(crate) async fn run(run: &Run) -> Result<Report, Failure> {
    let kafka = Kafka::from_environment()?;
    let rounds = run.options.rounds(10);
    let progress = run.progress(rounds)?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        // A new database: a killed standby leaves its lease, and messages to a deleted topic.
        let database = Database::create().await?;
        all.push(hand_over(&database, &kafka).await?);
        database.drop().await?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    let of = |figure: fn(&HandOver) -> f64| Spread::of(&all.iter().map(figure).collect::<Vec<_>>());
    let resumed = of(|one| one.resumed);
    let mut report = Report::new("relay_handover");
    report.table(
        format!("SIGTERM to the leader, one standby, {RATE} messages a second, PostgreSQL → Kafka; {rounds} rounds"),
        ["what", "ms"],
        [
            ["signal → end of the leader's process".into(), of(|one| one.ended).into()],
            ["longest time without a message".into(), of(|one| one.silence).into()],
            ["signal → the successor's first message".into(), resumed.into()],
        ],
    );
    report.at_most("signal → the successor's first message, ms, worst", MS_MAX, resumed.max);
    Ok(report)
}

async fn hand_over(database: &Database, kafka: &Kafka) -> Result<HandOver, Failure> {
    let topic = fresh_topic();
    kafka.prepare(&topic).await?;
    let mut arrivals = kafka.arrivals(&topic)?;
    let mut leader = RelayProcess::start(database, &kafka.section())?;
    leader.tells("leading", PATIENCE).await?;
    let standby = RelayProcess::start(database, &kafka.section())?;
    standby.tells("standing by", PATIENCE).await?;
    let producer = produce(database.connect().await?, topic.clone());
    let producer = AbortOnDropHandle::new(tokio::spawn(producer));
    tokio::time::timeout(PATIENCE, arrivals.recv()).await?.ok_or("the reader is gone")?;
    tokio::time::sleep(WATCH).await;
    let asked = Instant::now();
    leader.terminate().await?;
    let ended = asked.elapsed();
    tokio::time::sleep(WATCH).await;
    if producer.is_finished() {
        producer.await??;
        return Err("the producer has ended".into());
    }
    drop(producer);
    let (silence, resumed) = longest_silence(&mut arrivals, asked, asked + ended);
    leader.end().await?;
    standby.end().await?;
    kafka.remove(&topic).await?;
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(HandOver { ended: ms(ended), silence: ms(silence), resumed: ms(resumed) })
}

/// Produces messages without end; returns only on an error.
async fn produce(mut connection: PgConnection, topic: String) -> Result<(), Failure> {
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tick.tick().await;
        sqlx::query(
            "INSERT INTO outbox_message (topic, key, kind, payload) \
             SELECT $1, 'key-' || n, 'bench.produced', 'x' FROM generate_series(1, $2) AS n",
        )
        .bind(&topic)
        .bind(TOGETHER.cast_signed())
        .execute(&mut connection)
        .await?;
    }
}

/// Returns the longest time between two arrivals, the second of which comes after `asked`, and the
/// time from `asked` to that second one. If nothing arrives any more, the silence lasts until now.
/// A silence that begins long after the leader `ended` does not belong to the hand-over.
fn longest_silence(
    arrivals: &mut UnboundedReceiver<Instant>,
    asked: Instant,
    ended: Instant,
) -> (Duration, Duration) {
    const ON_THE_WAY: Duration = Duration::from_millis(100);
    let mut last = None;
    let mut longest = (Duration::ZERO, Duration::ZERO);
    let mut look = |at: Instant| {
        if let Some(last) = last.replace(at)
            && at > asked
            && last <= ended + ON_THE_WAY
            && at - last > longest.0
        {
            longest = (at - last, at - asked);
        }
    };
    while let Ok(at) = arrivals.try_recv() {
        look(at);
    }
    look(Instant::now());
    longest
}
