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
//! which nothing is locked. The lock is held only briefly, in a transaction of its own: rows with
//! low ids are then committed, and are found while producers continue. The same lock is taken when
//! a cursor of this server gives up its snapshot: transactions that were in flight in it may still
//! be open, with ids below the floor.
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

use std::time::Duration;

use migrations::{Identifier, Statement, Template};
use sqlx::{Connection, PgConnection, Postgres, Transaction};

use crate::failure::within;
use crate::postgres::facts::{self, YoungRows};
use crate::postgres::history::{Cause, CursorFacts, Decision, ServerFacts};
use crate::postgres::mark::{PgMark, array};
use crate::postgres::retention::is_in_use;
use crate::postgres::statements::{GIVEN_UP_OR_EDITED, SAME_SEGMENT};
use crate::{BrokerTransaction, Cursor, LogError, Progress, stored};

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

/// A warning for causes in which a sequence was set back: rows that are not read yet may leave out
/// of order.
const OUT_OF_ORDER: &str = "; of rows not read yet, those written after the sequence was set back have the smaller ids and leave first, also \
     within a key";

/// Maximum number of entries that are counted as leaving again.
const COUNTED_MAX: i64 = 1_000_000;

#[derive(Debug, Clone)]
pub(super) struct Rebase {
    lock: Statement,
    cursors: Statement,
    advance: Statement,
    unseen: Statement,
    in_flight: Statement,
    own: Statement,
    first: Statement,
    beside: Statement,
    store: Statement,
    rows: Statement,
    settled: Statement,
    above: Statement,
    waited_for: Statement,
    newest: Statement,
    renumber_rows: Statement,
    has_moved: Statement,
    fence: Statement,
    renumbered: Statement,
    shared: Statement,
}

/// When to search for rows that share an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
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

/// Returns a cursor at its new base. It records that the broker's transactions may be ahead of it.
fn moved_back(cursor: &Cursor, base: &PgMark) -> Cursor {
    parted(Cursor { transaction: cursor.transaction.clone(), ..Cursor::at(base.write()) })
}

