//! Rows of PostgreSQL as records.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::admin::{Action, Decision, Overdue};
use crate::key::SagaId;
use crate::record::{SagaRecord, State, StepKind, StepRecord, StepState, UndoState};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Reads a count from a column; a negative value counts as 0.
fn count(row: &PgRow, column: &str) -> Result<u32> {
    row.try_get::<i32, _>(column).map(|count| u32::try_from(count).unwrap_or_default())
}

fn version(row: &PgRow) -> Result<u16> {
    row.try_get::<i32, _>("version").map(|version| u16::try_from(version).unwrap_or_default())
}

pub(super) fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

pub(super) fn saga(row: &PgRow) -> Result<SagaRecord> {
    Ok(SagaRecord {
        id: SagaId::stored(row.try_get("type")?, row.try_get("id")?),
        version: version(row)?,
        state: State::of(row.try_get("state")?)?,
        input: row.try_get("input")?,
        output: row.try_get("output")?,
        epoch: row.try_get("epoch")?,
        worker: row.try_get("worker")?,
        wake_at: row.try_get("wake_at")?,
        attempts: count(row, "attempts")?,
        error: row.try_get("error")?,
        reason: row.try_get("reason")?,
        waits_for: row.try_get("waits_for")?,
        waiting_since: row.try_get("waiting_since")?,
        started_at: row.try_get("started_at")?,
        stuck_at: row.try_get("stuck_at")?,
        ended_at: row.try_get("ended_at")?,
        replies: row.try_get("replies")?,
        cancel: row.try_get("cancel")?,
    })
}

pub(super) fn step(row: &PgRow) -> Result<StepRecord> {
    Ok(StepRecord {
        name: row.try_get("name")?,
        position: count(row, "position")?,
        kind: StepKind::of(row.try_get("kind")?)?,
        state: StepState::of(row.try_get("state")?)?,
        undo: UndoState::of(row.try_get("undo")?)?,
        result: row.try_get("result")?,
        attempts: count(row, "attempts")?,
        error: row.try_get("error")?,
        due_at: row.try_get("due_at")?,
        begun_at: row.try_get("begun_at")?,
        ended_at: row.try_get("ended_at")?,
        undone_at: row.try_get("undone_at")?,
        is_due: row.try_get("is_due")?,
        age: span(row.try_get("age")?),
    })
}

pub(super) fn decision(row: &PgRow) -> Result<Decision> {
    Ok(Decision {
        at: row.try_get("at")?,
        actor: row.try_get("actor")?,
        note: row.try_get("note")?,
        action: Action::of(row.try_get("action")?)?,
        id: SagaId::stored(row.try_get("type")?, row.try_get("id")?),
        step: row.try_get("step")?,
    })
}

pub(super) fn overdue(row: &PgRow) -> Result<Overdue> {
    Ok(Overdue {
        saga_type: row.try_get("type")?,
        version: version(row)?,
        sagas: u64::try_from(row.try_get::<i64, _>("sagas")?).unwrap_or_default(),
        longest: span(row.try_get("longest")?),
    })
}
