//! `relay show`, the story of a message wherever it is; `relay lag`, `relay tail` and `relay status
//! --watch`.

use std::sync::Arc;

use outbox::NewMessage;
use outbox_log::entries::UNREAD_COUNTED_MAX;
use serde_json::{Value, json};
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Database, Dialect, Failure, Outcome, RelayProcess, Stage};

use super::{Ran, column};
use crate::verify;

tests::cases! { "{case}/{on}":
    pairs {
        the_story_of_a_message_is_told,
        topics_that_are_behind_are_told_and_watched,
        what_is_published_now_is_told,
    }
    postgres { a_count_that_stops_is_a_lower_bound }
}

async fn shown(config: &Config, id: &str) -> Result<Value, Failure> {
    Ran::with(config, &["show", id, "--output", "json"]).await?.done()?.json()
}

/// Goal: an operator sees where a message is: waiting, published and applied, dead, held behind a
/// dead message, or discarded. The operator can give its position, its message id or its dead
/// letter, and gets a clear answer for an invalid, unknown or removed id. Oracle: the workload's
/// own tables, and each answer.
async fn the_story_of_a_message_is_told<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config = verify::config(&stage, &workload, &workload.database.url, "")?;
    let publish = || async { Ran::with(&config, &["run", "--once"]).await };
    workload.place("a").await?;
    let id = workload.database.texts("SELECT CAST(message_id AS text) FROM outbox_message").await?.remove(0);
    let story = shown(&config, &id).await?;
    assert_eq!(story["message_id"], json!(id), "{story}");
    let entry = &story["outboxes"][0];
    assert_eq!((&entry["state"], &entry["key"]), (&json!("waiting"), &json!("a")), "{story}");
    assert_eq!(entry["transaction"].is_string(), DB::BACKEND == tests::Backend::Postgres, "{story}");
    assert_eq!(story["inboxes"][0]["state"], json!("not seen"), "{story}");

    let consumer = workload.consume().await?;
    publish().await?.done()?;
    workload.settled().await?;
    consumer.stop().await?;
    let place = entry["id"].to_string();
    for name in [&id, &place] {
        let story = shown(&config, name).await?;
        let (entry, part) = (&story["outboxes"][0], &story["inboxes"][0]);
        assert_eq!(entry["state"], json!("published"), "{story}");
        assert!(entry["published_by"].is_string() && entry["destination"].is_string(), "{story}");
        assert_eq!((&part["consumer"], &part["state"]), (&json!("workload"), &json!("applied")), "{story}");
        assert!(part["at"].is_string(), "{story}");
        assert!(!story.to_string().contains("\"seq\""), "no payload: {story}");
    }
    let text = Ran::with(&config, &["show", &id]).await?.done()?.out;
    for part in [id.as_str(), "published before", "CONSUMER", "workload", "applied", "outbox of"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }

    // A dead message, and a message that is held behind it.
    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let mut tx = workload.begin().await?;
    let message = NewMessage::new(&workload.topic).key("b").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    workload.place("b").await?;
    publish().await?.ended(3)?;
    let ids = workload
        .database
        .texts("SELECT CAST(id AS text) FROM outbox_message WHERE key = 'b' ORDER BY id")
        .await?;
    let dead = shown(&config, &ids[0]).await?;
    assert_eq!(dead["outboxes"][0]["state"], json!("dead"), "{dead}");
    assert!(dead["outboxes"][0]["error"].is_string(), "{dead}");
    let held = shown(&config, &ids[1]).await?;
    let because = held["outboxes"][0]["because"].as_str().unwrap_or_default();
    assert_eq!(held["outboxes"][0]["state"], json!("held"), "{held}");
    assert!(because.contains(&format!("behind {}, which is dead", ids[0])), "{held}");

    let signed = ["--actor", "ann", "--note", "sent by hand"];
    Ran::with(&config, &[&["dead", "discard", "--id", &ids[0]], &signed[..]].concat()).await?.done()?;
    publish().await?.done()?;
    let gone = shown(&config, &ids[0]).await?;
    assert_eq!(gone["outboxes"][0]["state"], json!("discarded"), "{gone}");
    assert_eq!(column(&gone["decisions"], "note"), ["sent by hand"], "{gone}");
    assert_eq!(gone["outboxes"][0]["error"], dead["outboxes"][0]["error"], "why it was dead: {gone}");
    let listed = ["dead", "list", "--state", "discarded", "--output", "json"];
    let listed = Ran::with(&config, &listed).await?.done()?.json()?;
    let error = listed[0]["error"].as_str().unwrap_or_default();
    let cause = dead["outboxes"][0]["error"].as_str().unwrap_or_default();
    assert_eq!(error, format!("discarded by ann: sent by hand; it was dead: {cause}"));
    assert_eq!(listed[0]["cause"], json!("message"), "{listed}");

    // The message stays unpublished, however many decisions have been made since.
    let later = "WITH RECURSIVE later(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM later WHERE n < 1001)
        INSERT INTO outbox_audit (relay, id, message_id, action, actor, note)
        SELECT a.relay, a.id + 1000 + n, a.message_id, 'requeue', 'bob', 'later' FROM later, outbox_audit AS a";
    let later = later.replace("a.message_id", "'01900000-0000-7000-8000-00000000beef'");
    workload.database.execute(&later).await?;
    let gone = shown(&config, &ids[0]).await?;
    let state = (&gone["outboxes"][0]["state"], &gone["outboxes"][0]["published_by"]);
    assert_eq!(state, (&json!("discarded"), &json!(null)), "{gone}");

    // A search lists the same states, newest first.
    let search = ["search", "--key", "b", "--output", "json"];
    let searched = Ran::with(&config, &search).await?.done()?.json()?;
    let found = &searched["messages"];
    assert_eq!(column(found, "state"), ["published", "discarded"], "{searched}");
    let found_ids: Vec<String> =
        found.as_array().into_iter().flatten().rev().map(|line| line["id"].to_string()).collect();
    assert_eq!(found_ids, ids, "{searched}");
    assert_eq!(
        (&searched["searched"][0]["below"], &searched["away"]),
        (&json!(null), &json!([])),
        "{searched}"
    );
    let some = Ran::with(&config, &["search", "--limit", "1"]).await?.done()?.out;
    assert!(
        some.contains("; continue: relay search --limit 1 --pipeline") && some.contains("searched 1 of"),
        "{some}"
    );
    let none = Ran::with(&config, &["search", "--header", "tenant=none"]).await?.done()?.out;
    assert!(none.starts_with("no messages found"), "{none}");
    Ran::with(&config, &["search", "--header", "tenant"]).await?.refused(2, &["NAME=VALUE"])?;
    Ran::with(&config, &["search", "--header", "ce_type=x"]).await?.refused(2, &["not a free header"])?;
    Ran::with(&config, &["search", "--until", "soon"]).await?.refused(2, &["soon"])?;

    for (id, parts) in [
        ("order-7", &["order-7 is not a message id"][..]),
        ("987654", &["987654 is in none of the searched outboxes and inboxes"]),
        ("01900000-0000-7000-8000-00000000beef", &["created at 2024-", "in none of the searched outboxes"]),
    ] {
        Ran::with(&config, &["show", id]).await?.refused(2, parts)?;
    }
    Ran::with(&config, &["retention", "--keep", "0s", "--actor", "ann", "--note", "a test"]).await?.done()?;
    Ran::with(&config, &["show", &ids[0]])
        .await?
        .refused(2, &["is no longer there, or never was", "deleted"])?;
    let story = shown(&config, &id).await?;
    assert_eq!(
        (&story["outboxes"], &story["inboxes"][0]["state"]),
        (&json!([]), &json!("applied")),
        "{story}"
    );
    Ok(())
}

