//! `relay replay`: it republishes only messages that were published before.

use std::sync::Arc;
use std::time::Duration;

use outbox::NewMessage;
use serde_json::{Value, json};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};

use super::{Ran, column};

tests::cases! { "{case}/{on}":
    pairs {
        what_was_published_is_replayed_with_its_ids,
        what_was_not_published_is_not_replayed,
        a_replay_stops_at_a_pause,
        a_replay_that_was_killed_is_repeated,
        a_replay_that_makes_no_sense_is_refused,
        a_replay_begins_where_history_is_kept,
    }
}

const RELAY: &str = "orders";
const SIGNED: [&str; 4] = ["--actor", "ann", "--note", "a test"];

struct Scene<DB: Dialect> {
    workload: Workload<DB>,
    config: Config,
}

impl<DB: Dialect> Scene<DB> {
    async fn open(stage: &Stage, broker: Arc<dyn Broker>) -> Result<Self, Failure> {
        let workload = Workload::<DB>::open(stage, broker).await?;
        let url = workload.database.relay_url()?;
        let config = Config::write(stage, RELAY, &url, workload.broker.as_ref(), "")?;
        Ok(Self { workload, config })
    }

    async fn place(&self, keys: &[&str]) -> Outcome {
        for key in keys {
            self.workload.place(key).await?;
        }
        Ok(())
    }

    async fn publish(&self) -> Result<Ran, Failure> {
        Ran::with(&self.config, &["run", "--once"]).await
    }

    /// Runs a replay that is signed and needs no confirmation.
    async fn replay(&self, arguments: &[&str]) -> Result<Ran, Failure> {
        Ran::with(&self.config, &[&["replay"], arguments, &SIGNED, &["--yes"]].concat()).await
    }

    /// Returns a replay's result from its JSON.
    async fn replayed(&self, arguments: &[&str]) -> Result<Value, Failure> {
        self.replay(&[arguments, &["--output", "json"]].concat()).await?.done()?.json()
    }

    /// Pauses or resumes the topic.
    async fn steer(&self, verb: &str) -> Outcome {
        let topic = [verb, "--topic", &self.workload.topic, "--actor", "ann", "--note", "a repair"];
        Ran::with(&self.config, &topic).await?.done()?;
        Ok(())
    }

    /// Returns the payloads in the topic, in their order.
    async fn records(&self, at_least: usize) -> Result<Vec<Value>, Failure> {
        let records = self.workload.broker.drain(&self.workload.topic, at_least).await?;
        records.iter().map(|record| Ok(serde_json::from_slice(&record.payload)?)).collect()
    }

    async fn ids(&self) -> Result<Vec<String>, Failure> {
        self.workload.database.texts("SELECT CAST(id AS text) FROM outbox_message ORDER BY id").await
    }
}

/// Returns the sequence numbers of a key, in their order.
fn of_key(records: &[Value], key: &str) -> Vec<i64> {
    records.iter().filter(|record| record["key"] == key).filter_map(|record| record["seq"].as_i64()).collect()
}

