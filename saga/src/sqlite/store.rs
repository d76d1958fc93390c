//! Input and output of sagas on SQLite.

use std::collections::HashSet;
use std::time::Duration;

use inbox::Backoff;
use migrations::{Backend as _, Identifier};
use sqlx::query::Query;
use sqlx::{Connection as _, Sqlite, SqliteConnection, SqlitePool, Transaction};
use time::OffsetDateTime;

use super::rows;
use super::statements::SQL;
use crate::admin::{Decision, Overdue, SagaQuery};
use crate::dialect::{EARLY_MAX, Replied, Store};
use crate::key::SagaId;
use crate::record::{
    Commits, GIVEN, Held, LOST, NewStep, SagaRecord, State, StepChange, StepRecord, StepState, Turn,
};
use crate::retention::BATCH;

type Result<T> = std::result::Result<T, sqlx::Error>;
type Bound<'q> = Query<'q, Sqlite, <Sqlite as sqlx::Database>::Arguments>;

/// Returns a duration in microseconds.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn name<'q>(query: Bound<'q>, id: &'q SagaId) -> Bound<'q> {
    query.bind(id.saga_type()).bind(id.id())
}

fn fence<'q>(query: Bound<'q>, held: &'q Held) -> Bound<'q> {
    name(query, &held.id).bind(held.epoch)
}

