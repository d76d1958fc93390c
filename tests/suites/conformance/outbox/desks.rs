//! Many parked entries at once: what matches a filter, and decisions about all of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use message::Fault;
use outbox_log::admin::{
    self, ChosenEntry, Confirmed, DecideError, Decision, Desk, OperatorDecision, ParkedFilter, ParkedQuery,
    StandingCount,
};
use outbox_log::entries::EntryRef;
use outbox_log::{Entry, EntryId, ExceptionChange, ExceptionState, LogOptions, Parked};
use uuid::Uuid;

use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::support::{Database, TestDialect, relay, source};

tests::cases! { "outbox/desks/{on}/{case}":
    every {
        a_filter_chooses_what_meets_all_its_conditions,
        slices_are_everything_once,
        a_confirmation_covers_what_was_dead_then,
        a_confirmed_discard_leaves_what_is_tried_again,
        a_confirmation_that_is_sent_twice_is_one_decision,
        an_edit_is_a_change_that_no_earlier_confirmation_covers,
    }
}

const ERRORS: [&str; 3] = ["larger than RabbitMQ takes: 3596 bytes", "no route 17", "100% of_it \\ 'quoted'"];

fn desk<DB: TestDialect>(db: &Database<DB>) -> Box<dyn Desk> {
    admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap().desk(&relay())
}

/// Returns the nth entry as dead, with an error and a cause that depend on its number.
fn dead(n: usize, entry: &Entry) -> Parked {
    let fault = [Fault::Message, Fault::Operator][n % 2];
    let topic = ["orders", "bills", "parcels", "returns"][n % 4].to_owned();
    let error = Some(ERRORS[n % ERRORS.len()].to_owned());
    Parked { fault: Some(fault), error, topic, due_in: None, ..parked(entry, ExceptionState::Dead) }
}

/// Parks this number of entries as dead.
async fn park<DB: TestDialect>(db: &Database<DB>, count: i32) -> (Relay, Vec<Entry>) {
    db.enqueue(messages(count)).await;
    let mut main = Relay::new(db, &relay()).await;
    let entries = main.follower.all().await;
    let parks = entries.iter().enumerate().map(|(n, entry)| ExceptionChange::Park(dead(n, entry)));
    main.pass(&parks.collect::<Vec<_>>()).await;
    (main, entries)
}

fn query(filter: ParkedFilter, after: EntryId, entries_max: u32) -> ParkedQuery {
    ParkedQuery { state: ExceptionState::Dead, after, entries_max, filter }
}

async fn chosen(desk: &mut dyn Desk, filter: &ParkedFilter) -> Vec<ChosenEntry> {
    let slice = desk.choose(&query(filter.clone(), EntryId::default(), 0)).await.unwrap();
    assert_eq!(slice.next, None);
    slice.entries.into_iter().map(|found| found.chosen).collect()
}

fn parts(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn has_parts(error: &str, parts: &[String]) -> bool {
    let after = |rest: String, part: &String| {
        let at = rest.find(part.as_str())?;
        Some(rest[at + part.len()..].to_owned())
    };
    parts.iter().try_fold(error.to_owned(), after).is_some()
}

fn requeue() -> OperatorDecision {
    OperatorDecision {
        decision: Decision::Requeue,
        signature: outbox::Signature {
            actor: "ann".into(),
            note: "prices are back".into(),
            selection: Some("all: 3 chosen".into()),
        },
    }
}

/// Goal: the database applies a filter as intended. Oracle: the same conditions in Rust, on the
/// entries as they were parked; for the list, the choice and the count.
async fn a_filter_chooses_what_meets_all_its_conditions<DB: TestDialect>(db: &Database<DB>) {
    let (_main, entries) = park(db, 48).await;
    let mut desk = desk(db);
    let some = |text: &str| Some(text.to_owned());
    let hour = Some(Duration::from_secs(3_600));
    let none = ParkedFilter::default();
    let filters = [
        none.clone(),
        ParkedFilter { topic: some("bills"), ..none.clone() },
        ParkedFilter { key: some("key-7"), ..none.clone() },
        ParkedFilter { fault: some("operator"), error_parts: parts(&["no", "route"]), ..none.clone() },
        ParkedFilter { error_parts: parts(&["100% of_it \\ 'quoted'"]), ..none.clone() },
        ParkedFilter { error_parts: parts(&["%"]), topic: some("orders"), ..none.clone() },
        ParkedFilter { error_parts: parts(&["route", "no"]), ..none.clone() },
        ParkedFilter { kind: some("no such kind"), ..none.clone() },
        ParkedFilter { older_than: hour, ..none.clone() },
        ParkedFilter { newer_than: hour, topic: some("returns"), ..none.clone() },
        ParkedFilter { older_than: Some(Duration::MAX), ..none.clone() },
        ParkedFilter { newer_than: Some(Duration::MAX), ..none },
    ];
    for filter in filters {
        let meets = |entry: &Parked| {
            filter.topic.as_ref().is_none_or(|topic| *topic == entry.topic)
                && (filter.key.is_none() || filter.key == entry.key)
                && filter.fault.as_deref().is_none_or(|word| entry.fault.map(Fault::as_str) == Some(word))
                && has_parts(entry.error.as_deref().unwrap(), &filter.error_parts)
                && filter.kind.is_none()
                && filter.older_than.is_none()
        };
        let all = entries.iter().enumerate().map(|(n, entry)| dead(n, entry));
        let expected: Vec<EntryId> = all.filter(meets).map(|entry| entry.id).collect();
        let found = chosen(&mut *desk, &filter).await;
        assert_eq!(found.iter().map(|entry| entry.id).collect::<Vec<_>>(), expected, "{filter:?}");
        let listed = desk.parked(&query(filter.clone(), EntryId::default(), 1_000)).await.unwrap();
        assert_eq!(listed.entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), expected, "{filter:?}");
        let survey = desk.survey(ExceptionState::Dead, &filter).await.unwrap();
        assert_eq!((survey.count, survey.is_at_least), (expected.len() as u64, false), "{filter:?}");
        let grouped: u64 = survey.groups.iter().map(|group| group.count).sum();
        assert_eq!((grouped, survey.is_sample), (survey.count, false), "{filter:?}");
    }
}

