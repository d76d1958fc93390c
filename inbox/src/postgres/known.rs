//! Everything that is known about one message, on PostgreSQL.

use sqlx::{PgConnection, Postgres};
use time::OffsetDateTime;
use uuid::Uuid;

use super::guard::KEEPS_PLANS;
use super::statements::Statements;
use crate::activity::ActivityRows;
use crate::attempts::Attempt;
use crate::dead_letter::DeadLetterId;
use crate::dialect::parts;
use crate::known::{Known, KnownState};

type Row = (String, String, OffsetDateTime, Option<i64>, Option<Uuid>);
type AttemptRow = (String, String, i32, String, OffsetDateTime, OffsetDateTime);

impl parts::Lookup for Postgres {
    async fn known(
        connection: &mut PgConnection,
        statements: &Statements,
        id: Uuid,
    ) -> Result<Vec<Known>, sqlx::Error> {
        let rows: Vec<Row> = sqlx::query_as(&statements.known_rows)
            .persistent(KEEPS_PLANS)
            .bind(id)
            .fetch_all(&mut *connection)
            .await?;
        let attempts: Vec<AttemptRow> =
            sqlx::query_as(&statements.known_attempts).bind(id).fetch_all(connection).await?;
        let rows = rows.into_iter().map(|(consumer, scope, at, bytes, letter)| {
            let result_bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
            let state = letter
                .map_or(KnownState::Applied { at, result_bytes }, |id| KnownState::Dead(DeadLetterId(id)));
            Known { consumer, scope, state }
        });
        let attempts =
            attempts.into_iter().map(|(consumer, scope, attempts, last_error, first_failed_at, next_at)| {
                let attempts = attempts.unsigned_abs();
                let attempt = Attempt { attempts, last_error, first_failed_at, next_at };
                Known { consumer, scope, state: KnownState::Retrying(attempt) }
            });
        Ok(rows.chain(attempts).collect())
    }

    async fn activity(
        connection: &mut PgConnection,
        statements: &Statements,
        from: Uuid,
        rows_max: u32,
    ) -> Result<ActivityRows, sqlx::Error> {
        let rows_max = i64::from(rows_max);
        let applied = sqlx::query_as(&statements.activity_applied).bind(from).bind(rows_max);
        let applied = applied.fetch_all(&mut *connection).await?;
        let failing = sqlx::query_as(&statements.activity_attempts).bind(rows_max);
        let failing = failing.fetch_all(&mut *connection).await?;
        let dead = sqlx::query_as(&statements.activity_letters).bind(rows_max);
        Ok([applied, failing, dead.fetch_all(connection).await?])
    }
}
