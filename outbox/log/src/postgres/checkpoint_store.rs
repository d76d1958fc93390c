//! Lease, cursor and exceptions. All times are the database's, never this machine's.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Duration;

use async_trait::async_trait;
use message::MessageId;
use sqlx::PgConnection;

use crate::changes::Changes;
use crate::entry::EntryId;
use crate::exception::ExceptionChange;
use crate::failure::{gone, within};
use crate::lease::{Acquired, Fenced, Lease, OtherHolder, RelayName};
use crate::postgres::encoding;
use crate::postgres::facts::{self, Looked, YoungRows, has_refused_itself};
use crate::postgres::history::{self, CursorFacts, Decision};
use crate::watch::Watch;
use crate::{BrokerTrouble, CheckpointStore, Cursor, LogError, Progress, stored};

use crate::postgres::mark::PgMark;
use crate::postgres::process_name::process_name;
use crate::postgres::rebase::{Rebase, Search};
use crate::postgres::statements::Statements;

/// Maximum attempts when another process took the lease between the two statements.
const ACQUIRE_ATTEMPTS: usize = 3;

pub(super) struct PgCheckpointStore {
    pub(super) connection: PgConnection,
    /// Whether its encoding has every character: an error may quote any of them.
    pub(super) takes_any_text: bool,
    pub(super) relay: RelayName,
    pub(super) holder: String,
    pub(super) statements: Statements,
    pub(super) questions: facts::Statements,
    pub(super) rebase: Rebase,
    pub(super) call_timeout: Duration,
    /// The server's run in which the lease was granted.
    pub(super) run: Option<String>,
    pub(super) watch: Watch<String>,
    /// As it was last recorded.
    pub(super) trouble: Option<BrokerTrouble>,
}

/// Maximum attempts to store a checkpoint while operators change the entries that it removes. A
/// decision changes an entry at most three times.
const CHECKPOINT_ATTEMPTS: usize = 5;

/// Maximum attempts to take the lease. It is taken again after a rebase; the second comparison then
/// finds a repaired cursor.
const GRANT_ATTEMPTS: usize = 3;

impl PgCheckpointStore {
    /// Takes the lease. Returns the cursor only when it belongs to this server's history.
    async fn grant(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        for _ in 0..GRANT_ATTEMPTS {
            // Rows that get new ids end a run. Until the cursor is compared, the epoch fences.
            self.run = None;
            let acquired = within(self.call_timeout, self.take_lease(ttl)).await?;
            let Acquired::Granted { lease, cursor, taken_over_from } = acquired else { return Ok(acquired) };
            let Some(facts) = self.facts(&cursor, lease).await? else { continue };
            match within(self.call_timeout, self.compare(&cursor, facts)).await? {
                Some(sound) => {
                    if sound != cursor && self.checkpoint(lease.epoch, &sound, &[]).await? == Fenced::Lost {
                        continue;
                    }
                    // Only now: a relay that was delayed after taking the lease may have compared a
                    // cursor from before a rebase.
                    if !PgMark::read(&sound.base)?.is_rebased {
                        within(self.call_timeout, self.forget_left_out(lease.epoch)).await?;
                    }
                    return Ok(Acquired::Granted { lease, cursor: sound, taken_over_from });
                }
                // This ends every lease.
                None => self.rebase.run(&mut self.connection, &self.questions, Search::WhereFound).await?,
            }
        }
        Err(LogError::Unavailable {
            reason: String::from(
                "the server's history changes faster than the cursor can be compared with it",
            ),
            source: None,
        })
    }

    /// Looks the cursor up in the log and keeps the lease meanwhile; `None` when the lease was
    /// lost.
    async fn facts(&mut self, cursor: &Cursor, lease: Lease) -> Result<Option<CursorFacts>, LogError> {
        let mut again = None;
        if let Some(mut rows) = YoungRows::of_cursor(cursor)? {
            loop {
                let look = self.questions.look(&mut self.connection, &mut rows);
                if let Looked::Done(found) = within(self.call_timeout, look).await? {
                    again = found;
                    break;
                }
                if self.renew(lease.epoch, lease.ttl).await? == Fenced::Lost {
                    return Ok(None);
                }
            }
        }
        CursorFacts::of(cursor, again).map(Some)
    }

