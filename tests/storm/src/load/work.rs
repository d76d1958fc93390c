//! The statements of one operation, inside its transaction.

use std::path::PathBuf;
use std::time::Duration;

use checker::Enqueued;
use message::MessageId;
use outbox::{EnqueueError, NewMessage, Outbox, OutboxTransaction};
use sqlx::Transaction;
use time::OffsetDateTime;

use super::client::Topics;
use super::settle_in::SettleIn;
use super::shape::{Item, Mode, PRODUCER_BYTES_MAX, Shape, Topic};
use crate::content::{HEADER_PREFIX, content};
use crate::journal::Sent;
use harness::payload::Payload;
use harness::workload::Workload;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    /// A business statement failed.
    #[error("a statement failed: {0}")]
    Sql(#[from] sqlx::Error),
    /// A message was refused.
    #[error("a message was refused: {0}")]
    Enqueue(#[from] EnqueueError),
    /// The journal refused an entry.
    #[error("the journal cannot be written: {0}")]
    Journal(#[from] std::io::Error),
    /// The operation was rolled back on purpose.
    #[error("rolled back on purpose")]
    OnPurpose,
    /// An oversize message was accepted.
    #[error("a message above the limit was taken")]
    OversizeTaken,
}

/// A transaction of either kind.
pub(super) enum Tx<'a, DB: outbox::Dialect> {
    /// A transaction of the toolkit.
    Guarded(&'a mut OutboxTransaction<DB>),
    /// The caller's own transaction.
    Raw(&'a mut Transaction<'static, DB>, &'a Outbox<DB>),
}

impl<DB: SettleIn> Tx<'_, DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        match self {
            Self::Guarded(tx) => tx.connection(),
            Self::Raw(tx, _) => tx,
        }
    }

    async fn enqueue(&mut self, message: NewMessage) -> Result<MessageId, EnqueueError> {
        Ok(match self {
            Self::Guarded(tx) => tx.enqueue(message).await?,
            Self::Raw(tx, outbox) => outbox.enqueue(tx, message).await?,
        }
        .message_id())
    }

    async fn enqueue_batch(&mut self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>, EnqueueError> {
        let answers = match self {
            Self::Guarded(tx) => tx.enqueue_batch(messages).await?,
            Self::Raw(tx, outbox) => outbox.enqueue_batch(tx, messages).await?,
        };
        Ok(answers.into_iter().map(outbox::Enqueued::message_id).collect())
    }

    async fn stage(&mut self, message: NewMessage) -> Result<MessageId, EnqueueError> {
        match self {
            Self::Guarded(tx) => tx.stage(message),
            Self::Raw(tx, outbox) => Ok(outbox.enqueue(tx, message).await?.message_id()),
        }
    }
}

/// Returns the derived id of an item. Its time is the beginning of the storm, so a repetition gets
/// the same id, and the time is within every retention.
pub(super) fn derived_id(item: &Item, began: OffsetDateTime) -> Option<MessageId> {
    MessageId::derived(began, [item.row.as_bytes()]).ok()
}

/// The parameters of an operation in addition to its shape.
#[derive(Clone)]
pub(super) struct Given {
    /// The destinations of messages.
    pub(super) topics: Topics,
    /// The storm's folder.
    pub(super) folder: PathBuf,
    /// The time at which the storm began.
    pub(super) began: OffsetDateTime,
    /// The numbers of the stored rows if the operation is a repetition.
    pub(super) numbers: Option<Vec<u64>>,
}

/// A message as it is sent, and the checker's record of it.
struct Draft {
    message: NewMessage,
    enqueued: Enqueued,
}

/// Runs all statements up to the commit, and returns the written rows and messages.
pub(super) async fn work<DB: SettleIn>(
    mut tx: Tx<'_, DB>,
    shape: &Shape,
    given: &Given,
) -> Result<Sent, WorkError> {
    DB::settle_in(tx.connection(), shape.serializable, &given.folder).await?;
    let mut sent = Sent::default();
    let mut batch = Vec::new();
    for (place, item) in shape.items.iter().enumerate() {
        if item.undone {
            DB::savepoint(tx.connection()).await?;
        }
        let number = match &given.numbers {
            Some(numbers) => numbers[place],
            None => DB::next_number(tx.connection(), &item.account).await?,
        };
        let Draft { message, mut enqueued } = draft(item, number, given);
        DB::insert_row(tx.connection(), &item.row.to_string(), &item.account, number, 0).await?;
        match shape.mode {
            Mode::Single => {
                let again = item.derived.then(|| message.clone());
                enqueued.id = oversize_refused(item, tx.enqueue(message).await)?.as_uuid();
                if let Some(again) = again {
                    tx.enqueue(again).await?;
                }
            }
            Mode::Staged => enqueued.id = oversize_refused(item, tx.stage(message).await)?.as_uuid(),
            Mode::Batch => batch.push((message, item.derived)),
        }
        if item.undone {
            <DB as Workload>::undo(tx.connection()).await?;
            sent.undone_rows.push(item.row.to_string().into());
            sent.undone_messages.push(enqueued.id);
        } else {
            sent.rows.push(item.row.to_string().into());
            sent.messages.push(enqueued);
        }
    }
    if !batch.is_empty() {
        let copies: Vec<NewMessage> =
            batch.iter().filter(|(_, derived)| *derived).map(|(message, _)| message.clone()).collect();
        let is_oversize = shape.items.iter().any(|item| item.pad > PRODUCER_BYTES_MAX);
        let messages = batch.into_iter().map(|(message, _)| message).chain(copies).collect();
        let ids = tx.enqueue_batch(messages).await?;
        if is_oversize {
            return Err(WorkError::OversizeTaken);
        }
        for (enqueued, id) in sent.messages.iter_mut().zip(ids) {
            enqueued.id = id.as_uuid();
        }
    }
    Ok(sent)
}

fn oversize_refused(item: &Item, answer: Result<MessageId, EnqueueError>) -> Result<MessageId, WorkError> {
    let id = answer?;
    if item.pad > PRODUCER_BYTES_MAX { Err(WorkError::OversizeTaken) } else { Ok(id) }
}

fn draft(item: &Item, number: u64, given: &Given) -> Draft {
    let (key, tenant) = (item.account.as_str(), format!("tenant-{}", number % 3));
    let payload = Payload {
        row: item.row.to_string(),
        seq: number,
        late: item.delay.is_some(),
        hint: item.hint,
        cents: 0,
        pad: "x".repeat(item.pad),
    };
    let payload = serde_json::to_vec(&payload).unwrap_or_default();
    let headers = [(format!("{HEADER_PREFIX}tenant"), tenant)];
    let topic = match item.topic {
        Topic::Main => &given.topics.main,
        Topic::Nowhere => &given.topics.nowhere,
    };
    let enqueued = Enqueued {
        seq: Some(number),
        out_of_turn: item.delay.is_some(),
        content: content(
            Some(key),
            &payload,
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())),
        ),
        ..Enqueued::default()
    };
    let mut message = NewMessage::new(topic).kind("storm.row").key(key).content_type("application/json");
    message = message.payload(payload);
    for (name, value) in headers {
        message = message.header(name, value);
    }
    if let Some(delay) = item.delay {
        message = message.deliver_at(OffsetDateTime::now_utc() + Duration::from_millis(delay));
    }
    if item.derived
        && let Some(id) = derived_id(item, given.began)
    {
        message = message.id(id);
    }
    Draft { message, enqueued }
}
