//! Repairs cursors that do not belong to this server's history.
//!
//! In one transaction, under a lock that keeps every relay out, each cursor is compared with the
//! server and gets a new base. Every relay's epoch is raised, which fences off any current holder.
//! No row is lost:
//!
//! | the cursor's transaction ids | the new base | what leaves again |
//! |---|---|---|
//! | still valid (a sequence was set back) | the same snapshot, with a floor below the first row that it does not see | what the open difference had settled |
//! | meaningless (a restore into another cluster) | a snapshot that sees nothing, with the same floor, or a floor below the first row of a transaction that was in flight; below every row when the sequence is behind the floor | what is above the floor |
//! | meaningless, and this server has written rows itself | as in the previous row, with a floor below the first of these rows | what is above the floor |
//!
//! **Rows are rewritten only where every cursor is rebased.** This happens when the log comes from
//! another server, or when a row carries a transaction id that this server has not given out. Rows
//! whose transaction id this server would not call finished then get the transaction id 3, which is
//! visible in every later mark: the first documented exception to "rows are never updated". A
//! function of the database does this with the owner's rights, and refuses in any other case.
//! `ServerFacts::decide` then gives a cause for each cursor, so each gets a snapshot that sees
//! nothing. No base is left in which a transaction id of 3 hides an unread row.
//!
//! When only a cursor comes from another server, no row is touched: rows that another pipeline has
//! not read yet stay invisible in its base. Nor is a rewrite needed. Each row has a transaction id
//! below the next one of this server. So the snapshot of every later mark either sees it or lists
//! its id as in flight (for a transaction here that happens to have the same id). Once visible it
//! stays visible, and then the proof in `postgres/mod.rs` holds for it as for a row of that
//! transaction.
//!
//! Another function sets a sequence forward. Its lock waits for every open transaction that has
//! enqueued, and other producers queue behind it. So it is tried for short moments, with pauses in
//! which nothing is locked. The lock is held only briefly, in a separate transaction: rows with low
//! ids are then committed, and are found while producers continue. The same lock is taken when a
//! cursor of this server gives up its snapshot: transactions that were in flight in it may still be
//! open, with ids below the floor.
//!
//! Exceptions stay unchanged. Those above the new floor are listed in `outbox_rebased`, together
//! with entries that an operator has discarded, and the reader leaves them out. Entries that leave
//! again keep their ids, so the inbox drops them.
//!
//! Everything is identified by its id, so no row ahead of a relay may have the id of another one,
//! or of a parked message. A sequence that was set back gives out ids again, and the key of a
//! segment does not cover the ids in the other seven segments. **Where a row that some cursor has
//! not passed has the id of an earlier row or of a parked message, it gets a new id**, behind all
//! others, and so do the rows that follow it in its key. This is the second documented exception to
//! "rows are never updated", by a function of the database that does nothing in any other case
//! (ADR 33). An open difference is extended to the new ids.
//!
//! A parked message keeps its id: it stays ahead of what its key has parked since, and beside its
//! own row, which may have the only copy of its content. It moves only with that row.

mod bases;
mod ids;
pub(super) mod statements;

use std::time::Duration;

use migrations::Identifier;
use sqlx::{Connection, PgConnection, Postgres, Transaction};

use crate::failure::within;
use crate::postgres::facts::{self, YoungRows};
use crate::postgres::history::{Cause, CursorFacts, Decision, ServerFacts};
use crate::postgres::in_use::is_in_use;
use crate::postgres::mark::PgMark;
use crate::{Cursor, LogError, stored};
use bases::{COUNTED_MAX, moved_back};
use statements::Statements;

/// Maximum duration of a rebase. Rewriting the rows of a restored log takes longer than any other
/// call.
const REBASE_MAX: Duration = Duration::from_secs(1_800);

/// The number of attempts to get the locks, and the pause between them: 5 s in total when the
/// sequence's lock is not available.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(225);