    /// Returns the cursor as one of the current history; `None` when it must be rebased.
    async fn compare(&mut self, cursor: &Cursor, facts: CursorFacts) -> Result<Option<Cursor>, LogError> {
        let server = self.questions.server(&mut self.connection).await?;
        if server.decide_about(&facts) != Decision::Sound {
            return Ok(None);
        }
        if let Some(before) = &facts.base.history
            && before.was_promoted(server.history.timeline)
        {
            tracing::warn!(
                relay = self.relay.as_str(),
                from = before.timeline,
                to = server.history.timeline,
                "the server was promoted since the cursor was stored, and the relay continues from that \
                 cursor; if this is a copy of a server that still runs, stop this relay: both publish to \
                 the same broker"
            );
        }
        self.run = Some(server.history.run.clone());
        let here = |mark: PgMark| mark.in_history(&server.history).write();
        Ok(Some(Cursor {
            base: here(facts.base),
            progress: facts
                .head
                .zip(cursor.progress.clone())
                .map(|(head, progress)| Progress { head: here(head), ..progress }),
            transaction: cursor.transaction.clone(),
        }))
    }

    async fn forget_left_out(&mut self, epoch: i64) -> Result<(), LogError> {
        sqlx::query(&self.statements.forget_left_out)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(&self.holder)
            .execute(&mut self.connection)
            .await
            .map_err(LogError::during("delete the list of entries that a rebased cursor left out"))?;
        Ok(())
    }

    /// Reads the lease first and takes it only when it seems to be free. Reading writes nothing, so
    /// a standby may try often.
    async fn take_lease(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        for _ in 0..ACQUIRE_ATTEMPTS {
            let found = sqlx::query_as(&self.statements.holder)
                .bind(self.relay.as_str())
                .fetch_optional(&mut self.connection)
                .await
                .map_err(LogError::during("find out who holds the lease"))?;
            let over = match self.watch.claim(&self.relay, &self.holder, found) {
                ControlFlow::Continue(over) => over,
                ControlFlow::Break(busy) => return Ok(busy),
            };
            let granted: Option<(i64, String, Option<String>)> = sqlx::query_as(&self.statements.acquire)
                .bind(self.relay.as_str())
                .bind(&self.holder)
                .bind(ttl.as_secs_f64())
                .bind(stored::write(&Cursor::at(PgMark::origin().write()))?)
                .bind(over.as_ref().map(|held| held.epoch))
                .bind(over.as_ref().map(|held| held.until.as_str()))
                .bind(process_name("leads", &self.relay))
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

    /// Converts an error's text, which can hold any character, into one that the database can
    /// store. A character that the encoding lacks would fail this checkpoint and each later one,
    /// and so stop the relay.
    fn storable<'e>(&self, error: Option<&'e str>) -> Option<Cow<'e, str>> {
        error.map(|text| encoding::storable(text, self.takes_any_text))
    }

    /// Stores a checkpoint with changes. Runs again when an operator has changed an entry that it
    /// removes; fails with the name of a segment that the log lacks. Returns `None`, and stores
    /// nothing, when a message was to be parked under the id of another one.
    async fn checkpoint_with(
        &mut self,
        epoch: i64,
        cursor: &str,
        changes: &Changes<'_>,
    ) -> Result<Option<Fenced>, LogError> {
        let mut attempt = 1;
        loop {
            match self.store_changes(epoch, cursor, changes).await {
                Ok(1) => return Ok(Some(Fenced::Held)),
                Ok(_) => return Ok(Some(Fenced::Lost)),
                Err(error) if has_code(&error, NOT_NULL_VIOLATION) => return Ok(None),
                Err(error) if has_refused_itself(&error) => {
                    self.questions.server(&mut self.connection).await?;
                    if attempt == CHECKPOINT_ATTEMPTS {
                        return Err(LogError::Unavailable {
                            reason: String::from(
                                "operators change entries faster than a checkpoint can remove them",
                            ),
                            source: Some(Box::new(error)),
                        });
                    }
                    attempt += 1;
                }
                Err(error) => return Err(LogError::during("write the checkpoint")(error)),
            }
        }
    }

    /// Returns the number of leases under which the checkpoint is stored: 1, or 0 when the lease is
    /// lost.
    async fn store_changes(
        &mut self,
        epoch: i64,
        cursor: &str,
        changes: &Changes<'_>,
    ) -> Result<i64, sqlx::Error> {
        let parked = &changes.parked;
        sqlx::query_scalar(&self.statements.checkpoint_with_changes)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(cursor)
            .bind(parked.iter().map(|p| p.id.0).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| p.message_id.as_str()).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| p.topic.as_str()).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| p.key.as_deref()).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| p.state.as_str()).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| i32::try_from(p.attempts).unwrap_or(i32::MAX)).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| p.due_in_or_now().map(|due| due.as_secs_f64())).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| p.fault.map(|fault| fault.as_str())).collect::<Vec<_>>())
            .bind(parked.iter().map(|p| self.storable(p.error.as_deref())).collect::<Vec<_>>())
            .bind(&changes.resolved)
            .bind(&self.run)
            .bind(&self.holder)
            .fetch_one(&mut self.connection)
            .await
    }
}

/// The answer of a checkpoint that would park a message under the id of another one.
const NOT_NULL_VIOLATION: &str = "23502";

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|found| found == code)
}

