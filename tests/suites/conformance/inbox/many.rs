//! Many dead letters at once: what matches a filter, and decisions about all of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroU32;
use std::time::Duration;

use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::{WORKS, billing, store_dead_letter};
use crate::inbox::held_keys::signature;
use crate::inbox::{keyed, message};
use inbox::{
    Action, ClosedCount, DeadLetterId, Inbox, LetterFilter, ManyDecided, Reason, RedriveError,
    RedriveOptions, Redriven, Requested, Resolution, SeenLetter,
};
use uuid::Uuid;

tests::cases! { "inbox/many/{on}/{case}":
    every {
        letters_are_chosen_by_all_conditions_of_a_filter,
        many_requests_get_the_answers_of_single_ones,
        requests_are_stored_in_the_given_order,
        requests_that_are_sent_twice_are_one_decision,
        a_request_that_is_replaced_has_not_failed,
        many_are_discarded_in_one_transaction,
        a_letter_that_has_changed_is_left_as_it_is,
    }
}

fn decided() -> ManyDecided {
    ManyDecided { signature: signature(), id: Uuid::now_v7() }
}

/// Returns dead letters as an operator chose them.
fn seen(letters: &[DeadLetterId], reason: Reason) -> Vec<SeenLetter> {
    letters.iter().map(|id| SeenLetter { id: *id, reason, deliveries: 1 }).collect()
}

async fn chosen<DB: TestDatabase>(inbox: &Inbox<DB>, filter: &LetterFilter) -> Vec<DeadLetterId> {
    let slice = inbox.choose_letters(filter, None).await.unwrap();
    assert_eq!(slice.next, None);
    slice.letters.into_iter().map(|letter| letter.id).collect()
}

/// Goal: the database applies a filter as intended. Oracle: the dead letters as they were stored.
async fn letters_are_chosen_by_all_conditions_of_a_filter<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut stored = Vec::new();
    for (n, reason) in [Reason::Poison, Reason::Rejected, Reason::Poison].into_iter().enumerate() {
        let message = keyed(&format!("order-{n}"), "{}");
        stored.push(store_dead_letter(&inbox, &message, reason).await);
    }
    let closed = store_dead_letter(&inbox, &message("closed"), Reason::Poison).await;
    inbox.discard(closed, &signature()).await.unwrap();
    let some = |text: &str| Some(text.to_owned());
    let none = LetterFilter::default();
    let topic = inbox.dead_letter_by_id(stored[0]).await.unwrap().unwrap().topic;
    let hour = Some(Duration::from_secs(3_600));
    let survey = inbox.survey(&none).await.unwrap();
    let errors = inbox.letter_errors(&billing()).await.unwrap();
    let counted: u64 = errors.iter().map(|group| group.count).sum();
    assert_eq!(
        (counted, errors.len()),
        (3, 2),
        "by topic, reason and error, without closed ones: {errors:?}"
    );
    for (filter, expected) in [
        (none.clone(), &stored[..]),
        (LetterFilter { consumer: Some(billing()), topic: Some(topic), ..none.clone() }, &stored[..]),
        (LetterFilter { key: some("order-1"), ..none.clone() }, &stored[1..2]),
        (
            LetterFilter {
                reason: some("rejected"),
                error_parts: vec!["it".into(), "broke".into()],
                ..none.clone()
            },
            &stored[1..2],
        ),
        (LetterFilter { error_parts: vec!["mended".into()], ..none.clone() }, &[]),
        (LetterFilter { kind: some("no such kind"), ..none.clone() }, &[]),
        (LetterFilter { consumer: Some("shipping".parse().unwrap()), ..none.clone() }, &[]),
        (LetterFilter { older_than: hour, ..none.clone() }, &[]),
        (LetterFilter { newer_than: hour, as_of: Some(survey.at), ..none.clone() }, &stored[..]),
    ] {
        assert_eq!(chosen(&inbox, &filter).await, expected, "{filter:?}");
        let shown = inbox.open_letters(&filter, None, 10).await.unwrap().letters;
        assert_eq!(shown.iter().map(|letter| letter.id).collect::<Vec<_>>(), expected, "{filter:?}");
        let survey = inbox.survey(&filter).await.unwrap();
        let grouped: u64 = survey.groups.iter().map(|group| group.count).sum();
        assert_eq!((survey.count, grouped), (expected.len() as u64, expected.len() as u64), "{filter:?}");
    }
    let first = inbox.open_letters(&none, None, 2).await.unwrap();
    let rest = inbox.open_letters(&none, first.next, 2).await.unwrap();
    assert_eq!((first.letters.len(), rest.letters.len(), rest.next), (2, 1, None));

    // One that dies later is not covered.
    tokio::time::sleep(Duration::from_millis(5)).await;
    store_dead_letter(&inbox, &message("later"), Reason::Poison).await;
    assert_eq!(chosen(&inbox, &LetterFilter { as_of: Some(survey.at), ..none }).await, stored);
}

