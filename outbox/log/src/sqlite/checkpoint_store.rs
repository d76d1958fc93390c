//! Lease, cursor and exceptions.

use std::ops::ControlFlow;
use std::time::Duration;

use async_trait::async_trait;
use message::MessageId;
use sqlx::{Connection, SqliteConnection};
use tokio::time::Instant;

use crate::changes::Changes;
use crate::entry::EntryId;
use crate::exception::{ExceptionChange, Parked};
use crate::failure::gone;
use crate::lease::{Acquired, Fenced, Lease, OtherHolder, RelayName};
use crate::sqlite::file::OpenedFile;
use crate::sqlite::mark::id_of;
use crate::sqlite::rest::Rest;
use crate::sqlite::statements::SQL;
use crate::watch::Watch;
use crate::{BrokerTrouble, CheckpointStore, Cursor, LogError, Mark, stored};

/// Maximum attempts when the lease became free between the two statements.
const ACQUIRE_ATTEMPTS: usize = 3;

pub(super) struct SqliteCheckpointStore {
    pub(super) connection: SqliteConnection,
    pub(super) file: OpenedFile,
    pub(super) relay: RelayName,
    pub(super) holder: String,
    pub(super) watch: Watch<i64>,
    /// As it was last recorded.
    pub(super) trouble: Option<BrokerTrouble>,
    pub(super) rest: Rest,
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2)
}

/// Returns why a cursor does not belong to this file's history: ids always ascend, unless they were
/// set back by hand.
fn refusal(cursor: &Cursor, position: i64) -> Result<Option<String>, LogError> {
    let head = cursor.progress.as_ref().map(|progress| id_of(&progress.head)).transpose()?;
    let reached = id_of(&cursor.base)?.max(head.unwrap_or_default());
    Ok((position < reached).then(|| {
        format!(
            "the relay has read up to the entry {reached}, and the file has only given out ids up to {position}: \
             sqlite_sequence was set back, and entries written since are not told from those that have left; stop \
             producers and relays and run DELETE FROM sqlite_sequence WHERE name = 'outbox_message'; INSERT INTO \
             sqlite_sequence (name, seq) VALUES ('outbox_message', {reached}); and, so that everything in the log leaves \
             again, also what is parked, dead or discarded (look at it first: what outbox_exception names by its id may \
             be another entry by now), DELETE FROM outbox_exception; DELETE FROM outbox_parked; INSERT INTO outbox_audit \
             (actor, relay, id, message_id, action, note) SELECT 'relay forget', relay, max(id), message_id, 'requeue', \
             'sqlite_sequence was set back' FROM outbox_audit GROUP BY relay, message_id; UPDATE outbox_relay SET \
             cursor = '{{\"base\":\"0\",\"progress\":null}}'"
        )
    }))
}

fn fenced(rows_affected: u64) -> Fenced {
    if rows_affected == 1 { Fenced::Held } else { Fenced::Lost }
}

async fn park(connection: &mut SqliteConnection, relay: &str, parked: &Parked) -> Result<(), sqlx::Error> {
    sqlx::query(&SQL.copy).bind(relay).bind(parked.id.0).execute(&mut *connection).await?;
    sqlx::query(&SQL.park)
        .bind(relay)
        .bind(parked.id.0)
        .bind(&parked.message_id)
        .bind(&parked.topic)
        .bind(&parked.key)
        .bind(parked.state.as_str())
        .bind(i64::from(parked.attempts))
        .bind(parked.due_in_or_now().map(micros))
        .bind(parked.fault.map(|fault| fault.as_str()))
        .bind(&parked.error)
        .execute(connection)
        .await?;
    Ok(())
}

/// Explains why a message was not parked.
fn unparked(parked: &Parked, error: sqlx::Error) -> LogError {
    const NOT_NULL_VIOLATION: &str = "1299";
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    if code.as_deref() != Some(NOT_NULL_VIOLATION) {
        return LogError::during("write the checkpoint")(error);
    }
    let Parked { id, message_id, .. } = parked;
    LogError::operator(format!(
        "the message {message_id} cannot be parked: outbox_exception has a different one under its id {id}, \
         because sqlite_sequence was set back; stop producers and relays, save that row and its content in \
         outbox_parked, delete both, and enqueue its message again"
    ))
}

