//! Rights of each role, and operations that are forbidden to all.

use tests::{Outcome, Stage, eventually};

use super::client::{Answer, Client};
use super::surface::{CHANGES, READ};
use super::{ANN, EVE, RELAY, Served, USERS};

/// An id of a decision that no form has.
const ID: &str = "01a21987-9bca-7af8-8184-ba681445d351";

/// Goal: a viewer can only look, and forged forms change nothing. Oracle: the answers, the parked
/// messages, the pauses and the audits.
pub(crate) async fn viewer(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let eve = served.eve();
    for path in READ.iter().filter(|path| !path.starts_with("/events")) {
        let answer = eve.get(path).await?;
        // A form for a decision is shown only to users who may make it.
        let is_refused = path.starts_with("/pause?") || path.starts_with("/saga/decide?");
        assert_eq!(matches!(answer.status, 401 | 403), is_refused, "{path}: {}", answer.status);
    }
    let list = eve.get("/dead").await?;
    assert!(list.body.contains("key-1") && !list.body.contains("Requeue"), "{}", list.body);
    for (path, fields) in CHANGES {
        let answer = eve.post(path, fields).await?;
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
        assert!(answer.body.contains("eve has the role viewer and may not"), "{path}: {}", answer.body);
    }
    let rows = served.rows().await?;
    let chosen = [("what", "discard"), ("row", &rows[0]), ("decision", ID), ("reason", "forged")];
    assert_eq!(eve.post("/dead/decide", &chosen).await?.status, 403);
    assert_eq!((served.parked("dead").await?, served.audited().await?), (2, 0), "nothing was decided");
    assert_eq!(served.workload.database.integer("SELECT count(*) FROM outbox_pause").await?, 0);
    served.relay.stop().await
}

