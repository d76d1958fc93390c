//! Holding: messages that wait behind a blocked message, and messages that do not.

use std::sync::Arc;

use outbox::NewMessage;
use outbox_log::admin::{self, ChosenEntry, Decision, OperatorDecision};
use outbox_log::{EntryId, ExceptionState, LogOptions, RelayName};
use serde_json::json;
use sqlx::Postgres;
use tests::facts::Fact;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};

use crate::observability::{ANY, SERVING, get, served};

tests::cases! { "{case}/{on}":
    everywhere {
        a_poisoned_message_holds_its_key_only,
        an_unknown_topic_stops_alone,
    }
    night postgres rabbitmq {
        a_message_that_nobody_takes_is_dead_at_once,
        a_message_that_nobody_takes_passes_by_topic,
    }
}

const RELAY: &str = "orders";

/// Goal: G7, a message that the broker can never accept is parked where an operator sees it, its
/// key waits behind it, and all other keys continue. After the operator's edit the key continues in
/// order. Oracle: effects of other keys while it is parked; the checker's order at the end.
async fn a_poisoned_message_holds_its_key_only<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place("poisoned").await?;
    place_oversize(&workload, bytes).await?;
    workload.place("poisoned").await?;
    workload.place_many(5, 25).await?;
    workload.applied(26).await?;
    let admin = admin::open(
        workload.database.relay_url()?.as_str(),
        message::Source::new("/test")?,
        LogOptions::default(),
    )?;
    let name = RelayName::new(RELAY)?;
    let dead = eventually("the message is parked", || async {
        let dead = admin.list(&name, ExceptionState::Dead, EntryId(0), 10).await?;
        Ok((dead.len() == 1).then_some(dead))
    })
    .await?;
    let effects = workload.effects().await?;
    let of_the_key: Vec<_> = effects.iter().filter(|fact| fact.key == "poisoned").collect();
    assert_eq!(of_the_key, [&Fact::new("poisoned", 1)], "the key did not wait");
    let payload = json!({ "key": "poisoned", "seq": 2 }).to_string().into_bytes();
    for decision in
        [Decision::Edit { payload: Some(payload.into()), headers: None, replaces: None }, Decision::Requeue]
    {
        let decree = OperatorDecision { decision, signature: outbox::Signature::new("test", "shortened") };
        let verdicts = admin.decide(&name, &[ChosenEntry::from(&dead[0])], decree).await?;
        assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    }
    workload.settled().await?;
    assert_eq!(admin.audit(&name, 10).await?.len(), 2);
    consumer.stop().await?;
    relay.stop().await
}

/// Places the next order of the key, with a payload that no relay of this broker sends.
async fn place_oversize<DB: Dialect>(workload: &Workload<DB>, bytes: usize) -> Result<(), Failure> {
    let mut tx = workload.begin().await?;
    DB::execute(&mut tx, "UPDATE counter SET seq = 2 WHERE key = 'poisoned'").await?;
    DB::execute(&mut tx, "INSERT INTO placed VALUES ('poisoned', 2)").await?;
    let message = NewMessage::new(&workload.topic).key("poisoned").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    Ok(())
}

/// Goal: a message for a missing topic stops only that topic, the log names it, and the message is
/// published once the topic exists. Oracle: the relay's log names the topic; effects of the other
/// topic; the record, read with a plain client.
async fn an_unknown_topic_stops_alone<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let missing = workload.broker.topic_name("missing");
    let config = Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    for number in 0..3 {
        let mut tx = workload.begin().await?;
        let message = NewMessage::new(&missing).key("k").json(&number);
        workload.outbox().enqueue(&mut tx, message).await?;
        tx.commit().await?;
        workload.place("other").await?;
    }
    relay.tells("topic stopped").await?;
    assert!(relay.log()?.contains(&missing), "the missing topic is not named");
    workload.settled().await?;
    workload.broker.create_topic(&missing).await?;
    let records = workload.broker.drain(&missing, 3).await?;
    let mut payloads: Vec<_> = records.iter().map(|record| record.payload.clone()).collect();
    if workload.broker.order() == tests::facts::Order::Free {
        payloads.sort();
    }
    payloads.dedup();
    assert_eq!(payloads, [b"0", b"1", b"2"]);
    consumer.stop().await?;
    relay.stop().await
}