async fn one(query: Bound<'_>, connection: &mut SqliteConnection) -> Result<bool> {
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

/// Classifies a reply that no step waits for: a duplicate, if another one was kept.
async fn unawaited(connection: &mut SqliteConnection, id: &SagaId, step: &str) -> Result<Replied> {
    let kept = sqlx::query_scalar(&SQL.has_reply).bind(id.saga_type()).bind(id.id()).bind(step);
    let is_kept: bool = kept.fetch_one(connection).await?;
    Ok(if is_kept { Replied::Duplicate } else { Replied::Late })
}

impl Store for Sqlite {
    type SagaStatements = ();

    fn saga_statements(_schema: Option<&Identifier>) {}

    /// IMMEDIATE waits for the write lock within the busy timeout; upgrading later fails at once.
    async fn begin_saga(pool: &SqlitePool) -> Result<Transaction<'static, Self>> {
        pool.begin_with("BEGIN IMMEDIATE").await
    }

    async fn insert_saga(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
        version: u16,
        input: &str,
    ) -> Result<bool> {
        let query = name(sqlx::query(&SQL.insert), id).bind(i32::from(version)).bind(input);
        one(query, connection).await
    }

    async fn find_saga(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
    ) -> Result<Option<SagaRecord>> {
        let row = name(sqlx::query(&SQL.find), id).fetch_optional(connection).await?;
        row.as_ref().map(rows::saga).transpose()
    }

    async fn look_at_saga(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
    ) -> Result<Option<(SagaRecord, Vec<StepRecord>)>> {
        let row = name(sqlx::query(&SQL.look), id).fetch_optional(&mut *connection).await?;
        let Some(row) = row else { return Ok(None) };
        let steps = name(sqlx::query(&SQL.look_steps), id).fetch_all(connection).await?;
        let steps: Result<Vec<StepRecord>> = steps.iter().map(rows::step).collect();
        Ok(Some((rows::saga(&row)?, steps?)))
    }

    async fn claim_sagas(
        connection: &mut SqliteConnection,
        _statements: &(),
        (saga_type, version): (&str, u16),
        limit: u32,
        worker: &str,
        lease: Duration,
        pause: Backoff,
    ) -> Result<Vec<SagaRecord>> {
        let query = sqlx::query(&SQL.claim).bind(saga_type).bind(i32::from(version));
        let query = query.bind(i64::from(limit)).bind(worker).bind(micros(lease));
        let query = query.bind(micros(pause.first)).bind(micros(pause.max)).bind(LOST);
        query.fetch_all(connection).await?.iter().map(rows::saga).collect()
    }

    async fn renew_sagas(
        connection: &mut SqliteConnection,
        _statements: &(),
        held: &[Held],
        lease: Duration,
    ) -> Result<HashSet<Held>> {
        let mut renewed = HashSet::new();
        for held in held {
            if one(fence(sqlx::query(&SQL.renew), held).bind(micros(lease)), &mut *connection).await? {
                renewed.insert(held.clone());
            }
        }
        Ok(renewed)
    }

    async fn due_kinds(
        connection: &mut SqliteConnection,
        _statements: &(),
        kinds: &[(String, u16)],
    ) -> Result<Vec<bool>> {
        let mut due = Vec::with_capacity(kinds.len());
        for (saga_type, version) in kinds {
            let is_due = sqlx::query_scalar(&SQL.is_due).bind(saga_type).bind(i32::from(*version));
            due.push(is_due.fetch_one(&mut *connection).await?);
        }
        Ok(due)
    }

    async fn got_on(connection: &mut SqliteConnection, _statements: &(), held: &Held) -> Result<()> {
        fence(sqlx::query(&SQL.got_on), held).execute(connection).await.map(drop)
    }

    async fn steps(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
    ) -> Result<Vec<StepRecord>> {
        let found = name(sqlx::query(&SQL.steps), id).fetch_all(connection).await?;
        found.iter().map(rows::step).collect()
    }

    async fn mailbox(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
    ) -> Result<Vec<(String, String)>> {
        let query = sqlx::query_as(&SQL.mailbox).bind(id.saga_type()).bind(id.id());
        query.fetch_all(connection).await
    }

    async fn insert_step(
        connection: &mut SqliteConnection,
        _statements: &(),
        held: &Held,
        step: &NewStep<'_>,
        commits: Commits,
    ) -> Result<bool> {
        if commits == Commits::WithEffect && !Sqlite::is_marked(&mut *connection).await? {
            return Ok(false);
        }
        let query = fence(sqlx::query(&SQL.insert_step), held)
            .bind(step.name)
            .bind(number(step.position))
            .bind(step.kind.as_str())
            .bind(step.state.as_str())
            .bind(step.undo.as_str())
            .bind(step.result)
            .bind(step.error)
            .bind(step.due_in.map(micros));
        one(query, connection).await
    }

    async fn change_step(
        connection: &mut SqliteConnection,
        _statements: &(),
        held: &Held,
        change: &StepChange<'_>,
        commits: Commits,
    ) -> Result<bool> {
        if commits == Commits::WithEffect && !Sqlite::is_marked(&mut *connection).await? {
            return Ok(false);
        }
        let query = fence(sqlx::query(&SQL.change_step), held)
            .bind(change.name)
            .bind(change.from.0.as_str())
            .bind(change.from.1.as_str())
            .bind(change.to.0.as_str())
            .bind(change.to.1.as_str())
            .bind(change.result)
            .bind(change.error)
            .bind(i32::from(change.is_attempt))
            .bind(change.from.0 != change.to.0)
            .bind(change.is_forward)
            .bind(change.replies);
        one(query, connection).await
    }

    async fn turn(
        connection: &mut SqliteConnection,
        _statements: &(),
        held: &Held,
        turn: &Turn<'_>,
    ) -> Result<bool> {
        let query = match turn {
            Turn::Wait { step, replies, is_locked } => {
                fence(sqlx::query(&SQL.wait), held).bind(*step).bind(*replies).bind(*is_locked)
            }
            Turn::Postpone { attempts, delay, error } => fence(sqlx::query(&SQL.postpone), held)
                .bind(number(*attempts))
                .bind(micros(*delay))
                .bind(*error),
            Turn::Stick { attempts, error, step } => {
                fence(sqlx::query(&SQL.stick), held).bind(number(*attempts)).bind(*error).bind(*step)
            }
            Turn::BeginUndo { reason } => fence(sqlx::query(&SQL.begin_undo), held).bind(*reason),
            Turn::Finish { output } => fence(sqlx::query(&SQL.finish), held).bind(*output),
            Turn::EndUndo => fence(sqlx::query(&SQL.end_undo), held),
        };
        one(query, connection).await
    }

    async fn finish_sagas(
        connection: &mut SqliteConnection,
        _statements: &(),
        endings: &[(&Held, &str)],
    ) -> Result<Vec<bool>> {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        let mut finished = Vec::with_capacity(endings.len());
        for (held, output) in endings {
            finished.push(one(fence(sqlx::query(&SQL.finish), held).bind(*output), &mut tx).await?);
        }
        tx.commit().await?;
        Ok(finished)
    }

    async fn put_reply(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
        step: &str,
        payload: &str,
    ) -> Result<Replied> {
        if !one(name(sqlx::query(&SQL.announce_reply), id).bind(step), connection).await? {
            let state = sqlx::query_scalar(&SQL.state).bind(id.saga_type()).bind(id.id());
            let state: Option<String> = state.fetch_optional(&mut *connection).await?;
            return match state {
                None => Ok(Replied::Nobody),
                Some(state) if state == State::Finished.as_str() => unawaited(connection, id, step).await,
                // A second reply may answer the message that revoked the request.
                Some(_) => Ok(Replied::Late),
            };
        }
        let state = sqlx::query_scalar(&SQL.step_state).bind(id.saga_type()).bind(id.id()).bind(step);
        let state: Option<String> = state.fetch_optional(&mut *connection).await?;
        if state.as_deref().is_some_and(|state| state != StepState::Waiting.as_str()) {
            return unawaited(connection, id, step).await;
        }
        let (insert, is_early) = match state {
            Some(_) => (&SQL.insert_reply, false),
            None => (&SQL.insert_early_reply, true),
        };
        let query = name(sqlx::query(insert), id).bind(step).bind(payload);
        let query = if is_early { query.bind(EARLY_MAX) } else { query };
        if one(query, &mut *connection).await? {
            return Ok(Replied::Kept);
        }
        unawaited(connection, id, step).await
    }

    async fn list_sagas(
        connection: &mut SqliteConnection,
        _statements: &(),
        query: &SagaQuery,
    ) -> Result<Vec<SagaRecord>> {
        let bound = sqlx::query(&SQL.list)
            .bind(query.saga_type.as_deref())
            .bind(query.state.map(|state| state.as_str()))
            .bind(query.is_stuck)
            .bind(query.with_ended)
            .bind(i64::from(query.limit.get()));
        bound.fetch_all(connection).await?.iter().map(rows::saga).collect()
    }

    async fn retry_saga(connection: &mut SqliteConnection, _statements: &(), id: &SagaId) -> Result<bool> {
        one(name(sqlx::query(&SQL.retry), id), connection).await
    }

    async fn cancel_saga(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
        reason: &str,
    ) -> Result<bool> {
        one(name(sqlx::query(&SQL.cancel), id).bind(reason), connection).await
    }

    async fn lock_saga(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
    ) -> Result<Option<SagaRecord>> {
        let row = name(sqlx::query(&SQL.lock_saga), id).fetch_optional(connection).await?;
        row.as_ref().map(rows::saga).transpose()
    }

    async fn skip_undo(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
        step: &str,
    ) -> Result<bool> {
        one(name(sqlx::query(&SQL.skip_undo), id).bind(step), connection).await
    }

    async fn skip_step(
        connection: &mut SqliteConnection,
        _statements: &(),
        id: &SagaId,
        (step, is_stuck_here): (&str, bool),
        result: &str,
    ) -> Result<bool> {
        let query = name(sqlx::query(&SQL.skip_step), id).bind(step).bind(result).bind(is_stuck_here);
        let has_begun = one(query, connection).await?;
        if has_begun || !is_stuck_here {
            return Ok(has_begun);
        }
        one(name(sqlx::query(&SQL.skip_new_step), id).bind(step).bind(result).bind(GIVEN), connection).await
    }

    async fn note_saga_decision(
        connection: &mut SqliteConnection,
        _statements: &(),
        decision: &Decision,
    ) -> Result<()> {
        let query = sqlx::query(&SQL.note_decision)
            .bind(&decision.actor)
            .bind(&decision.note)
            .bind(decision.action.as_str());
        name(query, &decision.id).bind(decision.step.as_deref()).execute(connection).await.map(drop)
    }

    async fn list_decisions(
        connection: &mut SqliteConnection,
        _statements: &(),
        limit: u32,
    ) -> Result<Vec<Decision>> {
        let found = sqlx::query(&SQL.decisions).bind(i64::from(limit)).fetch_all(connection).await?;
        found.iter().map(rows::decision).collect()
    }

    async fn overdue(
        connection: &mut SqliteConnection,
        _statements: &(),
        by: Duration,
    ) -> Result<Vec<Overdue>> {
        let found = sqlx::query(&SQL.overdue).bind(micros(by)).fetch_all(connection).await?;
        found.iter().map(rows::overdue).collect()
    }

    async fn forget_sagas(
        connection: &mut SqliteConnection,
        _statements: &(),
        (retention, until): (Duration, OffsetDateTime),
    ) -> Result<u64> {
        let until = i64::try_from(until.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        let old: Vec<(String, String)> = sqlx::query_as(&SQL.old)
            .bind(micros(retention))
            .bind(i64::from(BATCH))
            .bind(until)
            .fetch_all(&mut *tx)
            .await?;
        for (saga_type, id) in &old {
            for statement in [&SQL.forget, &SQL.forget_steps, &SQL.forget_replies] {
                sqlx::query(statement).bind(saga_type).bind(id).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(old.len() as u64)
    }

    async fn forget_decisions(
        connection: &mut SqliteConnection,
        _statements: &(),
        before: OffsetDateTime,
    ) -> Result<u64> {
        let before = i64::try_from(before.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
        let query = sqlx::query(&SQL.forget_decisions).bind(before).bind(i64::from(BATCH));
        Ok(query.execute(connection).await?.rows_affected())
    }
}