/// Goal: an operator requeues, discards, pauses and resumes, one by one and in bulk. Oracle: the
/// state in the database, and the audit with name, reason and selection.
pub(crate) async fn operator(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(6).await?;
    let ann = served.ann();
    let list = ann.get("/dead").await?;
    let rows = served.rows().await?;
    assert!(rows.iter().all(|row| list.body.contains(&format!("value=\"{row}\""))), "{}", list.body);

    let asked =
        ann.post("/dead/confirm", &[("what", "discard"), ("row", &rows[0]), ("row", &rows[1])]).await?;
    assert!(asked.status == 200 && asked.body.contains("Discard 2 messages?"), "{}", asked.body);
    assert_eq!(served.audited().await?, 0, "asking decides nothing");
    assert!(asked.body.contains(">Discard 2 messages</button>"), "{}", asked.body);
    let chosen = [("what", "discard"), ("row", &rows[0]), ("row", &rows[1])];
    let chosen = [&chosen[..], &asked.decision()?].concat();
    let silent = ann.post("/dead/decide", &chosen).await?;
    assert!(silent.status == 422 && silent.body.contains("the reason is empty"), "{}", silent.body);
    let signed = [&chosen[..], &[("reason", "sent by hand")]].concat();
    let (_, done) = ann.follow("/dead/decide", &signed).await?;
    assert!(done.body.contains("2 of 2 messages discarded"), "{}", done.body);

    let which = [("what", "requeue-all"), ("topic", &*served.workload.topic)];
    let asked = ann.post("/dead/confirm", &which).await?;
    assert!(asked.body.contains(">Requeue 4 messages</button>"), "{}", asked.body);
    let all = [&which[..], &asked.decision()?, &[("reason", "smaller now")]].concat();
    // One of the four dies again meanwhile.
    let row = rows[5].split('/').nth(1).ok_or("a row without an id")?;
    let again = format!("UPDATE outbox_exception SET updated_at = clock_timestamp() WHERE id = {row}");
    served.workload.database.execute(&again).await?;
    let (address, done) = ann.follow("/dead/decide", &all).await?;
    assert!(done.body.contains("3 of 3 messages requeued"), "{}", done.body);
    assert!(done.body.contains("1 had changed after the confirmation"), "{}", done.body);
    let back = format!("/dead?topic={}", served.workload.topic);
    assert!(done.body.contains(&back), "the filter is kept: {}", done.body);
    eventually("the result shows what died again", || async {
        Ok(ann.get(&address).await?.body.contains("dead again").then_some(()))
    })
    .await?;
    let audited = served.audited().await?;
    let (same, _) = ann.follow("/dead/decide", &all).await?;
    assert_eq!((same, served.audited().await?), (address, audited), "one form is one decision");
    let words = "SELECT DISTINCT actor || ':' || action || ':' || note || ':' || selection FROM outbox_audit ORDER BY 1";
    let told = served.workload.database.texts(words).await?;
    let topic = &served.workload.topic;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("ann:discard:sent by hand:source=outbox id="), "{told:?}");
    assert_eq!(told[1], format!("ann:requeue:smaller now:topic={topic}: 3 chosen"));

    // One that is retried is discarded by its id, with the same confirmation.
    let retried = format!(
        "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, due_at, fault) \
         VALUES ('{RELAY}', 900000, outbox_new_message_id(), 'parcels', 'alone', 'retrying', 'timed out', \
         now() + interval '1 day', 'broker')"
    );
    served.workload.database.execute(&retried).await?;
    let story = ann.get("/message?id=900000").await?.body;
    assert!(story.contains("Discard…") && !story.contains("Requeue…"), "{story}");
    let row = format!("outbox/900000/{RELAY}");
    let chosen = [("what", "discard"), ("row", &*row)];
    let asked = ann.post("/dead/confirm", &chosen).await?;
    assert!(asked.body.contains("Discard 1 message?") && asked.body.contains("timed out"), "{}", asked.body);
    let signed = [&chosen[..], &asked.decision()?, &[("reason", "the customer is gone")]].concat();
    let (_, done) = ann.follow("/dead/decide", &signed).await?;
    assert!(done.body.contains("1 of 1 message discarded"), "{}", done.body);
    assert_eq!(served.parked("retrying").await?, 0);

    let pause = [("pipeline", "orders"), ("scope", "key"), ("name", "key-9"), ("reason", "look first")];
    assert_eq!(ann.post("/pause", &pause).await?.status, 303);
    assert_eq!(ann.post("/pause", &pause).await?.status, 409, "it is paused already");
    eventually("the page shows the pause and by whom", || async {
        let page = ann.get("/").await?.body;
        Ok((page.contains("key key-9") && page.contains("ann") && page.contains("look first")).then_some(()))
    })
    .await?;
    // A form that was loaded during an earlier pause.
    let stale = ann.post("/resume", &[&pause[..], &[("since", "1764201600123456000")]].concat()).await?;
    assert!(stale.status == 409 && stale.body.contains("paused again by ann: look first"), "{}", stale.body);
    assert_eq!(ann.post("/resume", &[&pause[..], &[("since", "once")]].concat()).await?.status, 400);
    assert_eq!(ann.post("/resume", &pause).await?.status, 303);
    assert_eq!(ann.post("/resume", &pause).await?.status, 409);
    for broken in [
        &[("pipeline", "nobody"), ("scope", "pipeline"), ("reason", "x")][..],
        &[("pipeline", "orders"), ("scope", "all"), ("reason", "x")],
        &[("pipeline", "orders"), ("scope", "topic"), ("name", "a b"), ("reason", "x")],
        &[("pipeline", "orders"), ("scope", "pipeline")],
    ] {
        let answer = ann.post("/pause", broken).await?;
        assert!((400..500).contains(&answer.status), "{broken:?}: {}", answer.status);
    }
    for broken in [
        &[("what", "discard")][..],
        &[("what", "discard"), ("row", "outbox/1/orders"), ("reason", "x")],
        &[("what", "discard"), ("row", "outbox/1/orders"), ("decision", "1"), ("reason", "x")],
        &[("what", "burn"), ("row", "outbox/1/orders"), ("decision", ID)],
        &[("what", "discard"), ("row", "outbox/1/nobody"), ("decision", ID), ("reason", "x")],
        &[("what", "discard"), ("row", "../../etc"), ("decision", ID), ("reason", "x")],
        &[("what", "discard"), ("row", "outbox/99999/orders"), ("decision", ID), ("reason", "x")],
        &[("what", "discard-all"), ("at", "outbox/x/1/0/orders"), ("decision", ID), ("reason", "x")],
        &[("what", "discard-all"), ("decision", ID), ("reason", "nothing was shown")],
        &[
            ("what", "discard-all"),
            ("at", "outbox/4000000000000000/6/0/orders"),
            ("decision", ID),
            ("reason", "other messages were shown"),
        ],
    ] {
        let answer = ann.post("/dead/decide", broken).await?;
        assert!((400..500).contains(&answer.status), "{broken:?}: {}", answer.status);
    }
    let audit = ann.get("/audit").await?.body;
    for told in ["discard", "requeue", "pause", "resume", "sent by hand", "look first"] {
        assert!(audit.contains(told), "{told}: {audit}");
    }
    served.relay.stop().await
}

