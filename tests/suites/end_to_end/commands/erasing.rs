//! `relay erase`: what is stored of a subject goes, and everything else goes on.

use std::sync::Arc;

use idempotency::{ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyId, KeyOptions};
use message::Fingerprint;
use outbox::NewMessage;
use serde_json::{Value, json};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Outcome, Stage};

use super::Ran;

tests::cases! { "{case}/{on}":
    pairs { what_is_stored_of_a_subject_is_erased }
}

const RELAY: &str = "orders";
const SIGNED: [&str; 4] = ["--actor", "ann", "--note", "request 4711"];

/// Returns the sum of a number in the parts of one kind.
fn sum(report: &Value, what: &str, number: &str) -> u64 {
    let parts = report["parts"].as_array().into_iter().flatten().filter(|part| part["what"] == what);
    parts.filter_map(|part| part[number].as_u64()).sum()
}

/// Goal: an operator sees what an erasure would do, confirms it, and is told what is left; then
/// nothing of the subject is in the tables, no effect happened twice or was lost, and messages of
/// others are replayed as before. Oracle: the output and exit codes of the program; the tables,
/// read with plain SQL; the effects of the consumer; the audit.
async fn what_is_stored_of_a_subject_is_erased<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let db = &workload.database;
    let inbox = format!("[[verify.inbox]]\nconsumer = \"workload\"\nurl = {:?}\n", db.url);
    let config = Config::write(&stage, RELAY, &db.url, workload.broker.as_ref(), &inbox)?;
    let run = async |arguments: &[&str]| Ran::with(&config, arguments).await;
    let consumer = workload.consume().await?;
    for key in ["ann-7", "bob-8", "ann-7"] {
        workload.place(key).await?;
    }
    let keys = IdempotencyKeys::open(db.service.clone(), KeyOptions::default()).await?;
    let id = KeyId::of_texts("ann-7", "POST /orders", "1")?;
    let request = Fingerprint::of_parts("POST /orders", "", b"Ann");
    let claimed = keys.begin(&id, request, &ClaimOptions::default()).await?;
    let Claimed::Acquired(tx) = claimed else { return Err("a new key is free".into()) };
    tx.commit(Ending::Succeeded, b"Ann").await?;
    run(&["run", "--once"]).await?.done()?;
    workload.settled().await?;
    let bytes = workload.broker.oversize_bytes().ok_or("every message fits")?;
    let mut tx = workload.begin().await?;
    let large = NewMessage::new(&workload.topic).key("ann-7").payload("x".repeat(bytes));
    workload.outbox().enqueue(&mut tx, large).await?;
    tx.commit().await?;
    run(&["run", "--once"]).await?.ended(3)?;

    let rows = "SELECT count(*) FROM outbox_message WHERE key = 'ann-7'";
    let erase = ["erase", "--key", "ann-7", "--output", "json"];
    let dry = run(&[&erase[..], &["--dry-run"]].concat()).await?.ended(3)?.json()?;
    assert_eq!((sum(&dry, "messages", "erased"), sum(&dry, "answers", "erased")), (2, 1), "{dry}");
    assert_eq!((&dry["dry_run"], &dry["left"]), (&json!(true), &json!(1)), "{dry}");
    let unconfirmed = run(&[&erase[..], &SIGNED].concat()).await?;
    unconfirmed.refused(2, &["for good?", "add --yes"])?;
    assert_eq!(db.integer(rows).await?, 3, "nothing was erased yet");
    let named = ["--yes", "--actor", "ann", "--note", "ann-7 has asked"];
    run(&[&erase[..], &named].concat()).await?.refused(2, &["the reason contains the key"])?;

    let erased = run(&[&erase[..], &SIGNED, &["--yes"]].concat()).await?.ended(3)?;
    let erased = erased.json()?;
    assert_eq!((&erased["erased"], &erased["left"]), (&json!(3), &json!(1)), "{erased}");
    let table = run(&["erase", "--subject", "ann-7", "--dry-run"]).await?.ended(3)?.out;
    assert!(table.contains("1 dead") && table.contains("--discard"), "{table}");
    let discard = [&erase[..], &SIGNED, &["--yes", "--discard"]].concat();
    let discarded = run(&discard).await?.ended(3)?.json()?;
    assert_eq!(
        (&discarded["erased"], sum(&discarded, "messages", "discarded")),
        (&json!(1), 1),
        "{discarded}"
    );
    let waiting = json!({ "discarded": 1 });
    assert_eq!(discarded["parts"][0]["left"], waiting, "its relay does not run: {discarded}");
    assert_eq!(db.integer(rows).await?, 0);
    let erased = "SELECT count(*) FROM outbox_message WHERE content_type = 'application/vnd.outbox.erased' \
        AND length(payload) = 0";
    assert_eq!(db.integer(erased).await?, 3);
    assert_eq!(db.integer("SELECT count(*) FROM idempotency_key WHERE outcome IS NOT NULL").await?, 0);

    // The relay removes the discarded message, the key goes on, and a replay sends only Bob's.
    run(&["run", "--once"]).await?.done()?;
    let again = run(&discard).await?.done()?.json()?;
    assert_eq!(again["parts"], json!([]), "{again}");
    workload.place("ann-7").await?;
    run(&["run", "--once"]).await?.done()?;
    workload.settled().await?;
    let replay = [&["replay", "--all", "--yes", "--output", "json"][..], &SIGNED].concat();
    let replayed = run(&replay).await?.done()?.json()?;
    assert_eq!(
        (&replayed["published"], &replayed["skipped"]["edited"]),
        (&json!(2), &json!(2)),
        "{replayed}"
    );
    let sorted = |facts: Vec<_>| {
        let mut facts: Vec<String> = facts.iter().map(|fact| format!("{fact:?}")).collect();
        facts.sort_unstable();
        facts
    };
    assert_eq!(sorted(workload.effects().await?), sorted(workload.placed().await?));
    let audit = run(&["audit", "--output", "json"]).await?.done()?;
    assert!(!audit.out.contains("ann-7"), "{audit:?}");
    assert!(audit.out.contains("\"erased\"") && audit.out.contains("request 4711"), "{audit:?}");
    consumer.stop().await
}
