//! Input and output of sagas on PostgreSQL.

use std::collections::HashSet;
use std::time::Duration;

use inbox::Backoff;
use migrations::{Identifier, Statement};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Transaction};
use time::OffsetDateTime;

use super::rows;
use super::statements::Statements;
use crate::admin::{Decision, Overdue, SagaQuery};
use crate::dialect::{EARLY_MAX, Replied, Store};
use crate::key::SagaId;
use crate::record::{
    Commits, GIVEN, Held, LOST, NewStep, SagaRecord, State, StepChange, StepRecord, StepState, Turn,
};
use crate::retention::BATCH;

type Result<T> = std::result::Result<T, sqlx::Error>;
type Bound<'q> = Query<'q, Postgres, PgArguments>;

/// A length of time in microseconds.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Begins the transaction of a list, which goes by its index and sorts no table, whatever the
/// planner believes of it.
const BY_INDEX: &str = "BEGIN READ ONLY; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
    SET LOCAL enable_sort = off; SET LOCAL enable_incremental_sort = off";

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn name<'q>(query: Bound<'q>, id: &'q SagaId) -> Bound<'q> {
    query.bind(id.saga_type()).bind(id.id())
}

fn fence<'q>(query: Bound<'q>, held: &'q Held) -> Bound<'q> {
    name(query, &held.id).bind(held.epoch)
}

