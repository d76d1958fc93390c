//! Stores checked messages as rows and resolves duplicates.

use std::collections::{HashMap, HashSet};

use message::crash_points::reached;
use message::{Message, MessageId, Prepared, Stored, VaryingHeaders};

use crate::crash_points;
use crate::dialect::{Dialect, Inserted, Requires};
use crate::enqueue_error::EnqueueError;
use crate::failure::is_missing_table;
use crate::producer::{Enqueued, OnDuplicate, ProducerOptions};
use crate::telemetry;

/// Bounds of one statement. PostgreSQL refuses protocol messages of 1 GiB, and client and server
/// each hold the whole statement in memory.
const STATEMENT_ROWS_MAX: usize = 5_000;
const STATEMENT_BYTES_MAX: usize = 32 << 20;

/// The outcome of a batch.
#[derive(Debug)]
pub(crate) struct Batch {
    /// One answer for each message, in order.
    pub(crate) answers: Vec<Enqueued>,
    /// The id of the transaction, where the database has such ids and a row was stored.
    pub(crate) transaction: Option<String>,
}

impl Batch {
    /// Returns the ids that this transaction has added.
    pub(crate) fn stored(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.answers.iter().filter(|answer| !answer.is_duplicate()).map(|answer| answer.message_id())
    }
}

/// The outcome of one message.
#[derive(Debug)]
pub(crate) struct Single {
    pub(crate) answer: Enqueued,
    /// See [`Batch`].
    pub(crate) transaction: Option<String>,
}

/// Stores one message, the usual case. Needs no check for repeated ids.
pub(crate) async fn store_one<DB: Dialect>(
    connection: &mut DB::Connection,
    settings: &ProducerOptions<DB>,
    prepared: &Prepared,
    requires: Requires,
) -> Result<Single, EnqueueError> {
    let id = prepared.message.id;
    check_open::<DB>(connection).await?;
    settings.drift.at_delivery(prepared)?;
    if prepared.is_supplied {
        settings.drift.validate::<DB>(connection, &[id]).await?;
    }
    reached(crash_points::BEFORE_ENQUEUE);
    let run = [prepared];
    let Inserted { ids, transaction } = insert(connection, settings, &run, requires).await?;
    let answer = if !ids.is_empty() {
        Enqueued::Stored(id)
    } else if !prepared.is_supplied {
        return Err(not_unique(prepared));
    } else {
        compare(connection, settings, &run).await?;
        Enqueued::Duplicate(id)
    };
    telemetry::enqueued(usize::from(matches!(answer, Enqueued::Stored(_))));
    reached(crash_points::AFTER_ENQUEUE);
    Ok(Single { answer, transaction })
}

/// Refuses when no transaction is open: the message would commit separately.
async fn check_open<DB: Dialect>(connection: &mut DB::Connection) -> Result<(), EnqueueError> {
    if DB::is_open(connection).await? { Ok(()) } else { Err(EnqueueError::Ended) }
}

/// Stores messages in their order.
pub(crate) async fn store_all<DB: Dialect>(
    connection: &mut DB::Connection,
    settings: &ProducerOptions<DB>,
    messages: Vec<Prepared>,
    requires: Requires,
) -> Result<Batch, EnqueueError> {
    check_open::<DB>(connection).await?;
    messages.iter().try_for_each(|prepared| settings.drift.at_delivery(prepared))?;
    let unique = without_repetitions(&messages, settings.on_duplicate, &settings.varying)?;
    let supplied: Vec<MessageId> =
        unique.iter().filter(|prepared| prepared.is_supplied).map(|prepared| prepared.message.id).collect();
    settings.drift.validate::<DB>(connection, &supplied).await?;
    reached(crash_points::BEFORE_ENQUEUE);
    let mut inserted = Inserted::default();
    for run in runs(&unique) {
        let part = insert(connection, settings, run, requires).await?;
        inserted.ids.extend(part.ids);
        inserted.transaction = inserted.transaction.or(part.transaction);
    }
    telemetry::enqueued(inserted.ids.len());
    let mut new: HashSet<MessageId> = inserted.ids.into_iter().collect();
    let old: Vec<&Prepared> = unique.into_iter().filter(|p| !new.contains(&p.message.id)).collect();
    if let Some(minted) = old.iter().find(|prepared| !prepared.is_supplied) {
        return Err(not_unique(minted));
    }
    if !old.is_empty() {
        compare(connection, settings, &old).await?;
    }
    reached(crash_points::AFTER_ENQUEUE);
    // The first message with a repeated id has removed it from `new`.
    let answer = |prepared: &Prepared| {
        if new.remove(&prepared.message.id) {
            Enqueued::Stored(prepared.message.id)
        } else {
            Enqueued::Duplicate(prepared.message.id)
        }
    };
    Ok(Batch { answers: messages.iter().map(answer).collect(), transaction: inserted.transaction })
}

