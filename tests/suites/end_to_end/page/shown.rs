//! Text, payloads and views: the information that each user sees.

use tests::{Outcome, RelayProcess, Stage, eventually};

use super::client::Client;
use super::surface::sealed;
use super::{RELAY, SERVING, Served, USERS, config};

/// A name that would run if it were mistaken for markup.
const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror=alert(2)>''{{7*7}}";

/// Goal: names, keys and errors from outside are shown as text. Oracle: the source of every page.
pub(crate) async fn hostile(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let database = &served.workload.database;
    let name = HOSTILE.replace('\'', "''");
    for (number, state) in ["dead", "retrying", "held"].iter().enumerate() {
        database
            .execute(&format!(
                "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, due_at, fault) \
                 VALUES ('{RELAY}', {}, outbox_new_message_id(), '{name}', '{name}', '{state}', '{name}', \
                 now() + interval '1 day', 'message')",
                900_000 + number
            ))
            .await?;
    }
    database
        .execute(&format!(
            "INSERT INTO outbox_pause (relay, kind, name, actor, reason) VALUES ('{RELAY}', 'key', '{name}', '{name}', \
             '{name}'); INSERT INTO outbox_operation (actor, relay, action, selection, note) VALUES ('{name}', \
             '{RELAY}', '{name}', '{name}', '{name}')"
        ))
        .await?;
    let ann = served.ann();
    let query = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    let addresses = [
        "/",
        "/pipeline?name=orders",
        "/topics",
        "/held",
        "/dead",
        "/dead?state=held",
        "/audit",
        "/message?id=900000",
        &format!("/?q={query}"),
        &format!("/pipeline?name={query}"),
        &format!("/held?pipeline={query}"),
        &format!("/dead?error={query}"),
        &format!("/topics?q={query}"),
        &format!("/dead?topic={query}"),
        &format!("/message?id={query}"),
        &format!("/messages?topic={query}&key={query}&header=h&value={query}"),
        &format!("/pause?pipeline=orders&scope=key&name={query}"),
        &format!("/dead?state={query}"),
        &format!("/pause?pipeline={query}"),
        &format!("/saga?database={query}&type=a&id=b"),
        &format!("/audit?actor={query}"),
        &format!("/audit?topic={query}"),
        &format!("/audit?action={query}"),
        &format!("/audit/export?format={query}"),
        &format!("/dead/export?format=csv&state={query}"),
        &format!("/doctor?pipeline={query}"),
        &format!("/verify?pipeline=orders&since={query}"),
        &format!("/replay?pipeline=orders&topic={query}"),
        &format!("/{query}"),
    ];
    for path in addresses {
        let page = ann.get(path).await?;
        for run in ["<script>alert", "<img src=x", "onerror=alert(2)>"] {
            let is_text = run.starts_with("onerror") && page.body.contains("onerror=alert(2)&gt;");
            assert!(is_text || !page.body.contains(run), "{run} on {path}: {}", page.body);
        }
        sealed(&page);
    }
    assert!(ann.get("/held").await?.body.contains("&lt;script&gt;alert(1)"), "the name is shown");
    let which = [("what", "discard-all"), ("topic", HOSTILE)];
    let asked = ann.post("/dead/confirm", &which).await?;
    let bulk = [&which[..], &asked.decision()?, &[("reason", HOSTILE)]].concat();
    assert!(asked.status == 200 && !asked.body.contains("<script>alert"), "{}", asked.body);
    let (_, done) = ann.follow("/dead/decide", &bulk).await?;
    assert!(
        done.body.contains("1 of 1 message discarded") && !done.body.contains("<script>alert"),
        "{}",
        done.body
    );
    served.relay.stop().await
}

