//! Carries out the decisions of operators.

use migrations::query::micros_of;
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use super::statements::SQL;
use crate::admin::ParkedContent;
use crate::admin::content::Content;
use crate::admin::decision::{
    Batch, ChosenEntry, DecideError, Decision, EntryNow, TAKEN_FOR_CALLS, check_replaced, edited,
};
use crate::operators::Verdicts;
use crate::sqlite::store::SqliteLog;
use crate::{EntryId, ExceptionState, LogError, RelayName};

impl SqliteLog {
    /// Carries out a decision.
    pub(super) async fn carry_out(
        &self,
        connection: &mut SqliteConnection,
        batch: Batch<'_>,
    ) -> Result<Verdicts, DecideError> {
        let failed = || LogError::during("carry out the decision");
        let takes_retrying = batch.decree.decision.action().takes_retrying();
        let taken_until = if takes_retrying { self.take_waiting(connection, batch).await? } else { None };
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let mut verdicts = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries {
            verdicts.push(self.decide_one(&mut tx, batch, entry, taken_until).await?);
        }
        tx.commit().await.map_err(DecideError::of_commit)?;
        Ok(verdicts)
    }

    /// Takes the entries that wait for a retry from the relay, if the action applies to them (see
    /// [`crate::admin::decision`]). Those that have changed since the confirmation are left alone.
    /// Returns until when they are taken.
    async fn take_waiting(
        &self,
        connection: &mut SqliteConnection,
        batch: Batch<'_>,
    ) -> Result<Option<i64>, LogError> {
        let Batch { relay, entries, decree, .. } = batch;
        let as_of = batch.as_of().map(micros_of);
        let failed = || LogError::during("take entries from the relay");
        let taken_for = self.options.call_timeout * TAKEN_FOR_CALLS;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let now: i64 = sqlx::query_scalar(&SQL.present).fetch_one(&mut *tx).await.map_err(failed())?;
        let until = now.saturating_add(i64::try_from(taken_for.as_micros()).unwrap_or(i64::MAX));
        let mut waiting = Vec::new();
        for entry in entries {
            let due_at: Option<i64> = sqlx::query_scalar(&SQL.waiting)
                .bind(relay.as_str())
                .bind(entry.id.0)
                .bind(as_of)
                .bind(entry.edited_at.map(micros_of))
                .bind(decree.decision.action().takes_any_cause())
                .fetch_optional(&mut *tx)
                .await
                .map_err(failed())?;
            let Some(due_at) = due_at else { continue };
            set_due(&mut tx, relay, entry.id, Some(until)).await.map_err(failed())?;
            waiting.push((entry.id, due_at));
        }
        if waiting.is_empty() {
            return Ok(None);
        }
        tx.commit().await.map_err(failed())?;
        let now: i64 = sqlx::query_scalar(&SQL.present).fetch_one(&mut *connection).await.map_err(failed())?;
        for (id, _) in waiting.into_iter().filter(|(_, due_at)| *due_at <= now) {
            set_due(&mut *connection, relay, id, None).await.map_err(failed())?;
        }
        Ok(Some(until))
    }

