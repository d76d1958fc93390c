//! A database that went back to an earlier state.

use super::sample::*;
use super::violations;
use crate::{Forgotten, History, Violation as V};

/// Returns the good history after its database went back to a state without transaction 1. Clients
/// saw that transaction succeed, consumers have applied its message, and the message came before
/// others of its key.
fn went_back() -> History {
    let mut history = good();
    history.outbox.as_mut().unwrap().retain(|row| row.id != id(1));
    history.business.as_mut().unwrap().retain(|row| row.id != row_name(1));
    history.forgotten = Forgotten { messages: vec![id(1)], rows: vec![row_name(1)] };
    history
}

#[test]
fn what_is_forgotten_may_be_anywhere() {
    assert_eq!(violations(&went_back()), []);
    let unknown = History { forgotten: Forgotten::default(), ..went_back() };
    let expected =
        [V::DoneAndAbsent, V::PublishedUncommitted, V::RememberedUncommitted, V::AppliedUncommitted];
    assert_eq!(violations(&unknown), expected);
}

#[test]
fn what_is_forgotten_has_no_turn() {
    let mut history = went_back();
    let seen = &mut history.topic_read.as_mut().unwrap().occurrences;
    seen.retain(|seen| seen.id != Some(id(1)));
    seen.push(occurrence(1));
    assert_eq!(violations(&history), []);
}

#[test]
fn what_is_forgotten_takes_effect_once() {
    let mut history = went_back();
    history.consumers[0].effects.as_mut().unwrap().push(effect(1));
    assert_eq!(violations(&history), [V::AppliedAgain]);
}

#[test]
fn a_transaction_is_forgotten_as_a_whole() {
    let mut history = went_back();
    history.forgotten.rows.clear();
    assert_eq!(violations(&history), [V::DoneAndAbsent]);
}