/// Returns the cursor, marked so that the broker's transactions no longer apply to it.
fn parted(cursor: Cursor) -> Cursor {
    let transaction = cursor.transaction;
    let transaction = transaction.map(|transaction| BrokerTransaction { is_rebased: true, ..transaction });
    Cursor { transaction, ..cursor }
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
        let render = |text| Template::new(text).schema(schema).render();
        Self {
            // Other leases, checkpoints and removals of relays wait for it; readers do not.
            lock: render("LOCK TABLE {schema}outbox_relay IN EXCLUSIVE MODE"),
            cursors: render("SELECT relay, shard, cursor FROM {schema}outbox_relay"),
            advance: render("SELECT {schema}outbox_advance_sequence()"),
            // $1 floor, $2 xmax.
            unseen: render(
                "SELECT least($1, (SELECT min(id) - 1 FROM {schema}outbox_message
                     WHERE (xid, id) > ($2::text::xid8, 0::bigint)))",
            ),
            // $1 floor, $2 in flight. One step into the index on both columns for each transaction:
            // by ids alone, the search would begin at the first row.
            in_flight: render(
                "SELECT least($1, (SELECT min(late.id) - 1 FROM unnest($2::text::xid8[]) AS flight(xid)
                     CROSS JOIN LATERAL (
                         SELECT id FROM {schema}outbox_message
                         WHERE (xid, id) > (flight.xid, 0::bigint) AND (xid, id) <= (flight.xid, $1)
                         ORDER BY xid, id LIMIT 1) AS late))",
            ),
            // $1 floor: rows that were written since this server's tables were created. The hour
            // allows for clocks that were set back.
            own: render(
                "SELECT least($1, (SELECT min(id) - 1 FROM {schema}outbox_message
                     WHERE id <= $1 AND enqueued_at >
                         (SELECT recorded_at FROM {schema}outbox_identity) - interval '1 hour'))",
            ),
            // $1 floor: below every row.
            first: render(
                "SELECT least($1, (SELECT id - 1 FROM {schema}outbox_message ORDER BY id LIMIT 1))",
            ),
            // $1 relay, $2 shard, $3 floor, $4 in flight: their rows may lie below the floor. Lists
            // parked entries, those that an operator gave up, which stay discarded forever, and
            // those that left edited: their rows have the content before the edit.
            beside: Template::new(
                "INSERT INTO {schema}outbox_rebased (relay, shard, id, message_id)
                 SELECT e.relay, e.shard, e.id, e.message_id FROM {schema}outbox_exception AS e
                 WHERE e.relay = $1 AND e.shard = $2 AND (e.id > $3 OR cardinality($4::text::xid8[]) > 0)
                 UNION ALL
                 SELECT $1, $2, m.id, m.message_id FROM (SELECT a.message_id {kept_back}) AS g
                 CROSS JOIN LATERAL (SELECT id, message_id FROM {schema}outbox_message
                     WHERE message_id = g.message_id AND {same_segment} LIMIT 1) AS m
                 WHERE m.id > $3 OR cardinality($4::text::xid8[]) > 0
                 ON CONFLICT DO NOTHING",
            )
            .parts(&[("kept_back", GIVEN_UP_OR_EDITED), ("same_segment", SAME_SEGMENT), ("message_id", "g.message_id")])
            .schema(schema)
            .render(),
            store: render(
                "UPDATE {schema}outbox_relay SET cursor = $3, epoch = epoch + 1, holder = NULL, lease_until = NULL
                 WHERE relay = $1 AND shard = $2",
            ),
            rows: render("SELECT {schema}outbox_rebase_rows()"),
            // $1 up to this id, $2 base, $3 head, $4 counted.
            settled: render(
                "SELECT count(*), min(id) FROM (SELECT id FROM {schema}outbox_message WHERE id <= $1
                     AND NOT pg_visible_in_snapshot(xid, (SELECT $2::text::pg_snapshot))
                     AND pg_visible_in_snapshot(xid, (SELECT $3::text::pg_snapshot)) LIMIT $4) AS again",
            ),
            // $1 above this id, $2 counted.
            above: render(
                "SELECT count(*), min(id) FROM (
                     SELECT id FROM {schema}outbox_message WHERE id > $1 ORDER BY id LIMIT $2) AS again",
            ),
            newest: render(
                "SELECT coalesce((SELECT id FROM {schema}outbox_message ORDER BY id DESC LIMIT 1), 0)",
            ),
            // $1 base, $2 floor.
            renumber_rows: render("SELECT {schema}outbox_renumber_rows($1::text::pg_snapshot, $2)"),
            // $1 above this id, $2 base: whether a row that the base does not see has moved.
            has_moved: render(
                "SELECT EXISTS (SELECT FROM (
                     SELECT id FROM {schema}outbox_message WHERE id > $1
                         AND NOT pg_visible_in_snapshot(xid, (SELECT $2::text::pg_snapshot))
                     ORDER BY id LIMIT 1) AS moved)",
            ),
            fence: render(
                "UPDATE {schema}outbox_relay SET epoch = epoch + 1, holder = NULL, lease_until = NULL
                 WHERE relay = $1 AND shard = $2",
            ),
            // $1 above this id: relays with an exception there.
            renumbered: render(
                "SELECT relay, shard, cursor FROM {schema}outbox_relay AS r WHERE EXISTS (
                     SELECT FROM (SELECT id FROM {schema}outbox_exception AS e
                         WHERE e.relay = r.relay AND e.shard = r.shard AND e.id > $1
                         ORDER BY e.id LIMIT 1) AS above)",
            ),
            // Whether an exception shares its id with another row of the log. Each is looked up
            // separately, by a range of one id: only the primary key has this order (ADR 35).
            shared: render(
                "SELECT EXISTS (SELECT FROM {schema}outbox_exception AS e CROSS JOIN LATERAL (
                     SELECT FROM {schema}outbox_message AS m
                     WHERE m.id >= e.id AND m.id <= e.id AND m.message_id <> e.message_id
                     ORDER BY m.id LIMIT 1) AS other)",
            ),
            // The sessions that keep the locks, oldest transactions first.
            waited_for: render(
                "SELECT string_agg(who, ', ') FROM (
                     SELECT coalesce('session ' || l.pid || coalesce(' (' || a.usename || ')', ''),
                         'a prepared transaction') AS who
                     FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
                     WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                         AND (l.relation = '{schema}outbox_message'::regclass
                                 AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
                             OR l.relation = '{schema}outbox_relay'::regclass AND l.mode <> 'AccessShareLock')
                         AND l.pid IS DISTINCT FROM pg_backend_pid()
                     ORDER BY a.backend_xid IS NULL, age(a.backend_xid) DESC, l.pid LIMIT 5) AS oldest",
            ),
        }
    }

    /// Returns every statement with its name.
    #[cfg(feature = "testing")]
    pub(super) fn each(&self) -> Vec<(&'static str, &Statement)> {
        vec![
            ("lock", &self.lock),
            ("cursors", &self.cursors),
            ("advance", &self.advance),
            ("unseen", &self.unseen),
            ("in_flight", &self.in_flight),
            ("own", &self.own),
            ("first", &self.first),
            ("beside", &self.beside),
            ("store", &self.store),
            ("rows", &self.rows),
            ("settled", &self.settled),
            ("above", &self.above),
            ("waited_for", &self.waited_for),
            ("newest", &self.newest),
            ("renumber_rows", &self.renumber_rows),
            ("has_moved", &self.has_moved),
            ("fence", &self.fence),
            ("renumbered", &self.renumbered),
            ("shared", &self.shared),
        ]
    }

    /// Compares every cursor with the server and repairs those that do not belong to its history.
    pub(super) async fn run(
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
                sqlx::query_scalar(&self.waited_for).fetch_one(connection).await.map_err(failed())?;
            Err(LogError::Unavailable {
                reason: format!(
                    "cursors are not of this server's history, or rows share an id, and they are not mended before these \
                     transactions end, which have taken ids of outbox_message_id_seq or locked rows of outbox_relay: {}",
                    who.as_deref().unwrap_or("none at this moment")
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
        // Each statement sees what was committed while the transaction waited for a lock.
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
                && unless_in_use(sqlx::query(&self.lock).execute(&mut *tx).await)?.is_none()
            {
                tx.rollback().await.map_err(failed())?;
                return Ok(None);
            }
        }
        Ok(Some(tx))
    }

    async fn stored(&self, tx: &mut Transaction<'_, Postgres>) -> Result<Vec<Stored>, LogError> {
        let rows: Vec<(String, i16, String)> =
            sqlx::query_as(&self.cursors).fetch_all(&mut **tx).await.map_err(failed())?;
        let read = |(relay, shard, cursor): (String, i16, String)| {
            Ok(Stored { relay, shard, cursor: stored::read(&cursor)? })
        };
        rows.into_iter().map(read).collect()
    }

    /// Sets a sequence that was set back above every known id, in a transaction of its own. Rows
    /// with low ids are then committed, and are compared while producers continue. Every relay
    /// loses its lease, because its memory may hide such a row. Later attempts make sure that the
    /// producers' lock is available before everything is read again.
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
            tracing::warn!(from, to = now, "the sequence outbox_message_id_seq is set forwards");
            known.search = Search::Always;
            for Stored { relay, shard, cursor } in &relays {
                let base = PgMark::read(&cursor.base)?;
                if base.sees_nothing() && base.floor > from {
                    // Such a base does not distinguish rows, so no comparison finds the low ids.
                    let floor = sqlx::query_scalar(&self.first).bind(base.floor);
                    let floor = floor.fetch_one(&mut *tx).await.map_err(failed())?;
                    let base = PgMark { floor, is_rebased: true, ..base };
                    self.replace(&mut tx, relay, *shard, &[], &base, &moved_back(cursor, &base)).await?;
                } else {
                    let query = sqlx::query(&self.fence).bind(relay).bind(shard);
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
                "{cause}: the cursor is rebased; {}{count} messages that may have left leave again with the same ids{}{}",
                if count >= COUNTED_MAX { "more than " } else { "up to " },
                first.map(|first| format!(", from row {first} on")).unwrap_or_default(),
                if cause.keeps_transaction_ids() { OUT_OF_ORDER } else { "" },
            );
            rebased.push((relay, *shard, facts.base.in_flight, base, cursor));
        }
        // Before the cursors are replaced: rows and cursors must still show that they are another
        // server's.
        if matches!(server.decide(), Decision::Rebase(cause) if !cause.keeps_transaction_ids()) {
            let rows: i64 = sqlx::query_scalar(&self.rows).fetch_one(&mut **tx).await.map_err(failed())?;
            tracing::warn!(rows, "transaction ids of another server are replaced in the log");
        }
        for (relay, shard, in_flight, base, cursor) in rebased {
            self.replace(tx, relay, shard, &in_flight, &base, &moved_back(cursor, &base)).await?;
        }
        let is_taken = sqlx::query_scalar(&self.shared).fetch_one(&mut **tx).await.map_err(failed())?;
        if search == Search::Always || is_taken {
            return self.renumber_rows(tx).await;
        }
        Ok(Tried::Mended)
    }

    /// Gives new ids to rows that some cursor has not passed and that have the id of an earlier row
    /// or of a parked message. They then lie behind all others, and an open difference is extended
    /// to them.
    async fn renumber_rows(&self, tx: &mut Transaction<'_, Postgres>) -> Result<Tried, LogError> {
        let mut cursors = Vec::new();
        let mut renumbered = 0_i64;
        for Stored { relay, shard, cursor } in self.stored(tx).await? {
            let base = PgMark::read(&cursor.base)?;
            let rows = sqlx::query_scalar(&self.renumber_rows).bind(&base.snapshot).bind(base.floor);
            let rows: Option<i64> = unless_in_use(rows.fetch_one(&mut **tx).await)?;
            let Some(rows) = rows else { return Ok(Tried::InUse) };
            renumbered += rows;
            cursors.push((relay, shard, base, cursor));
        }
        if renumbered == 0 {
            return Ok(Tried::Mended);
        }
        // Since the first row was moved, no other session can take an id.
        let behind: i64 = sqlx::query_scalar(&self.newest).fetch_one(&mut **tx).await.map_err(failed())?;
        let before = behind - renumbered;
        for (relay, shard, base, cursor) in cursors {
            let has_moved = sqlx::query_scalar(&self.has_moved).bind(before).bind(&base.snapshot);
            if !has_moved.fetch_one(&mut **tx).await.map_err(failed())? {
                // Exceptions have still moved with their rows.
                let query = sqlx::query(&self.fence).bind(&relay).bind(shard);
                query.execute(&mut **tx).await.map_err(failed())?;
                continue;
            }
            let base = PgMark { is_rebased: true, ..base };
            let progress = cursor.progress.clone();
            let progress =
                progress.map(|progress| Progress { ceiling: progress.ceiling.max(behind), ..progress });
            let cursor = Cursor { progress, ..moved_back(&cursor, &base) };
            self.replace(tx, &relay, shard, &base.in_flight, &base, &cursor).await?;
        }
        self.part_from_transactions(tx, before).await?;
        tracing::warn!(
            renumbered,
            "rows that were not read yet had the ids of older ones or of parked messages, or follow such a row in its \
             key: they get new ids, behind all others"
        );
        Ok(Tried::Mended)
    }

    /// Marks the cursors of relays with broker transactions whose exceptions have got an id above
    /// `above`. The marks of these transactions know exceptions by their old ids, so the relays
    /// stop.
    async fn part_from_transactions(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        above: i64,
    ) -> Result<(), LogError> {
        let relays: Vec<(String, i16, String)> =
            sqlx::query_as(&self.renumbered).bind(above).fetch_all(&mut **tx).await.map_err(failed())?;
        for (relay, shard, cursor) in relays {
            let cursor: Cursor = stored::read(&cursor)?;
            if cursor.transaction.is_some() {
                self.store(tx, &relay, shard, &parted(cursor)).await?;
            }
        }
        Ok(())
    }

    /// Sets the sequence above every known id, and locks producers out until the transaction ends.
    /// Every transaction that has taken an id has then ended, and the following statements see its
    /// rows. Returns `None` when one is still open.
    async fn lock_producers_out(&self, tx: &mut Transaction<'_, Postgres>) -> Result<Option<i64>, LogError> {
        unless_in_use(sqlx::query_scalar(&self.advance).fetch_one(&mut **tx).await)
    }

    async fn base(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        server: &ServerFacts,
        facts: &CursorFacts,
        cause: &Cause,
    ) -> Result<PgMark, LogError> {
        let base = &facts.base;
        if cause.keeps_transaction_ids() {
            let floor = sqlx::query_scalar(&self.unseen)
                .bind(base.floor)
                .bind(base.xmax.to_string())
                .fetch_one(&mut **tx)
                .await
                .map_err(failed())?;
            return Ok(PgMark { floor, is_rebased: true, ..base.clone() });
        }
        let mut floor: i64 = sqlx::query_scalar(&self.in_flight)
            .bind(base.floor)
            .bind(array(&base.in_flight))
            .fetch_one(&mut **tx)
            .await
            .map_err(failed())?;
        let is_own = match cause {
            Cause::CursorOfOtherServer { .. } | Cause::CursorAhead { .. } => true,
            Cause::RowAhead { .. } => facts.other_server(&server.history).is_some(),
            // It is unknown when rows were first written here.
            _ => false,
        };
        if is_own {
            floor = sqlx::query_scalar(&self.own).bind(floor).fetch_one(&mut **tx).await.map_err(failed())?;
        }
        if server.position < base.floor && matches!(cause, Cause::OtherServer { .. } | Cause::RowAhead { .. })
        {
            floor = 0;
        }
        Ok(PgMark { is_rebased: true, ..PgMark::before_all(floor) })
    }

    async fn leaves_again(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        facts: &CursorFacts,
        base: &PgMark,
        cause: &Cause,
    ) -> Result<(i64, Option<i64>), LogError> {
        let query = match (&facts.head, cause.keeps_transaction_ids()) {
            (None, true) => return Ok((0, None)),
            (Some(head), true) => sqlx::query_as(&self.settled)
                .bind(facts.after)
                .bind(&facts.base.snapshot)
                .bind(&head.snapshot)
                .bind(COUNTED_MAX),
            (_, false) => sqlx::query_as(&self.above).bind(base.floor).bind(COUNTED_MAX),
        };
        query.fetch_one(&mut **tx).await.map_err(failed())
    }

    /// Stores a cursor and ends its relay's lease.
    async fn store(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        relay: &str,
        shard: i16,
        cursor: &Cursor,
    ) -> Result<(), LogError> {
        let query = sqlx::query(&self.store).bind(relay).bind(shard).bind(stored::write(cursor)?);
        query.execute(&mut **tx).await.map(drop).map_err(failed())
    }

    /// Stores a cursor with a new base. `in_flight` are the transactions in flight at its old base.
    async fn replace(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        relay: &str,
        shard: i16,
        in_flight: &[u64],
        base: &PgMark,
        cursor: &Cursor,
    ) -> Result<(), LogError> {
        sqlx::query(&self.beside)
            .bind(relay)
            .bind(shard)
            .bind(base.floor)
            .bind(array(in_flight))
            .execute(&mut **tx)
            .await
            .map_err(failed())?;
        self.store(tx, relay, shard, cursor).await
    }
}
