//! `relay dead list`, `show`, `edit`, `requeue`, `discard` and `audit`.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox::NewMessage;
use serde_json::{Value, json};
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Database, Dialect, Failure, Outcome, Stage};

use super::{Ran, column};

tests::cases! { "{case}/{on}":
    pairs {
        dead_messages_are_edited_requeued_and_discarded,
        a_wrong_selection_decides_about_nothing,
        of_two_operators_one_wins_and_the_other_is_told,
        a_relay_is_forgotten_with_its_dead_messages_when_asked,
    }
    postgres { many_messages_are_decided_about_in_few_sessions = many_are_decided_about_in_few_sessions }
}

const RELAY: &str = "orders";
const SIGNED: [&str; 4] = ["--actor", "ann", "--note", "a test"];

/// A workload with one dead message for each of the given keys.
struct Scene<DB: Dialect> {
    workload: Workload<DB>,
    config: Config,
}

impl<DB: Dialect> Scene<DB> {
    async fn open(stage: &Stage, broker: Arc<dyn Broker>, keys: &[&str]) -> Result<Self, Failure> {
        let workload = Workload::<DB>::open(stage, broker).await?;
        let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
        for key in keys {
            let mut tx = workload.begin().await?;
            let message = NewMessage::new(&workload.topic).key(*key).content_type("application/json");
            let message = message.payload("x".repeat(bytes));
            workload.outbox().enqueue(&mut tx, message).await?;
            tx.commit().await?;
        }
        let config =
            Config::write(stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
        let scene = Self { workload, config };
        // The exit code reports that dead messages are left.
        scene.publish().await?.ended(3)?;
        Ok(scene)
    }

    async fn publish(&self) -> Result<Ran, Failure> {
        Ran::with(&self.config, &["run", "--once"]).await
    }

    async fn dead(&self, arguments: &[&str]) -> Result<Ran, Failure> {
        Ran::with(&self.config, &[&["dead"], arguments].concat()).await
    }

    /// Lists the messages in a state, as JSON.
    async fn listed(&self, state: &str) -> Result<Value, Failure> {
        self.dead(&["list", "--state", state, "--output", "json"]).await?.done()?.json()
    }

    /// Makes a signed decision. Returns the report as JSON.
    async fn decide(&self, arguments: &[&str]) -> Result<Value, Failure> {
        let arguments = [arguments, &SIGNED, &["--output", "json"]].concat();
        self.dead(&arguments).await?.done()?.json()
    }
}

/// Goal: an operator finds dead messages, repairs one and discards others, and every decision can
/// be looked up afterwards. Oracle: the records in the topic, read with a plain client; the lists;
/// one audit record for each decision with who, what and why; exit code 3 while a message is dead,
/// 0 afterwards.
async fn dead_messages_are_edited_requeued_and_discarded<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker, &["a", "b", "c"]).await?;
    let table = scene.dead(&["list"]).await?.done()?.out;
    assert!(table.starts_with("SOURCE ") && table.lines().count() == 4, "{table}");
    let dead = scene.listed("dead").await?;
    assert_eq!(column(&dead, "key"), ["a", "b", "c"], "{dead}");
    let (entry, message) =
        (dead[0]["id"].as_str().ok_or("no id")?, dead[0]["message_id"].as_str().ok_or("no id")?);
    let limited = scene.dead(&["list", "--limit", "2"]).await?.done()?;
    assert!(limited.out.lines().count() == 3 && limited.err.contains("--limit"), "{limited:?}");
    let count = ["list", "--count", "--state", "dead", "--state", "held", "--output", "json"];
    let count = scene.dead(&count).await?.done()?.json()?;
    assert_eq!((&count[0]["messages"], &count[0]["is_at_least"]), (&json!(3), &json!(false)), "{count}");
    let shown = scene.dead(&["show", "--id", message]).await?.done()?.out;
    assert!(shown.contains(message) && shown.contains("attempts"), "{shown}");

    let file = stage.folder().join("payload");
    std::fs::write(&file, json!({ "key": "a", "seq": 1 }).to_string())?;
    let file = file.to_str().ok_or("the path is not UTF-8")?;
    std::fs::write(file, "{\"key\": \"a\"")?;
    let broken = ["edit", "--id", message, "--payload-file", file];
    let broken = scene.dead(&[&broken, &SIGNED[..]].concat()).await?;
    broken.refused(2, &["not JSON", "EOF while parsing", "--accept-invalid-json"])?;
    std::fs::write(file, json!({ "key": "a", "seq": 1 }).to_string())?;
    let edit = ["edit", "--id", message, "--payload-file", file, "--header", "by=ann", "--output", "json"];
    let edited = scene.dead(&[&edit, &SIGNED[..]].concat()).await?.done()?;
    assert!(
        edited.err.contains(&format!("requeue --pipeline {RELAY} --id {message} --note WHY")),
        "{edited:?}"
    );
    let edited = edited.json()?;
    assert_eq!(outcomes(&edited), [(entry, "edited")], "{edited}");
    assert_eq!(scene.listed("dead").await?[0]["edited"], json!(true), "it stays dead until you requeue it");
    let late = ["edit", "--id", message, "--payload-file", file, "--unchanged-since", "2020-01-01T00:00:00Z"];
    scene.dead(&[&late, &SIGNED[..]].concat()).await?.refused(2, &["changed at", "nothing was edited"])?;
    let edits = scene.dead(&[&["edits", "--id", entry, "--output", "json"], &SIGNED[..]].concat()).await?;
    let edits = edits.done()?.json()?;
    assert_eq!(column(&edits, "actor"), ["ann"], "{edits}");
    assert_eq!(edits[0]["after"]["payload"], r#"{"key":"a","seq":1}"#, "{edits}");
    assert_eq!(edits[0]["after"]["headers"]["by"], "ann", "{edits}");
    // The payload before was larger than the audit keeps.
    let before = &edits[0]["before"];
    assert!(before["payload"].is_null() && before["digest"].is_string(), "{edits}");
    let requeued = scene.decide(&["requeue", "--id", entry]).await?;
    assert_eq!(outcomes(&requeued), [(entry, "requeued")], "{requeued}");
    assert_eq!(requeued["selection"], json!(format!("id={entry}: 1 chosen")));
    let again = scene.dead(&[&["requeue", "--id", entry], &SIGNED[..]].concat()).await?;
    again.refused(2, &["not dead", entry, "retrying", "automatically"])?;
    scene.publish().await?.ended(3)?;
    let records = scene.workload.broker.drain(&scene.workload.topic, 1).await?;
    let payloads: BTreeSet<&[u8]> = records.iter().map(|record| record.payload.as_slice()).collect();
    assert_eq!(payloads, BTreeSet::from([br#"{"key":"a","seq":1}"#.as_slice()]));

    let text = scene.dead(&[&["discard", "--key", "b", "--yes"], &SIGNED[..]].concat()).await?.done()?.out;
    assert!(text.contains("discarded") && text.lines().count() == 2, "{text}");
    let topic = scene.workload.topic.as_str();
    let discard = ["discard", "--topic", topic, "--kind", topic, "--newer-than", "1h", "--yes"];
    let dry = scene.decide(&[&discard[..], &["--dry-run"]].concat()).await?;
    assert_eq!((column(&dry["messages"], "outcome"), &dry["dry_run"]), (vec!["would discard"], &json!(true)));
    assert_eq!(column(&scene.listed("dead").await?, "key"), ["c"], "a dry run decides nothing");
    scene.decide(&discard).await?;
    assert_eq!(scene.listed("dead").await?, json!([]));
    assert_eq!(scene.decide(&["requeue", "--all"]).await?["messages"], json!([]));
    scene.publish().await?.done()?;
    // The relay has passed the discarded messages. They stay in the list for as long as they exist.
    let discarded = scene.listed("discarded").await?;
    assert_eq!(column(&discarded, "key"), ["b", "c"], "{discarded}");
    let error = |text: &str| text.starts_with("discarded by ann: a test; it was dead: a payload of ");
    assert!(column(&discarded, "error").into_iter().all(error), "{discarded}");
    assert_eq!(column(&discarded, "state"), ["discarded"; 2], "{discarded}");
    let shown = scene.dead(&["show", "--id", dead[1]["id"].as_str().ok_or("no id")?]).await?.done()?.out;
    assert!(shown.contains("discarded by ann"), "{shown}");

    let gone = ["discard", "--id", dead[1]["id"].as_str().ok_or("no id")?];
    scene
        .dead(&[&gone[..], &SIGNED].concat())
        .await?
        .refused(2, &["not dead", "discarded by ann at", "not sent again"])?;
    let published = scene.dead(&[&["discard", "--id", entry], &SIGNED[..]].concat()).await?;
    published.refused(2, &["not dead", "requeued by ann at", "published since"])?;

    let audit = scene.dead(&["audit", "--output", "json"]).await?.done()?.json()?;
    let actions = ["discard", "discard", "requeue", "payload", "edit"];
    assert_eq!(column(&audit, "action"), actions, "the latest first");
    let chosen = format!("topic={topic} kind={topic} newer_than=1h: 1 chosen");
    assert_eq!(column(&audit, "selection")[0], chosen, "the filter, and how many it chose");
    let who: BTreeSet<_> = column(&audit, "actor").into_iter().zip(column(&audit, "note")).collect();
    assert_eq!(who, BTreeSet::from([("ann", "a test")]));
    let edit = &audit[4];
    assert!(edit["digest_before"].is_string() && edit["digest_before"] != edit["digest_after"], "{edit}");
    let one = scene.dead(&["audit", "--limit", "1"]).await?.done()?.out;
    assert_eq!(one.lines().count(), 2, "{one}");
    Ok(())
}

/// Goal: when two operators decide about the same messages at once, one wins and the other learns
/// of it. Oracle: each message has one decision in the audit; every other outcome names the faster
/// operator, and the slower operator's command ends with 2.
async fn of_two_operators_one_wins_and_the_other_is_told<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let scene = Scene::<DB>::open(&stage, broker, &keys).await?;
    let as_ = |actor: &'static str| ["--yes", "--actor", actor, "--note", "a test", "--output", "json"];
    let (requeue, discard) = (
        [&["requeue", "--all"][..], &as_("ann")].concat(),
        [&["discard", "--all"][..], &as_("bob")].concat(),
    );
    let (ann, bob) = tokio::try_join!(scene.dead(&requeue), scene.dead(&discard))?;
    let audit = scene.dead(&["audit", "--each", "--output", "json"]).await?.done()?.json()?;
    let decided: BTreeSet<&str> = column(&audit, "id").into_iter().collect();
    assert_eq!((decided.len(), column(&audit, "id").len()), (keys.len(), keys.len()), "{audit}");
    let mut won = 0;
    for (ran, winner, other) in
        [(ann, "requeued", "discarded by bob at"), (bob, "discarded", "requeued by ann at")]
    {
        let code = ran.code;
        let report = ran.json()?;
        let told = column(&report["messages"], "outcome");
        let own = told.iter().filter(|outcome| **outcome == winner).count();
        let lost = told.iter().filter(|outcome| outcome.contains(other)).count();
        assert_eq!(own + lost, told.len(), "{report}");
        assert_eq!(code, Some(if lost == 0 { 0 } else { 2 }), "{report}");
        won += own;
    }
    assert_eq!(won, keys.len(), "each message has one winner");
    Ok(())
}

/// Returns the ids and outcomes of a report.
fn outcomes(report: &Value) -> Vec<(&str, &str)> {
    column(&report["messages"], "id").into_iter().zip(column(&report["messages"], "outcome")).collect()
}

/// Goal: a command with a contradictory or wrong selection decides about nothing. Oracle: for each
/// command, exit code 2 and the error; everything is still dead, and no audit record was written.
async fn a_wrong_selection_decides_about_nothing<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker, &["a", "b"]).await?;
    let dead = scene.listed("dead").await?;
    let known = dead[0]["id"].as_str().ok_or("no id")?;
    let payload = stage.folder().join("payload");
    std::fs::write(&payload, "x")?;
    let payload = payload.to_str().ok_or("the path is not UTF-8")?;
    let cases: [(&[&str], &[&str]); 13] = [
        (&["requeue", "--id", known, "--id", "999"], &["not dead: 999 (no such message", "relay dead list"]),
        (&["discard", "--id", "no-id"], &["not dead: no-id"]),
        (&["discard", "--id", ""], &["--id"]),
        (&["discard", "--all"], &["2 dead messages", "--yes"]),
        (&["requeue", "--key", "a"], &["requeue 1 dead message (", "--yes"]),
        (&["requeue"], &["--id"]),
        (&["requeue", "--all", "--key", "a"], &["--all", "--key"]),
        (&["requeue", "--all", "--yes", "--pipeline", "nobody"], &["nobody", RELAY]),
        (&["edit", "--id", "999", "--payload-file", payload], &["not dead: 999"]),
        (&["edit", "--id", known, "--payload-file", "/nowhere/payload"], &["/nowhere/payload"]),
        (&["edit", "--id", known], &["--payload-file"]),
        (&["edit", "--id", known, "--header", "a=1", "--header", "a=2"], &["header a", "twice"]),
        (&["edit", "--id", known, "--header", "a"], &["NAME=VALUE"]),
    ];
    for (arguments, parts) in cases {
        scene.dead(&[arguments, &SIGNED].concat()).await?.refused(2, parts)?;
    }
    scene.dead(&["discard", "--id", known, "--actor", "ann"]).await?.refused(2, &["--note"])?;
    scene.dead(&["show", "--id", "999"]).await?.refused(2, &["not parked: 999"])?;
    assert_eq!(column(&scene.listed("dead").await?, "key"), ["a", "b"]);
    assert_eq!(scene.dead(&["audit", "--output", "json"]).await?.done()?.json()?, json!([]));
    // A topic or key without messages is not a mistake, because a script may repeat its command.
    let nothing = scene.decide(&["discard", "--key", "nobody", "--yes"]).await?;
    assert_eq!(nothing["messages"], json!([]));
    Ok(())
}

