//! The doctor, from the page.

use tests::{Outcome, Stage, eventually};

use super::{Served, USERS};

/// Goal: an operator runs the doctor from the page, and all viewers see its findings. Oracle: the
/// page before and after, for an operator and for a viewer; the audit.
pub(crate) async fn run(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let (ann, eve) = (served.ann(), served.eve());
    assert!(ann.get("/pipeline?name=orders").await?.body.contains("/doctor?pipeline=orders"));
    let before = ann.get("/doctor?pipeline=orders").await?;
    assert!(before.body.contains("not run in this process") && before.body.contains("Run the doctor"));
    assert_eq!(eve.post("/doctor", &[("pipeline", "orders")]).await?.status, 403);
    assert_eq!(ann.post("/doctor", &[("pipeline", "nobody")]).await?.status, 404);
    let answer = ann.post("/doctor", &[("pipeline", "orders")]).await?;
    assert_eq!(answer.value("location"), Some("/doctor?pipeline=orders"), "{}", answer.body);
    let found = eventually("the doctor has ended", || async {
        let page = ann.get("/doctor?pipeline=orders").await?.body;
        Ok(page.contains(" passed, ").then_some(page))
    })
    .await?;
    for part in ["connection", "Go-live checklist", "Run it again", "by <span"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    let seen = eve.get("/doctor?pipeline=orders").await?.body;
    assert!(seen.contains(" passed, ") && !seen.contains("Run it again"), "{seen}");
    assert_eq!(served.audited().await?, 0, "it decides nothing");
    served.relay.stop().await
}