#[async_trait]
impl CheckpointStore for SqliteCheckpointStore {
    async fn other_holder(&mut self) -> Result<Option<OtherHolder>, LogError> {
        // The lease in a file that was replaced protects nothing.
        self.file.check()?;
        let found = sqlx::query_as(&SQL.holder)
            .bind(self.relay.as_str())
            .fetch_optional(&mut self.connection)
            .await
            .map_err(LogError::during("find out who holds the lease"))?;
        Ok(self.watch.other_holder(&self.holder, found))
    }

    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        let stored: Option<(String, i64)> = sqlx::query_as(&SQL.position)
            .bind(self.relay.as_str())
            .fetch_optional(&mut self.connection)
            .await
            .map_err(LogError::during("compare its cursor with the file"))?;
        if let Some((cursor, position)) = stored
            && let Some(why) = refusal(&stored::read(&cursor)?, position)?
        {
            return Err(LogError::operator(why));
        }
        for _ in 0..ACQUIRE_ATTEMPTS {
            // Reads the lease first: this writes nothing, so a standby may try often.
            let found = sqlx::query_as(&SQL.holder)
                .bind(self.relay.as_str())
                .fetch_optional(&mut self.connection)
                .await
                .map_err(LogError::during("find out who holds the lease"))?;
            let over = match self.watch.claim(&self.relay, &self.holder, found) {
                ControlFlow::Continue(over) => over,
                ControlFlow::Break(busy) => return Ok(busy),
            };
            let granted: Option<(i64, String, Option<String>)> = sqlx::query_as(&SQL.acquire)
                .bind(self.relay.as_str())
                .bind(&self.holder)
                .bind(micros(ttl))
                .bind(stored::write(&Cursor::at(Mark::new("0")))?)
                .bind(over.as_ref().map(|held| held.epoch))
                .bind(over.as_ref().map(|held| held.until))
                .fetch_optional(&mut self.connection)
                .await
                .map_err(LogError::during("take the lease"))?;
            if let Some((epoch, cursor, taken_over_from)) = granted {
                let lease = Lease { epoch, ttl };
                return Ok(Acquired::Granted { lease, cursor: stored::read(&cursor)?, taken_over_from });
            }
        }
        Err(LogError::Unavailable {
            reason: String::from("the lease changes hands faster than it can be taken"),
            source: None,
        })
    }

    async fn left_relays(&mut self) -> Result<Vec<String>, LogError> {
        sqlx::query_scalar(&SQL.left_relays)
            .bind(self.relay.as_str())
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list its relays"))
    }

    async fn renew(&mut self, epoch: i64, ttl: Duration) -> Result<Fenced, LogError> {
        self.file.check()?;
        let done = sqlx::query(&SQL.renew)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(micros(ttl))
            .bind(&self.holder)
            .execute(&mut self.connection)
            .await
            .map_err(LogError::during("renew the lease"))?;
        Ok(fenced(done.rows_affected()))
    }

    async fn checkpoint(
        &mut self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError> {
        let failed = || LogError::during("write the checkpoint");
        self.rest.before(changes.len()).await;
        let mut tx = self.connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
        let since = Instant::now();
        let changed = changes.len();
        let done = sqlx::query(&SQL.checkpoint)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(stored::write_beside(cursor, self.trouble.as_ref())?)
            .bind(&self.holder)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        if done.rows_affected() != 1 {
            tx.rollback().await.map_err(failed())?;
            return Ok(Fenced::Lost);
        }
        let changes = Changes::of(changes);
        for parked in changes.parked {
            park(&mut tx, self.relay.as_str(), parked).await.map_err(|error| unparked(parked, error))?;
        }
        for id in changes.resolved {
            for statement in [&SQL.resolve, &SQL.remove_copy] {
                let resolve = sqlx::query(statement).bind(self.relay.as_str()).bind(id);
                resolve.execute(&mut *tx).await.map_err(failed())?;
            }
        }
        tx.commit().await.map_err(failed())?;
        self.rest.after(changed, since);
        Ok(Fenced::Held)
    }

    async fn note_trouble(&mut self, epoch: i64, trouble: Option<BrokerTrouble>) -> Result<(), LogError> {
        self.trouble = trouble;
        sqlx::query(&SQL.note)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(stored::trouble(self.trouble.as_ref())?)
            .bind(&self.holder)
            .execute(&mut self.connection)
            .await
            .map_err(LogError::during("store the state of the broker"))?;
        Ok(())
    }

    async fn doubt(
        &mut self,
        _cursor: &Cursor,
        last_read: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        let Some((id, message_id)) = last_read else { return Ok(None) };
        let is_here: bool = sqlx::query_scalar(&SQL.is_here)
            .bind(id.0)
            .bind(message_id.to_string())
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("look up the entry that was read last"))?;
        Ok((!is_here).then(|| gone(id, message_id)))
    }

    async fn release(&mut self, epoch: i64) -> Result<Fenced, LogError> {
        let done = sqlx::query(&SQL.release)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(&self.holder)
            .execute(&mut self.connection)
            .await
            .map_err(LogError::during("release the lease"))?;
        Ok(fenced(done.rows_affected()))
    }
}