/// Goal: an operator who goes from slice to slice sees everything once. Oracle: the entries as they
/// were parked.
async fn slices_are_everything_once<DB: TestDialect>(db: &Database<DB>) {
    let (_main, entries) = park(db, 23).await;
    let mut desk = desk(db);
    let filter = ParkedFilter { error_parts: parts(&["r"]), ..ParkedFilter::default() };
    let mut seen = Vec::new();
    let mut after = EntryId::default();
    loop {
        let slice = desk.parked(&query(filter.clone(), after, 5)).await.unwrap();
        assert!(slice.entries.len() <= 5);
        seen.extend(slice.entries.iter().map(|entry| entry.id));
        let Some(next) = slice.next else { break };
        after = next;
    }
    let matching = |(n, entry): (usize, &Entry)| (n % ERRORS.len() != 2).then_some(entry.id);
    assert_eq!(seen, entries.iter().enumerate().filter_map(matching).collect::<Vec<_>>());
}

/// Goal: a decision covers what the operator has seen. Oracle: the answers for an entry that became
/// dead again, and for one that first became dead, after the confirmation.
async fn a_confirmation_covers_what_was_dead_then<DB: TestDialect>(db: &Database<DB>) {
    let (mut main, entries) = park(db, 3).await;
    let mut desk = desk(db);
    let as_of = desk.survey(ExceptionState::Dead, &ParkedFilter::default()).await.unwrap().at;
    // The clock of SQLite has milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    db.enqueue(messages(1)).await;
    let late = main.follower.all().await.remove(0);
    let [again, first] = [(1, &entries[1]), (3, &late)];
    main.pass(&[again, first].map(|(n, entry)| ExceptionChange::Park(dead(n, entry)))).await;
    let filter = ParkedFilter { as_of: Some(as_of), ..ParkedFilter::default() };
    let of = |entry: &Entry| ChosenEntry { id: entry.id, message_id: entry.message_id(), edited_at: None };
    assert_eq!(chosen(&mut *desk, &filter).await, [of(&entries[0]), of(&entries[2])]);

    // This also holds if it became dead between the choice and the decision.
    let confirmed = Some(Confirmed { id: Uuid::now_v7(), as_of });
    let all = [&entries[0], &entries[1], &entries[2], &late].map(of);
    let verdicts = desk.decide(&all, &requeue(), confirmed).await.unwrap();
    let is_left = |verdict: &Result<(), DecideError>| matches!(verdict, Err(DecideError::NotDead { .. }));
    assert_eq!(verdicts.iter().map(is_left).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(chosen(&mut *desk, &ParkedFilter::default()).await, [of(&entries[1]), of(&late)]);
}

/// Goal: a confirmed discard does not discard an entry that another operator has requeued since,
/// although its retry waits for an operator again; one that already waited when it was chosen is
/// discarded. Oracle: the answers, and the entry that is left, which was not even postponed.
async fn a_confirmed_discard_leaves_what_is_tried_again<DB: TestDialect>(db: &Database<DB>) {
    let (mut main, entries) = park(db, 4).await;
    let mut desk = desk(db);
    let of =
        |n: usize| ChosenEntry { id: entries[n].id, message_id: entries[n].message_id(), edited_at: None };
    let tried = |n: usize| {
        let fault = Some(Fault::Operator);
        ExceptionChange::Park(Parked { fault, ..parked(&entries[n], ExceptionState::Retrying) })
    };
    let (waits, again, untouched) = (1, 3, 0);
    desk.decide(&[of(waits)], &requeue(), None).await.unwrap().remove(0).unwrap();
    main.pass(&[tried(waits)]).await;
    // The clock of SQLite has milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let as_of = desk.now().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    desk.decide(&[of(again)], &requeue(), None).await.unwrap().remove(0).unwrap();
    main.pass(&[tried(again)]).await;

    let confirmed = Some(Confirmed { id: Uuid::now_v7(), as_of });
    let discard = OperatorDecision { decision: Decision::Discard, ..requeue() };
    let verdicts = desk.decide(&[waits, again, untouched].map(of), &discard, confirmed).await.unwrap();
    assert!(verdicts[0].is_ok() && verdicts[2].is_ok(), "{verdicts:?}");
    assert!(matches!(verdicts[1], Err(DecideError::Trying { .. })), "{:?}", verdicts[1]);
    let retrying = ParkedQuery {
        state: ExceptionState::Retrying,
        ..query(ParkedFilter::default(), EntryId::default(), 10)
    };
    let left = desk.parked(&retrying).await.unwrap().entries;
    assert_eq!(left.iter().map(|entry| entry.id).collect::<Vec<_>>(), [entries[again].id]);
    assert!(left[0].due_in.is_some_and(|due_in| due_in > Duration::from_secs(1_800)), "{left:?}");
    // A new confirmation covers it.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let confirmed = Some(Confirmed { id: Uuid::now_v7(), as_of: desk.now().await.unwrap() });
    desk.decide(&[of(again)], &discard, confirmed).await.unwrap().remove(0).unwrap();
}

/// Goal: a confirmation that is sent twice, also after its entries died again, changes nothing the
/// second time. Oracle: the answers, the result of the decision, and the states of the entries.
async fn a_confirmation_that_is_sent_twice_is_one_decision<DB: TestDialect>(db: &Database<DB>) {
    let (mut main, entries) = park(db, 3).await;
    let mut desk = desk(db);
    let id = Uuid::now_v7();
    let as_of = desk.survey(ExceptionState::Dead, &ParkedFilter::default()).await.unwrap().at;
    let all = chosen(&mut *desk, &ParkedFilter::default()).await;
    assert_eq!(desk.decision(id).await.unwrap(), None);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let confirmed = Some(Confirmed { id, as_of });
    let verdicts = desk.decide(&all, &requeue(), confirmed).await.unwrap();
    assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    let parked = |n: usize| ExceptionChange::Park(dead(n, &entries[n]));
    main.pass(&[parked(0), ExceptionChange::Resolve(entries[1].id)]).await;

    let verdicts = desk.decide(&all, &requeue(), confirmed).await.unwrap();
    assert!(verdicts.iter().all(Result::is_err), "{verdicts:?}");
    let record = desk.decision(id).await.unwrap().unwrap();
    assert_eq!((&*record.signature.actor, record.action.as_str(), record.count), ("ann", "requeue", 3));
    assert_eq!(
        (&*record.signature.note, record.signature.selection.as_deref()),
        ("prices are back", Some("all: 3 chosen"))
    );
    assert!(record.first <= record.last && record.first > as_of);
    for state in [None, Some(ExceptionState::Dead), Some(ExceptionState::Retrying)] {
        assert!(record.now.contains(&StandingCount { state, count: 1 }), "{state:?}: {:?}", record.now);
    }
    assert_eq!(desk.decision(Uuid::now_v7()).await.unwrap(), None);
}

/// Goal: no decision is taken about content that its operator has not seen. Oracle: the answers and
/// the content, for confirmations of the time before an edit and after it; the times that are
/// listed. An entry that waits for a retry is not even postponed.
async fn an_edit_is_a_change_that_no_earlier_confirmation_covers<DB: TestDialect>(db: &Database<DB>) {
    let (mut main, entries) = park(db, 3).await;
    let mut desk = desk(db);
    let of =
        |n: usize| ChosenEntry { id: entries[n].id, message_id: entries[n].message_id(), edited_at: None };
    let [dead, waits, untouched] = [0, 1, 2];
    desk.decide(&[of(waits)], &requeue(), None).await.unwrap().remove(0).unwrap();
    let fault = Some(Fault::Operator);
    let waiting = Parked { fault, ..parked(&entries[waits], ExceptionState::Retrying) };
    main.pass(&[ExceptionChange::Park(waiting.clone())]).await;
    let edit = |payload: &'static str| OperatorDecision {
        decision: Decision::Edit { payload: Some(payload.into()), headers: None, replaces: None },
        ..requeue()
    };
    // The clock of SQLite has milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let as_of = desk.now().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let verdicts = desk.decide(&[of(dead), of(waits)], &edit("bob's"), None).await.unwrap();
    assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
    // The retry that follows an edit is not yet stored, as if no relay ran.
    let due = if DB::DIALECT == migrations::Dialect::Sqlite {
        "CAST(unixepoch('subsec') * 1000000 AS INTEGER) + 3600000000"
    } else {
        "now() + interval '1 hour'"
    };
    db.run(&format!("UPDATE outbox_exception SET due_at = {due} WHERE state = 'retrying'")).await;

    let confirmed = |as_of| Some(Confirmed { id: Uuid::now_v7(), as_of });
    let discard = OperatorDecision { decision: Decision::Discard, ..requeue() };
    let chosen = [of(dead), of(waits)];
    for (decision, count) in [(edit("ann's"), 2), (discard.clone(), 2), (requeue(), 1)] {
        let verdicts = desk.decide(&chosen[..count], &decision, confirmed(as_of)).await.unwrap();
        for verdict in &verdicts {
            assert!(matches!(verdict, Err(DecideError::Edited { .. })), "{decision:?}: {verdict:?}");
        }
    }
    let filter = ParkedFilter { as_of: Some(as_of), ..ParkedFilter::default() };
    assert_eq!(self::chosen(&mut *desk, &filter).await, [of(untouched)]);
    let admin = admin::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    for entry in &chosen {
        let content = admin.content(&relay(), entry).await.unwrap().unwrap();
        assert_eq!(content.payload.as_deref(), Some("bob's".as_bytes()));
    }
    let mut listed = Vec::new();
    for state in [ExceptionState::Dead, ExceptionState::Retrying] {
        let asked = ParkedQuery { state, ..query(ParkedFilter::default(), EntryId::default(), 10) };
        let by_filter = desk.parked(&asked).await.unwrap().entries;
        let by_state = admin.list(&relay(), state, EntryId::default(), 10).await.unwrap();
        assert_eq!(by_filter.len(), by_state.len(), "{state}");
        listed.extend(by_filter.into_iter().chain(by_state));
    }
    for entry in &listed {
        let is_edited = entry.id != entries[untouched].id;
        assert_eq!((entry.updated_at > as_of, entry.edited), (is_edited, is_edited), "{entry:?}");
        let is_waiting = entry.due_in.is_some_and(|due_in| due_in > Duration::from_secs(1_800));
        assert_eq!(is_waiting, entry.id == entries[waits].id, "{entry:?}");
    }
    let (_, found) =
        outbox_log::entries::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    let found = found.find(&relay(), EntryRef::Id(entries[dead].id)).await.unwrap().remove(0);
    assert!(found.parked.unwrap().edited_at.is_some_and(|edited_at| edited_at > as_of));

    // A commit that takes long makes an edit visible that is older than the confirmation.
    let long_ago =
        if DB::DIALECT == migrations::Dialect::Sqlite { "3600000000" } else { "interval '1 hour'" };
    let age =
        format!("UPDATE outbox_parked SET edited_at = edited_at - {long_ago} WHERE edited_at IS NOT NULL");
    db.run(&age).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let now = desk.now().await.unwrap();
    for (decision, count) in [(edit("ann's"), 2), (discard.clone(), 2), (requeue(), 1)] {
        let verdicts = desk.decide(&chosen[..count], &decision, confirmed(now)).await.unwrap();
        for verdict in &verdicts {
            assert!(matches!(verdict, Err(DecideError::Edited { .. })), "{decision:?}: {verdict:?}");
        }
    }

    // A confirmation of the present content covers it.
    let mut seen = Vec::new();
    for state in [ExceptionState::Dead, ExceptionState::Retrying] {
        let asked = ParkedQuery { state, ..query(ParkedFilter::default(), EntryId::default(), 10) };
        let by_filter = desk.parked(&asked).await.unwrap().entries;
        let by_state = admin.list(&relay(), state, EntryId::default(), 10).await.unwrap();
        let [by_filter, by_state] = [by_filter, by_state].map(|entries| {
            entries.iter().filter(|entry| entry.edited).map(ChosenEntry::from).collect::<Vec<_>>()
        });
        assert_eq!(by_filter, by_state);
        seen.extend(by_filter);
    }
    let found = self::chosen(&mut *desk, &ParkedFilter::default()).await;
    assert!(found.contains(&seen[0]) && found.contains(&of(untouched)), "{found:?}");
    let verdicts = desk.decide(&seen, &discard, confirmed(now)).await.unwrap();
    assert_eq!(verdicts.len(), 2);
    assert!(verdicts.iter().all(Result::is_ok), "{verdicts:?}");
}
