//! The audit with its filter, and lists as files.

use tests::{Outcome, Stage};

use super::client::Answer;
use super::{Served, USERS};

/// Goal: a user who may view the page finds a decision by its author, action, topic and time, and
/// exports the list as a file that no spreadsheet runs. Oracle: the answers of the page to each
/// filter, and the files.
pub(crate) async fn audit(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?.with_dead(2).await?;
    let (ann, eve) = (served.ann(), served.eve());
    let row = served.rows().await?.remove(0);
    let chosen = [("what", "discard"), ("row", &*row)];
    let asked = ann.post("/dead/confirm", &chosen).await?;
    let signed = [&chosen[..], &asked.decision()?, &[("reason", "=cmd|' /C calc'!A0")]].concat();
    let (_, done) = ann.follow("/dead/decide", &signed).await?;
    assert!(done.body.contains("1 of 1 message discarded"), "{}", done.body);
    let pause = [("pipeline", "orders"), ("scope", "key"), ("name", "key-9"), ("reason", "look first")];
    assert_eq!(ann.post("/pause", &pause).await?.status, 303);

    let topic = &served.workload.topic;
    for (query, has_discard, has_pause) in [
        (String::new(), true, true),
        (String::from("?actor=ann"), true, true),
        (String::from("?actor=eve"), false, false),
        (String::from("?action=discard&pipeline=orders"), true, false),
        (String::from("?action=pause&from=1h"), false, true),
        (String::from("?to=1h"), false, false),
        (format!("?topic={topic}"), true, false),
        (String::from("?topic=another"), false, false),
    ] {
        let page = eve.get(&format!("/audit{query}")).await?;
        assert_eq!(page.status, 200, "{query}: {}", page.body);
        let shows = [page.body.contains("=cmd|"), page.body.contains("look first")];
        assert_eq!(shows, [has_discard, has_pause], "{query}: {}", page.body);
        assert_eq!(page.body.contains("No decision"), !has_discard && !has_pause, "{query}");
    }
    for wrong in ["?action=burn", "?from=yesterday", "?pipeline=nobody", "?from=1h&to=2h"] {
        for path in ["/audit", "/audit/export"] {
            let answer = eve.get(&format!("{path}{wrong}&format=csv")).await?;
            assert!((400..500).contains(&answer.status), "{path}{wrong}: {}", answer.status);
        }
    }
    let page = eve.get("/audit?action=discard").await?;
    assert!(page.body.contains("/audit/export?action=discard&amp;format=csv"), "{}", page.body);

    let file = eve.get("/audit/export?action=discard&format=csv").await?;
    assert_eq!(file.value("content-type"), Some("text/csv; charset=utf-8; header=present"));
    assert_eq!(file.value("content-disposition"), Some("attachment; filename=\"audit.csv\""));
    assert!(file.body.contains("at,actor,action,source,") && file.body.contains(",'=cmd|"), "{}", file.body);
    assert!(!file.body.contains("look first"), "{}", file.body);
    let file = eve.get("/audit/export?pipeline=orders&format=json").await?;
    for part in ["\"action\":\"discard\"", "\"action\":\"pause\"", "\"missing\":[]"] {
        assert!(file.body.contains(part), "{part}: {}", file.body);
    }
    // The relay's role was not granted the audits of keys and sagas: a note, no error.
    let grant = "GRANT outbox_observer TO outbox_relay";
    // The navigation names the grant on every page.
    let names_grant = |page: &Answer| page.body.split_once("<main").is_some_and(|(_, it)| it.contains(grant));
    let page = eve.get("/audit").await?;
    assert!(names_grant(&page) && !page.body.contains("Some data is missing"), "{}", page.body);
    let file = eve.get("/audit/export?format=json").await?;
    assert_eq!(file.body.matches(grant).count(), 1, "{}", file.body);
    let page = eve.get("/audit?action=pause").await?;
    assert!(!names_grant(&page), "neither can have it: {}", page.body);
    let file = eve.get("/dead/export?format=csv").await?;
    assert!(file.body.contains("source,owner,id,") && file.body.contains(",key-1,"), "{}", file.body);
    assert!(!file.body.contains(",key-0,"), "it was discarded: {}", file.body);
    for wrong in ["", "?format=xlsx", "?format=csv&state=lost"] {
        assert_eq!(eve.get(&format!("/dead/export{wrong}")).await?.status, 400, "{wrong}");
    }
    assert_eq!(served.audited().await?, 2, "reading decides nothing");
    served.relay.stop().await
}