/// Goal: an operator sees how far each topic is behind, and can watch the state until a signal.
/// Oracle: counts before and after publishing, with a dead message and one held behind it; the
/// repeated states in the output; the exit code.
async fn topics_that_are_behind_are_told_and_watched<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let lag = || async { Ran::with(&config, &["lag", "--output", "json"]).await?.done()?.json() };
    assert_eq!(lag().await?, json!([]));
    let nothing = Ran::with(&config, &["lag"]).await?.done()?;
    assert_eq!(nothing.out.trim(), "no messages found");
    workload.place_many(2, 6).await?;
    let lines = lag().await?;
    let topic = workload.topic.as_str();
    assert_eq!((&lines[0]["topic"], &lines[0]["unread"]), (&json!(topic), &json!(6)), "{lines}");
    assert!(lines[0]["oldest_age_seconds"].is_f64(), "{lines}");
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    assert_eq!(lag().await?, json!([]), "everything has left");

    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let mut tx = workload.begin().await?;
    let message = NewMessage::new(&workload.topic).key("b").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    workload.place("b").await?;
    Ran::with(&config, &["run", "--once"]).await?.ended(3)?;
    let lines = lag().await?;
    assert_eq!((&lines[0]["unread"], &lines[0]["parked"]), (&json!(0), &json!({ "dead": 1, "held": 1 })));

    let watch = ["status", "--watch", "300ms", "--output", "json"];
    let mut watch = RelayProcess::start_command(&stage, &config, &watch)?;
    tests::eventually("three looks", || async {
        Ok((watch.log()?.matches("backlog_entries_max").count() >= 3).then_some(()))
    })
    .await?;
    watch.signal("INT").await?;
    assert_eq!(watch.ended().await?.code(), Some(3), "messages are held");
    Ran::with(&config, &["status", "--watch", "soon"]).await?.refused(2, &["soon"])
}