/// Goal: a dead letter gets the answer that it would get alone. Oracle: `request_redrive`, for dead
/// letters of every kind.
async fn many_requests_get_the_answers_of_single_ones<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let open = store_dead_letter(&inbox, &keyed("order-7", "{}"), Reason::Poison).await;
    let held = store_dead_letter(&inbox, &keyed("order-7", "[]"), Reason::Held).await;
    let closed = store_dead_letter(&inbox, &message("closed"), Reason::Poison).await;
    inbox.discard(closed, &signature()).await.unwrap();
    let asked = store_dead_letter(&inbox, &message("asked"), Reason::Rejected).await;
    let none = RedriveOptions::default();
    inbox.request_redrive(asked, none, &signature()).await.unwrap();
    let missing = DeadLetterId(Uuid::now_v7());

    let mut letters = seen(&[closed, open, missing, held, asked], Reason::Poison);
    letters[3].reason = Reason::Held;
    letters[4].reason = Reason::Rejected;
    let answers = inbox.request_redrives(&letters, none, &decided()).await.unwrap();
    assert!(matches!(answers[0], Ok(Requested::Closed(Redriven::Before { .. }))), "{:?}", answers[0]);
    assert!(matches!(answers[1], Ok(Requested::Now)), "{:?}", answers[1]);
    assert!(matches!(answers[2], Err(RedriveError::NotFound { .. })), "{:?}", answers[2]);
    let is_behind = |answer: &Result<_, RedriveError>| matches!(answer, Err(RedriveError::Held { behind, .. }) if *behind == open);
    assert!(is_behind(&answers[3]), "{:?}", answers[3]);
    assert!(matches!(answers[4], Ok(Requested::Already)), "{:?}", answers[4]);
}

/// Goal: requests are carried out in the order in which they are given, which is that of arrival:
/// the ids of dead letters follow the clocks of several processes. Oracle: the numbers of the
/// decisions, for ids in no order.
async fn requests_are_stored_in_the_given_order<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(store_dead_letter(&inbox, &message(&format!("m{n}")), Reason::Poison).await);
    }
    ids.sort_by_key(|id| id.0);
    let given = [ids[2], ids[0], ids[3], ids[1]];
    let letters = seen(&given, Reason::Poison);
    let answers = inbox.request_redrives(&letters, RedriveOptions::default(), &decided()).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Requested::Now))), "{answers:?}");
    let mut decisions = inbox.decisions(NonZeroU32::MIN.saturating_add(9)).await.unwrap();
    decisions.sort_by_key(|decision| decision.number);
    assert_eq!(decisions.iter().map(|decision| decision.subject.dead_letter).collect::<Vec<_>>(), given);
}

/// Goal: a confirmation that is sent twice, even after its dead letter failed again, is one
/// decision. Oracle: the requests in the audit, and the result of the decision.
async fn requests_that_are_sent_twice_are_one_decision<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let ids = [
        store_dead_letter(&inbox, &message("one"), Reason::Poison).await,
        store_dead_letter(&inbox, &message("two"), Reason::Poison).await,
    ];
    let (once, none) = (decided(), RedriveOptions::default());
    assert_eq!(inbox.decision(once.id, None).await.unwrap(), None);
    let answers = inbox.request_redrives(&seen(&ids, Reason::Poison), none, &once).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Requested::Now))), "{answers:?}");
    // Their consumer carries out both, and one fails again.
    let mut tx = inbox.begin().await.unwrap();
    DB::sql(&mut tx, "UPDATE inbox_audit SET outcome = 'no such price', done_at = at").await.unwrap();
    drop(tx.commit().await.unwrap());
    inbox.redrive(&billing(), ids[1], &WORKS, none).await.unwrap();
    let answers = inbox.request_redrives(&seen(&ids, Reason::Poison), none, &once).await.unwrap();
    assert!(matches!(answers[0], Ok(Requested::Already)), "{:?}", answers[0]);
    assert!(matches!(answers[1], Ok(Requested::Closed(_))), "{:?}", answers[1]);

    let decision = inbox.decision(once.id, Some(&billing())).await.unwrap().unwrap();
    assert_eq!((decision.action, decision.count, &decision.signature), (Action::Redrive, 2, &signature()));
    assert_eq!((decision.waiting, decision.failed, decision.closed.len()), (0, 2, 0));
    assert_eq!(inbox.decision(once.id, Some(&"shipping".parse().unwrap())).await.unwrap(), None);

    let again = inbox.request_redrives(&seen(&ids, Reason::Poison), none, &decided()).await.unwrap();
    assert!(matches!(again[0], Ok(Requested::Now)), "another confirmation is another decision");
}

