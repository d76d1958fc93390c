//! `relay pause` and `relay resume` with a running relay.

use std::sync::Arc;
use std::time::Duration;

use outbox::NewMessage;
use serde_json::{Value, json};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};

use super::{Ran, column};

tests::cases! { "{case}/{on}":
    pairs { what_is_paused_waits_in_order_and_others_flow }
}

const RELAY: &str = "orders";

/// Maximum time until a running relay has noticed a pause: one second, and one more for a busy
/// machine.
const TAKEN_UP: Duration = Duration::from_secs(2);

struct Scene<DB: Dialect> {
    workload: Workload<DB>,
    config: Config,
}

impl<DB: Dialect> Scene<DB> {
    async fn command(&self, verb: &str, scope: &[&str]) -> Result<Ran, Failure> {
        let signed = ["--actor", "ann", "--note", "a test"];
        let ran = Ran::with(&self.config, &[&[verb], scope, &signed].concat()).await?.done()?;
        if verb == "pause" {
            tokio::time::sleep(TAKEN_UP).await;
        }
        Ok(ran)
    }

    async fn refused(&self, verb: &str, scope: &[&str], parts: &[&str]) -> Outcome {
        let signed = ["--actor", "bob", "--note", "too"];
        Ran::with(&self.config, &[&[verb], scope, &signed].concat()).await?.refused(2, parts)?;
        Ok(())
    }

    async fn status(&self) -> Result<Value, Failure> {
        // The command exits with 3 while messages are held.
        let status = Ran::with(&self.config, &["status", "--output", "json"]).await?.json()?;
        Ok(status[0].clone())
    }

    /// Returns how many orders of a key have taken effect.
    async fn effects(&self, key: &str) -> Result<usize, Failure> {
        Ok(self.workload.effects().await?.iter().filter(|fact| fact.key == key).count())
    }

    async fn until_effects(&self, key: &str, count: usize) -> Outcome {
        eventually("the orders of a key that is not paused take effect", || async {
            Ok((self.effects(key).await? == count).then_some(()))
        })
        .await
    }

    async fn place(&self, key: &str, orders: usize) -> Outcome {
        for _ in 0..orders {
            self.workload.place(key).await?;
        }
        Ok(())
    }
}

/// Goal: a paused key, topic or pipeline waits, even under a relay that takes over. Other keys and
/// topics continue, waiting messages are counted, and after the resume every message takes effect
/// once and in order. Oracle: effects of both keys; the other topic, read with a plain client; the
/// status; the checker's order at the end.
async fn what_is_paused_waits_in_order_and_others_flow<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let other = workload.broker.topic_name("other");
    workload.broker.create_topic(&other).await?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    let scene = Scene { workload, config };
    scene.place("a", 2).await?;
    scene.until_effects("a", 2).await?;

    // A key, and a takeover.
    let key = ["--key", "a"];
    scene.command("pause", &key).await?;
    scene.refused("pause", &key, &["key a is already paused", "by ann", "a test"]).await?;
    scene.place("a", 3).await?;
    scene.place("b", 3).await?;
    scene.until_effects("b", 3).await?;
    relay.kill().await?;
    let relay = RelayProcess::start(&stage, &scene.config)?;
    scene.place("a", 2).await?;
    scene.place("b", 2).await?;
    scene.until_effects("b", 5).await?;
    assert_eq!(scene.effects("a").await?, 2, "the key is paused");
    eventually("what is paused counts as waiting", || async {
        let status = scene.status().await?;
        let is_counted =
            status["backlog_entries_max"] == json!(5) && status["exceptions"]["held"] == json!(5);
        assert_eq!(column(&status["paused"], "reason"), ["a test"]);
        assert_eq!(column(&status["paused"], "paused"), ["key a"]);
        Ok(is_counted.then_some(()))
    })
    .await?;
    scene.command("resume", &key).await?;
    scene.refused("resume", &key, &["key a is not paused", "nothing"]).await?;
    scene.until_effects("a", 7).await?;

    // A misspelt name, while no message waits.
    let topic = scene.workload.topic.to_string();
    let name = format!("{topic}x");
    let misspelt = ["--topic", name.as_str(), "--note", "a test", "--actor", "ann"];
    let paused = Ran::with(&scene.config, &[&["pause"], &misspelt[..]].concat()).await?.done()?;
    let meant = format!("the outbox has no message of topic {name}: did you mean {topic}?");
    let resume = format!("relay resume --topic {name} --pipeline {RELAY} --note WHY");
    assert!(paused.err.contains(&meant) && paused.err.contains(&resume), "{paused:?}");
    scene.command("resume", &misspelt[..2]).await?;

    // A topic.
    let topic = ["--topic", topic.as_str()];
    scene.command("pause", &topic).await?;
    scene.place("a", 3).await?;
    let mut tx = scene.workload.begin().await?;
    for (name, key) in [(&other, "free"), (&other, "a")] {
        scene.workload.outbox().enqueue(&mut tx, NewMessage::new(name).key(key).json(&key)).await?;
    }
    tx.commit().await?;
    let records = scene.workload.broker.drain(&other, 1).await?;
    assert_eq!(records[0].payload, br#""free""#, "the other topic flows, but for keys that wait");
    assert_eq!(scene.effects("a").await?, 7, "the topic is paused");
    scene.command("resume", &topic).await?;
    scene.until_effects("a", 10).await?;

    // The whole pipeline: messages wait in the log.
    scene.command("pause", &["--all"]).await?;
    scene.place("a", 2).await?;
    scene.place("b", 2).await?;
    tokio::time::sleep(TAKEN_UP).await;
    assert_eq!((scene.effects("a").await?, scene.effects("b").await?), (10, 5), "all is paused");
    let status = scene.status().await?;
    assert_eq!((&status["backlog_entries_max"], &status["exceptions"]["held"]), (&json!(4), &json!(0)));
    scene.command("resume", &["--all"]).await?;
    scene.workload.settled().await?;
    assert_eq!((scene.effects("a").await?, scene.effects("b").await?), (12, 7));

    let audit = Ran::with(&scene.config, &["dead", "audit", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(column(&audit, "action"), ["resume", "pause"].repeat(4), "{audit}");
    assert_eq!(column(&audit, "selection")[6..], ["key a"; 2]);
    assert_eq!((column(&audit, "actor"), column(&audit, "note")), (vec!["ann"; 8], vec!["a test"; 8]));
    consumer.stop().await?;
    relay.stop().await
}