/// Goal: with `unroutable = "dead"` a message that no queue accepts is dead at once, its key waits
/// behind it, and other keys of its topic continue. Oracle: one attempt and the reason; the records
/// that a plain client finds once a queue exists.
async fn a_message_that_nobody_takes_is_dead_at_once(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let section = workload.broker.relay_section().ok_or("it lives in this process")?;
    let section = format!("{section}unroutable = \"dead\"\n");
    let url = workload.database.relay_url()?;
    let config = Config::with_section(&stage, RELAY, &url, &section, "")?;
    let nobodys = workload.broker.topic_name("nobodys");
    workload.database.append(&nobodys, "a", "1").await?;
    workload.database.append(&nobodys, "a", "2").await?;
    let relay = RelayProcess::start(&stage, &config)?;
    let admin = admin::open(url.as_str(), message::Source::new("/test")?, LogOptions::default())?;
    let name = RelayName::new(RELAY)?;
    let dead = eventually("the message is dead", || async {
        let dead = admin.list(&name, ExceptionState::Dead, EntryId(0), 10).await?;
        Ok((!dead.is_empty()).then_some(dead))
    })
    .await?;
    assert_eq!((dead.len(), dead[0].attempts, dead[0].key.as_deref()), (1, 1, Some("a")), "{dead:?}");
    let error = dead[0].error.clone().unwrap_or_default();
    assert!(error.contains(&format!("no queue is bound for routing key {nobodys}")), "{error}");
    workload.broker.create_topic(&nobodys).await?;
    workload.database.append(&nobodys, "b", "33").await?;
    let records = workload.broker.drain(&nobodys, 1).await?;
    assert_eq!(records.iter().map(|record| &record.payload[..]).collect::<Vec<_>>(), [b"33"]);
    relay.stop().await
}

/// Goal: with `unroutable_topics` messages of one key that no queue takes pass as published, and
/// are counted and logged once; a topic without this setting waits as before. Oracle: the scraped
/// counters, the log, and the records that a plain client finds once a queue exists.
async fn a_message_that_nobody_takes_passes_by_topic(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let section = workload.broker.relay_section().ok_or("it lives in this process")?;
    let audit = workload.broker.topic_name("audit");
    let waiting = workload.broker.topic_name("commands");
    let section = format!("{section}unroutable_topics = {{ \"{audit}\" = \"pass\" }}\n");
    let url = workload.database.relay_url()?;
    let config = Config::with_section(&stage, RELAY, &url, &section, "")?;
    let config = served(&stage, &config, ANY)?;
    for number in 1..=3 {
        workload.database.append(&audit, "a", &number.to_string()).await?;
    }
    workload.database.append(&waiting, "b", "7").await?;
    let relay = RelayProcess::start(&stage, &config)?;
    let address = relay.address(SERVING).await?;
    let count = |text: &str, name: &str, topic: &str| {
        let series = format!("{name}{{relay=\"{RELAY}\",topic=\"{topic}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok())
    };
    let text = eventually("the messages have passed, and the other topic has stopped", || async {
        let (_, text) = get(&address, "/metrics").await?;
        let has_stopped = text.contains("relay_publish_failures_total{");
        Ok((count(&text, "relay_unrouted_total", &audit) == Some(3) && has_stopped).then_some(text))
    })
    .await?;
    assert_eq!(count(&text, "relay_published_total", &audit), Some(3));
    assert_eq!(count(&text, "relay_unrouted_total", &waiting), None);
    workload.broker.create_topic(&waiting).await?;
    let records = workload.broker.drain(&waiting, 1).await?;
    assert_eq!(records.iter().map(|record| &record.payload[..]).collect::<Vec<_>>(), [b"7"]);
    let told = relay.log()?.lines().filter(|line| line.contains("count as published")).count();
    assert_eq!(told, 1, "once for the topic");
    relay.stop().await
}
