//! The chunks of messages.

use bytes::{Bytes, BytesMut};
use message::{Chunk, Message, OrderingKey};
use migrations::Statement;
use migrations::query::{Query, Row};
use time::OffsetDateTime;

use super::{Tables, of_key, stored};
use crate::chunks::{Counted, Incomplete, Split};
use crate::dialect::{ChunkSet, Dialect, Overdue};
use crate::ids::Key;
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

fn of_set<DB: Dialect>(statement: &Statement, set: ChunkSet<'_>) -> Query<DB> {
    of_key(statement, set.key).bind(&set.fingerprint.as_bytes()[..])
}

impl<DB: Dialect> Tables<DB> {
    /// Inserts the set unless it exists, and locks it until the transaction ends. Returns the size
    /// of the whole in bytes, as its first chunk promised it.
    pub(crate) async fn hold_set(
        &self,
        connection: &mut DB::Connection,
        set: ChunkSet<'_>,
        envelope: &Message,
        bytes: u64,
    ) -> Result<u64> {
        let held = of_set::<DB>(&self.shared.hold_set, set)
            .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
            .bind(envelope.topic.as_str())
            .bind(envelope.key.as_ref().map(OrderingKey::as_str))
            .bind(envelope.kind.as_str())
            .bind(envelope.source.as_str())
            .bind(envelope.time)
            .bind(envelope.content_type.as_str())
            .one(connection)
            .await?;
        held.get("bytes")
    }

    /// Stores a chunk unless it exists.
    pub(crate) async fn keep_chunk(
        &self,
        connection: &mut DB::Connection,
        set: ChunkSet<'_>,
        chunk: &Chunk,
        payload: &[u8],
    ) -> Result<()> {
        let keep = of_set::<DB>(&self.shared.keep_chunk, set);
        let keep = keep.bind(stored(chunk.count())).bind(stored(chunk.index())).bind(payload);
        keep.run(connection).await.map(drop)
    }

    /// Counts the stored chunks of a split into `count`, and the splits of the set.
    pub(crate) async fn count_chunks(
        &self,
        connection: &mut DB::Connection,
        set: ChunkSet<'_>,
        count: u32,
    ) -> Result<Counted> {
        let counted =
            of_set::<DB>(&self.shared.count_chunks, set).bind(stored(count)).one(connection).await?;
        Ok(Counted { held: counted.get("held")?, splits: counted.get("splits")? })
    }

    /// Returns whether a chunk is stored.
    pub(crate) async fn has_chunk(
        &self,
        connection: &mut DB::Connection,
        set: ChunkSet<'_>,
        chunk: &Chunk,
    ) -> Result<bool> {
        let look = of_set::<DB>(&self.shared.has_chunk, set);
        let look = look.bind(stored(chunk.count())).bind(stored(chunk.index()));
        look.one(connection).await?.get("is_kept")
    }

    /// Returns the bytes of all chunks of a split into `count`, in their order.
    pub(crate) async fn read_chunks(
        &self,
        connection: &mut DB::Connection,
        set: ChunkSet<'_>,
        count: u32,
    ) -> Result<Bytes> {
        let mut payload = BytesMut::new();
        let append = |row: Row<DB>| {
            payload.extend_from_slice(&row.get::<Vec<u8>>("payload")?);
            Ok(())
        };
        of_set::<DB>(&self.shared.read_chunks, set).bind(stored(count)).each(connection, append).await?;
        Ok(payload.freeze())
    }

    /// Removes the set and the chunks of all its splits.
    pub(crate) async fn remove_set(&self, connection: &mut DB::Connection, set: ChunkSet<'_>) -> Result<()> {
        of_set::<DB>(&self.shared.remove_chunks, set).run(&mut *connection).await?;
        of_set::<DB>(&self.shared.remove_set, set).run(connection).await.map(drop)
    }

    /// Returns sets, the oldest first.
    pub(crate) async fn incomplete(
        &self,
        connection: &mut DB::Connection,
        limit: u32,
    ) -> Result<Vec<Incomplete>> {
        let found = self.sets(connection, None, limit).await?;
        let mut incomplete = Vec::with_capacity(found.len());
        for set in found {
            incomplete.push(self.with_splits(connection, set).await?);
        }
        Ok(incomplete)
    }

    /// Returns sets that are overdue, the oldest first, without their splits: the numbers of the
    /// chunks of many sets would need much memory.
    pub(crate) async fn overdue(
        &self,
        connection: &mut DB::Connection,
        overdue: Overdue<'_>,
        limit: u32,
    ) -> Result<Vec<Incomplete>> {
        self.sets(connection, Some(overdue), limit).await
    }

    async fn sets(
        &self,
        connection: &mut DB::Connection,
        overdue: Option<Overdue<'_>>,
        limit: u32,
    ) -> Result<Vec<Incomplete>> {
        let found = Query::<DB>::new(&self.shared.incomplete)
            .bind(overdue.map(|overdue| overdue.before))
            .bind(limit)
            .bind(overdue.and_then(|overdue| overdue.consumer))
            .bind(overdue.map(|overdue| overdue.others_before))
            .rows(connection)
            .await?;
        found.iter().map(rows::incomplete).collect()
    }

    /// Locks a set until the transaction ends. Returns `None` if the set no longer exists, another
    /// transaction holds it, or it was tried since `tried_before`.
    pub(crate) async fn lock_set(
        &self,
        connection: &mut DB::Connection,
        set: ChunkSet<'_>,
        tried_before: OffsetDateTime,
    ) -> Result<Option<Incomplete>> {
        let locked =
            of_set::<DB>(&self.shared.lock_set, set).bind(tried_before).first(&mut *connection).await?;
        match locked {
            Some(row) => self.with_splits(connection, rows::incomplete(&row)?).await.map(Some),
            None => Ok(None),
        }
    }

    /// Adds to a set the numbers of its chunks.
    async fn with_splits(
        &self,
        connection: &mut DB::Connection,
        incomplete: Incomplete,
    ) -> Result<Incomplete> {
        let Incomplete { consumer, tenant, id, fingerprint, .. } = &incomplete;
        let set = ChunkSet { key: Key { consumer, tenant, id: id.as_uuid() }, fingerprint: *fingerprint };
        let mut splits: Vec<Split> = Vec::new();
        for row in of_set::<DB>(&self.shared.chunk_numbers, set).rows(connection).await? {
            // In the order of splits, and within one of numbers.
            let count = row.get("chunks")?;
            let index = row.get("number")?;
            match splits.last_mut() {
                Some(split) if split.count == count => split.held.push(index),
                _ => splits.push(Split { count, held: vec![index] }),
            }
        }
        Ok(Incomplete { splits, ..incomplete })
    }
}