/// Goal: published messages are published again by id, time, topic, key and range, with the same
/// message ids and in the order of their keys, and take no second effect. Oracle: the topic, read
/// with a plain client; the consumer's effects and the duplicates it received; the audit.
async fn what_was_published_is_replayed_with_its_ids<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker).await?;
    let consumer = scene.workload.consume().await?;
    scene.place(&["a", "b", "a", "b", "a"]).await?;
    scene.publish().await?.done()?;
    scene.workload.settled().await?;
    let topic = scene.workload.topic.to_string();
    let ids = scene.ids().await?;

    let dry = scene.replayed(&["--all", "--dry-run"]).await?;
    assert_eq!((&dry["chosen"], &dry["published"]), (&json!(5), &json!(0)), "{dry}");
    assert_eq!(dry["topics"], json!({ topic.clone(): 5 }));
    assert_eq!(scene.records(5).await?.len(), 5, "a dry run sends nothing");

    let cases: [(&[&str], u64); 8] = [
        (&["--all"], 5),
        (&["--topic", &topic, "--key", "a"], 3),
        (&["--key", "b"], 2),
        (&["--id", &ids[1], "--id", &ids[3]], 2),
        (&["--from-id", &ids[1], "--to-id", &ids[2]], 2),
        (&["--from-id", &ids[3]], 2),
        (&["--since", "1h", "--until", "0s"], 5),
        (&["--until", "2020-01-31T12:00:00Z"], 0),
    ];
    let mut total = 5;
    for (arguments, count) in cases {
        let report = scene.replayed(arguments).await?;
        assert_eq!(report["published"], json!(count), "{arguments:?}: {report}");
        total += usize::try_from(count)?;
    }
    let table = scene.replay(&["--key", "nobody"]).await?.done()?;
    assert!(table.out.starts_with("nothing to replay: key=nobody: 0 chosen"), "{table:?}");
    let records = scene.records(total).await?;
    assert_eq!(records.len(), total);
    assert_eq!(of_key(&records, "a")[..6], [1, 2, 3, 1, 2, 3], "in the order of the log");
    assert_eq!(of_key(&records, "b")[..4], [1, 2, 1, 2]);

    eventually("the consumer was handed every copy", || async {
        Ok((scene.workload.repeated().await? == i64::try_from(total - 5)?).then_some(()))
    })
    .await?;
    scene.workload.settled().await?;
    let audit = Ran::with(&scene.config, &["dead", "audit", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(column(&audit, "action").len(), 14, "begin and end of seven: {audit}");
    assert_eq!(column(&audit, "selection")[13], "all: 5 chosen");
    assert_eq!(column(&audit, "selection")[12], "all: 5 chosen, 5 published");
    consumer.stop().await
}

/// Goal: a message that was not published is never replayed: not yet published, dead, held or
/// discarded. A paused message is not replayed either. Oracle: the counts and refusals; the topic.
async fn what_was_not_published_is_not_replayed<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker).await?;
    scene.place(&["a"]).await?;
    // One dead message, a message held behind it, and a discarded dead message.
    let bytes = scene.workload.broker.oversize_bytes().ok_or("every message fits")?;
    for key in ["dead", "gone"] {
        let mut tx = scene.workload.begin().await?;
        let message = NewMessage::new(&scene.workload.topic).key(key).payload("x".repeat(bytes));
        scene.workload.outbox().enqueue(&mut tx, message).await?;
        tx.commit().await?;
    }
    scene.place(&["dead"]).await?;
    scene.publish().await?.ended(3)?;
    let discard = [&["dead", "discard", "--key", "gone", "--yes"], &SIGNED[..]].concat();
    Ran::with(&scene.config, &discard).await?.done()?;
    scene.publish().await?.ended(3)?;
    scene.place(&["a"]).await?;
    let ids = scene.ids().await?;

    let report = scene.replayed(&["--all"]).await?;
    let skipped = json!({ "dead": 1, "held": 1, "discarded": 1, "not published yet": 1 });
    assert_eq!((&report["published"], &report["skipped"]), (&json!(1), &skipped), "{report}");
    for (id, reason) in [(1, "dead"), (2, "discarded"), (3, "held"), (4, "has not published it yet")] {
        let one = scene.replay(&["--id", &ids[id]]).await?;
        one.refused(2, &["not published yet", &ids[id], reason])?;
    }
    scene.steer("pause").await?;
    scene.replay(&["--all"]).await?.refused(2, &["is paused by ann", "a repair", "relay resume"])?;
    scene.steer("resume").await?;
    assert_eq!(scene.records(2).await?.len(), 2, "one message, twice");

    // Its copy is still parked, but its row is no longer in the log, so it cannot be replayed.
    scene.workload.database.execute(&format!("DELETE FROM outbox_message WHERE id = {}", ids[1])).await?;
    scene.replay(&["--id", &ids[1]]).await?.refused(2, &[&ids[1], "no longer in the log"])?;
    Ok(())
}

/// Goal: a pause that is set while a replay runs stops it, and the replay reports how to continue.
/// Oracle: the exit code, the log, and the topic, which does not grow afterwards.
async fn a_replay_stops_at_a_pause<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker).await?;
    scene.place(&["a"; 40]).await?;
    scene.publish().await?.done()?;
    let slow = [&["replay", "--all", "--rate", "4", "--yes"], &SIGNED[..]].concat();
    let mut replay = RelayProcess::start_command(&stage, &scene.config, &slow)?;
    eventually("the replay has begun", || async {
        let audit = Ran::with(&scene.config, &["dead", "audit", "--output", "json"]).await?.done()?.json()?;
        Ok(column(&audit, "action").contains(&"replay").then_some(()))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.steer("pause").await?;
    assert_eq!(replay.ended().await?.code(), Some(2));
    let told = replay.log()?;
    for part in ["is paused by ann", "a repair", "continue with --from-id"] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    let count = scene.records(41).await?.len();
    assert!((41..80).contains(&count), "{count}");
    Ok(())
}

/// Goal: a replay of unknown ids, of a reversed range, or without confirmation is refused, and
/// nothing is sent. Oracle: exit codes and errors.
async fn a_replay_that_makes_no_sense_is_refused<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker).await?;
    let early = scene.replay(&["--all"]).await?;
    early.refused(2, &["has never led", "it has published nothing"])?;
    scene.place(&["a"]).await?;
    scene.publish().await?.done()?;
    for (arguments, parts) in [
        (&["--id", "987654"][..], &["987654", "was never there"][..]),
        (&["--id", "01900000-0000-7000-8000-00000000beef"], &["was never there"]),
        (&["--id", "order-7"], &["is not a message id"]),
        (&["--from-id", "9", "--to-id", "3"], &["the range is empty"]),
        (&["--since", "1h", "--until", "2h"], &["the range is empty"]),
        (&["--since", "yesterday"], &["yesterday", "2h, 7d"]),
        (&[], &["--id"]),
    ] {
        scene.replay(arguments).await?.refused(2, parts)?;
    }
    let unasked = Ran::with(&scene.config, &[&["replay", "--all"], &SIGNED[..]].concat()).await?;
    unasked.refused(2, &["publish 1 message again (", "--yes"])?;

    assert_eq!(scene.records(1).await?.len(), 1, "nothing was sent");
    Ok(())
}

