//! The list of messages, the search in it, and the story of one message.

use outbox::NewMessage;
use tests::{Failure, Outcome, Stage, eventually};

use super::surface::sealed;
use super::{RELAY, Served, USERS};

/// A text that would run, or mislead, if it were not shown as text.
const HOSTILE: &str = "\"><script>alert(1)</script>\u{202e}''";

impl Served {
    async fn enqueue(&self, message: NewMessage) -> Result<(), Failure> {
        let mut tx = self.workload.begin().await?;
        self.workload.outbox().enqueue(&mut tx, message).await?;
        Ok(tx.commit().await?)
    }
}

/// Goal: an operator who has an order number or another header's value finds its messages,
/// including published ones, and follows links to their histories. Oracle: the pages, and the ids
/// in the database.
pub(crate) async fn searched(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let topic = served.workload.topic.clone();
    let of = |key: &str, tenant: &str| NewMessage::new(&topic).key(key).header("tenant", tenant).json(&1);
    for message in [of("order-7", "acme"), of("order-8", "Acme"), of("order-7", "other")] {
        served.enqueue(message).await?;
    }
    let eve = served.eve();
    eventually("the latest messages are published", || async {
        let page = eve.get("/messages").await?.body;
        Ok((page.matches(">published<").count() == 3).then_some(()))
    })
    .await?;
    let id = |key: &str, tenant: &str| {
        format!(
            "SELECT message_id::text FROM outbox_message WHERE key = '{key}' AND headers ->> 'tenant' = '{tenant}'"
        )
    };
    let database = &served.workload.database;
    let acme = database.texts(&id("order-7", "acme")).await?.remove(0);
    let other = database.texts(&id("order-7", "other")).await?.remove(0);
    let eight = database.texts(&id("order-8", "Acme")).await?.remove(0);

    let by_key = eve.get("/messages?key=order-7").await?;
    assert!(
        by_key.status == 200 && by_key.body.contains(&acme) && by_key.body.contains(&other),
        "{}",
        by_key.body
    );
    assert!(!by_key.body.contains(&eight) && by_key.body.contains("searched 3 messages"), "{}", by_key.body);
    sealed(&by_key);
    let by_header = eve.get("/messages?header=tenant&value=acme").await?.body;
    assert!(by_header.contains(&acme) && !by_header.contains(&eight), "exactly this value: {by_header}");
    let none = eve.get("/messages?key=order").await?.body;
    assert!(none.contains("No messages found") && !none.contains(&acme), "no beginning of a key: {none}");
    for wrong in
        ["/messages?header=tenant", "/messages?value=acme", "/messages?until=soon", "/messages?below=x"]
    {
        assert_eq!(eve.get(wrong).await?.status, 400, "{wrong}");
    }
    assert_eq!(eve.get("/messages?header=ce_type&value=x").await?.status, 422, "the envelope has it");
    assert_eq!(eve.get("/messages?pipeline=none").await?.status, 404);

    // The one field of the frame takes keys as well.
    let asked = eve.get("/message?id=order-7").await?;
    assert_eq!(
        (asked.status, asked.value("location")),
        (303, Some("/messages?key=order-7")),
        "{}",
        asked.head
    );
    let unknown = eve.get("/message?id=987654").await?;
    assert_eq!(unknown.status, 422);
    assert!(
        unknown.body.contains("href=\"/messages?key=987654\""),
        "a key may be a number: {}",
        unknown.body
    );

    let story = eve.get(&format!("/message?id={acme}")).await?;
    assert!(story.status == 200 && story.body.contains("<dt>Published</dt>"), "{}", story.body);
    assert!(!story.body.contains("class=\"faint none\""), "no empty fields: {}", story.body);
    for empty in ["Not before", "Parked since", "Failed attempts", "Trace", "Edited", "Last error"] {
        assert!(!story.body.contains(&format!("<dt>{empty}</dt>")), "{empty}: {}", story.body);
    }
    assert!(story.body.contains("Not seen by: <span class=\"text\">workload</span>"), "{}", story.body);
    assert!(story.body.contains(&format!("data-copy=\"{acme}\"")), "{}", story.body);
    assert!(
        story.body.contains("</time> <span class=\"faint age\">("),
        "times have their age: {}",
        story.body
    );
    sealed(&story);
    served.relay.stop().await
}

/// Goal: texts of producers control neither the list nor a history. Oracle: the source of the
/// pages, and the link from a held message to the one that stops it.
pub(crate) async fn hostile(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    let long = format!("{HOSTILE}{}the end", "x".repeat(3_000));
    database
        .execute(&format!(
            "INSERT INTO outbox_message (topic, key, kind, headers, payload) VALUES ('no such <topic>', '{HOSTILE}', \
             '{HOSTILE}', jsonb_build_object('<b>', '{HOSTILE}'), '1')"
        ))
        .await?;
    // Their key differs from that of the row above: otherwise they would wait behind it.
    for (id, state, error) in [(900_000, "dead", long.as_str()), (900_001, "held", "")] {
        database
            .execute(&format!(
                "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, fault) \
                 VALUES ('{RELAY}', {id}, outbox_new_message_id(), 'orders', '{HOSTILE}!', '{state}', \
                 NULLIF('{error}', ''), 'message')"
            ))
            .await?;
    }
    let ann = served.ann();
    let key = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E%E2%80%AE''";
    let single = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E%E2%80%AE'";
    for path in [
        "/messages".to_owned(),
        format!("/messages?key={key}&topic={key}&value={key}&header=a"),
        format!("/messages?key={single}"),
        format!("/messages?value={key}"),
        "/message?id=900000".to_owned(),
        "/message?id=900001".to_owned(),
        "/message?id=1".to_owned(),
    ] {
        let page = ann.get(&path).await?;
        assert!(!page.body.contains("<script>alert"), "{path}: {}", page.body);
        sealed(&page);
    }
    let found = ann.get(&format!("/messages?key={single}")).await?.body;
    let list = found.split("<table").nth(1).ok_or("no list")?;
    assert!(list.contains("&lt;script&gt;alert(1)") && !list.contains('\u{202e}'), "{list}");
    let dead = ann.get("/message?id=900000").await?.body;
    assert!(dead.contains("<details class=\"fold\"") && dead.contains("the end</pre>"), "whole: {dead}");
    let held = ann.get("/message?id=900001").await?.body;
    let link = "it waits behind <a href=\"/message?id=900000&amp;pipeline=orders\">900000</a>";
    assert!(held.contains(link), "{held}");
    served.relay.stop().await
}
