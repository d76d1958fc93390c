//! The independent checker of an outbox and inbox system: [`History`] in, [`Verdict`] out. Pure; it
//! knows no database, no broker and no part of the toolkit that it checks.
//!
//! A history holds the observations of one pipeline: operations of clients and their answers,
//! business rows, outbox rows, messages at the broker, inboxes and effects. Each part may be
//! missing. Promises that need a missing part are then reported as *not checked*, never as kept.
//!
//! # Building a history of your own service
//!
//! 1. **Clients** record each transaction before it begins and after its outcome is known
//!    ([`Operation`]). A client that died in between has the outcome [`Outcome::Unknown`]. Count
//!    the messages of each key under the lock that protects the business row; then the causal order
//!    is known as well ([`Enqueued::seq`]).
//! 2. Wait until everything is healed and quiet, and set [`History::quiet`]. Without it, promises
//!    about the end are not checked.
//! 3. **Read the stores** with plain SQL and a plain client of the broker, downstream parts first:
//!    effects, inboxes, the broker ([`TopicRead`]), parked messages, the outbox last. In that order
//!    even a system that never stops shows no phantoms.
//! 4. Ask for the [`Verdict`].
//!
//! ```
//! use checker::{Content, Consumer, Effect, History, Occurrence, OutboxRow, Promise, TopicRead, Verdict};
//! use uuid::Uuid;
//!
//! let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
//! let row = |id, position| OutboxRow { id, position, content: Content::of("order-7", b"{}"), ..OutboxRow::default() };
//! let seen = |id| Occurrence { id: Some(id), content: Content::of("order-7", b"{}"), ..Occurrence::default() };
//! let effect = |id| Effect { id, ..Effect::default() };
//!
//! let history = History {
//!     quiet: true,
//!     outbox: Some(vec![row(first, 1), row(second, 2)]),
//!     parked: Some(Vec::new()),
//!     topic_read: Some(TopicRead { complete: true, occurrences: vec![seen(first), seen(second), seen(second)], ..TopicRead::default() }),
//!     consumers: vec![Consumer {
//!         name: "billing".into(),
//!         // The second copy of the second message was applied again.
//!         effects: Some(vec![effect(first), effect(second), effect(second)]),
//!         ..Consumer::default()
//!     }],
//!     ..History::default()
//! };
//!
//! let verdict = Verdict::of(&history);
//! assert!(verdict.ruling(Promise::NoLoss).holds());
//! let again = verdict.ruling(Promise::AtMostOnce);
//! assert_eq!((again.breached, again.breaches[0].subject.ids.as_slice()), (1, [second].as_slice()));
//! // Everything that was observed of that message: its row, both copies, both effects.
//! assert_eq!(again.breaches[0].events.len(), 5);
//! // The operations of clients were not recorded, so nothing is claimed about them.
//! assert!(verdict.ruling(Promise::HonestOutcomes).not_checked.is_some());
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `history` | the observed history |
//! | `verdict` | the rulings on all promises |
//! | `digest` | digests of bytes that must not change |

mod checks;
mod digest;
mod history;
mod index;
mod verdict;

pub use digest::Digest;
pub use history::{
    Balance, BusinessRow, Consumer, Content, DeadLetter, Effect, Enqueued, Forgotten, History, InboxRow,
    Leak, LeakKind, LeaseEvent, Occurrence, Operation, OutboxRow, Outcome, Parked, ParkedEntry, SagaRun,
    SagaState, Sagas, StepEffect, TopicRead,
};
pub use verdict::{Breach, Event, Limits, Promise, Ruling, Subject, Verdict, Violation};

#[cfg(test)]
mod tests;
