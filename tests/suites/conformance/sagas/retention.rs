//! Retention removes ended sagas after a while, and only those.

use super::*;
use saga::{Run, Stop};

tests::cases! { "saga/retention/{on}/{case}":
    every { ended_sagas_go_with_their_steps_and_free_their_names }
}

async fn ended_sagas_go_with_their_steps_and_free_their_names<DB: Tables>(db: Database<DB>) {
    let sagas = sagas(&db)
        .saga("checkout", 1, async move |saga: &mut Run<DB>, end: i64| {
            saga.step("one", async |_| Ok(())).undo(async |_, (): &()| Ok(())).await?;
            match end {
                0 => Ok(()),
                1 => Err(Stop::because("closed")),
                _ => saga.sleep("pause", Duration::from_secs(3_600)).await,
            }
        })
        .open()
        .await
        .unwrap();
    let worker = Worker::of(&sagas);
    for (name, end) in [("finished", 0), ("undone", 1), ("open", 2)] {
        start(&db, &sagas, name, end).await;
    }
    finished(&sagas, "finished").await;
    undone(&sagas, "undone").await;
    until(&sagas, "open", "asleep", |saga| saga.outline.waits_for.is_some()).await;
    assert_eq!(sagas.forget().await.unwrap(), 0, "not yet");
    db.execute(DB::AGE).await.unwrap();
    assert_eq!(sagas.forget().await.unwrap(), 2);
    assert_eq!(db.texts("SELECT id FROM saga").await.unwrap(), ["open"]);
    assert_eq!(db.texts("SELECT DISTINCT id FROM saga_step").await.unwrap(), ["open"]);
    assert_eq!(started(&db, &sagas, "finished", 1).await, Started::Started, "a new saga");
    undone(&sagas, "finished").await;
    worker.stop().await;
}