/// Goal: an operator sees the messages that are being published now. Payloads are shown only on
/// request, and then the audit shows who looked. Oracle: the lines of a tail that runs while
/// messages are published; the audit.
async fn what_is_published_now_is_told<DB: Dialect>(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    workload.place("before").await?;
    let relay = RelayProcess::start(&stage, &config)?;
    tests::eventually("the first message has left", || async {
        let lag = Ran::with(&config, &["lag"]).await?.done()?;
        Ok(lag.out.contains("no messages found").then_some(()))
    })
    .await?;
    let plain = ["tail", "--key", "a", "--limit", "3", "--output", "json"];
    let open = ["tail", "--limit", "5", "--payloads", "--note", "ticket 7", "--actor", "ann"];
    let (mut plain, mut open) = (
        RelayProcess::start_command(&stage, &config, &plain)?,
        RelayProcess::start_command(&stage, &config, &open)?,
    );
    for tail in [&plain, &open] {
        tail.tells("messages that the relay publishes or parks from now on").await?;
    }
    for key in ["a", "b", "a", "b", "a"] {
        workload.place(key).await?;
    }
    assert_eq!((plain.ended().await?.code(), open.ended().await?.code()), (Some(0), Some(0)));
    let lines: Vec<Value> = plain.log()?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        assert_eq!((&line["key"], &line["state"]), (&json!("a"), &json!("published")), "{line}");
        assert!(line.get("payload").is_none() && line["payload_bytes"].as_u64() > Some(0), "{line}");
    }
    let told = open.log()?;
    assert_eq!(told.matches("\"seq\"").count(), 5, "{told}");
    assert!(!told.contains("before"), "{told}");
    Ran::with(&config, &["tail", "--payloads"]).await?.refused(2, &["--note"])?;
    let audit = Ran::with(&config, &["dead", "audit", "--output", "json"]).await?.done()?.json()?;
    assert_eq!(
        (column(&audit, "action"), column(&audit, "note")),
        (vec!["tail"], vec!["ticket 7"]),
        "{audit}"
    );
    parked_ones_are_told_again(&stage, &workload, &config).await?;
    relay.stop().await
}

/// Checks that a tail reports a parked message, and reports it again after an operator has
/// discarded it.
async fn parked_ones_are_told_again<DB: Dialect>(
    stage: &Stage,
    workload: &Workload<DB>,
    config: &Config,
) -> Outcome {
    let mut tail = RelayProcess::start_command(
        stage,
        config,
        &["tail", "--key", "large", "--limit", "2", "--output", "json"],
    )?;
    tail.tells("messages that the relay publishes or parks from now on").await?;
    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let mut tx = workload.begin().await?;
    let message = NewMessage::new(&workload.topic).key("large").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    tail.tells("\"state\":\"dead\"").await?;
    let discard = ["dead", "discard", "--key", "large", "--yes", "--actor", "ann", "--note", "too large"];
    Ran::with(config, &discard).await?.done()?;
    assert_eq!(tail.ended().await?.code(), Some(0));
    let told = tail.log()?;
    assert!(told.contains("\"state\":\"discarded\""), "{told}");
    Ok(())
}

/// Goal: a count that is cut short is not shown as exact. Oracle: the table and the JSON, with
/// fewer unread messages than the count's limit and with more.
async fn a_count_that_stops_is_a_lower_bound(stage: Stage) -> Outcome {
    let database = Database::<Postgres>::migrated(&stage).await?;
    let broker = "[pipeline.kafka]\nbootstrap_servers = [\"127.0.0.1:1\"]\n";
    let config = Config::with_section(&stage, "orders", &database.relay_url()?, broker, "")?;
    let insert = |count: u32| {
        format!(
            "INSERT INTO outbox_message (topic, payload) SELECT 'orders', '\\x00' FROM generate_series(1, {count})"
        )
    };
    for (count, is_cut, shown) in [(7, false, " 7 "), (UNREAD_COUNTED_MAX, true, " ≥ 100000 ")] {
        database.execute(&insert(count)).await?;
        let table = Ran::with(&config, &["lag"]).await?.done()?.out;
        assert!(table.contains(shown), "{table}");
        let lines = Ran::with(&config, &["lag", "--output", "json"]).await?.done()?.json()?;
        assert_eq!(lines[0]["unread_is_at_least"], json!(is_cut), "{lines}");
    }
    Ok(())
}