/// Inserts messages with different ids. Ids that are missing in the result exist already, or the
/// transaction is over.
async fn insert<DB: Dialect>(
    connection: &mut DB::Connection,
    settings: &ProducerOptions<DB>,
    run: &[&Prepared],
    requires: Requires,
) -> Result<Inserted, EnqueueError> {
    let inserted = DB::insert_messages(connection, &settings.statements, run, requires).await;
    let inserted = inserted.map_err(|error| refused(error, run))?;
    let is_short = inserted.ids.len() < run.len();
    if is_short && requires == Requires::Mark && !DB::is_marked(connection).await? {
        return Err(EnqueueError::Ended);
    }
    Ok(inserted)
}

/// Translates an error of the insert. Only a generated id can violate a key: the insert skips
/// supplied ids that exist.
fn refused(error: sqlx::Error, run: &[&Prepared]) -> EnqueueError {
    let is_violation = error.as_database_error().is_some_and(|answer| answer.is_unique_violation());
    match run.first() {
        Some(prepared) if is_violation => not_unique(prepared),
        _ if is_missing_table(&error) => EnqueueError::NoTables(Box::new(error)),
        _ => error.into(),
    }
}

fn not_unique(prepared: &Prepared) -> EnqueueError {
    EnqueueError::NotUnique { topic: prepared.message.topic.clone() }
}

/// Returns the messages without repeated ids. A repeated id must be of the same message.
fn without_repetitions<'m>(
    messages: &'m [Prepared],
    on_duplicate: OnDuplicate,
    varying: &VaryingHeaders,
) -> Result<Vec<&'m Prepared>, EnqueueError> {
    let mut first: HashMap<MessageId, &Prepared> = HashMap::new();
    let mut unique = Vec::with_capacity(messages.len());
    for prepared in messages {
        let message = &prepared.message;
        match first.insert(message.id, prepared) {
            None => unique.push(prepared),
            Some(other) if !(prepared.is_supplied && other.is_supplied) => return Err(not_unique(prepared)),
            Some(other) => {
                Stored::of(&other.message).check(message, varying)?;
                refuse_duplicate(prepared, on_duplicate)?;
            }
        }
    }
    Ok(unique)
}

/// Compares messages whose ids already exist with the stored ones.
async fn compare<DB: Dialect>(
    connection: &mut DB::Connection,
    settings: &ProducerOptions<DB>,
    old: &[&Prepared],
) -> Result<(), EnqueueError> {
    let ids: Vec<MessageId> = old.iter().map(|prepared| prepared.message.id).collect();
    let stored = DB::stored(connection, &settings.statements, &ids).await?;
    let stored: HashMap<MessageId, _> = stored.into_iter().map(|stored| (stored.id, stored)).collect();
    for prepared in old {
        let id = prepared.message.id;
        let stored = stored.get(&id).ok_or(EnqueueError::Concurrent { id })?;
        stored.check(&prepared.message, &settings.varying)?;
        refuse_duplicate(prepared, settings.on_duplicate)?;
    }
    Ok(())
}

fn refuse_duplicate(prepared: &Prepared, on_duplicate: OnDuplicate) -> Result<(), EnqueueError> {
    let Message { id, topic, .. } = &prepared.message;
    match on_duplicate {
        OnDuplicate::Error => Err(EnqueueError::DuplicateId { id: *id, topic: topic.clone() }),
        OnDuplicate::Ignore => Ok(()),
    }
}

/// Splits a batch to bound the size of each statement.
fn runs<'a, 'm>(messages: &'a [&'m Prepared]) -> impl Iterator<Item = &'a [&'m Prepared]> {
    let mut rest = messages;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = rest.iter().take(STATEMENT_ROWS_MAX).take_while(|prepared| {
            bytes += prepared.message.payload.len();
            bytes <= STATEMENT_BYTES_MAX
        });
        let count = fitting.count().max(1).min(rest.len());
        let (run, left) = rest.split_at(count);
        rest = left;
        (!run.is_empty()).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Difference, InvalidMessage, NewMessage};

    fn prepared(id: MessageId, payload: &'static str) -> Prepared {
        NewMessage::new("orders")
            .id(id)
            .payload(payload)
            .prepare::<InvalidMessage>(|| unreachable!(), || None)
            .unwrap()
    }

    #[test]
    fn a_repetition_is_a_duplicate_and_another_content_an_error() {
        let id = MessageId::new();
        let none = VaryingHeaders::default();
        let same = [prepared(id, "a"), prepared(id, "a")];
        assert_eq!(without_repetitions(&same, OnDuplicate::Ignore, &none).unwrap().len(), 1);
        let error = without_repetitions(&same, OnDuplicate::Error, &none).unwrap_err();
        assert!(matches!(error, EnqueueError::DuplicateId { .. }));
        let other = [prepared(id, "a"), prepared(id, "b")];
        let error = without_repetitions(&other, OnDuplicate::Ignore, &none).unwrap_err();
        assert!(matches!(&error, EnqueueError::IdReused(reused) if reused.differs == [Difference::Content]));
        let text = error.to_string();
        assert!(text.contains("with another kind, content type or payload;"), "{text}");
    }

    #[test]
    fn runs_cover_everything_once() {
        let messages: Vec<_> = (0..12_001).map(|_| prepared(MessageId::new(), "a")).collect();
        let all: Vec<&Prepared> = messages.iter().collect();
        let lengths: Vec<usize> = runs(&all).map(<[_]>::len).collect();
        assert_eq!(lengths, [5_000, 5_000, 2_001]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