/// Goal: a replay never silently skips the part of its range that retention has removed. Oracle:
/// the refusals name the id from which history is kept, and a replay from there works.
async fn a_replay_begins_where_history_is_kept<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker).await?;
    scene.place(&["a", "b"]).await?;
    scene.publish().await?.done()?;
    let ids = scene.ids().await?;
    Ran::with(&scene.config, &["retention", "--keep", "0s", "--actor", "ann", "--note", "a test"])
        .await?
        .done()?;
    scene
        .replay(&["--from-id", &ids[0]])
        .await?
        .refused(2, &["retention has deleted all messages created until"])?;
    scene.place(&["a"]).await?;
    scene.publish().await?.done()?;
    let kept = scene.ids().await?;
    let help = format!("use --from-id {}", kept[0]);
    for begin in [["--from-id", &ids[0]], ["--since", "1h"]] {
        scene.replay(&begin).await?.refused(2, &["retention has deleted messages created until", &help])?;
    }
    scene.replay(&["--id", &ids[0]]).await?.refused(2, &["retention has deleted it"])?;
    let report = scene.replayed(&["--all"]).await?;
    assert_eq!(
        (&report["published"], &report["kept_from"]["id"]),
        (&json!(1), &json!(kept[0].parse::<i64>()?))
    );
    Ok(())
}

/// Goal: a replay that is killed in the middle can be repeated without loss, beside a running
/// relay. A replay that is stopped by a signal reports where to continue. Oracle: the topic has
/// every message at least twice; each effect happened once and in order; the output states how to
/// continue, and that works.
async fn a_replay_that_was_killed_is_repeated<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker).await?;
    let relay = RelayProcess::start(&stage, &scene.config)?;
    let consumer = scene.workload.consume().await?;
    scene.workload.place_many(4, 40).await?;
    scene.workload.settled().await?;
    // A replay covers only messages before the stored cursor, which lags behind publishing.
    eventually("the cursor has passed everything", || async {
        let dry = scene.replayed(&["--all", "--dry-run"]).await?;
        Ok((dry["chosen"] == json!(40)).then_some(()))
    })
    .await?;
    let slow = [&["replay", "--all", "--rate", "8", "--yes"], &SIGNED[..]].concat();
    let killed = RelayProcess::start_command(&stage, &scene.config, &slow)?;
    eventually("the replay has begun", || async { Ok((scene.workload.repeated().await? > 3).then_some(())) })
        .await?;
    killed.kill().await?;
    scene.place(&["new"]).await?;

    let mut stopped = RelayProcess::start_command(&stage, &scene.config, &slow)?;
    let before = scene.workload.repeated().await?;
    eventually("the second replay has begun", || async {
        Ok((scene.workload.repeated().await? > before + 3).then_some(()))
    })
    .await?;
    stopped.signal("TERM").await?;
    assert_eq!(stopped.ended().await?.code(), Some(3));
    let told = stopped.log()?;
    assert!(told.contains("the replay was stopped"), "{told}");
    let (_, next) = told.split_once("continue with --from-id ").ok_or(told.clone())?;
    let next: String = next.chars().take_while(char::is_ascii_digit).collect();
    let rest = scene.replayed(&["--from-id", &next]).await?;
    assert!(rest["published"].as_u64().is_some_and(|sent| (1..=40).contains(&sent)), "{rest}");
    scene.replay(&["--all"]).await?.done()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.workload.settled().await?;
    let records = scene.records(82).await?;
    for order in scene.workload.placed().await? {
        let is_it = |record: &&Value| record["key"] == order.key.as_str() && record["seq"] == order.seq;
        let count = records.iter().filter(is_it).count();
        assert!(count >= 2, "{order:?} is there {count} times");
    }
    consumer.stop().await?;
    relay.stop().await
}
