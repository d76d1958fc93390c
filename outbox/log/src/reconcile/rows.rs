//! Rows of the outbox for a comparison, and the relay's progress with them.

use async_trait::async_trait;
use message::Fingerprint;
use uuid::Uuid;

use crate::entries::Labels;
use crate::{ExceptionState, LogError};

/// Maximum bytes of payloads that one call reads and hashes. A single payload above it is not read.
/// The statements repeat this number.
#[cfg(feature = "sqlite")]
pub(crate) const HASHED_BYTES_PER_CALL: usize = 64 << 20;

/// The relay's progress with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The stored cursor has not passed the row.
    Ahead,
    /// The stored cursor has passed the row, and no entry of it is parked: the broker has confirmed
    /// it.
    Passed,
    /// The row is parked.
    Beside(ExceptionState),
    /// An operator discarded the row, and the relay has accepted that: the stored cursor has passed
    /// it, no entry of it is parked, and the relay never publishes it.
    Discarded,
    /// The row belongs to other relays, and this relay never publishes it. The outbox does not know
    /// this: a caller that knows the relay's filter sets it.
    LeftOut,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The message id.
    pub id: Uuid,
    /// The topic to publish to.
    pub topic: String,
    /// Its kind and headers.
    pub labels: Labels,
    /// The fingerprint of the message, as an inbox stores it.
    pub fingerprint: Fingerprint,
    /// The relay's progress with it.
    pub stage: Stage,
    /// Whether an operator has edited the message, so that the published message may differ from
    /// the row.
    pub edited: bool,
}

/// Reads the outbox of one relay. Each call is one short read-only transaction, in which rows,
/// cursor and exceptions are consistent. Not cancel-safe: after a dropped call, open another
/// reader.
#[async_trait]
pub trait Rows: Send {
    /// Returns rows with message ids above `after` and up to `until`, ascending, at most
    /// `rows_max`. A batch also ends after 8 MiB of headers or 64 MiB of payloads, but it has at
    /// least one row unless there are none.
    async fn page(&mut self, after: Uuid, until: Uuid, rows_max: u32) -> Result<Vec<Row>, LogError>;

    /// Returns the rows of these messages, ascending. It ends early as [`Self::page`] does: ask
    /// again for the ids above the last one, until no row is returned.
    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Row>, LogError>;

    /// Returns the smallest message id above all that retention has removed. For smaller ids the
    /// outbox no longer has an answer.
    async fn first(&mut self) -> Result<Option<Uuid>, LogError>;
}

/// Returns the stage that the columns `state`, `passed` and `discarded` give together. A row that
/// the cursor has not passed is still owed, whatever was decided before the cursor was set back.
pub(crate) fn stage(state: Option<&str>, passed: bool, discarded: bool) -> Result<Stage, LogError> {
    match state {
        None if passed && discarded => Ok(Stage::Discarded),
        None if passed => Ok(Stage::Passed),
        None => Ok(Stage::Ahead),
        Some(state) => state.parse().map(Stage::Beside).map_err(|error: crate::exception::UnknownState| {
            LogError::Corrupt { what: "exception", problem: error.to_string() }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_counts_only_where_the_relay_has_passed_the_row_and_nothing_is_parked() {
        let table = [
            (None, true, true, Stage::Discarded),
            (None, true, false, Stage::Passed),
            (None, false, true, Stage::Ahead),
            (None, false, false, Stage::Ahead),
            (Some("dead"), true, true, Stage::Beside(ExceptionState::Dead)),
            (Some("discarded"), true, true, Stage::Beside(ExceptionState::Discarded)),
        ];
        for (state, passed, discarded, expected) in table {
            assert_eq!(stage(state, passed, discarded).unwrap(), expected, "{state:?} {passed} {discarded}");
        }
    }
}
