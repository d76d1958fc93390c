//! Messages in chunks. Chunks are kept until all have arrived; then the whole message is handled
//! once.
//!
//! A chunk is stored in the transaction whose commit permits its acknowledgement. The transaction
//! that stores the last missing chunk reads all of them, checks the fingerprint that each promised
//! and removes them. Then it handles the whole message like any other one: inbox row, effect
//! and removal commit together. The row of the set is locked first. So when two transactions bring
//! the last two chunks, the second one waits for the first and then sees its chunk.

use message::{Chunk, Fingerprint, Message, MessageId};
use sqlx::Transaction;
use time::OffsetDateTime;

use crate::dialect::{ChunkSet, Dialect};
use crate::error::AdmitError;
use crate::guard::{Duplicate, compare, key};
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::tables::Counted;
use crate::telemetry;

/// The outcome of gathering a message that may be a chunk.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an assembled message must be admitted"]
pub enum Gathered {
    /// It is whole, or was the last missing chunk: admit this message, in the same transaction.
    Whole(Message),
    /// It is kept until the others arrive. Commit, and settle its delivery.
    Kept {
        /// Number of chunks stored so far.
        held: u32,
        /// Number of chunks of the message.
        count: u32,
    },
    /// The message took effect before. Commit, and settle its delivery.
    Duplicate(Duplicate),
}

/// A message with missing chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    /// The consumer that waits for it.
    pub consumer: String,
    /// The tenant.
    pub tenant: String,
    /// The message.
    pub id: MessageId,
    /// The fingerprint of the whole, as its chunks promise it.
    pub fingerprint: Fingerprint,
    /// The topic or queue of its first chunk.
    pub topic: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The event type.
    pub kind: String,
    /// The CloudEvents source.
    pub source: String,
    /// The CloudEvents time.
    pub time: OffsetDateTime,
    /// The media type.
    pub content_type: String,
    /// Size of the whole payload, in bytes.
    pub bytes: u64,
    /// When its first chunk arrived, by the database's clock.
    pub begun_at: OffsetDateTime,
    /// The chunks that have arrived, for each way in which the message was split.
    pub splits: Vec<Split>,
}

/// The chunks of one way of splitting a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Number of chunks of this split.
    pub count: u32,
    /// Indices of the stored chunks, ascending.
    pub held: Vec<u32>,
}

impl Split {
    /// Returns the indices of the missing chunks.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count).filter(|index| self.held.binary_search(index).is_err())
    }
}

impl Incomplete {
    /// Returns the split that is closest to complete.
    pub(crate) fn nearest(&self) -> Option<&Split> {
        // Compares the shares as cross products: 2 of 3 is more than 3 of 5.
        self.splits.iter().max_by(|one, other| {
            let share = |held: &Split, of: &Split| held.held.len() as u64 * u64::from(of.count);
            share(one, other).cmp(&share(other, one))
        })
    }

    /// Describes which chunks are missing: `2 of 5 chunks, missing 1, 3–4`. Counts chunks from 1,
    /// for people.
    pub(crate) fn state(&self) -> String {
        let Some(split) = self.nearest() else { return String::from("no chunk") };
        let runs = runs(split.missing());
        let shown = runs.iter().take(RUNS_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if runs.len() > RUNS_SHOWN { ", …" } else { "" };
        format!("{} of {} chunks, missing {shown}{more}", split.held.len(), split.count)
    }
}

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

/// Maximum number of runs of missing chunks in one text.
const RUNS_SHOWN: usize = 16;

/// Returns runs of ascending indices, counted from 1: `1`, `3–5`.
fn runs(indices: impl Iterator<Item = u32>) -> Vec<String> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in indices.map(|index| index + 1) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}–{last}") };
    runs.into_iter().map(text).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn incomplete(splits: &[(u32, &[u32])]) -> Incomplete {
        let id = MessageId::new();
        let splits =
            splits.iter().map(|(count, held)| Split { count: *count, held: held.to_vec() }).collect();
        Incomplete {
            consumer: String::from("billing"),
            tenant: String::new(),
            id,
            fingerprint: Fingerprint::from([0; 32]),
            topic: String::from("orders"),
            key: None,
            kind: String::from("order.placed"),
            source: String::from("/orders"),
            time: id.generated_at(),
            content_type: String::from("application/json"),
            bytes: 9,
            begun_at: id.generated_at(),
            splits,
        }
    }

    #[test]
    fn what_is_missing_is_told_in_runs() {
        for (splits, told) in [
            (&[(5, &[1][..])][..], "1 of 5 chunks, missing 1, 3–5"),
            (&[(3, &[0, 1][..]), (5, &[0, 1, 2][..])][..], "2 of 3 chunks, missing 3"),
            (&[(3, &[0][..]), (2, &[1][..])][..], "1 of 2 chunks, missing 1"),
        ] {
            assert_eq!(incomplete(splits).state(), told);
        }
        let every_second: Vec<u32> = (0..4_000).step_by(2).collect();
        assert!(incomplete(&[(4_000, &every_second)]).state().len() < 200);
    }
}