fn fenced(rows_affected: u64) -> Fenced {
    if rows_affected == 1 { Fenced::Held } else { Fenced::Lost }
}

#[async_trait]
impl CheckpointStore for PgCheckpointStore {
    async fn other_holder(&mut self) -> Result<Option<OtherHolder>, LogError> {
        let asked = sqlx::query_as(&self.statements.holder)
            .bind(self.relay.as_str())
            .fetch_optional(&mut self.connection);
        let asked = async { asked.await.map_err(LogError::during("find out who holds the lease")) };
        let found = within(self.call_timeout, asked).await?;
        Ok(self.watch.other_holder(&self.holder, found))
    }

    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        self.grant(ttl).await
    }

    async fn left_relays(&mut self) -> Result<Vec<String>, LogError> {
        let query = sqlx::query_scalar(&self.statements.left_relays)
            .bind(self.relay.as_str())
            .fetch_all(&mut self.connection);
        let during = LogError::during("list its relays");
        within(self.call_timeout, async { query.await.map_err(during) }).await
    }

    async fn renew(&mut self, epoch: i64, ttl: Duration) -> Result<Fenced, LogError> {
        let query = sqlx::query(&self.statements.renew)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(ttl.as_secs_f64())
            .bind(&self.run)
            .bind(&self.holder)
            .execute(&mut self.connection);
        let done =
            within(self.call_timeout, async { query.await.map_err(LogError::during("renew the lease")) });
        Ok(fenced(done.await?.rows_affected()))
    }

    async fn checkpoint(
        &mut self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError> {
        let cursor = stored::write_beside(cursor, self.trouble.as_ref())?;
        let limit = self.call_timeout;
        if !changes.is_empty() {
            let changes = Changes::of(changes);
            let stored = within(limit, self.checkpoint_with(epoch, &cursor, &changes)).await?;
            let Some(fenced) = stored else {
                self.rebase.run(&mut self.connection, &self.questions, Search::WhereFound).await?;
                return Err(LogError::Unavailable {
                    reason: String::from(
                        "the id of a parked message was assigned again; the later row now has a new one",
                    ),
                    source: None,
                });
            };
            return Ok(fenced);
        }
        let query = sqlx::query(&self.statements.checkpoint)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(cursor)
            .bind(&self.run)
            .bind(&self.holder)
            .execute(&mut self.connection);
        let done = within(limit, async { query.await.map_err(LogError::during("write the checkpoint")) });
        Ok(fenced(done.await?.rows_affected()))
    }

    async fn note_trouble(&mut self, epoch: i64, trouble: Option<BrokerTrouble>) -> Result<(), LogError> {
        self.trouble = trouble.map(|trouble| BrokerTrouble {
            error: encoding::storable(&trouble.error, self.takes_any_text).into_owned(),
            ..trouble
        });
        let query = sqlx::query(&self.statements.note)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(stored::trouble(self.trouble.as_ref())?)
            .bind(&self.holder)
            .execute(&mut self.connection);
        let during = LogError::during("store the state of the broker");
        within(self.call_timeout, async { query.await.map(drop).map_err(during) }).await
    }

    async fn doubt(
        &mut self,
        cursor: &Cursor,
        last_read: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        let here = within(self.call_timeout, self.questions.server(&mut self.connection)).await?.history;
        let head = cursor.progress.as_ref().map(|progress| &progress.head);
        let marks = [Some(&cursor.base), head].into_iter().flatten().map(PgMark::read);
        let marks: Vec<PgMark> = marks.collect::<Result<_, _>>()?;
        if let Some(doubt) = history::doubt_about(&marks.iter().collect::<Vec<_>>(), &here) {
            return Ok(Some(doubt));
        }
        let Some((id, message_id)) = last_read else { return Ok(None) };
        let query = sqlx::query_scalar(&self.statements.is_here)
            .bind(message_id.as_uuid())
            .fetch_one(&mut self.connection);
        let during = LogError::during("look up the entry that was read last");
        let is_here: bool = within(self.call_timeout, async { query.await.map_err(during) }).await?;
        Ok((!is_here).then(|| gone(id, message_id)))
    }

    async fn renumber(&mut self, _: EntryId) -> Result<(), LogError> {
        self.rebase.run(&mut self.connection, &self.questions, Search::Always).await
    }

    async fn release(&mut self, epoch: i64) -> Result<Fenced, LogError> {
        let query = sqlx::query(&self.statements.release)
            .bind(self.relay.as_str())
            .bind(epoch)
            .bind(&self.holder)
            .execute(&mut self.connection);
        let done =
            within(self.call_timeout, async { query.await.map_err(LogError::during("release the lease")) });
        Ok(fenced(done.await?.rows_affected()))
    }
}
