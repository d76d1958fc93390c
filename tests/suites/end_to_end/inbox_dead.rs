//! `relay dead` on inboxes: an operator's decisions about the dead letters of a consumer.

use inbox::{Admission, Cause, ConsumerName, Inbox, InboxOptions, Reason, Tenant};
use message::{Delivery, DeliveryToken, EventType, Message, MessageId, OrderingKey, Topic};
use serde_json::Value;
use tests::relay_process::{relay, relay_with};
use tests::{Database, Dialect, Failure, Outcome, Stage};

tests::cases! { "{case}/{on}":
    databases {
        an_operator_decides_about_dead_letters_of_an_inbox,
        dead_letters_of_a_key_are_decided_about_in_order_of_arrival,
    }
    anywhere { an_inbox_that_does_not_answer_is_not_taken_for_an_empty_one = unanswered }
}

/// Goal: a plan takes the dead letters of a key in the order of their arrival, in spite of wrong
/// clocks. A discard goes through them backwards, because once the first one is discarded the next
/// could take effect. Oracle: the program's output, and the audit.
async fn dead_letters_of_a_key_are_decided_about_in_order_of_arrival<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let reasons = [Reason::Rejected, Reason::Held, Reason::Held];
    for (payload, reason) in ["a", "b", "c"].into_iter().zip(reasons) {
        let message = Message::new(Topic::new("orders")?, EventType::new("order.placed")?, payload);
        let message = message.with_key(OrderingKey::new("k")?);
        let origin = String::from("orders[0]@1");
        let delivery = Delivery { token: DeliveryToken(1), message: Ok(message), redelivered: false, origin };
        let cause = Cause::new(reason, String::from("no price"), 1);
        drop(inbox.dead_letter(&ConsumerName::new("billing")?, &Tenant::none(), &delivery, cause).await?);
    }
    // The clock of the process that stored the first dead letter was fast.
    let last = "ffffffff-ffff-7fff-bfff-ffffffffffff";
    for sql in [
        format!(
            "UPDATE inbox_message SET dead_letter = '{last}' WHERE dead_letter IN (SELECT id FROM inbox_dead_letter WHERE reason = 'rejected')"
        ),
        format!("UPDATE inbox_dead_letter SET id = '{last}' WHERE reason = 'rejected'"),
    ] {
        database.execute(&sql).await?;
    }
    let decide = ["--all", "--actor", "ann", "--note", "not needed"];
    let ids = |lines: &Value| -> Vec<String> {
        let lines = lines.as_array().into_iter().flatten();
        lines.filter_map(|line| line["id"].as_str().map(str::to_owned)).collect()
    };
    let plan =
        ids(&json(&database.url, &[&["discard", "--dry-run"][..], &decide].concat()).await?["messages"]);
    assert_eq!((plan.len(), plan[0].as_str()), (3, last));
    assert!(plan[1] < plan[2], "{plan:?}");
    let discarded = json(&database.url, &[&["discard", "--yes"][..], &decide].concat()).await?;
    assert_eq!((outcomes(&discarded), ids(&discarded["messages"])), (vec!["discarded"; 3], plan.clone()));
    // The audit lists the newest decision first: the one about the first dead letter of the key.
    assert_eq!(ids(&json(&database.url, &["audit", "--each"]).await?), plan);
    Ok(())
}

/// Goal: an unreadable inbox is not reported as empty, and the advice does not repeat a step that
/// the operator has already taken. Oracle: the program's output.
async fn unanswered() -> Outcome {
    let inbox = ["--inbox", "sqlite:/nowhere/inbox.db"];
    let listed = relay(&[&["dead", "list"][..], &inbox].concat()).await?;
    let told = String::from_utf8_lossy(&listed.stdout);
    assert!(!listed.status.success() && told.contains("not every database answered"), "{told}");
    let redrive = relay(&[&["dead", "redrive", "--all", "--dry-run"][..], &inbox].concat()).await?;
    let told = String::from_utf8_lossy(&redrive.stderr);
    assert!(!redrive.status.success() && !told.contains("restrict it to a database"), "{told}");
    Ok(())
}