/// How long to wait for the relays' lock. Leases and checkpoints queue behind it, and the commit of
/// one of them may take a while. Producers never queue behind it.
const MOMENT: &str = "250ms";

/// A warning for causes in which a sequence was set back: rows that are not read yet may be
/// published out of order.
const OUT_OF_ORDER: &str = "; of the rows not read yet, those written after the sequence was set back have \
     smaller ids and are published first, even within a key";

#[derive(Debug, Clone)]
pub(super) struct Rebase {
    sql: Statements,
}

/// When to search for rows that share an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) enum Search {
    /// Only when a sequence was set back.
    WhereFound,
    /// Always: a relay has met two such rows.
    Always,
}

/// The outcome of an attempt.
enum Tried {
    Mended,
    /// A transaction that may have taken an id, or that has locked a relay's row, has not ended.
    InUse,
}

/// Findings of earlier attempts.
#[derive(Debug, Clone, Copy)]
struct Known {
    search: Search,
    /// The position of the sequence before it was set forward.
    position: i64,
    is_again: bool,
}

/// A relay and its cursor.
struct Stored {
    relay: String,
    shard: i16,
    cursor: Cursor,
}

/// Returns the largest id that a cursor knows to be given out.
fn reached(cursor: &Cursor) -> Result<i64, LogError> {
    let base = PgMark::read(&cursor.base)?.floor;
    let Some(progress) = &cursor.progress else { return Ok(base) };
    Ok(base.max(PgMark::read(&progress.head)?.floor).max(progress.after))
}

/// Returns whether ids are known that the sequence has not given out yet.
fn is_behind(relays: &[Stored], server: &ServerFacts) -> Result<bool, LogError> {
    let known = relays.iter().map(|stored| reached(&stored.cursor)).collect::<Result<Vec<_>, _>>()?;
    Ok(known.into_iter().max().max(server.newest_id).unwrap_or_default() > server.position)
}

/// Returns `None` when another session holds the requested lock.
fn unless_in_use<T>(answer: Result<T, sqlx::Error>) -> Result<Option<T>, LogError> {
    match answer {
        Err(error) if is_in_use(&error) => Ok(None),
        answer => answer.map(Some).map_err(failed()),
    }
}

fn failed() -> impl FnOnce(sqlx::Error) -> LogError {
    LogError::during("rebase the cursors")
}

impl Rebase {
    pub(super) fn new(schema: Option<&Identifier>) -> Self {
        Self { sql: Statements::new(schema) }
    }

    /// Compares every cursor with the server and repairs those that do not belong to its history.
    pub(in crate::postgres) async fn run(
        &self,
        connection: &mut PgConnection,
        questions: &facts::Statements,
        search: Search,
    ) -> Result<(), LogError> {
        within(REBASE_MAX, async {
            let mut known = Known { search, position: i64::MAX, is_again: false };
            for attempt in 1..=TRIES {
                known.is_again = attempt > 1;
                match self.attempt(connection, questions, &mut known).await? {
                    Tried::Mended => return Ok(()),
                    Tried::InUse if attempt < TRIES => tokio::time::sleep(PAUSE).await,
                    Tried::InUse => {}
                }
            }
            let who: Option<String> =
                sqlx::query_scalar(&self.sql.waited_for).fetch_one(connection).await.map_err(failed())?;
            Err(LogError::Unavailable {
                reason: format!(
                    "cursors do not belong to this server's history, or rows share an id; the repair waits for these \
                     transactions, which have taken ids of outbox_message_id_seq or locked rows of outbox_relay: {}",
                    who.as_deref().unwrap_or("none at the moment")
                ),
                source: None,
            })
        })
        .await
    }