/// Goal: a page from another site cannot use an operator's login. Oracle: the answers to requests
/// with the operator's cookie or password and foreign headers; nothing changed.
pub(crate) async fn forged(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let here = format!("http://{}", served.address);
    let login = Client::new(&served.address).with("Origin", &here);
    let entered = login.post("/login", &[("name", "ann"), ("secret", ANN)]).await?;
    let cookie =
        entered.value("set-cookie").and_then(|it| it.split(';').next()).ok_or("no cookie")?.to_owned();
    let browser = Client::new(&served.address).with("Cookie", &cookie);
    let by_password = |origin: &str| {
        let pair = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("eve:{EVE}"));
        Client::new(&served.address).with("Authorization", &format!("Basic {pair}")).with("Origin", origin)
    };
    for foreign in [
        browser.clone(),
        browser.clone().with("Origin", "https://evil.example"),
        browser.clone().with("Origin", "null"),
        browser.clone().with("Origin", &format!("{here}.evil.example")),
        browser.clone().with("Origin", &here).with("Sec-Fetch-Site", "cross-site"),
        browser.clone().with("Origin", &here).with("Sec-Fetch-Site", "same-site"),
        browser.clone().with("Sec-Fetch-Site", "none"),
        by_password("https://evil.example"),
        served.ann().with("Origin", "https://evil.example"),
    ] {
        for (path, fields) in CHANGES {
            let answer = foreign.post(path, fields).await?;
            assert!(
                answer.status == 403 && answer.body.contains("another page"),
                "{path}: {}",
                answer.status
            );
        }
    }
    let part = browser.clone().with("Sec-Fetch-Site", "cross-site").with("Sec-Fetch-Mode", "no-cors");
    assert_eq!(part.get("/dead").await?.status, 403, "no foreign page holds a part of this one");
    assert_eq!((served.parked("dead").await?, served.audited().await?), (2, 0));
    let own = browser.with("Origin", &here).with("Sec-Fetch-Site", "same-origin");
    let asked = own.post("/dead/confirm", &[("what", "discard-all")]).await?;
    let all = [&[("what", "discard-all"), ("reason", "mine")][..], &asked.decision()?].concat();
    assert_eq!(own.post("/dead/decide", &all).await?.status, 303, "the page's own form");
    served.relay.stop().await
}

/// Goal: when two operators decide at once about one message, or about all that match, only one
/// decision about each message is stored. Oracle: the audit.
pub(crate) async fn two_operators(stage: Stage) -> Outcome {
    let bob = "[[page.user]]\nname = \"bob\"\nrole = \"operator\"\ntoken = \"token-of-bob-the-operator\"\n";
    let served = Served::start(&stage, &format!("{USERS}{bob}"), "").await?.with_dead(1).await?;
    let row = served.rows().await?.remove(0);
    let ann = served.ann();
    let bob = Client::new(&served.address).with("Authorization", "Bearer token-of-bob-the-operator");
    let asked = [
        ann.post("/dead/confirm", &[("what", "discard"), ("row", &row)]).await?,
        bob.post("/dead/confirm", &[("what", "requeue"), ("row", &row)]).await?,
    ];
    let discard = [("what", "discard"), ("row", &*row), ("reason", "given up")];
    let discard = [&discard[..], &asked[0].decision()?].concat();
    let requeue = [("what", "requeue"), ("row", &*row), ("reason", "try again")];
    let requeue = [&requeue[..], &asked[1].decision()?].concat();
    let (one, other) =
        tokio::join!(ann.follow("/dead/decide", &discard), bob.follow("/dead/decide", &requeue));
    // The other one is refused, or its result says that nothing was changed.
    let is_done = |it: &Result<(String, Answer), _>| {
        it.as_ref().is_ok_and(|(_, page)| page.body.contains("1 of 1 message "))
    };
    assert_eq!([is_done(&one), is_done(&other)].iter().filter(|done| **done).count(), 1);
    let database = &served.workload.database;
    assert_eq!(database.integer("SELECT count(*) FROM outbox_audit").await?, 1);

    // Enough for three transactions of each.
    let dead = format!(
        "INSERT INTO outbox_exception (relay, id, message_id, topic, key, state, error, fault) \
         SELECT '{RELAY}', 1000000 + n, gen_random_uuid(), 'parcels', 'key-' || n, 'dead', 'no price', \
         'message' FROM generate_series(1, 1200) AS n"
    );
    database.execute(&dead).await?;
    let which = [("what", "discard-all"), ("topic", "parcels")];
    let asked = [ann.post("/dead/confirm", &which).await?, bob.post("/dead/confirm", &which).await?];
    let of_ann = [&which[..], &asked[0].decision()?, &[("reason", "all given up")]].concat();
    let of_bob = [&which[..], &asked[1].decision()?, &[("reason", "all given up")]].concat();
    let (one, other) = tokio::join!(ann.post("/dead/decide", &of_ann), bob.post("/dead/decide", &of_bob));
    let statuses = [one?.status, other?.status];
    assert!(statuses.contains(&303) && statuses.iter().all(|it| matches!(it, 303 | 409)), "{statuses:?}");
    eventually("all are decided about", || async {
        let dead = "SELECT count(*) FROM outbox_exception WHERE topic = 'parcels' AND state = 'dead'";
        Ok((database.integer(dead).await? == 0).then_some(()))
    })
    .await?;
    let of_both = "SELECT count(*) FROM outbox_audit WHERE note = 'all given up'";
    let of_each = "SELECT count(DISTINCT message_id) FROM outbox_audit WHERE note = 'all given up'";
    assert_eq!((database.integer(of_both).await?, database.integer(of_each).await?), (1_200, 1_200));
    served.relay.stop().await
}
