//! Carries out the decisions of operators.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{Connection, Executor as _, PgConnection};
use time::OffsetDateTime;

use super::statements::{
    AUDIT, DISCARD, EDITED_SINCE, LOCK_ENTRIES, LOCK_WAITING, LOOK_AT_ENTRIES, OVERDUE, REQUEUE, SET_DUE,
    Statements,
};
use crate::admin::ParkedContent;
use crate::admin::decision::{
    Batch, ChosenEntry, DecideError, Decision, EntryNow, TAKEN_FOR_CALLS, check_replaced, edited,
};
use crate::operators::Verdicts;
use crate::postgres::facts;
use crate::postgres::store::{ONE_PLAN_HERE, PostgresLog};
use crate::{EntryId, LogError, RelayName};

impl PostgresLog {
    /// Carries out a decision, as [`Operators::decide_in`](crate::operators::Operators::decide_in)
    /// describes.
    pub(super) async fn carry_out(
        &self,
        connection: &mut PgConnection,
        batch: Batch<'_>,
        is_committing: &AtomicBool,
    ) -> Result<Verdicts, DecideError> {
        let Batch { relay, entries, decree, .. } = batch;
        let failed = || LogError::during("carry out the decision");
        let action = decree.decision.action();
        let taken_until =
            if action.takes_retrying() { self.take_waiting(connection, batch).await? } else { None };
        let mut tx = connection.begin().await.map_err(failed())?;
        tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
        let found = self.lock(&mut tx, batch, taken_until.as_deref()).await?;
        let verdicts: Verdicts =
            entries.iter().map(|entry| entry.verdict(relay, found.get(&entry.id.0), action)).collect();
        let accepted = entries.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_ok());
        let accepted: Vec<&ChosenEntry> = accepted.map(|(entry, _)| entry).collect();
        if accepted.is_empty() {
            return Ok(verdicts);
        }
        let ids: Vec<i64> = accepted.iter().map(|entry| entry.id.0).collect();
        let mut digests: (Vec<Option<String>>, Vec<Option<String>>) =
            (vec![None; ids.len()], vec![None; ids.len()]);
        let mut before: Vec<Option<ParkedContent>> = Vec::new();
        match &decree.decision {
            Decision::Requeue | Decision::Discard => {
                let text = if decree.decision == Decision::Requeue { REQUEUE } else { DISCARD };
                let update = self.render(text);
                let query = sqlx::query(&update).bind(relay.as_str()).bind(&ids);
                query.execute(&mut *tx).await.map_err(failed())?;
            }
            Decision::Edit { .. } => {
                let (payload, headers) = edited(&decree.decision)?;
                for (place, entry) in accepted.iter().enumerate() {
                    let found = self.tables.content(&mut tx, relay, entry).await?;
                    if let Err(error) = check_replaced(&decree.decision, entry.id, found.as_ref()) {
                        return Err(self.unedited(&mut tx, error).await);
                    }
                    before.push(found);
                    digests.0[place] = self.digest(&mut tx, relay, entry.id).await?;
                    let edit = Statements::new(self.options.schema.as_ref()).edit;
                    let edit = sqlx::query(&edit).bind(relay.as_str()).bind(entry.id.0);
                    let done = edit.bind(&payload).bind(&headers).execute(&mut *tx).await.map_err(failed())?;
                    if done.rows_affected() == 0 {
                        let error = DecideError::NoContent { id: entry.id };
                        return Err(self.unedited(&mut tx, error).await);
                    }
                    digests.1[place] = self.digest(&mut tx, relay, entry.id).await?;
                }
                // An entry that was taken from the relay is retried with its new content.
                self.set_due(&mut tx, relay, &ids, None).await.map_err(failed())?;
            }
        }
        sqlx::query(&self.render(AUDIT))
            .bind(&decree.signature.actor)
            .bind(relay.as_str())
            .bind(action.as_str())
            .bind(&decree.signature.note)
            .bind(&decree.signature.selection)
            .bind(ids)
            .bind(accepted.iter().map(|entry| entry.message_id.as_str()).collect::<Vec<_>>())
            .bind(digests.0)
            .bind(digests.1)
            .bind(batch.id())
            .bind(before.iter().map(|found| found.as_ref()?.payload.clone()).collect::<Vec<_>>())
            .bind(before.iter().map(|found| kept_headers(found.as_ref()?)).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        is_committing.store(true, Ordering::Relaxed);
        tx.commit().await.map_err(DecideError::of_commit)?;
        Ok(verdicts)
    }