    async fn attempt(
        &self,
        connection: &mut PgConnection,
        questions: &facts::Statements,
        known: &mut Known,
    ) -> Result<Tried, LogError> {
        if let Tried::InUse = self.set_forwards(connection, questions, known).await? {
            return Ok(Tried::InUse);
        }
        let Some(mut tx) = self.begin(connection).await? else { return Ok(Tried::InUse) };
        let tried = self.mend(&mut tx, questions, known).await?;
        match tried {
            Tried::Mended => tx.commit().await.map_err(failed())?,
            Tried::InUse => tx.rollback().await.map_err(failed())?,
        }
        Ok(tried)
    }

    /// Begins a transaction that keeps every relay out; `None` when another session has locked a
    /// relay's row.
    async fn begin<'c>(
        &self,
        connection: &'c mut PgConnection,
    ) -> Result<Option<Transaction<'c, Postgres>>, LogError> {
        // Each statement sees what others committed while the transaction waited for a lock.
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
        let mut tx = connection.begin_with(begin).await.map_err(failed())?;
        // The limit of a role for whole transactions, in servers that know it (PostgreSQL 17).
        let unlimited = "SELECT set_config('transaction_timeout', '0', true)
            WHERE current_setting('transaction_timeout', true) IS NOT NULL";
        sqlx::query(unlimited).execute(&mut *tx).await.map_err(failed())?;
        let limits = "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)";
        let statement_timeout = format!("{}s", REBASE_MAX.as_secs());
        for lock_timeout in [MOMENT, "5s"] {
            let set = sqlx::query(limits).bind(&statement_timeout).bind(lock_timeout);
            set.execute(&mut *tx).await.map_err(failed())?;
            if lock_timeout == MOMENT
                && unless_in_use(sqlx::query(&self.sql.lock).execute(&mut *tx).await)?.is_none()
            {
                tx.rollback().await.map_err(failed())?;
                return Ok(None);
            }
        }
        Ok(Some(tx))
    }

    async fn stored(&self, tx: &mut Transaction<'_, Postgres>) -> Result<Vec<Stored>, LogError> {
        let rows: Vec<(String, i16, String)> =
            sqlx::query_as(&self.sql.cursors).fetch_all(&mut **tx).await.map_err(failed())?;
        let read = |(relay, shard, cursor): (String, i16, String)| {
            Ok(Stored { relay, shard, cursor: stored::read(&cursor)? })
        };
        rows.into_iter().map(read).collect()
    }

    /// Sets a sequence that was set back above every known id, in a separate transaction. Rows with
    /// low ids are then committed, and are compared while producers continue. Every relay loses its
    /// lease, because its memory may hide such a row. Later attempts make sure that the producers'
    /// lock is available before everything is read again.
    ///
    /// Does nothing in a log of another server, whose cursors are compared with the old position of
    /// the sequence.
    async fn set_forwards(
        &self,
        connection: &mut PgConnection,
        questions: &facts::Statements,
        known: &mut Known,
    ) -> Result<Tried, LogError> {
        let Some(mut tx) = self.begin(connection).await? else { return Ok(Tried::InUse) };
        let relays = self.stored(&mut tx).await?;
        let server = questions.server(&mut tx).await?;
        known.position = known.position.min(server.position);
        let is_foreign = matches!(server.decide(), Decision::Rebase(cause) if !cause.keeps_transaction_ids());
        let is_behind = is_behind(&relays, &server)?;
        if is_behind && is_foreign || !is_behind && !known.is_again {
            tx.rollback().await.map_err(failed())?;
            return Ok(Tried::Mended);
        }
        let Some(now) = self.lock_producers_out(&mut tx).await? else {
            tx.rollback().await.map_err(failed())?;
            return Ok(Tried::InUse);
        };
        if is_behind {
            let from = server.position;
            tracing::warn!(from, to = now, "moving the sequence outbox_message_id_seq forward");
            known.search = Search::Always;
            for Stored { relay, shard, cursor } in &relays {
                let base = PgMark::read(&cursor.base)?;
                if base.sees_nothing() && base.floor > from {
                    // Such a base sees no row, so comparing rows with it does not find the low ids.
                    let floor = sqlx::query_scalar(&self.sql.first).bind(base.floor);
                    let floor = floor.fetch_one(&mut *tx).await.map_err(failed())?;
                    let base = PgMark { floor, is_rebased: true, ..base };
                    self.replace(&mut tx, relay, *shard, &[], &base, &moved_back(cursor, &base)).await?;
                } else {
                    let query = sqlx::query(&self.sql.fence).bind(relay).bind(shard);
                    query.execute(&mut *tx).await.map_err(failed())?;
                }
            }
        }
        tx.commit().await.map_err(failed())?;
        Ok(Tried::Mended)
    }

    async fn mend(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        questions: &facts::Statements,
        known: &Known,
    ) -> Result<Tried, LogError> {
        let mut search = known.search;
        let relays = self.stored(tx).await?;
        let mut server = questions.server(tx).await?;
        if is_behind(&relays, &server)? && self.lock_producers_out(tx).await?.is_none() {
            return Ok(Tried::InUse);
        }
        let is_foreign = matches!(server.decide(), Decision::Rebase(cause) if !cause.keeps_transaction_ids());
        if is_foreign {
            server = ServerFacts { position: known.position, ..questions.server(tx).await? };
        }
        let mut rebased = Vec::new();
        for Stored { relay, shard, cursor } in &relays {
            let again = questions.look_at_all(tx, YoungRows::of_cursor(cursor)?, REBASE_MAX).await?;
            let facts = CursorFacts::of(cursor, again)?;
            let Decision::Rebase(cause) = server.decide_about(&facts) else { continue };
            if cause.keeps_transaction_ids() {
                search = Search::Always;
            }
            // The cursor itself is sound.
            if matches!(cause, Cause::SequenceBehindRows { .. }) {
                continue;
            }
            // Otherwise rows below the floor that are not committed yet would never be read.
            if facts.gives_up_open_transactions(&cause, &server.history)
                && self.lock_producers_out(tx).await?.is_none()
            {
                return Ok(Tried::InUse);
            }
            let base = self.base(tx, &server, &facts, &cause).await?;
            let (count, first) = self.leaves_again(tx, &facts, &base, &cause).await?;
            tracing::warn!(
                relay,
                "{cause}: the cursor is rebased; {}{count} messages that may have been published are \
                 published again with the same ids{}{}",
                if count >= COUNTED_MAX { "more than " } else { "up to " },
                first.map(|first| format!(", from row {first} on")).unwrap_or_default(),
                if cause.keeps_transaction_ids() { OUT_OF_ORDER } else { "" },
            );
            rebased.push((relay, *shard, facts.base.in_flight, base, cursor));
        }
        // Before the cursors are replaced: rows and cursors must still show that they are another
        // server's.
        if matches!(server.decide(), Decision::Rebase(cause) if !cause.keeps_transaction_ids()) {
            let rows: i64 = sqlx::query_scalar(&self.sql.rows).fetch_one(&mut **tx).await.map_err(failed())?;
            tracing::warn!(rows, "replacing transaction ids of another server in the log");
        }
        for (relay, shard, in_flight, base, cursor) in rebased {
            self.replace(tx, relay, shard, &in_flight, &base, &moved_back(cursor, &base)).await?;
        }
        let is_taken = sqlx::query_scalar(&self.sql.shared).fetch_one(&mut **tx).await.map_err(failed())?;
        if search == Search::Always || is_taken {
            return self.renumber_rows(tx).await;
        }
        Ok(Tried::Mended)
    }

    /// Sets the sequence above every known id, and locks producers out until the transaction ends.
    /// Every transaction that has taken an id has then ended, and the following statements see its
    /// rows. Returns `None` when one is still open.
    async fn lock_producers_out(&self, tx: &mut Transaction<'_, Postgres>) -> Result<Option<i64>, LogError> {
        unless_in_use(sqlx::query_scalar(&self.sql.advance).fetch_one(&mut **tx).await)
    }
}
