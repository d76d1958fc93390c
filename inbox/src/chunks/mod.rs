//! Messages in chunks. Chunks are kept until all have arrived; then the whole message is handled
//! once.
//!
//! A chunk is stored in the transaction whose commit permits its acknowledgement. The transaction
//! that stores the last missing chunk reads all of them, checks the fingerprint that each promised
//! and removes them. Then it handles the whole message like any other one: inbox row, effect
//! and removal commit together. The row of the set is locked first. So when two transactions bring
//! the last two chunks, the second one waits for the first and then sees its chunk.

mod expire;
mod record;

use message::{Chunk, Message, MessageId};
use sqlx::Transaction;

use crate::comparison::compare;
use crate::dialect::{ChunkSet, Dialect};
use crate::error::AdmitError;
use crate::ids::{ConsumerName, Tenant, key};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::telemetry;
pub(crate) use record::Counted;
pub use record::{Gathered, Incomplete, Split};

/// Maximum number of ways in which the chunks of one message may be split. A relay splits it in
/// another way only after its size limit was changed. A broken producer could split it in thousands
/// of ways, each with thousands of chunks.
const SPLITS_MAX: u32 = 16;

fn too_many_splits(id: MessageId) -> Refusal {
    let problem = format!(
        "chunks of the message arrived in more than {SPLITS_MAX} different sizes, the maximum that an inbox \
         keeps: stop changing the size limit of its relay, and publish the message again"
    );
    Refusal::Chunk { id, problem }
}

impl<DB: Dialect> Inbox<DB> {
    /// Gathers the chunks of a message in the caller's own transaction. Call it with every message
    /// before [`admit`](Self::admit), and admit only a [`Gathered::Whole`]. A message that is not a
    /// chunk is returned unchanged. The commit of a chunk waits for the disk, as with
    /// [`admit`](Self::admit), and on SQLite the same transactions are refused.
    ///
    /// The transaction must see what others have committed (READ COMMITTED, PostgreSQL's default).
    /// On SQLite, begin it with `BEGIN IMMEDIATE`.
    ///
    /// # Errors
    /// [`AdmitError`]; roll the transaction back. [`AdmitError::Damaged`]: all chunks have arrived
    /// but do not form the promised message; [`dead_letter_whole`](Self::dead_letter_whole) stores
    /// it as a dead letter and forgets the chunks. Not cancel-safe: when the future was dropped,
    /// roll back as well.
    pub async fn gather(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Gathered, AdmitError> {
        let gathered = self.gather_uncounted(tx, consumer, tenant, message).await;
        if let Err(AdmitError::Refused(refusal)) = &gathered {
            telemetry::refused(consumer, refusal);
        }
        gathered
    }

    async fn gather_uncounted(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Gathered, AdmitError> {
        let Some(chunk) = message.chunk.as_deref() else { return Ok(Gathered::Whole(message.clone())) };
        self.check_it_waits(tx).await?;
        self.validate(tx, message.id, false).await?;
        self.validate_chunk(chunk, message)?;
        let failed = StoreError::during;
        let set = ChunkSet { key: key(consumer, tenant, message.id), fingerprint: chunk.fingerprint() };
        let tables = self.tables();
        let promised_bytes =
            tables.hold_set(tx, set, message, chunk.bytes()).await.map_err(failed("lock a set of chunks"))?;
        // After the lock: a transaction that completed the message before has committed by now.
        let stored = tables.find(tx, set.key).await.map_err(failed("find an inbox row"))?;
        if let Some(stored) = stored {
            tables.remove_set(tx, set).await.map_err(failed("remove late chunks"))?;
            return Ok(Gathered::Duplicate(compare(stored, consumer, message, self.options().sources)?));
        }
        if promised_bytes != chunk.bytes() {
            let problem = format!(
                "it gives {} bytes as the size of the whole message, but an earlier chunk gave \
                 {promised_bytes}",
                chunk.bytes()
            );
            return Err(Refusal::Chunk { id: message.id, problem }.into());
        }
        tables.keep_chunk(tx, set, chunk, &message.payload).await.map_err(failed("keep a chunk"))?;
        let count = chunk.count();
        let Counted { held, splits } =
            tables.count_chunks(tx, set, count).await.map_err(failed("count chunks"))?;
        if splits > SPLITS_MAX {
            return Err(too_many_splits(message.id).into());
        }
        if held < count {
            return Ok(Gathered::Kept { held, count });
        }
        let payload = tables.read_chunks(tx, set, count).await.map_err(failed("read chunks"))?;
        tables.remove_set(tx, set).await.map_err(failed("remove chunks"))?;
        match chunk.assemble(message, payload.clone()) {
            Ok(whole) => Ok(Gathered::Whole(whole)),
            Err(found) => {
                let whole = Box::new(Message { payload, ..message.clone() });
                Err(AdmitError::Damaged { whole, promised: chunk.fingerprint(), found })
            }
        }
    }

    /// Returns whether a chunk is stored.
    pub(crate) async fn keeps(
        &self,
        connection: &mut DB::Connection,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
        chunk: &Chunk,
    ) -> Result<bool, StoreError> {
        let set = ChunkSet { key: key(consumer, tenant, id), fingerprint: chunk.fingerprint() };
        self.tables().has_chunk(connection, set, chunk).await.map_err(StoreError::during("find a chunk"))
    }

    /// Refuses a chunk that is invalid or belongs to a message too large for this inbox.
    fn validate_chunk(&self, chunk: &Chunk, message: &Message) -> Result<(), Refusal> {
        let refused = |problem| Refusal::Chunk { id: message.id, problem };
        chunk.check(message.payload.len()).map_err(|error| refused(error.to_string()))?;
        let bytes_max = self.options().chunked_bytes_max;
        if chunk.bytes() > bytes_max as u64 {
            let bytes = chunk.bytes();
            return Err(refused(format!(
                "the whole message has {bytes} bytes, but this inbox assembles at most {bytes_max}: raise \
                 chunked_bytes_max, then publish the message again"
            )));
        }
        Ok(())
    }

    /// Returns messages with missing chunks, the oldest first, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn incomplete(&self, limit: std::num::NonZeroU32) -> Result<Vec<Incomplete>, StoreError> {
        let what = "list incomplete messages";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().incomplete(&mut connection, limit.get()).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }
}
