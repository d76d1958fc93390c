//! Dead letters of several copies of one message, and of several messages with one id.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use inbox::{Inbox, PayloadComparison, Reason, RedriveError, RedriveOptions, Redriven, Resolution};
use message::{ContentType, Message, Source};

use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::{WORKS, billing, store_dead_letter};
use crate::inbox::failures::dead_letters;
use crate::inbox::message_of;

tests::cases! { "inbox/copies/{on}/{case}":
    every {
        two_messages_with_one_id_that_are_too_old_are_two_dead_letters,
        a_copy_of_a_stopped_message_waits_for_the_one_that_stopped_it,
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Goal: messages of two sources with one id and equal contents do not become one dead letter when
/// both are refused because of their time. Oracle: the dead letters and the effects.
async fn two_messages_with_one_id_that_are_too_old_are_two_dead_letters<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let accept = RedriveOptions::default().accept_late(true);
    let one = message_of(inbox.window().now - 90 * DAY, "late");
    let other = Message { source: Source::new("another").unwrap(), ..one.clone() };
    for message in [&one, &other, &one, &other] {
        store_dead_letter(&inbox, message, Reason::TooOld).await;
    }
    let letters = dead_letters(&inbox).await;
    let sources: Vec<_> = letters.iter().filter_map(|letter| letter.source.clone()).collect();
    assert_eq!(sources, [one.source.as_str(), other.source.as_str()]);
    assert!(letters.iter().all(|letter| letter.deliveries == 2), "{letters:?}");
    let redriven = inbox.redrive(&billing(), letters[0].id, &WORKS, accept).await.unwrap();
    assert_eq!(redriven, Redriven::Now(Resolution::AppliedLate));
    let refused = inbox.redrive(&billing(), letters[1].id, &WORKS, accept).await;
    assert!(matches!(refused, Err(RedriveError::Refused(_))), "{refused:?}");
    assert_eq!(dead_letters(&inbox).await.len(), 1, "the other one is still there");
}

/// Goal: a copy that finds another dead letter in its place is not closed as if the message had
/// taken effect: later this would count as proof. Oracle: the results of the redrives, and the
/// effects.
async fn a_copy_of_a_stopped_message_waits_for_the_one_that_stopped_it<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let canonical = database.options().payloads(PayloadComparison::CanonicalJson);
    let inbox = Inbox::<DB>::open(database.pool.clone(), canonical.clone()).await.unwrap();
    let short = canonical.retention(DAY);
    let short = Inbox::<DB>::open(database.pool.clone(), short).await.unwrap();
    let at = inbox.window().now - 5 * DAY;
    let json = |payload: &str| Message { content_type: ContentType::json(), ..message_of(at, payload) };
    let first = json(r#"{"order":1,"cents":5}"#);
    let again = json(r#"{"cents":5,"order":1}"#).with_id(first.id);
    let late = store_dead_letter(&short, &again, Reason::TooOld).await;
    let stopped = store_dead_letter(&inbox, &first, Reason::Rejected).await;
    assert_ne!(late, stopped);
    let options = RedriveOptions::default();
    let refused = inbox.redrive(&billing(), late, &WORKS, options).await;
    assert!(
        matches!(refused, Err(RedriveError::StoppedBy { id, other }) if (id, other) == (late, stopped)),
        "{refused:?}"
    );
    assert!(DB::effects(&database.pool, "billing").await.is_empty());
    for (letter, resolution) in [(stopped, Resolution::Applied), (late, Resolution::Duplicate)] {
        let redriven = inbox.redrive(&billing(), letter, &WORKS, options).await.unwrap();
        assert_eq!(redriven, Redriven::Now(resolution));
    }
    assert_eq!(DB::effects(&database.pool, "billing").await.len(), 1);
}