/// Goal: an operator finds dead letters, requests redrives of some and discards others, and the
/// audit shows who did. Oracle: the program's output; the outcome of a copy of the discarded
/// message.
async fn an_operator_decides_about_dead_letters_of_an_inbox<DB: Dialect>(stage: Stage) -> Outcome {
    let database = Database::<DB>::migrated(&stage).await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let (billing, none) = (ConsumerName::new("billing")?, Tenant::none());
    let mut messages = Vec::new();
    for topic in ["orders", "orders", "refunds"] {
        let message = Message::new(Topic::new(topic)?, EventType::new("order.placed")?, "secret-payload");
        let delivery = Delivery {
            token: DeliveryToken(1),
            message: Ok(message.clone()),
            redelivered: false,
            origin: format!("{topic}[0]@17"),
        };
        let cause = Cause::new(Reason::Poison, String::from("no such price"), 10);
        drop(inbox.dead_letter(&billing, &none, &delivery, cause).await?);
        messages.push(message);
    }
    let listed = json(&database.url, &["list", "--consumer", "billing"]).await?;
    assert_eq!(listed.as_array().map(Vec::len), Some(3), "{listed}");
    assert!(!listed.to_string().contains("secret-payload"), "{listed}");
    for nothing in [&["list", "--consumer", "shipping"][..], &["list", "--older-than", "1h"]] {
        assert_eq!(json(&database.url, nothing).await?, Value::Array(Vec::new()), "{nothing:?}");
    }
    let shown = json(&database.url, &["show", "--id", text(&listed[0]["id"])?]).await?;
    assert_eq!((&shown[0]["error"], &shown[0]["attempts"]), (&"no such price".into(), &10.into()), "{shown}");

    let signed = ["--actor", "ann", "--note", "prices are back"];
    for (condition, found) in
        [(["--cause", "poison"], 3), (["--kind", "order.placed"], 3), (["--cause", "too_old"], 0)]
    {
        let listed = json(&database.url, &[&["list"][..], &condition].concat()).await?;
        assert_eq!(listed.as_array().map(Vec::len), Some(found), "{condition:?}");
    }
    let by_message = json(&database.url, &["show", "--id", &messages[0].id.to_string()]).await?;
    assert_eq!(by_message[0]["id"], listed[0]["id"], "found by its message id");

    let redrive = [&["redrive", "--topic", "orders"][..], &signed].concat();
    let dry = json(&database.url, &[&redrive[..], &["--dry-run"]].concat()).await?;
    assert_eq!((outcomes(&dry), audit(&database.url).await?.len()), (vec!["would requeue"; 2], 0));
    let (code, told) = run(&database.url, &redrive).await?;
    assert!(code == Some(2) && told.contains("--yes"), "stdin is not a terminal: {told}");
    let redrive = [&redrive[..], &["--yes"]].concat();
    assert_eq!(outcomes(&json(&database.url, &redrive).await?), ["requested", "requested"]);
    assert_eq!(outcomes(&json(&database.url, &redrive).await?), ["already requested by ann"; 2]);
    let listed_now = json(&database.url, &["list", "--consumer", "billing"]).await?;
    let waits = |line: &Value| line["requeue_requested_by"] == "ann";
    assert_eq!(listed_now.as_array().map(|lines| lines.iter().filter(|line| waits(line)).count()), Some(2));

    let last = text(&listed[2]["id"])?;
    let discard = [&["discard", "--id", last][..], &signed].concat();
    assert_eq!(outcomes(&json(&database.url, &discard).await?), ["discarded"]);
    let (code, told) = run(&database.url, &discard).await?;
    assert!(code == Some(2) && told.contains("not dead") && told.contains("closed as discarded"), "{told}");
    let edit = [&["edit", "--id", text(&listed[0]["id"])?, "--header", "a=b"][..], &signed].concat();
    let (code, told) = run(&database.url, &edit).await?;
    assert!(code == Some(2) && told.contains("cannot be edited"), "{told}");
    let mut tx = inbox.begin().await?;
    let Admission::Duplicate(copy) = tx.admit(&billing, &none, &messages[2]).await? else {
        return Err("a copy of what was given up would take effect".into());
    };
    assert_eq!(copy.dead_letter.map(|id| id.to_string()).as_deref(), Some(last));
    tx.rollback().await?;

    let audit = audit(&database.url).await?;
    let told: Vec<_> = audit.iter().map(|line| [&line["action"], &line["actor"], &line["outcome"]]).collect();
    let (ann, open) = (Value::from("ann"), Value::Null);
    let (requeue, discard, done) = (Value::from("requeue"), Value::from("discard"), Value::from("discarded"));
    assert_eq!(told, [[&discard, &ann, &done], [&requeue, &ann, &open], [&requeue, &ann, &open]]);
    let (code, told) = run(&database.url, &["show", "--id", "01900000-0000-7000-8000-00000000beef"]).await?;
    assert!(code == Some(2) && told.contains("not parked: 01900000"), "{told}");
    let redrives: Vec<_> = audit[1..].iter().map(|line| &line["selection"]).collect();
    assert_eq!(redrives, ["topic=orders: 2 chosen"; 2]);
    let waiting = Message::new(Topic::new("prices")?, EventType::new("price.set")?, "secret-payload");
    let waiting = waiting.with_key(OrderingKey::new("k")?);
    for (message, reason) in
        [(waiting.clone(), Reason::Rejected), (waiting.with_id(MessageId::new()), Reason::Held)]
    {
        let origin = String::from("prices[0]@1");
        let delivery = Delivery { token: DeliveryToken(1), message: Ok(message), redelivered: false, origin };
        drop(
            inbox
                .dead_letter(&billing, &none, &delivery, Cause::new(reason, String::from("no price"), 1))
                .await?,
        );
    }
    let listed = json(&database.url, &["list", "--cause", "held"]).await?;
    let (first, held) =
        (json(&database.url, &["list", "--cause", "rejected"]).await?, text(&listed[0]["id"])?);
    let redrive = [&["redrive", "--id", held][..], &signed].concat();
    let (code, told) = run(&database.url, &redrive).await?;
    let first = text(&first[0]["id"])?;
    assert!(code == Some(2) && told.contains(&format!("held behind dead letter {first}")), "{told}");
    let redrive = [&["redrive", "--topic", "prices", "--yes"][..], &signed].concat();
    for bulk in [[&redrive[..], &["--dry-run"]].concat(), redrive.clone()] {
        let decided = json(&database.url, &bulk).await?;
        let follows = outcomes(&decided).iter().filter(|it| it.contains("follows automatically")).count();
        assert_eq!((outcomes(&decided).len(), follows), (2, 1), "nothing is wrong with it: {decided}");
    }
    let discard = [&["discard", "--id", held][..], &signed].concat();
    assert_eq!(outcomes(&json(&database.url, &discard).await?), ["discarded"]);
    Ok(())
}

fn text(value: &Value) -> Result<&str, Failure> {
    value.as_str().ok_or_else(|| format!("no text: {value}").into())
}

fn outcomes(lines: &Value) -> Vec<&str> {
    lines["messages"].as_array().into_iter().flatten().filter_map(|line| line["outcome"].as_str()).collect()
}

async fn audit(url: &str) -> Result<Vec<Value>, Failure> {
    Ok(json(url, &["audit", "--each"]).await?.as_array().cloned().unwrap_or_default())
}

async fn json(url: &str, arguments: &[&str]) -> Result<Value, Failure> {
    let output = command(url, arguments).await?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout)?);
    }
    Err(String::from_utf8_lossy(&output.stderr).into())
}

/// Returns the exit code and the whole output.
async fn run(url: &str, arguments: &[&str]) -> Result<(Option<i32>, String), Failure> {
    let output = command(url, arguments).await?;
    let told = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&told).into_owned()))
}

async fn command(url: &str, arguments: &[&str]) -> Result<std::process::Output, Failure> {
    let arguments = [&["dead"], arguments, &["--output", "json"]].concat();
    relay_with(&[("RELAY_INBOX_URL", url)], &arguments).await
}
