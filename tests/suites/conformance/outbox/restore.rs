//! A log that was restored into another cluster, where its transaction ids have no meaning.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::support::{Database, Follower, granted};
use outbox::NewMessage;
use outbox_log::{Cursor, Fenced};
use sqlx::Postgres;

cases! { "outbox/restore":
    on_postgres {
        nothing_is_lost_after_a_restore_into_another_cluster,
        rows_from_the_future_are_proof_enough,
    }
}

/// Raises a row's transaction id far above any id that the test server has assigned.
const FOREIGN: &str = "xid = (xid::text::numeric + 4000000000)::text::xid8";

async fn nothing_is_lost_after_a_restore_into_another_cluster(db: &Database<Postgres>) {
    let keys = |range: std::ops::Range<i32>| range.map(|n| NewMessage::new("orders").key(n.to_string()));
    db.enqueue(keys(0..10)).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut checkpoint_store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 10);

    // At the mark, a transaction is in flight that has the lowest of the later ids.
    let mut late = db.outbox.begin(&db.pool).await.unwrap();
    late.enqueue(NewMessage::new("orders").key("late")).await.unwrap();
    db.enqueue(keys(11..12)).await;
    assert_eq!(follower.all().await.len(), 1);
    assert_eq!(
        checkpoint_store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
    late.commit().await.unwrap();
    db.enqueue(keys(12..15)).await;
    assert_eq!(checkpoint_store.release(lease.epoch).await.unwrap(), Fenced::Held);
    drop((follower, checkpoint_store));

    // In a restored dump, the xids of the rows and of the cursor are those of another, older
    // cluster.
    let shifted = |cursor: &str| {
        let mark: Cursor = serde_json::from_str(cursor).unwrap();
        let text = mark.base.as_str().to_owned();
        let mut parts = text.split('@');
        let (floor, snapshot) = (parts.next().unwrap(), parts.next().unwrap());
        let shift = |xid: &str| (xid.parse::<u64>().unwrap() + 4_000_000_000).to_string();
        let parts: Vec<String> = snapshot
            .split(':')
            .map(|part| part.split(',').filter(|x| !x.is_empty()).map(shift).collect::<Vec<_>>().join(","))
            .collect();
        let base = outbox_log::Mark::new(format!("{floor}@{}", parts.join(":")));
        serde_json::to_string(&Cursor::at(base)).unwrap()
    };
    let cursor: String =
        sqlx::query_scalar("SELECT cursor FROM outbox_relay").fetch_one(&db.admin).await.unwrap();
    sqlx::query("UPDATE outbox_relay SET cursor = $1")
        .bind(shifted(&cursor))
        .execute(&db.admin)
        .await
        .unwrap();
    db.run(&format!("UPDATE outbox_message SET {FOREIGN}")).await;
    db.run("UPDATE outbox_identity SET system_identifier = '1'").await;

    let mut checkpoint_store = db.checkpoint_store("b").await;
    let (rebased, cursor) = granted(&mut checkpoint_store).await;
    assert!(rebased.epoch > lease.epoch + 1, "the old holder is fenced off");
    let mut follower = Follower::new(db.reader().await, cursor);
    let entries = follower.all().await;
    let again: Vec<_> = entries.iter().map(|entry| entry.key().unwrap()).collect();
    assert_eq!(again, ["late", "11", "12", "13", "14"]);
    db.enqueue(keys(15..16)).await;
    assert_eq!(follower.all().await.len(), 1);

    // A relay that is new in this cluster reads everything.
    let other = outbox_log::RelayName::new("other").unwrap();
    let (_, cursor) = granted(&mut db.log.checkpoint_store(&other, "c").await.unwrap()).await;
    let reader = db.log.reader(&other).await.unwrap();
    assert_eq!(Follower::new(reader, cursor).all().await.len(), 16);
    assert_eq!(
        checkpoint_store.checkpoint(rebased.epoch, &follower.cursor(), &[]).await.unwrap(),
        Fenced::Held
    );
}

async fn rows_from_the_future_are_proof_enough(db: &Database<Postgres>) {
    db.enqueue([NewMessage::new("orders")]).await;
    db.run(&format!("UPDATE outbox_message SET {FOREIGN}")).await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    assert_eq!(Follower::new(db.reader().await, cursor).all().await.len(), 1);
}
