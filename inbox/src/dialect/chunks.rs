//! Keeps the chunks of messages.

use std::future::Future;

use bytes::Bytes;
use message::{Chunk, Message};
use time::OffsetDateTime;

use super::{ChunkSet, Guards, Overdue};
use crate::chunks::{Incomplete, Split};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Chunks of messages.
#[doc(hidden)]
pub trait Chunks: Guards {
    /// Inserts the set unless it exists, and locks it until the transaction ends. Returns the size
    /// of the whole in bytes, as its first chunk promised it.
    fn hold_set(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
        envelope: &Message,
        bytes: u64,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Stores a chunk unless it exists.
    fn keep_chunk(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
        chunk: &Chunk,
        payload: &[u8],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the number of stored chunks of a split into `count`.
    fn count_chunks(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
        count: u32,
    ) -> impl Future<Output = Result<u32>> + Send;

    /// Returns whether a chunk is stored.
    fn has_chunk(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
        chunk: &Chunk,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Returns the bytes of all chunks of a split into `count`, in their order.
    fn read_chunks(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
        count: u32,
    ) -> impl Future<Output = Result<Bytes>> + Send;

    /// Removes the set and the chunks of all its splits.
    fn remove_set(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns sets, the oldest first: all, or those that are overdue.
    fn incomplete(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        overdue: Option<Overdue<'_>>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Incomplete>>> + Send;

    /// Locks a set until the transaction ends. Returns `None` when the set is gone, another
    /// transaction holds it, or it was tried since `tried_before`.
    fn lock_set(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        set: ChunkSet<'_>,
        tried_before: OffsetDateTime,
    ) -> impl Future<Output = Result<Option<Incomplete>>> + Send;
}

/// Returns the splits of a set, from pairs of count and index in ascending order.
pub(crate) fn group_splits(numbers: impl IntoIterator<Item = (u32, u32)>) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    for (count, index) in numbers {
        match splits.last_mut() {
            Some(split) if split.count == count => split.held.push(index),
            _ => splits.push(Split { count, held: vec![index] }),
        }
    }
    splits
}
