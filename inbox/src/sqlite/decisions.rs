//! Decisions about dead letters on SQLite.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection};
use time::OffsetDateTime;
use uuid::fmt::Hyphenated;

use super::statements::{
    DECISIONS, FINISH_REQUEST, IS_REQUESTED, NOTE_DECISION, PURGE_DECISIONS, REQUESTS, Statements,
};
use super::values;
use crate::dead_letter::DeadLetterId;
use crate::decision::{Action, Decision};
use crate::dialect::parts;

impl parts::Decisions for Sqlite {
    async fn note_decision(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        decision: &Decision,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(NOTE_DECISION)
            .bind(&decision.signature.actor)
            .bind(&decision.signature.note)
            .bind(values::text(decision.dead_letter.0))
            .bind(&decision.consumer)
            .bind(decision.action.as_str())
            .bind(decision.accept_late)
            .bind(&decision.outcome)
            .bind(&decision.signature.selection)
            .fetch_optional(connection)
            .await
    }

    async fn finish_request(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        number: i64,
        outcome: &str,
    ) -> Result<u64, sqlx::Error> {
        let done = sqlx::query(FINISH_REQUEST).bind(number).bind(outcome).execute(connection).await?;
        Ok(done.rows_affected())
    }

    async fn is_requested(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        number: i64,
    ) -> Result<bool, sqlx::Error> {
        let found: Option<bool> =
            sqlx::query_scalar(IS_REQUESTED).bind(number).fetch_optional(connection).await?;
        Ok(found.is_some())
    }

    async fn requests(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        consumer: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Decision>, sqlx::Error> {
        let query = sqlx::query(REQUESTS).bind(consumer).bind(after).bind(i64::from(limit));
        let rows = query.fetch_all(connection).await?;
        rows.iter().map(decode).collect()
    }

    async fn purge_decisions(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64, sqlx::Error> {
        let purged = sqlx::query(PURGE_DECISIONS).bind(values::micros(before)).bind(limit);
        Ok(purged.execute(connection).await?.rows_affected())
    }

    async fn decisions(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        limit: u32,
    ) -> Result<Vec<Decision>, sqlx::Error> {
        let rows = sqlx::query(DECISIONS).bind(i64::from(limit)).fetch_all(connection).await?;
        rows.iter().map(decode).collect()
    }
}

fn decode(row: &SqliteRow) -> Result<Decision, sqlx::Error> {
    let action: String = row.try_get("action")?;
    Ok(Decision {
        number: row.try_get("seq")?,
        at: values::time(row.try_get("at")?)?,
        signature: crate::Signature {
            actor: row.try_get("actor")?,
            note: row.try_get("note")?,
            selection: row.try_get("selection")?,
        },
        dead_letter: DeadLetterId(row.try_get::<Hyphenated, _>("dead_letter")?.into_uuid()),
        consumer: row.try_get("consumer")?,
        action: Action::from_word(&action).ok_or_else(|| {
            sqlx::Error::Decode(
                "a decision about a dead letter is of a kind that this build does not know".into(),
            )
        })?,
        accept_late: row.try_get("accept_late")?,
        outcome: row.try_get("outcome")?,
        done_at: row.try_get::<Option<i64>, _>("done_at")?.map(values::time).transpose()?,
    })
}