/// Goal: a decision whose requests another one replaced, before a consumer carried them out, is no
/// failed one. Oracle: the results of both decisions.
async fn a_request_that_is_replaced_has_not_failed<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let ids = [
        store_dead_letter(&inbox, &message("one"), Reason::Poison).await,
        store_dead_letter(&inbox, &message("two"), Reason::Poison).await,
    ];
    let seen = seen(&ids, Reason::Poison);
    let late = RedriveOptions::default().accept_late(true);
    let [first, second] = [decided(), decided()];
    for (options, decided) in [(RedriveOptions::default(), &first), (late, &second)] {
        let answers = inbox.request_redrives(&seen, options, decided).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Requested::Now))), "{answers:?}");
    }
    let first = inbox.decision(first.id, None).await.unwrap().unwrap();
    assert_eq!((first.waiting, first.failed, first.replaced, first.closed.len()), (0, 0, 2, 0));
    let second = inbox.decision(second.id, None).await.unwrap().unwrap();
    assert_eq!((second.waiting, second.failed, second.replaced), (2, 0, 0));
    let replaced = inbox.decisions(NonZeroU32::MIN.saturating_add(9)).await.unwrap();
    assert_eq!(replaced.iter().filter(|decision| decision.subject.is_replaced()).count(), 2);
}

/// Goal: discards share a transaction, and a missing dead letter does not stop the others. Oracle:
/// the answers, and the audit.
async fn many_are_discarded_in_one_transaction<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(store_dead_letter(&inbox, &message(&format!("m{n}")), Reason::Poison).await);
    }
    let once = decided();
    let done = inbox.discard_all(&seen(&ids[..2], Reason::Poison), &once).await.unwrap();
    assert!(done.iter().all(|done| matches!(done, Ok(Redriven::Now(Resolution::Discarded)))), "{done:?}");
    let missing = DeadLetterId(Uuid::now_v7());
    let done = inbox.discard_all(&seen(&[ids[1], missing, ids[2]], Reason::Poison), &once).await.unwrap();
    assert!(matches!(done[0], Ok(Redriven::Before { .. })), "{:?}", done[0]);
    assert!(matches!(done[1], Err(RedriveError::NotFound { .. })), "{:?}", done[1]);
    assert!(matches!(done[2], Ok(Redriven::Now(Resolution::Discarded))), "{:?}", done[2]);
    let decision = inbox.decision(once.id, None).await.unwrap().unwrap();
    let closed = [ClosedCount { resolution: Resolution::Discarded, count: 3 }];
    assert_eq!((decision.action, decision.count, &decision.closed[..]), (Action::Discard, 3, &closed[..]));
}

/// Goal: a held message that has failed since it was chosen, and one that became dead again with
/// another error, are not decided about: the filter that chose them may not match anymore. Oracle:
/// the answers, the open dead letters, the audit.
async fn a_letter_that_has_changed_is_left_as_it_is<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let held = store_dead_letter(&inbox, &message("held"), Reason::Held).await;
    let other = store_dead_letter(&inbox, &message("other"), Reason::Held).await;
    let letters = seen(&[held, other], Reason::Held);
    let mut tx = inbox.begin().await.unwrap();
    let failed = "UPDATE inbox_dead_letter SET reason = 'poison', error = 'no price' WHERE seq = (SELECT min(seq) FROM inbox_dead_letter)";
    DB::sql(&mut tx, failed).await.unwrap();
    drop(tx.commit().await.unwrap());

    let once = decided();
    let answers = inbox.request_redrives(&letters[..1], RedriveOptions::default(), &once).await.unwrap();
    let is_changed = |error: &RedriveError| matches!(error, RedriveError::Changed { id, reason: Reason::Poison, .. } if *id == held);
    assert!(answers[0].as_ref().is_err_and(is_changed), "{:?}", answers[0]);
    let done = inbox.discard_all(&letters, &once).await.unwrap();
    assert!(done[0].as_ref().is_err_and(is_changed), "{:?}", done[0]);
    assert!(matches!(done[1], Ok(Redriven::Now(Resolution::Discarded))), "{:?}", done[1]);
    assert_eq!(chosen(&inbox, &LetterFilter::default()).await, [held]);
    let twice = message("twice");
    let again = store_dead_letter(&inbox, &twice, Reason::Poison).await;
    let seen = seen(&[again], Reason::Poison);
    assert_eq!(store_dead_letter(&inbox, &twice, Reason::Poison).await, again);
    let done = inbox.discard_all(&seen, &once).await.unwrap();
    let is_later = |error: &RedriveError| matches!(error, RedriveError::Changed { deliveries: 2, .. });
    assert!(done[0].as_ref().is_err_and(is_later), "{:?}", done[0]);
    let decision = inbox.decision(once.id, None).await.unwrap().unwrap();
    assert_eq!((decision.action, decision.count), (Action::Discard, 1));
}
