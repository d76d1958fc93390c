//! Replays, from the page.

use tests::{Outcome, Stage, eventually};

use super::{Served, USERS};

/// Goal: an operator sees how many messages a replay would send and which range they have, and then
/// sends exactly those. Oracle: the preview; the records of the broker; the audit; the answer to a
/// form after more messages match.
pub(crate) async fn run(stage: Stage) -> Outcome {
    let served = Served::start(&stage, USERS, "").await?;
    let workload = &served.workload;
    workload.place_many(2, 3).await?;
    assert_eq!(workload.broker.drain(&workload.topic, 3).await?.len(), 3, "they are published");
    let (ann, eve) = (served.ann(), served.eve());
    let page = "/replay?pipeline=orders";
    let topic = &*workload.topic;
    let asked = [("pipeline", "orders"), ("topic", topic), ("since", "1h")];
    assert!(!eve.get(page).await?.body.contains("Preview"));
    assert_eq!(ann.post("/replay/confirm", &[("pipeline", "orders")]).await?.status, 422, "no condition");
    for wrong in [("since", "yesterday"), ("from_id", "x"), ("id", "1"), ("rate", "abc")] {
        let answer = ann.post("/replay/confirm", &[&asked[..2], &[wrong]].concat()).await?;
        assert_eq!(answer.status, 400, "{wrong:?}: {}", answer.body);
    }
    // Until the cursor is stored, a message counts as not published.
    let preview = eventually("the preview has them all", || async {
        let preview = ann.post("/replay/confirm", &asked).await?;
        Ok((preview.status == 200 && preview.field("chosen").is_ok_and(|it| it == "3")).then_some(preview))
    })
    .await?;
    for part in ["3 messages", "Publish 3 messages again", "First ", topic] {
        assert!(preview.body.contains(part), "{part}: {}", preview.body);
    }
    assert_eq!(served.audited().await?, 0, "a preview sends nothing");

    let mut form = vec![("pipeline", "orders"), ("topic", topic)];
    for name in ["since", "to_id", "chosen", "replay"] {
        form.push((name, preview.field(name)?));
    }
    let silent = ann.post("/replay", &form).await?;
    assert!(silent.status == 422 && silent.body.contains("the reason is empty"), "{}", silent.body);
    form.push(("reason", "the queue was purged"));
    let other: Vec<_> = form.iter().copied().filter(|(name, _)| *name != "chosen").collect();
    let stale = ann.post("/replay", &[&other[..], &[("chosen", "2")]].concat()).await?;
    assert!(stale.status == 409 && stale.body.contains("3 messages match now"), "{}", stale.body);
    // A message that is published after the preview does not belong to it.
    workload.place("key-9").await?;
    assert_eq!(workload.broker.drain(topic, 4).await?.len(), 4);
    assert_eq!(ann.post("/replay", &form).await?.value("location"), Some(page));
    eventually("it has ended", || async {
        let shown = eve.get(page).await?.body;
        Ok(shown.contains("3 of 3 messages published again").then_some(()))
    })
    .await?;
    assert_eq!(workload.broker.drain(topic, 7).await?.len(), 7, "three copies");
    let twice = ann.post("/replay", &form).await?;
    assert_eq!(twice.value("location"), Some(page), "a form that is sent twice is one replay");
    let words = "SELECT actor || ':' || action || ':' || note FROM outbox_operation ORDER BY seq";
    let told = workload.database.texts(words).await?;
    assert_eq!(told, ["ann:replay:the queue was purged", "ann:replayed:the queue was purged"]);
    assert_eq!(ann.post("/replay/stop", &[("pipeline", "orders")]).await?.status, 409, "it has ended");
    served.relay.stop().await
}
