//! Erasing sagas: what ended ones hold goes, and none begins again.

use super::*;
use saga::{Run, StartError, Stop};

tests::cases! { "saga/erasure/{on}/{case}":
    every { an_ended_saga_loses_its_content_and_keeps_its_name }
}

/// Goal: input, output, results, replies and reasons of ended sagas go, a running saga is left, and
/// an erased one is not started again. Oracle: the tables, read with plain SQL, and a start.
async fn an_ended_saga_loses_its_content_and_keeps_its_name<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, end: i64| {
            saga.step("one", async |_| Ok(4_711)).undo(async |_, _: &i64| Ok(())).await?;
            match end {
                41 => Ok(4_712),
                42 => Err(Stop::because("Ann said no")),
                _ => saga.sleep("pause", Duration::from_secs(3_600)).await.map(|()| 0),
            }
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    for (name, end) in [("ann", 41), ("bob", 42), ("cy", 43)] {
        start(&db, &sagas, name, end).await;
    }
    finished(&sagas, "ann").await;
    undone(&sagas, "bob").await;
    until(&sagas, "cy", "asleep", |saga| saga.outline.waits_for.is_some()).await;
    db.execute("INSERT INTO saga_reply (type, id, step, payload) VALUES ('checkout', 'ann', 'two', '4713')")
        .await
        .unwrap();

    let owner = Sagas::builder(db.admin.clone(), Outbox::new()).open().await.unwrap();
    for (name, has_ended) in [("ann", true), ("bob", true), ("cy", false)] {
        let found = owner.of_id(name).await.unwrap();
        assert_eq!(found.iter().map(|saga| saga.has_ended).collect::<Vec<_>>(), [has_ended], "{name}");
        assert_eq!(owner.erase(&found[0].id).await.unwrap(), has_ended, "{name}");
    }
    assert!(owner.of_id("ann").await.unwrap().is_empty() && owner.of_id("nobody").await.unwrap().is_empty());
    let content = "SELECT id FROM saga WHERE input LIKE '%4%' OR output LIKE '%47%' OR reason LIKE '%Ann%' \
        UNION SELECT id FROM saga_step WHERE result LIKE '%47%' UNION SELECT id FROM saga_reply \
        WHERE payload LIKE '%47%' ORDER BY 1";
    assert_eq!(db.texts(content).await.unwrap(), ["cy"], "the one that runs");
    assert_eq!(db.texts("SELECT id FROM saga ORDER BY 1").await.unwrap(), ["ann", "bob", "cy"]);
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    let started = sagas.start(&mut tx, "checkout", "ann", &41_i64).await;
    assert!(matches!(started, Err(StartError::KeyReused { .. })), "{started:?}");
    drop(tx);
    worker.stop().await;
}