    /// Decides about one entry, in an open transaction.
    async fn decide_one(
        &self,
        connection: &mut SqliteConnection,
        batch: Batch<'_>,
        entry: &ChosenEntry,
        taken_until: Option<i64>,
    ) -> Result<Result<(), DecideError>, LogError> {
        let Batch { relay, decree, .. } = batch;
        let failed = || LogError::during("carry out the decision");
        let id = entry.id;
        let found: Option<Found> = sqlx::query_as(&SQL.found)
            .bind(relay.as_str())
            .bind(id.0)
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed())?;
        let as_of = batch.as_of().map(micros_of);
        let found = found.map(|(state, message_id, due_at, updated_at, edited_at)| {
            let is_taken = state == ExceptionState::Retrying.as_str() && taken_until.is_some();
            let is_dead = state == ExceptionState::Dead.as_str();
            let is_as_confirmed = as_of.is_none_or(|as_of| updated_at <= as_of);
            let is_locked = is_as_confirmed && (is_dead || is_taken && due_at == taken_until);
            let is_edited_since = batch.compares_edits() && edited_at != entry.edited_at.map(micros_of);
            EntryNow { is_locked, state, message_id, is_edited_since }
        });
        let action = decree.decision.action();
        let verdict = entry.verdict(relay, found.as_ref(), action);
        if verdict.is_err() {
            return Ok(verdict);
        }
        let mut digests = (None, None);
        let mut kept = Kept::default();
        match &decree.decision {
            Decision::Requeue | Decision::Discard => {
                let is_requeue = decree.decision == Decision::Requeue;
                let update = if is_requeue { &SQL.requeue } else { &SQL.discard };
                let update = sqlx::query(update).bind(relay.as_str()).bind(id.0);
                update.execute(&mut *connection).await.map_err(failed())?;
            }
            Decision::Edit { .. } => {
                let (payload, headers) = edited(&decree.decision)?;
                let found = self.tables.content(&mut *connection, relay, entry).await?;
                if let Err(edited) = check_replaced(&decree.decision, id, found.as_ref()) {
                    return Ok(Err(edited));
                }
                kept.before = found;
                digests.0 = digest(&mut *connection, relay, id).await?;
                for update in [&SQL.copy_edited, &SQL.edit] {
                    let update = sqlx::query(update).bind(relay.as_str()).bind(id.0);
                    let update = update.bind(&payload).bind(&headers);
                    update.execute(&mut *connection).await.map_err(failed())?;
                }
                digests.1 = digest(&mut *connection, relay, id).await?;
                kept.after = self.tables.content(&mut *connection, relay, entry).await?;
                // An entry that was taken from the relay is retried with its new content.
                set_due(&mut *connection, relay, id, None).await.map_err(failed())?;
            }
        }
        sqlx::query(&SQL.audit)
            .bind(&decree.signature.actor)
            .bind(relay.as_str())
            .bind(id.0)
            .bind(&entry.message_id)
            .bind(action.as_str())
            .bind(&decree.signature.note)
            .bind(digests.0)
            .bind(digests.1)
            .bind(&decree.signature.selection)
            .bind(batch.id().map(Uuid::hyphenated))
            .bind(kept.before.as_ref().and_then(|content| content.payload.as_deref()))
            .bind(kept.before.as_ref().and_then(headers_of))
            .bind(kept.after.as_ref().and_then(|content| content.payload.as_deref()))
            .bind(kept.after.as_ref().and_then(headers_of))
            .execute(connection)
            .await
            .map_err(failed())?;
        Ok(Ok(()))
    }
}

/// A parked entry as its decision finds it: state, message id, due time if it has not come, last
/// change, last edit.
type Found = (String, String, Option<i64>, i64, Option<i64>);

/// The content before and after an edit, as far as the audit keeps it.
#[derive(Default)]
struct Kept {
    before: Option<ParkedContent>,
    after: Option<ParkedContent>,
}

fn headers_of(content: &ParkedContent) -> Option<String> {
    String::from_utf8(content.kept_headers()?).ok()
}

/// Returns the digest of an entry's content, if it can be read.
async fn digest(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    id: EntryId,
) -> Result<Option<String>, LogError> {
    let content: Option<(Vec<u8>, Option<Vec<u8>>)> = sqlx::query_as(&SQL.content)
        .bind(relay.as_str())
        .bind(id.0)
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("read the entry"))?;
    Ok(content.map(|(payload, headers)| Content { payload: &payload, headers: headers.as_deref() }.digest()))
}

/// Sets the due time of a retrying entry; `None` means now.
async fn set_due(
    connection: &mut SqliteConnection,
    relay: &RelayName,
    id: EntryId,
    at: Option<i64>,
) -> Result<(), sqlx::Error> {
    sqlx::query(&SQL.set_due).bind(relay.as_str()).bind(id.0).bind(at).execute(connection).await?;
    Ok(())
}
