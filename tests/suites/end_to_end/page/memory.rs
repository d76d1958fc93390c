//! Rows and dead letters that are larger than the memory of the process that shows them.

use tests::{Outcome, Stage, eventually};

use super::{Served, USERS};
use crate::sizes::{MEMORY_BYTES, PAYLOAD_BYTES};

/// Rows of the log, and as many dead letters, whose payload alone is larger than that memory.
const LARGE: usize = 2;
/// The id of the first dead letter.
const LETTER: &str = "019f0000-0000-7000-8000-000000000001";
/// Dead letters with 800 KB in one header each, a hundred times what a message may have in one.
const HEADERS: &str = "\
INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, headers, payload,
    reason, error, attempts, origin)
SELECT s.id, 'workload', '', s.id, sha256(convert_to(s.id::text, 'UTF8')), s.id, 'invoices', 'order-8',
    jsonb_build_array(jsonb_build_array('note', repeat('n', 819200))), 'x', 'malformed', 'a header is too long', 1,
    'invoices/0'
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 40) AS n) AS s";

/// Goal: the memory bound, in a process that shows rows and dead letters larger than its memory.
/// Lists and stories show them, and a payload of this size is refused with its length. Oracle: the
/// answers of the page, and the kernel's peak of the process, below one copy of a payload.
pub(crate) async fn bounded(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    let topic = &served.workload.topic;
    let payload = format!("convert_to(repeat('0', {PAYLOAD_BYTES}), 'UTF8')");
    database
        .execute(&format!(
            "INSERT INTO outbox_message (topic, key, payload) \
             SELECT '{topic}', 'large-' || n, {payload} FROM generate_series(1, {LARGE}) AS n"
        ))
        .await?;
    database
        .execute(&format!(
            "INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, \
                headers, payload, reason, error, attempts, origin) \
             SELECT s.id, 'workload', '', s.id, sha256(convert_to(s.id::text, 'UTF8')), s.id, 'invoices', 'order-7', \
                '[]', {payload}, 'poison', 'the amount is negative', 1, 'invoices/0' \
             FROM (SELECT ('019f0000-0000-7000-8000-00000000000' || n)::uuid AS id \
                FROM generate_series(1, {LARGE}) AS n) AS s"
        ))
        .await?;
    database.execute(HEADERS).await?;
    eventually("the rows are dead", || async {
        Ok((served.parked("dead").await? == LARGE as i64).then_some(()))
    })
    .await?;
    let ann = served.ann();
    eventually("the page shows the dead letters", || async {
        let list = ann.get("/dead?source=inbox").await?.body;
        let parts = ["the amount is negative", "a header is too long"];
        Ok(parts.iter().all(|part| list.contains(part)).then_some(()))
    })
    .await?;

    let ids = database.texts("SELECT message_id::text FROM outbox_message ORDER BY id").await?;
    let row = ids.first().ok_or("the log is empty")?.as_str();
    let stories = [row, LETTER].map(|id| format!("/message?id={id}"));
    let paths = [
        "/",
        "/pipeline?name=orders",
        "/topics",
        "/held",
        "/dead",
        "/messages",
        "/consumers",
        &stories[0],
        &stories[1],
    ];
    for path in paths {
        let page = ann.get(path).await?;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
    }
    for id in [row, LETTER] {
        let refused = ann.post("/message/payload", &[("id", id), ("reason", "the customer asked")]).await?;
        let length = format!("{PAYLOAD_BYTES} bytes");
        assert!(refused.status == 422 && refused.body.contains(&length), "{}", refused.body);
    }
    let peak = served.relay.memory_peak()?;
    assert!(peak < MEMORY_BYTES, "the relay took {} MiB", peak >> 20);
    served.relay.stop().await
}
