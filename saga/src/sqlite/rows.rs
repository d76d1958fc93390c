//! Rows of SQLite as records.

use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use time::OffsetDateTime;

use crate::admin::{Action, Decision, Overdue};
use crate::key::SagaId;
use crate::record::{SagaRecord, State, StepKind, StepRecord, StepState, UndoState};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Reads a count from a column; a negative value counts as 0.
fn count(row: &SqliteRow, column: &str) -> Result<u32> {
    row.try_get::<i32, _>(column).map(|count| u32::try_from(count).unwrap_or_default())
}

fn version(row: &SqliteRow) -> Result<u16> {
    row.try_get::<i32, _>("version").map(|version| u16::try_from(version).unwrap_or_default())
}

/// Converts microseconds since 1970 into a time.
fn time(micros: i64) -> Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
        .map_err(|error| sqlx::Error::Decode(error.into()))
}

fn at(row: &SqliteRow, column: &str) -> Result<OffsetDateTime> {
    time(row.try_get(column)?)
}

fn maybe_at(row: &SqliteRow, column: &str) -> Result<Option<OffsetDateTime>> {
    row.try_get::<Option<i64>, _>(column)?.map(time).transpose()
}

pub(super) fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

pub(super) fn saga(row: &SqliteRow) -> Result<SagaRecord> {
    Ok(SagaRecord {
        id: SagaId::stored(row.try_get("type")?, row.try_get("id")?),
        version: version(row)?,
        state: State::of(row.try_get("state")?)?,
        input: row.try_get("input")?,
        output: row.try_get("output")?,
        epoch: row.try_get("epoch")?,
        worker: row.try_get("worker")?,
        wake_at: maybe_at(row, "wake_at")?,
        attempts: count(row, "attempts")?,
        error: row.try_get("error")?,
        reason: row.try_get("reason")?,
        waits_for: row.try_get("waits_for")?,
        waiting_since: maybe_at(row, "waiting_since")?,
        started_at: at(row, "started_at")?,
        stuck_at: maybe_at(row, "stuck_at")?,
        ended_at: maybe_at(row, "ended_at")?,
        replies: row.try_get("replies")?,
        cancel: row.try_get("cancel")?,
    })
}

pub(super) fn step(row: &SqliteRow) -> Result<StepRecord> {
    Ok(StepRecord {
        name: row.try_get("name")?,
        position: count(row, "position")?,
        kind: StepKind::of(row.try_get("kind")?)?,
        state: StepState::of(row.try_get("state")?)?,
        undo: UndoState::of(row.try_get("undo")?)?,
        result: row.try_get("result")?,
        attempts: count(row, "attempts")?,
        error: row.try_get("error")?,
        due_at: maybe_at(row, "due_at")?,
        begun_at: at(row, "begun_at")?,
        ended_at: maybe_at(row, "ended_at")?,
        undone_at: maybe_at(row, "undone_at")?,
        is_due: row.try_get("is_due")?,
        age: span(row.try_get("age")?),
    })
}

pub(super) fn decision(row: &SqliteRow) -> Result<Decision> {
    Ok(Decision {
        at: at(row, "at")?,
        actor: row.try_get("actor")?,
        note: row.try_get("note")?,
        action: Action::of(row.try_get("action")?)?,
        id: SagaId::stored(row.try_get("type")?, row.try_get("id")?),
        step: row.try_get("step")?,
    })
}

pub(super) fn overdue(row: &SqliteRow) -> Result<Overdue> {
    Ok(Overdue {
        saga_type: row.try_get("type")?,
        version: version(row)?,
        sagas: u64::try_from(row.try_get::<i64, _>("sagas")?).unwrap_or_default(),
        longest: span(row.try_get("longest")?),
    })
}
