//! Entries that were not published on the first attempt. Only these get their own row.

use std::cmp::Ordering;
use std::str::FromStr;
use std::time::Duration;

use message::Fault;
use serde::{Serialize, Serializer};

use crate::entry::{Entry, EntryId};
use crate::error::LogError;

message::words! {
    /// Why an entry is parked.
    #[derive(Hash)]
    pub enum ExceptionState {
        /// Its `deliver_at` lies in the future. It does not block its key.
        Scheduled = "scheduled",
        /// It failed and is retried when due. It blocks its key.
        Retrying = "retrying",
        /// An earlier entry of its key, or its whole topic, is blocked.
        Held = "held",
        /// It failed too often, and an operator decides. It blocks its key, unless the policy lets
        /// the key pass.
        Dead = "dead",
        /// An operator discarded it. The relay removes it and unblocks its key.
        Discarded = "discarded",
    }
}

/// The order of the words: every output lists states in it.
impl Ord for ExceptionState {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for ExceptionState {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Serialized as its word, such as `held`.
impl Serialize for ExceptionState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl ExceptionState {
    /// Parses the state that the database stores.
    pub(crate) fn stored(word: &str) -> Result<Self, LogError> {
        word.parse().map_err(|error: UnknownState| LogError::Corrupt {
            what: "exception",
            problem: error.to_string(),
        })
    }
}

/// A row of a walk over retrying and dead exceptions: its id, key and state, whether it blocks its
/// key, and whether the walk ended with it although others may follow.
pub(crate) type StuckRow = (i64, Option<String>, String, bool, bool);

impl StuckPage {
    pub(crate) fn stored(rows: Vec<StuckRow>) -> Result<Self, LogError> {
        let mut page = Self::default();
        for (id, key, state, blocks, is_cut) in rows {
            let id = EntryId(id);
            if is_cut {
                page.next = Some(id);
            }
            if blocks {
                page.exceptions.push(ExceptionSummary { id, key, state: ExceptionState::stored(&state)? });
            }
        }
        Ok(page)
    }
}

/// A word that is not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a state; the states are scheduled, retrying, held, dead and discarded")]
pub struct UnknownState(String);

impl FromStr for ExceptionState {
    type Err = UnknownState;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::from_word(word).ok_or_else(|| UnknownState(word.chars().take(64).collect()))
    }
}

/// A parked entry with its copied content. An operator's edit changes the copy.
#[derive(Debug, Clone)]
pub struct Exception {
    /// The entry.
    pub entry: Entry,
    /// Why the entry is parked.
    pub state: ExceptionState,
    /// Failed attempts that count.
    pub attempts: u32,
}

/// The part of an exception that the relay must know after a takeover, because its key waits for
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceptionSummary {
    /// The entry.
    pub id: EntryId,
    /// Its ordering key.
    pub key: Option<String>,
    /// Why the entry is parked.
    pub state: ExceptionState,
}

/// Exceptions that block their keys, in the order of ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StuckPage {
    /// The exceptions.
    pub exceptions: Vec<ExceptionSummary>,
    /// The id after which the next page begins; `None` if no exception follows.
    pub next: Option<EntryId>,
}

/// The record of an entry that is parked, or parked again with a new state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The entry.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Why the entry is parked.
    pub state: ExceptionState,
    /// Failed attempts that count.
    pub attempts: u32,
    /// Time until it is due, by the database's clock; `None` for states that do not wait for a
    /// time. A scheduled entry with a `deliver_at` is due then, however late it is parked. This
    /// value counts only for an entry without one.
    pub due_in: Option<Duration>,
    /// The party at fault.
    pub fault: Option<Fault>,
    /// The error that parked it. Contains no payload and no secret.
    pub error: Option<String>,
}

/// A change of an exception. It commits together with the cursor that moves past the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExceptionChange {
    /// Insert or replace, unless an operator has discarded the entry: it is then read as due. The
    /// first such change copies the content, so that the log's row is no longer needed.
    Park(Parked),
    /// The entry was published or discarded: remove it.
    Resolve(EntryId),
}

impl Parked {
    /// Returns when the entry is due. States that are looked up by time default to now.
    pub(crate) fn due_in_or_now(&self) -> Option<Duration> {
        let timed = matches!(
            self.state,
            ExceptionState::Scheduled | ExceptionState::Retrying | ExceptionState::Discarded
        );
        self.due_in.or_else(|| timed.then_some(Duration::ZERO))
    }
}