/// Goal: a payload is shown only to an operator who gives a reason. Oracle: every page's source,
/// the audit, and the answers to a viewer and to a form without a reason.
pub(crate) async fn payloads(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let canary = "{\"card\":\"PAYLOAD-CANARY</pre><script>alert(1)</script>\"}";
    let id = served.workload.database.append("unknown-topic", "k", canary).await?.to_string();
    let ann = served.ann();
    let story = format!("/message?id={id}");
    for path in ["/", "/topics", "/held", "/dead?state=retrying", "/audit", &story] {
        assert!(!ann.get(path).await?.body.contains("CANARY"), "{path}");
    }
    let form = [("id", &*id), ("reason", "the customer asked")];
    assert_eq!(served.eve().post("/message/payload", &form).await?.status, 403);
    assert_eq!(ann.post("/message/payload", &form[..1]).await?.status, 422, "without a reason");
    assert_eq!(served.audited().await?, 0);
    let shown = ann.post("/message/payload", &form).await?;
    assert!(shown.status == 200 && shown.body.contains("PAYLOAD-CANARY"), "{}", shown.body);
    assert!(!shown.body.contains("<script>alert"), "{}", shown.body);
    let told = "SELECT actor || ':' || action || ':' || note FROM outbox_operation";
    assert_eq!(served.workload.database.texts(told).await?, ["ann:payload:the customer asked"]);
    assert!(!ann.get("/audit").await?.body.contains("CANARY"));
    let large =
        served.workload.database.append("unknown-topic", "k", &"x".repeat(2 << 20)).await?.to_string();
    let refused = ann.post("/message/payload", &[("id", &large), ("reason", "x")]).await?;
    assert!(refused.status == 422 && refused.body.contains("2097152 bytes"), "{}", refused.body);
    // No payload was shown, so no operation is recorded.
    let operations = "SELECT count(*) FROM outbox_operation";
    assert_eq!(served.workload.database.integer(operations).await?, 1);
    // Plain SQL can enqueue an invalid topic or key. The message is dead, and its payload can be
    // read.
    for (topic, key) in [("no <topic>", "another"), ("orders", "no\nkey")] {
        let id = served.workload.database.append(topic, key, canary).await?.to_string();
        eventually("it is dead", || async {
            let dead = format!("SELECT count(*) FROM outbox_exception WHERE id = {id} AND state = 'dead'");
            Ok((served.workload.database.integer(&dead).await? == 1).then_some(()))
        })
        .await?;
        let form = [("id", &*id), ("reason", "the customer asked")];
        let shown = ann.post("/message/payload", &form).await?;
        assert!(shown.status == 200 && shown.body.contains("PAYLOAD-CANARY"), "{topic}: {}", shown.body);
    }
    // The row of the parked message no longer exists, but its copy remains.
    let parked = served.workload.database.integer("SELECT max(id) FROM outbox_exception").await?;
    served.workload.database.execute(&format!("DELETE FROM outbox_message WHERE id = {parked}")).await?;
    let form = [("id", &*parked.to_string()), ("reason", "the customer asked")];
    let shown = ann.post("/message/payload", &form).await?;
    assert!(shown.status == 200 && shown.body.contains("PAYLOAD-CANARY"), "{}", shown.body);
    assert_eq!(served.workload.database.integer(operations).await?, 4);
    let gone = ann.post("/message/payload", &[("id", "999999"), ("reason", "x")]).await?;
    assert!(gone.status == 422 && gone.body.contains("payload of 999999 not found"), "{}", gone.body);
    assert_eq!(served.workload.database.integer(operations).await?, 4);
    assert!(!served.relay.log()?.contains("CANARY"));
    served.relay.stop().await
}

/// Goal: every process shows the same state. Oracle: the pages of the leader and of a standby, and
/// the effect of a decision at one on the page of the other.
pub(crate) async fn one_picture(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let standby = RelayProcess::start(&stage, &config(&stage, &served.workload, USERS, "")?)?;
    let address = standby.address(SERVING).await?;
    standby.tells("standing by").await?;
    let eve = Client::new(&address).basic("eve", super::EVE);
    eventually("both name the leader", || async {
        // The holder is read each time, because the lease may change hands on a slow machine.
        let holder = served.workload.database.texts("SELECT holder FROM outbox_relay").await?.remove(0);
        let page = "/pipeline?name=orders";
        let (leader, standby) = (served.eve().get(page).await?, eve.get(page).await?);
        let fits = [&leader, &standby]
            .iter()
            .all(|page| page.body.contains(&holder) && page.body.contains("leading"));
        Ok(fits.then_some(()))
    })
    .await?;
    eventually("both list both processes", || async {
        let page = "/pipeline?name=orders";
        let pages = [served.eve().get(page).await?, eve.get(page).await?];
        Ok(pages.iter().all(|page| lists_both(&page.body)).then_some(()))
    })
    .await?;
    let ann = Client::new(&address).with("Authorization", &format!("Bearer {}", super::ANN));
    let asked = ann.post("/dead/confirm", &[("what", "discard-all")]).await?;
    let all = [&[("what", "discard-all"), ("reason", "given up")][..], &asked.decision()?].concat();
    let (address, _) = ann.follow("/dead/decide", &all).await?;
    let result = served.eve().get(&address).await?.body;
    assert!(result.contains("2 of 2 messages discarded"), "any process has the result: {result}");
    let audit = served.eve().get("/audit").await?.body;
    // A decision is one line, however many messages it is about.
    assert_eq!(audit.matches("given up").count(), 1, "{audit}");
    standby.stop().await?;
    assert!(served.config.path().exists());
    served.relay.stop().await
}

/// Returns whether a pipeline's page lists its leader and one standby, each with version and
/// address.
fn lists_both(page: &str) -> bool {
    let list = page.split("<h2>Processes</h2>").nth(1).and_then(|rest| rest.split("</table>").next());
    let list = list.unwrap_or_default();
    let version = concat!(">", env!("CARGO_PKG_VERSION"), "<");
    let count = |part: &str| list.matches(part).count();
    count(">leads<") == 1 && count(">standby<") == 1 && count(version) == 2 && count("hidden (needs") == 0
}
