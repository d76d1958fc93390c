//! Rows as records.

use migrations::query::Row;

use crate::dialect::Dialect;
use crate::key::SagaId;
use crate::operator::{Action, DecidedSaga, Decision, Overdue, SagaOfId};
use crate::record::{SagaOutline, SagaRecord, State, StepKind, StepRecord, StepState, UndoState};
use crate::reply_token::Secret;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Reads a column whose words `of` knows. An unknown one, of a later version, is an error with the
/// `name` of the type.
fn word<DB: Dialect, T>(row: &Row<DB>, column: &str, name: &str, of: fn(&str) -> Option<T>) -> Result<T> {
    let word: String = row.get(column)?;
    of(&word)
        .ok_or_else(|| sqlx::Error::Decode(format!("this version does not know the {name} {word:?}").into()))
}

fn id<DB: Dialect>(row: &Row<DB>) -> Result<SagaId> {
    Ok(SagaId::stored(row.get("type")?, row.get("id")?))
}

/// Reads the secret of a saga.
pub(crate) fn secret<DB: Dialect>(row: &Row<DB>) -> Result<Secret> {
    row.get("secret").map(Secret::stored)
}

pub(crate) fn saga<DB: Dialect>(row: &Row<DB>) -> Result<SagaRecord> {
    Ok(SagaRecord {
        outline: outline(row)?,
        input: row.get("input")?,
        output: row.get("output")?,
        replies: row.get("replies")?,
        secret: secret(row)?,
    })
}

pub(crate) fn outline<DB: Dialect>(row: &Row<DB>) -> Result<SagaOutline> {
    Ok(SagaOutline {
        id: id(row)?,
        version: row.get("version")?,
        state: word(row, "state", "State", State::from_word)?,
        epoch: row.get("epoch")?,
        worker: row.get("worker")?,
        wake_at: row.get("wake_at")?,
        attempts: row.get("attempts")?,
        error: row.get("error")?,
        reason: row.get("reason")?,
        waits_for: row.get("waits_for")?,
        waiting_since: row.get("waiting_since")?,
        started_at: row.get("started_at")?,
        stuck_at: row.get("stuck_at")?,
        ended_at: row.get("ended_at")?,
        cancel: row.get("cancel")?,
    })
}

pub(crate) fn step<DB: Dialect>(row: &Row<DB>) -> Result<StepRecord> {
    Ok(StepRecord {
        name: row.get("name")?,
        position: row.get("position")?,
        kind: word(row, "kind", "StepKind", StepKind::from_word)?,
        state: word(row, "state", "StepState", StepState::from_word)?,
        undo: word(row, "undo", "UndoState", UndoState::from_word)?,
        result: row.get("result")?,
        attempts: row.get("attempts")?,
        error: row.get("error")?,
        due_at: row.get("due_at")?,
        begun_at: row.get("begun_at")?,
        ended_at: row.get("ended_at")?,
        undone_at: row.get("undone_at")?,
        is_due: row.get("is_due")?,
        age: row.get("age")?,
    })
}

pub(crate) fn decision<DB: Dialect>(row: &Row<DB>) -> Result<Decision> {
    let subject = DecidedSaga { id: id(row)?, step: row.get("step")? };
    Decision::read(row, Action::from_word, subject)
}

pub(crate) fn of_id<DB: Dialect>(row: &Row<DB>) -> Result<SagaOfId> {
    Ok(SagaOfId { id: id(row)?, has_ended: row.get("has_ended")? })
}

pub(crate) fn overdue<DB: Dialect>(row: &Row<DB>) -> Result<Overdue> {
    Ok(Overdue {
        saga_type: row.get("type")?,
        version: row.get("version")?,
        sagas: row.get("sagas")?,
        longest: row.get("longest")?,
    })
}
