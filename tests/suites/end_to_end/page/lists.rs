//! Lists and streams stay within bounds, however much data there is.

use std::time::Duration;

use tests::{Outcome, Stage};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::{RELAY, Served, USERS};

/// Maximum size of a page, in bytes.
const PAGE_BYTES_MAX: usize = 200_000;

/// Goal: 200,000 dead letters and ten thousand topics are paged. Oracle: the size of each page, and
/// that following its links shows each message once.
pub(crate) async fn pieces(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    database
        .execute(&format!(
            "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, fault) \
             SELECT '{RELAY}', 1000000 + n, gen_random_uuid(), 'topic-' || n % 10000, 'key-' || n, 'dead', 'no price', \
             'message' FROM generate_series(1, 200000) AS n"
        ))
        .await?;
    let ann = served.ann();
    for path in ["/", "/topics", "/topics?page=100", "/held", "/dead", "/audit"] {
        let page = ann.get(path).await?;
        assert!(page.status == 200 && page.body.len() < PAGE_BYTES_MAX, "{path}: {} bytes", page.body.len());
    }
    assert!(ann.get("/topics").await?.body.contains("10,000 rows"));
    let mut seen = std::collections::BTreeSet::new();
    let mut path = String::from("/dead");
    for _ in 0..5 {
        let page = ann.get(&path).await?.body;
        let rows = page.split("name=\"row\" value=\"").skip(1).filter_map(|rest| rest.split('"').next());
        for row in rows {
            assert!(seen.insert(row.to_owned()), "{row} twice");
        }
        let next = page.split("rel=\"next\" href=\"").nth(1).and_then(|rest| rest.split('"').next());
        path = next.ok_or("no next page")?.replace("&amp;", "&");
    }
    assert_eq!(seen.len(), 250);
    // A filter without matches reads a bounded number of rows, and the page offers to continue.
    let none = ann.get("/dead?topic=nothing").await?.body;
    assert!(none.contains("No match yet: the list continues.") && none.contains("rel=\"next\""), "{none}");
    let some = ann.get("/dead?topic=topic-7").await?.body;
    assert!(some.contains("topic-7") && some.contains("rel=\"next\""), "{some}");
    assert_eq!(ann.get("/dead?from=outbox-9-dead-x").await?.status, 400);
    let asked = ann.post("/dead/confirm", &[("what", "requeue-all")]).await?;
    assert!(asked.body.contains("Requeue 200,000 messages?"), "{}", asked.body);
    assert!(asked.body.len() < PAGE_BYTES_MAX);
    served.relay.stop().await
}

/// Goal: a browser that keeps many streams open does not block the page for others. Oracle: the
/// answers to sixty streams, to other requests beside them, and an event when something changes.
pub(crate) async fn streams(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let ann = served.ann();
    let (mut open, mut refused) = (Vec::new(), 0);
    for _ in 0..60 {
        let mut stream = ann.open("GET", "/events", "").await?;
        match status(&mut stream).await? {
            200 => open.push(stream),
            429 => refused += 1,
            other => return Err(format!("a stream was answered with {other}").into()),
        }
    }
    assert_eq!((open.len(), refused), (8, 52));
    assert_eq!(ann.get("/").await?.status, 200, "the page is there all the same");
    let mut other = served.eve().open("GET", "/events", "").await?;
    assert_eq!(status(&mut other).await?, 200, "others have their streams");
    served.workload.place_many(3, 30).await?;
    let mut text = String::new();
    let mut bytes = [0; 4_096];
    while !text.contains("event: change") {
        let read = tokio::time::timeout(Duration::from_secs(30), other.read(&mut bytes)).await??;
        assert!(read > 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    drop(open);
    tests::eventually("streams that were closed make room", || async {
        let mut stream = ann.open("GET", "/events", "").await?;
        Ok((status(&mut stream).await? == 200).then_some(()))
    })
    .await?;
    served.relay.stop().await
}

async fn status(stream: &mut TcpStream) -> Result<u16, tests::Failure> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).split(' ').nth(1).ok_or("no status")?.parse()?)
}