/// Goal: a relay is not forgotten together with messages that may still be needed, unless the
/// operator asks for that. Oracle: exit code 2 with their number and the remedy, and everything is
/// still there; then no row of the relay is left.
async fn a_relay_is_forgotten_with_its_dead_messages_when_asked<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let scene = Scene::<DB>::open(&stage, broker, &["a", "b"]).await?;
    let rows = async || {
        let mut rows = Vec::new();
        for table in ["outbox_relay", "outbox_exception", "outbox_parked"] {
            rows.push(scene.workload.database.integer(&format!("SELECT count(*) FROM {table}")).await?);
        }
        Ok::<_, Failure>(rows)
    };
    let before = rows().await?;
    assert!(before[0] == 1 && before[1] == 2, "{before:?}");
    let refused = Ran::with(&scene.config, &["forget", RELAY, "--actor", "ann", "--note", "a test"]).await?;
    refused.refused(2, &[RELAY, "2", "relay dead list", "--discard-parked"])?;
    assert_eq!(rows().await?, before);
    assert_eq!(column(&scene.listed("dead").await?, "key"), ["a", "b"]);
    let done = Ran::with(
        &scene.config,
        &["forget", RELAY, "--discard-parked", "--actor", "ann", "--note", "a test"],
    )
    .await?
    .done()?;
    assert!(done.err.contains("relay orders is forgotten"), "{done:?}");
    assert_eq!(rows().await?, [0, 0, 0]);
    Ok(())
}

