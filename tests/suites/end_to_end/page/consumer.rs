//! A consumer that holds keys: one dead letter, and healthy messages behind it.

use tests::{Failure, Outcome, Stage, eventually};

use super::browser::logged_in;
use super::{ANN, Served, USERS};

/// A poison letter of one tenant with three held messages behind it, and letters of the same key:
/// one of another tenant, one of another topic.
const LETTERS: &str = "\
INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, message_id, topic, key, headers, payload,
    reason, error, attempts, origin)
SELECT s.id, 'workload', s.scope, s.id, sha256(convert_to(s.id::text, 'UTF8')), s.id, s.topic, ' order-7', '[]', 'x', s.reason,
    s.error, 1, 'invoices/0'
FROM (SELECT ('019f0000-0000-7000-8000-00000000000' || n)::uuid AS id,
        CASE n WHEN 5 THEN 'globex' ELSE 'acme' END AS scope, CASE n WHEN 6 THEN 'bills' ELSE 'invoices' END AS topic,
        CASE WHEN n IN (1, 5, 6) THEN 'poison' ELSE 'held' END AS reason,
        CASE n WHEN 1 THEN 'the amount is negative' WHEN 5 THEN 'no account' WHEN 6 THEN 'no account'
            ELSE 'held behind dead letter 019f0000-0000-7000-8000-000000000001, which has the same key' END AS error
    FROM generate_series(1, 6) AS n) AS s";

const OPEN: &str = "SELECT count(*) FROM inbox_dead_letter WHERE resolution IS NULL";

async fn served(stage: &Stage) -> Result<Served, Failure> {
    let served = Served::start(stage, USERS, "").await?;
    served.workload.database.execute(LETTERS).await?;
    eventually("the page knows the consumer", || async {
        let front = served.ann().get("/").await?.body;
        Ok(front.contains("3 messages are dead").then_some(()))
    })
    .await?;
    Ok(served)
}

/// Goal: an operator who is woken up sees the error that stops a consumer, and decides about
/// nothing else: not about the messages that wait behind it, nor about the same key of another
/// tenant or topic. Oracle: the front page, the list behind the link of a held message, and the
/// messages that a decision is about.
pub(crate) async fn held(stage: Stage) -> Outcome {
    let served = served(&stage).await?;
    let ann = served.ann();
    let front = ann.get("/").await?.body;
    for part in
        ["1 of 1 consumer needs you: 3 messages are dead, 3 are held.", "no account", "3 messages are held"]
    {
        assert!(front.contains(part), "{part}: {front}");
    }
    assert!(!front.contains("held behind dead letter"), "{front}");
    let consumers = ann.get("/consumers").await?.body;
    assert!(consumers.contains("cause=held\">3</a>"), "{consumers}");

    let story = ann.get("/message?id=019f0000-0000-7000-8000-000000000002").await?.body;
    let link = story.split("behind the <a href=\"").nth(1).and_then(|rest| rest.split('"').next());
    let link = link.ok_or("no link")?.replace("&amp;", "&");
    assert!(link.contains("scope=acme&topic=invoices&key=+order-7"), "{link}");
    let list = ann.get(&link).await?.body;
    assert!(list.contains("4 messages") && list.contains("acme") && !list.contains("globex"), "{list}");
    let all = ann.get("/dead?source=inbox&key=+order-7").await?.body;
    assert!(
        all.contains("6 messages") && all.contains("globex") && all.contains("data-label=\"Scope\""),
        "{all}"
    );
    assert!(ann.get("/dead?source=inbox&key=order-7").await?.body.contains("No messages are waiting here"));

    let which = [("what", "discard-all"), ("scope", "globex"), ("key", " order-7")];
    let asked = ann.post("/dead/confirm", &which).await?;
    assert!(
        asked.body.contains(">Discard 1 message</button>") && asked.body.contains("globex"),
        "{}",
        asked.body
    );
    let form = [&which[..], &asked.decision()?, &[("reason", "sent by hand")]].concat();
    let (_, done) = ann.follow("/dead/decide", &form).await?;
    assert!(done.body.contains("1 of 1 message discarded"), "{}", done.body);
    let left = "SELECT count(*) FROM inbox_dead_letter WHERE resolution IS NULL AND scope = 'acme'";
    assert_eq!(served.workload.database.integer(left).await?, 5);
    served.relay.stop().await
}

/// Goal: the button of the card does what the card says. Oracle: the text in a browser, and the
/// dead letters that are left.
pub(crate) async fn card(stage: Stage) -> Outcome {
    let served = served(&stage).await?;
    let database = &served.workload.database;
    database.execute("UPDATE inbox_dead_letter SET resolution = 'discarded', resolved_at = now() WHERE error = 'no account'").await?;
    let browser = logged_in(&stage, &served, "ann", ANN, true).await?;
    browser.go(&format!("http://{}/", served.address)).await?;
    browser.shows("1 message is dead").await?;
    browser.shows("the amount is negative").await?;
    browser.shows("3 messages are held").await?;
    browser.press(".sick button[value=discard-all]").await?;
    browser.shows("Discard 1 message?").await?;
    browser.fill("input[name=reason]", "cancelled by the customer").await?;
    browser.press("form.card button.danger").await?;
    browser.shows("1 of 1 message discarded").await?;
    assert_eq!(database.integer(OPEN).await?, 3, "those that waited behind it");
    browser.quit().await?;
    served.relay.stop().await
}
