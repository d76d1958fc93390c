//! Decisions about dead letters on PostgreSQL.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row};
use time::OffsetDateTime;

use super::statements::Statements;
use crate::dead_letter::DeadLetterId;
use crate::decision::{Action, Decision};
use crate::dialect::parts;

impl parts::Decisions for Postgres {
    async fn note_decision(
        connection: &mut PgConnection,
        statements: &Statements,
        decision: &Decision,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(&statements.note_decision)
            .bind(&decision.signature.actor)
            .bind(&decision.signature.note)
            .bind(decision.dead_letter.0)
            .bind(&decision.consumer)
            .bind(decision.action.as_str())
            .bind(decision.accept_late)
            .bind(&decision.outcome)
            .bind(&decision.signature.selection)
            .fetch_optional(connection)
            .await
    }

    async fn finish_request(
        connection: &mut PgConnection,
        statements: &Statements,
        number: i64,
        outcome: &str,
    ) -> Result<u64, sqlx::Error> {
        let done =
            sqlx::query(&statements.finish_request).bind(number).bind(outcome).execute(connection).await?;
        Ok(done.rows_affected())
    }

    async fn is_requested(
        connection: &mut PgConnection,
        statements: &Statements,
        number: i64,
    ) -> Result<bool, sqlx::Error> {
        let found: Option<bool> =
            sqlx::query_scalar(&statements.is_requested).bind(number).fetch_optional(connection).await?;
        Ok(found.is_some())
    }

    async fn requests(
        connection: &mut PgConnection,
        statements: &Statements,
        consumer: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Decision>, sqlx::Error> {
        let rows = sqlx::query(&statements.requests)
            .bind(consumer)
            .bind(after)
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn purge_decisions(
        connection: &mut PgConnection,
        statements: &Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64, sqlx::Error> {
        let purge = sqlx::query_scalar(&statements.purge_decisions).bind(before);
        let purged: i64 = purge.bind(i32::try_from(limit).unwrap_or(i32::MAX)).fetch_one(connection).await?;
        Ok(purged.unsigned_abs())
    }

    async fn decisions(
        connection: &mut PgConnection,
        statements: &Statements,
        limit: u32,
    ) -> Result<Vec<Decision>, sqlx::Error> {
        let rows = sqlx::query(&statements.decisions).bind(i64::from(limit)).fetch_all(connection).await?;
        rows.iter().map(decode).collect()
    }
}

fn decode(row: &PgRow) -> Result<Decision, sqlx::Error> {
    let action: String = row.try_get("action")?;
    Ok(Decision {
        number: row.try_get("seq")?,
        at: row.try_get("at")?,
        signature: crate::Signature {
            actor: row.try_get("actor")?,
            note: row.try_get("note")?,
            selection: row.try_get("selection")?,
        },
        dead_letter: DeadLetterId(row.try_get("dead_letter")?),
        consumer: row.try_get("consumer")?,
        action: Action::from_word(&action).ok_or_else(|| {
            sqlx::Error::Decode(
                "a decision about a dead letter is of a kind that this build does not know".into(),
            )
        })?,
        accept_late: row.try_get("accept_late")?,
        outcome: row.try_get("outcome")?,
        done_at: row.try_get("done_at")?,
    })
}
