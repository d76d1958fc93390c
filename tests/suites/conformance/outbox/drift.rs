//! Ids that producers choose: which ids are accepted, and the handling of an id that is generated
//! twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use crate::outbox::support::{Database, TestDialect};
use message::token::{Drift, DriftWindow};
use message::{Fault, MessageId};
use outbox::{CommitError, EnqueueError, Enqueued, NewMessage, Outbox};
use tests::Counters;
use time::OffsetDateTime;

tests::cases! { "outbox/drift/{on}/{case}":
    every {
        ids_outside_the_window_are_refused_with_both_times_and_counted,
        a_refusal_leaves_nothing_of_its_batch,
        the_window_is_what_the_producer_says,
        a_derived_id_that_is_made_again_after_a_crash_is_recognised,
    }
}

const DAY: Duration = Duration::from_secs(86_400);

fn made_at(at: OffsetDateTime) -> MessageId {
    MessageId::derived(at, [MessageId::new().as_uuid().as_bytes()]).unwrap()
}

fn named(id: MessageId) -> NewMessage {
    NewMessage::new("orders").id(id)
}

pub(super) async fn ids_outside_the_window_are_refused_with_both_times_and_counted<DB: TestDialect>(
    db: &Database<DB>,
) {
    let counted = |reason| Counters::installed().value("outbox_ids_refused_total", &[("reason", reason)]);
    let before = (counted("too_old"), counted("too_far_ahead"));
    let now = OffsetDateTime::now_utc();
    let (old, early) = (made_at(now - 14 * DAY - DAY / 24), made_at(now + DAY / 24));
    for (id, reason) in [(old, "too_old"), (early, "too_far_ahead")] {
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        let error = tx.enqueue(named(id)).await.unwrap_err();
        assert!(error.fault() == Fault::Message && !error.is_retryable(), "{error}");
        let EnqueueError::Drift(drift) = &error else { panic!("{error}") };
        assert_eq!((drift.as_str(), drift.token().id), (reason, id.as_uuid()));
        let (Drift::TooOld { oldest_accepted_at: other, .. }
        | Drift::TooFarAhead { newest_accepted_at: other, .. }) = **drift;
        let told = error.to_string();
        assert!(told.contains(&id.generated_at().to_string()) && told.contains(&other.to_string()), "{told}");
        assert!(matches!(tx.commit().await, Err(CommitError::Poisoned { retryable: false, .. })));

        // Staged messages are validated when they are stored.
        let mut tx = db.outbox.begin(&db.pool).await.unwrap();
        tx.stage(named(id)).unwrap();
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Staged(EnqueueError::Drift(_))), "{error}");
    }
    assert!(counted("too_old") >= before.0 + 2 && counted("too_far_ahead") >= before.1 + 2);
    for inside in [made_at(now - 14 * DAY + DAY / 24), made_at(now), made_at(now + DAY / 1_000)] {
        db.enqueue([named(inside)]).await;
    }
    assert_eq!(db.rows().await, 3);
}

async fn a_refusal_leaves_nothing_of_its_batch<DB: TestDialect>(db: &Database<DB>) {
    let now = OffsetDateTime::now_utc();
    let mut tx = db.pool.begin().await.unwrap();
    let batch = [NewMessage::new("orders"), named(made_at(now)), named(made_at(now - 30 * DAY))];
    let error = db.outbox.enqueue_batch(&mut tx, batch).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Drift(_)), "{error}");
    // On a raw transaction, only a rollback by the caller would remove the first two messages. But
    // here nothing was sent.
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await, 0);
}

async fn the_window_is_what_the_producer_says<DB: TestDialect>(db: &Database<DB>) {
    let now = OffsetDateTime::now_utc();
    let narrow = DriftWindow::new(DAY, Duration::ZERO).unwrap();
    let wide = Outbox::<DB>::builder().ids_accepted(DriftWindow::WIDEST).build();
    let narrow = Outbox::<DB>::builder().ids_accepted(narrow).build();
    for (id, is_narrow) in [(now - 2 * DAY, false), (now - DAY / 2, true), (now + DAY / 2, false)] {
        for (outbox, is_accepted) in [(&wide, true), (&narrow, is_narrow)] {
            let mut tx = db.pool.begin().await.unwrap();
            let enqueued = outbox.enqueue(&mut tx, named(made_at(id))).await;
            assert_eq!(enqueued.is_ok(), is_accepted, "{enqueued:?}");
            tx.rollback().await.unwrap();
        }
    }
    // Ids that the outbox itself generates contain the current time.
    let mut tx = db.pool.begin().await.unwrap();
    narrow.enqueue(&mut tx, NewMessage::new("orders")).await.unwrap();
    tx.rollback().await.unwrap();
}

/// A producer dies before or after its commit. A new producer does not know which, and repeats the
/// whole work.
async fn a_derived_id_that_is_made_again_after_a_crash_is_recognised<DB: TestDialect>(db: &Database<DB>) {
    let placed_at = OffsetDateTime::now_utc() - DAY / 24;
    let command = |payload: &str| {
        let id = MessageId::derived(placed_at, ["order-7", "place", payload]).unwrap();
        NewMessage::new("orders").id(id).payload(payload.to_owned())
    };
    let mut before_commit = db.outbox.begin(&db.pool).await.unwrap();
    before_commit.enqueue(command("a")).await.unwrap();
    drop(before_commit);
    db.enqueue([command("b")]).await;

    let restarted = Outbox::<DB>::new();
    for (payload, was_committed) in [("a", false), ("b", true), ("a", true), ("c", false)] {
        let mut tx = restarted.begin(&db.pool).await.unwrap();
        let enqueued = tx.enqueue(command(payload)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(enqueued.is_duplicate(), was_committed, "{payload}");
        assert!(
            matches!(enqueued, Enqueued::Stored(id) | Enqueued::Duplicate(id) if id.generated_at() <= placed_at)
        );
    }
    assert_eq!(db.rows().await, 3);
}
