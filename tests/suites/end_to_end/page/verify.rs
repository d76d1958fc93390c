//! Comparisons of outbox, broker and inboxes, from the page.

use tests::{Outcome, Stage, eventually};

use super::{Served, USERS};

/// Goal: an operator compares outbox, broker and inbox from the page, and can stop a comparison; a
/// viewer sees the result. Oracle: the page while 60,000 rows are read, which takes some seconds at
/// the pace of a comparison, after the stop, and after the end; the audit.
pub(crate) async fn run(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let (ann, eve) = (served.ann(), served.eve());
    let page = "/verify?pipeline=orders";
    let form = [("pipeline", "orders"), ("since", "1h")];
    assert!(ann.get(page).await?.body.contains("not run in this process"));
    let reversed = [("pipeline", "orders"), ("since", "1h"), ("until", "2h")];
    assert_eq!(ann.post("/verify", &reversed).await?.status, 400);
    assert_eq!(ann.post("/verify/stop", &form).await?.status, 409, "none is running");

    let pause = [("pipeline", "orders"), ("scope", "pipeline"), ("reason", "rows that stay unread")];
    assert_eq!(ann.post("/pause", &pause).await?.status, 303);
    let rows = "INSERT INTO outbox_message (topic, key, payload) \
                SELECT 'orders', 'key-' || n, 'x' FROM generate_series(1, 60000) AS n";
    served.workload.database.execute(rows).await?;
    assert_eq!(ann.post("/verify", &form).await?.value("location"), Some(page));
    let running = eve.get(page).await?.body;
    assert!(running.contains("It is running") && running.contains("rows so far"), "{running}");
    assert!(!running.contains("/verify/stop"), "a viewer stops nothing: {running}");
    assert_eq!(ann.post("/verify", &form).await?.status, 409, "one at a time");
    assert!(ann.get(page).await?.body.contains("action=\"/verify/stop\""));
    assert_eq!(ann.post("/verify/stop", &form).await?.value("location"), Some(page));
    eventually("it was stopped", || async {
        Ok(ann.get(page).await?.body.contains("it was stopped").then_some(()))
    })
    .await?;

    // None of the rows is that recent.
    let none = [("pipeline", "orders"), ("since", "1ms")];
    ann.post("/verify", &none).await?;
    let found = eventually("the comparison has ended", || async {
        let shown = eve.get(page).await?.body;
        Ok(shown.contains("no problems found").then_some(shown))
    })
    .await?;
    assert!(found.contains("0 enqueued") && found.contains("by <span"), "{found}");
    assert_eq!(served.audited().await?, 1, "only the pause is a decision");
    served.relay.stop().await
}