    /// Takes the entries that wait for a retry from the relay, if the action applies to them (see
    /// [`crate::admin::decision`]). Those that have changed since the confirmation are left alone.
    /// Returns until when they are taken.
    async fn take_waiting(
        &self,
        connection: &mut PgConnection,
        batch: Batch<'_>,
    ) -> Result<Option<String>, LogError> {
        let Batch { relay, entries, decree, .. } = batch;
        let failed = || LogError::during("take entries from the relay");
        let chosen = Sorted::new(entries);
        let taken_for = self.options.call_timeout * TAKEN_FOR_CALLS;
        let mut tx = connection.begin().await.map_err(failed())?;
        tx.execute(ONE_PLAN_HERE).await.map_err(failed())?;
        let waiting: Vec<(i64, String, String)> = sqlx::query_as(&self.render(LOCK_WAITING))
            .bind(relay.as_str())
            .bind(chosen.ids)
            .bind(taken_for.as_secs_f64())
            .bind(batch.as_of())
            .bind(chosen.edits)
            .bind(decree.decision.action().takes_any_cause())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let Some((.., until)) = waiting.first().cloned() else { return Ok(None) };
        let ids: Vec<i64> = waiting.iter().map(|(id, ..)| *id).collect();
        self.set_due(&mut tx, relay, &ids, Some(&until)).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        let overdue: Vec<i64> = sqlx::query_scalar(&self.render(OVERDUE))
            .bind(&ids)
            .bind(waiting.iter().map(|(_, due_at, _)| due_at.as_str()).collect::<Vec<_>>())
            .fetch_all(&mut *connection)
            .await
            .map_err(failed())?;
        if !overdue.is_empty() {
            self.set_due(connection, relay, &overdue, None).await.map_err(failed())?;
        }
        Ok(Some(until))
    }

    /// Returns why an edit was refused. Where a segment of the log is missing, the error names it.
    async fn unedited(&self, connection: &mut PgConnection, error: DecideError) -> DecideError {
        if !matches!(error, DecideError::NoContent { .. }) {
            return error;
        }
        let questions = facts::Statements::new(self.options.schema.as_ref());
        questions.check_whole(connection).await.map_or_else(DecideError::from, |()| error)
    }

    /// Sets the due time of retrying entries; `None` means now.
    async fn set_due(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        ids: &[i64],
        at: Option<&str>,
    ) -> Result<(), sqlx::Error> {
        let set_due = self.render(SET_DUE);
        sqlx::query(&set_due).bind(relay.as_str()).bind(ids).bind(at).execute(connection).await?;
        Ok(())
    }

    /// Returns the current state of the chosen entries. Locks those that are dead, and those that
    /// were taken from the relay until `taken_until`. Those that have changed since the
    /// confirmation are left alone, and those whose content is not the one that was shown are
    /// noted.
    async fn lock(
        &self,
        connection: &mut PgConnection,
        batch: Batch<'_>,
        taken_until: Option<&str>,
    ) -> Result<HashMap<i64, EntryNow>, LogError> {
        let Sorted { ids, edits } = Sorted::new(batch.entries);
        let mut found = HashMap::new();
        for (statement, is_locked) in [(LOCK_ENTRIES, true), (LOOK_AT_ENTRIES, false)] {
            let missing: Vec<i64> = ids.iter().copied().filter(|id| !found.contains_key(id)).collect();
            if missing.is_empty() {
                break;
            }
            let statement = self.render(statement);
            let mut query = sqlx::query_as(&statement).bind(batch.relay.as_str()).bind(missing);
            if is_locked {
                query = query.bind(taken_until).bind(batch.as_of());
            }
            let rows: Vec<(i64, String, String)> =
                query.fetch_all(&mut *connection).await.map_err(LogError::during("read the entries"))?;
            let entry = |(id, state, message_id)| {
                (id, EntryNow { state, message_id, is_locked, is_edited_since: false })
            };
            found.extend(rows.into_iter().map(entry));
        }
        if !batch.compares_edits() {
            return Ok(found);
        }
        let edited: Vec<i64> = sqlx::query_scalar(&self.render(EDITED_SINCE))
            .bind(batch.relay.as_str())
            .bind(ids)
            .bind(edits)
            .fetch_all(connection)
            .await
            .map_err(LogError::during("read the entries"))?;
        for id in edited {
            if let Some(entry) = found.get_mut(&id) {
                entry.is_edited_since = true;
            }
        }
        Ok(found)
    }

    /// Returns the digest of an entry's copy.
    async fn digest(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
        id: EntryId,
    ) -> Result<Option<String>, LogError> {
        let digest = Statements::new(self.options.schema.as_ref()).digest;
        sqlx::query_scalar(&digest)
            .bind(relay.as_str())
            .bind(id.0)
            .fetch_optional(connection)
            .await
            .map_err(LogError::during("read the entry"))
    }
}

/// The chosen entries in the order of their locks.
struct Sorted {
    ids: Vec<i64>,
    /// For each, when the content that was shown was edited.
    edits: Vec<Option<OffsetDateTime>>,
}

impl Sorted {
    fn new(entries: &[ChosenEntry]) -> Self {
        let mut sorted: Vec<&ChosenEntry> = entries.iter().collect();
        sorted.sort_unstable_by_key(|entry| entry.id.0);
        Self {
            ids: sorted.iter().map(|entry| entry.id.0).collect(),
            edits: sorted.iter().map(|entry| entry.edited_at).collect(),
        }
    }
}

/// Returns the headers before an edit as the audit keeps them.
fn kept_headers(found: &ParkedContent) -> Option<String> {
    String::from_utf8(found.kept_headers()?).ok()
}
