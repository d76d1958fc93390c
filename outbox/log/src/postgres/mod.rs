//! The log in PostgreSQL.
//!
//! | module | contents |
//! |---|---|
//! | `store` | `PostgresLog`: opens connections with the settings that each job needs |
//! | `brief`, `encoding`, `server_kind`, `unconnected` | sessions: those that end after one query, texts of databases that do not use UTF-8, refused servers, errors of connecting |
//! | `process_name` | names of sessions, as the server shows them |
//! | `in_use` | errors of locks that another session holds |
//! | `lock_holder` | names the session whose lock keeps the relay waiting |
//! | `mark` | marks: a snapshot, a position of the sequence, and the history that both belong to |
//! | `reader` | differences with their pages, and what is parked |
//! | `page`, `row` | where a page ends, and which payloads are read with it; the columns of a row |
//! | `checkpoint_store` | lease, cursor, exceptions |
//! | `history`, `facts` | whether a cursor belongs to this history and can be trusted; what that is decided on |
//! | `rebase` | repairs cursors that do not belong to this history |
//! | `admin`, `entries` | operators' queries and decisions |
//! | `tables` | the SQL of `crate::tables`, which all databases share |
//! | `reconcile` | reads the outbox for a comparison with another system |
//! | `retention` | segments, and how they are emptied |
//! | `statements`, `fragments` | all statements of reader and checkpoint store, and parts that other statements have too |
//! | `inventory` | all statements, for the test that counts what each of them reads |
//!
//! # Why the reader misses nothing
//!
//! Rows are read in differences between two marks. A mark is taken in two statements:
//!
//! 1. read an id `floor` that the sequence has given out, and *then* take a transaction id `X` (one
//!    statement, committed);
//! 2. take a snapshot, and in the same statement read the sequence's position again: `ceiling`.
//!
//! **Every row with an id up to `floor` is visible in the snapshot, or its transaction is in the
//! snapshot's list of those in flight (or was rolled back).** The row's transaction had its xid
//! before it had the id (column order of the table), and the id was given out before the floor was
//! read, so its xid is older than `X`. `X` had ended before the snapshot was taken, so the
//! snapshot's upper bound lies above `X`: an older xid is either finished or listed. Without `X`
//! this would not hold: the upper bound is the last *finished* xid + 1, and a transaction above it
//! that already has an id would be neither visible nor listed. Nor would it hold with `SELECT
//! last_value`, which may return an id that has not been given out yet (ADR 18).
//!
//! **No row visible in the snapshot has an id above `ceiling`:** it got its id before it committed,
//! it committed before the snapshot, and the sequence is read after the snapshot.
//!
//! So the difference from mark A to mark B is exactly
//! - rows with `floor(A) < id <= ceiling(B)` that are visible in B and not in A, on the primary
//!   key, and
//! - rows with `id <= floor(A)` of transactions that were in flight at A and are not at B, by their
//!   xid.
//!
//! Both marks are values, so the set never changes; it is read in the order of ids, the second part
//! first.
//!
//! **Order per key.** If A committed before B was enqueued, A's id is smaller, and no snapshot
//! shows B without A.
//!
//! **Crashes.** After a crash PostgreSQL may give out xids again that it had not logged. So a mark
//! that lives only in memory must not outlive the server. A connection does not reveal a crash: a
//! pooler keeps its clients connected through it. So each mark names the *run* of the server in
//! which it was taken, and the run is a row of an unlogged table (`outbox_server_run`). PostgreSQL
//! empties such tables after every crash, promotion and restore of files. These are exactly the
//! cases in which it recovers from its log and may give out ids again. After a clean stop the row
//! stays, and so do the counters of xids and of the sequence; the next start of the server still
//! ends the run. Every poll, page, renewal and checkpoint checks for the row. Without it they find
//! and write nothing, and the term ends. So no entry of another history can leave before the
//! entries ahead of it in this one. A stored mark is safe: the transaction that stored it has an
//! xid above all of the mark's, and is logged.
//!
//! **Other histories.** At every grant of a lease the stored cursor is compared with the server
//! (`history`). A sequence that was set back makes both sentences above untrue, so three findings
//! end the term: a poll that sees the sequence behind the mark's floor, a mark whose snapshot shows
//! a row above its ceiling, and a row that is younger than the base although its id is not above
//! the base's floor. Two rows can also have the same id. They come in one page, so that the reader
//! sees both, and `rebase` gives the later one a new id. The later row keeps its transaction: a
//! mark that saw it still sees it, and for every other mark it lies above the floor. The rebase
//! also ends the run of the server, so that no reader continues with an old mark and ceiling.
//!
//! **Segments.** A detached segment takes its rows along, and a page without them looks complete.
//! So each statement that reads a page fails while a segment is missing, and so does each grant.
//! The check is part of the statement: between two statements the segment could be attached again.
//!
//! **Long transactions.** Their rows come in the difference after their commit; nothing waits for
//! them. A poll would walk their invisible rows above the floor again and again. So when the
//! sequence has moved on although nothing was found, the reader takes a newer mark, verifies that
//! the difference up to it is empty, and polls from there.

mod admin;
mod brief;
mod checkpoint_store;
mod encoding;
mod entries;
mod facts;
mod fragments;
mod history;
mod in_use;
/// Open to the test that counts what each statement reads.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod inventory;
mod lock_holder;
mod mark;
mod page;
mod process_name;
mod reader;
mod rebase;
mod reconcile;
mod retention;
mod row;
mod server_kind;
mod statements;
mod store;
mod tables;
mod unconnected;

pub(crate) use reconcile::PostgresRows;
pub(crate) use store::PostgresLog;
pub use unconnected::unconnected;

/// The query for the id that was given out last, as marks use it, with a placeholder for the
/// schema.
#[doc(hidden)]
pub const GIVEN_OUT: &str = fragments::GIVEN_OUT;

#[cfg(feature = "fuzzing")]
pub(crate) fn rewritten(mark: &crate::Mark) -> Result<crate::Mark, crate::LogError> {
    mark::PgMark::read(mark).map(|mark| mark.write())
}