/// Goal: a decision about a thousand messages opens few sessions and is one line of the audit. When
/// one database is unreachable, the audit shows the other. Oracle: the server's count of sessions,
/// standard error, and the audit.
async fn many_are_decided_about_in_few_sessions(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    for insert in [
        "outbox_relay (relay, epoch, cursor) VALUES ('orders', 0, '{}')",
        "outbox_message (topic, key, payload) SELECT 'orders', 'k' || n, '\\x00' FROM generate_series(1, 1200) AS n",
        "outbox_exception (relay, id, message_id, topic, key, state) \
         SELECT 'orders', id, message_id, topic, key, 'dead' FROM outbox_message",
    ] {
        database.execute(&format!("INSERT INTO {insert}")).await?;
    }
    let pipeline = |name: &str, url: &str| {
        format!(
            "[[pipeline]]\nname = {name:?}\n[pipeline.database]\nurl = {url:?}\n\
             [pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n"
        )
    };
    let away = "postgres://relay@127.0.0.1:1/nowhere";
    let file = stage.folder().join("relay.toml");
    std::fs::write(&file, pipeline(RELAY, &database.relay_url()?) + &pipeline("away", away))?;
    let file = file.to_str().ok_or("the path is not UTF-8")?;
    let run = async |arguments: &[&str]| Ran::of(&[arguments, &["--config", file]].concat()).await;

    let sessions = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";
    let before = database.integer(sessions).await?;
    let requeue = ["dead", "requeue", "--pipeline", RELAY, "--topic", "orders", "--yes", "--output", "json"];
    let ran = run(&[&requeue[..], &SIGNED].concat()).await?.done()?;
    let opened = database.integer(sessions).await? - before;
    assert!(opened <= 5, "{opened} sessions");
    let report = ran.json()?;
    assert_eq!(
        [&report["chosen"], &report["done"], &report["refused"]],
        [&json!(1200), &json!(1200), &json!(0)]
    );
    let decisions = "SELECT count(DISTINCT decision) FROM outbox_audit";
    assert_eq!(database.integer(decisions).await?, 1);

    let audit = run(&["dead", "audit", "--output", "json"]).await?.ended(3)?;
    let lines = audit.json()?;
    assert_eq!(lines.as_array().map(Vec::len), Some(1), "{lines}");
    assert_eq!((&lines[0]["messages"], &lines[0]["id"]), (&json!(1200), &Value::Null), "{lines}");
    assert!(audit.err.contains("away"), "{}", audit.err);
    let each = ["dead", "audit", "--pipeline", RELAY, "--each", "--limit", "2000", "--output", "json"];
    assert_eq!(run(&each).await?.done()?.json()?.as_array().map(Vec::len), Some(1200));
    Ok(())
}
