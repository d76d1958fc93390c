//! Everything that is known about one message, on SQLite.

use sqlx::{Sqlite, SqliteConnection};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::statements::{
    ACTIVITY_APPLIED, ACTIVITY_ATTEMPTS, ACTIVITY_LETTERS, KNOWN_ATTEMPTS, KNOWN_ROWS, Statements,
};
use super::values::{text, time};
use crate::activity::{ActivityRow, ActivityRows};
use crate::attempts::Attempt;
use crate::dead_letter::DeadLetterId;
use crate::dialect::parts;
use crate::known::{Known, KnownState};

type Row = (String, String, i64, Option<i64>, Option<Hyphenated>);
type AttemptRow = (String, String, i64, String, i64, i64);
type CountRow = (String, i64, Option<i64>);

fn timed(rows: Vec<CountRow>) -> Result<Vec<ActivityRow>, sqlx::Error> {
    let timed = |(consumer, count, at): CountRow| Ok((consumer, count, at.map(time).transpose()?));
    rows.into_iter().map(timed).collect()
}

impl parts::Lookup for Sqlite {
    async fn known(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        id: Uuid,
    ) -> Result<Vec<Known>, sqlx::Error> {
        let rows: Vec<Row> = sqlx::query_as(KNOWN_ROWS).bind(text(id)).fetch_all(&mut *connection).await?;
        let attempts: Vec<AttemptRow> =
            sqlx::query_as(KNOWN_ATTEMPTS).bind(text(id)).fetch_all(connection).await?;
        let mut known = Vec::with_capacity(rows.len() + attempts.len());
        for (consumer, scope, at, bytes, letter) in rows {
            let state = match letter {
                Some(letter) => KnownState::Dead(DeadLetterId(letter.into_uuid())),
                None => KnownState::Applied {
                    at: time(at)?,
                    result_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
                },
            };
            known.push(Known { consumer, scope, state });
        }
        for (consumer, scope, attempts, last_error, first_failed_at, next_at) in attempts {
            let attempt = Attempt {
                attempts: u32::try_from(attempts).unwrap_or_default(),
                last_error,
                first_failed_at: time(first_failed_at)?,
                next_at: time(next_at)?,
            };
            known.push(Known { consumer, scope, state: KnownState::Retrying(attempt) });
        }
        Ok(known)
    }

    async fn activity(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        from: Uuid,
        rows_max: u32,
    ) -> Result<ActivityRows, sqlx::Error> {
        let applied = sqlx::query_as(ACTIVITY_APPLIED).bind(text(from)).bind(rows_max);
        let applied: Vec<CountRow> = applied.fetch_all(&mut *connection).await?;
        let failing = sqlx::query_as(ACTIVITY_ATTEMPTS).bind(rows_max);
        let failing: Vec<CountRow> = failing.fetch_all(&mut *connection).await?;
        let dead = sqlx::query_as(ACTIVITY_LETTERS).bind(rows_max);
        let dead: Vec<CountRow> = dead.fetch_all(connection).await?;
        Ok([timed(applied)?, timed(failing)?, timed(dead)?])
    }
}