async fn one(query: Bound<'_>, connection: &mut PgConnection) -> Result<bool> {
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

/// A reply that nobody waits for: a second one, if another was kept.
async fn unawaited(
    connection: &mut PgConnection,
    statements: &Statements,
    id: &SagaId,
    step: &str,
) -> Result<Replied> {
    let kept = sqlx::query_scalar(&statements.has_reply).bind(id.saga_type()).bind(id.id()).bind(step);
    let is_kept: bool = kept.fetch_one(connection).await?;
    Ok(if is_kept { Replied::Duplicate } else { Replied::Late })
}

impl Statements {
    /// The list for a query, if anything can be in it. A state says whether its sagas have ended, so
    /// that none of the others is looked at.
    fn list(&self, query: &SagaQuery) -> Option<&Statement> {
        let of_ended = query.state.map(State::has_ended);
        if query.is_stuck {
            Some(&self.list_stuck)
        } else if query.with_ended {
            Some(of_ended.map_or(&self.list_all, |ended| if ended { &self.list_ended } else { &self.list_open }))
        } else {
            (of_ended != Some(true)).then_some(&self.list_open)
        }
    }
}

impl Store for Postgres {
    type SagaStatements = Statements;

    fn saga_statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    async fn begin_saga(pool: &PgPool) -> Result<Transaction<'static, Self>> {
        pool.begin().await
    }

    async fn insert_saga(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
        version: u16,
        input: &str,
    ) -> Result<bool> {
        let query = name(sqlx::query(&statements.insert), id).bind(i32::from(version)).bind(input);
        one(query, connection).await
    }

    async fn find_saga(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
    ) -> Result<Option<SagaRecord>> {
        let row = name(sqlx::query(&statements.find), id).fetch_optional(connection).await?;
        row.as_ref().map(rows::saga).transpose()
    }

    async fn look_at_saga(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
    ) -> Result<Option<(SagaRecord, Vec<StepRecord>)>> {
        let row = name(sqlx::query(&statements.look), id).fetch_optional(&mut *connection).await?;
        let Some(row) = row else { return Ok(None) };
        let steps = name(sqlx::query(&statements.look_steps), id).fetch_all(connection).await?;
        let steps: Result<Vec<StepRecord>> = steps.iter().map(rows::step).collect();
        Ok(Some((rows::saga(&row)?, steps?)))
    }

    async fn claim_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        (saga_type, version): (&str, u16),
        limit: u32,
        worker: &str,
        lease: Duration,
        pause: Backoff,
    ) -> Result<Vec<SagaRecord>> {
        let query = sqlx::query(&statements.claim).bind(saga_type).bind(i32::from(version));
        let query = query.bind(i64::from(limit)).bind(worker).bind(micros(lease));
        let query = query.bind(micros(pause.first)).bind(micros(pause.max)).bind(LOST);
        query.fetch_all(connection).await?.iter().map(rows::saga).collect()
    }

    async fn renew_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &[Held],
        lease: Duration,
    ) -> Result<HashSet<Held>> {
        let types: Vec<&str> = held.iter().map(|held| held.id.saga_type()).collect();
        let ids: Vec<&str> = held.iter().map(|held| held.id.id()).collect();
        let epochs: Vec<i64> = held.iter().map(|held| held.epoch).collect();
        let query = sqlx::query_as(&statements.renew).bind(types).bind(ids).bind(epochs).bind(micros(lease));
        let renewed: HashSet<(String, String, i64)> =
            query.fetch_all(connection).await?.into_iter().collect();
        let is_renewed = |held: &Held| {
            renewed.contains(&(held.id.saga_type().to_owned(), held.id.id().to_owned(), held.epoch))
        };
        Ok(held.iter().filter(|held| is_renewed(held)).cloned().collect())
    }

    async fn due_kinds(
        connection: &mut PgConnection,
        statements: &Statements,
        kinds: &[(String, u16)],
    ) -> Result<Vec<bool>> {
        let types: Vec<&str> = kinds.iter().map(|(saga_type, _)| saga_type.as_str()).collect();
        let versions: Vec<i32> = kinds.iter().map(|(_, version)| i32::from(*version)).collect();
        let query = sqlx::query_scalar(&statements.due_kinds).bind(types).bind(versions);
        let due: HashSet<i64> = query.fetch_all(connection).await?.into_iter().collect();
        Ok((1_i64..).zip(kinds).map(|(place, _)| due.contains(&place)).collect())
    }

    async fn got_on(connection: &mut PgConnection, statements: &Statements, held: &Held) -> Result<()> {
        fence(sqlx::query(&statements.got_on), held).execute(connection).await.map(drop)
    }

    async fn steps(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
    ) -> Result<Vec<StepRecord>> {
        let found = name(sqlx::query(&statements.steps), id).fetch_all(connection).await?;
        found.iter().map(rows::step).collect()
    }

    async fn mailbox(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
    ) -> Result<Vec<(String, String)>> {
        let query = sqlx::query_as(&statements.mailbox).bind(id.saga_type()).bind(id.id());
        query.fetch_all(connection).await
    }

    async fn insert_step(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &Held,
        step: &NewStep<'_>,
        commits: Commits,
    ) -> Result<bool> {
        let query = fence(sqlx::query(&statements.insert_step), held)
            .bind(step.name)
            .bind(number(step.position))
            .bind(step.kind.as_str())
            .bind(step.state.as_str())
            .bind(step.undo.as_str())
            .bind(step.result)
            .bind(step.error)
            .bind(step.due_in.map(micros))
            .bind(commits == Commits::WithEffect);
        one(query, connection).await
    }

    async fn change_step(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &Held,
        change: &StepChange<'_>,
        commits: Commits,
    ) -> Result<bool> {
        let query = fence(sqlx::query(&statements.change_step), held)
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
            .bind(change.replies)
            .bind(commits == Commits::WithEffect);
        one(query, connection).await
    }

    async fn turn(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &Held,
        turn: &Turn<'_>,
    ) -> Result<bool> {
        let query = match turn {
            Turn::Wait { step, replies, is_locked } => {
                fence(sqlx::query(&statements.wait), held).bind(*step).bind(*replies).bind(*is_locked)
            }
            Turn::Postpone { attempts, delay, error } => fence(sqlx::query(&statements.postpone), held)
                .bind(number(*attempts))
                .bind(micros(*delay))
                .bind(*error),
            Turn::Stick { attempts, error, step } => {
                fence(sqlx::query(&statements.stick), held).bind(number(*attempts)).bind(*error).bind(*step)
            }
            Turn::BeginUndo { reason } => fence(sqlx::query(&statements.begin_undo), held).bind(*reason),
            Turn::Finish { output } => fence(sqlx::query(&statements.finish), held).bind(*output),
            Turn::EndUndo => fence(sqlx::query(&statements.end_undo), held),
        };
        one(query, connection).await
    }

    async fn finish_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        endings: &[(&Held, &str)],
    ) -> Result<Vec<bool>> {
        let texts = |text: for<'a> fn(&'a Held) -> &'a str| -> Vec<&str> {
            endings.iter().map(|(held, _)| text(held)).collect()
        };
        let epochs: Vec<i64> = endings.iter().map(|(held, _)| held.epoch).collect();
        let outputs: Vec<&str> = endings.iter().map(|(_, output)| *output).collect();
        let query = sqlx::query_as(&statements.finish_many)
            .bind(texts(|held| held.id.saga_type()))
            .bind(texts(|held| held.id.id()))
            .bind(epochs)
            .bind(outputs);
        let ended: HashSet<(String, String)> = query.fetch_all(connection).await?.into_iter().collect();
        let has_ended = |id: &SagaId| ended.contains(&(id.saga_type().to_owned(), id.id().to_owned()));
        Ok(endings.iter().map(|(held, _)| has_ended(&held.id)).collect())
    }

    async fn put_reply(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
        step: &str,
        payload: &str,
    ) -> Result<Replied> {
        if !one(name(sqlx::query(&statements.announce_reply), id).bind(step), connection).await? {
            let state = sqlx::query_scalar(&statements.state).bind(id.saga_type()).bind(id.id());
            let state: Option<String> = state.fetch_optional(&mut *connection).await?;
            return match state {
                None => Ok(Replied::Nobody),
                Some(state) if state == State::Finished.as_str() => {
                    unawaited(connection, statements, id, step).await
                }
                // A second one may answer what took the request back.
                Some(_) => Ok(Replied::Late),
            };
        }
        let state = sqlx::query_scalar(&statements.step_state).bind(id.saga_type()).bind(id.id()).bind(step);
        let state: Option<String> = state.fetch_optional(&mut *connection).await?;
        if state.as_deref().is_some_and(|state| state != StepState::Waiting.as_str()) {
            return unawaited(connection, statements, id, step).await;
        }
        let (insert, is_early) = match state {
            Some(_) => (&statements.insert_reply, false),
            None => (&statements.insert_early_reply, true),
        };
        let query = name(sqlx::query(insert), id).bind(step).bind(payload);
        let query = if is_early { query.bind(EARLY_MAX) } else { query };
        if one(query, &mut *connection).await? {
            return Ok(Replied::Kept);
        }
        unawaited(connection, statements, id, step).await
    }

    async fn list_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        query: &SagaQuery,
    ) -> Result<Vec<SagaRecord>> {
        let Some(statement) = statements.list(query) else { return Ok(Vec::new()) };
        let bound = sqlx::query(statement)
            .bind(query.saga_type.as_deref())
            .bind(query.state.map(|state| state.as_str()))
            .bind(i64::from(query.limit.get()));
        let mut tx = connection.begin_with(BY_INDEX).await?;
        let found = bound.fetch_all(&mut *tx).await?;
        tx.rollback().await?;
        found.iter().map(rows::saga).collect()
    }

    async fn retry_saga(connection: &mut PgConnection, statements: &Statements, id: &SagaId) -> Result<bool> {
        one(name(sqlx::query(&statements.retry), id), connection).await
    }

    async fn cancel_saga(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
        reason: &str,
    ) -> Result<bool> {
        one(name(sqlx::query(&statements.cancel), id).bind(reason), connection).await
    }

    async fn lock_saga(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
    ) -> Result<Option<SagaRecord>> {
        let row = name(sqlx::query(&statements.lock_saga), id).fetch_optional(connection).await?;
        row.as_ref().map(rows::saga).transpose()
    }

    async fn skip_undo(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
        step: &str,
    ) -> Result<bool> {
        one(name(sqlx::query(&statements.skip_undo), id).bind(step), connection).await
    }

    async fn skip_step(
        connection: &mut PgConnection,
        statements: &Statements,
        id: &SagaId,
        (step, is_stuck_here): (&str, bool),
        result: &str,
    ) -> Result<bool> {
        let query = name(sqlx::query(&statements.skip_step), id).bind(step).bind(result).bind(is_stuck_here);
        let has_begun = one(query, connection).await?;
        if has_begun || !is_stuck_here {
            return Ok(has_begun);
        }
        one(name(sqlx::query(&statements.skip_new_step), id).bind(step).bind(result).bind(GIVEN), connection)
            .await
    }

    async fn note_saga_decision(
        connection: &mut PgConnection,
        statements: &Statements,
        decision: &Decision,
    ) -> Result<()> {
        let query = sqlx::query(&statements.note_decision)
            .bind(&decision.actor)
            .bind(&decision.note)
            .bind(decision.action.as_str());
        name(query, &decision.id).bind(decision.step.as_deref()).execute(connection).await.map(drop)
    }

    async fn list_decisions(
        connection: &mut PgConnection,
        statements: &Statements,
        limit: u32,
    ) -> Result<Vec<Decision>> {
        let found = sqlx::query(&statements.decisions).bind(i64::from(limit)).fetch_all(connection).await?;
        found.iter().map(rows::decision).collect()
    }

    async fn overdue(
        connection: &mut PgConnection,
        statements: &Statements,
        by: Duration,
    ) -> Result<Vec<Overdue>> {
        let found = sqlx::query(&statements.overdue).bind(micros(by)).fetch_all(connection).await?;
        found.iter().map(rows::overdue).collect()
    }

    async fn forget_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        (retention, until): (Duration, OffsetDateTime),
    ) -> Result<u64> {
        let query = sqlx::query_scalar(&statements.forget).bind(micros(retention)).bind(until);
        let query = query.bind(i64::from(BATCH));
        let gone: i64 = query.fetch_one(connection).await?;
        Ok(u64::try_from(gone).unwrap_or_default())
    }

    async fn forget_decisions(
        connection: &mut PgConnection,
        statements: &Statements,
        before: OffsetDateTime,
    ) -> Result<u64> {
        let query = sqlx::query_scalar(&statements.forget_decisions).bind(before);
        let forgotten: i64 = query.bind(number(BATCH)).fetch_one(connection).await?;
        Ok(forgotten.unsigned_abs())
    }
}
