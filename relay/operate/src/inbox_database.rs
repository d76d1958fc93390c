//! An inbox in either database.

use std::num::NonZeroU32;
use std::time::Duration;

use inbox::{
    Activity, ConsumerName, DeadLetter, DeadLetterId, DeadLetterQuery, Decision, Dialect as Store,
    FoundLetter, Inbox, InboxOptions, KeyedLetter, Known, LetterDecision, LetterFilter, LetterGroup,
    LetterSlice, LetterSurvey, LettersOfKey, ManyDecided, RedriveError, RedriveOptions, Redriven, Requested,
    SeenLetter, StoreError, Tenant,
};
use migrations::Identifier;
use sqlx::{Pool, Sqlite};
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::OperateError;
use super::tables::{Opened, Postgres, Tables, close, on};

/// Timeout for each call, the same as for an outbox: a host that has disappeared does not answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// An open inbox with one connection.
pub(crate) type InboxDatabase = Opened<Inbox<Postgres>, Inbox<Sqlite>>;

async fn open<DB: Store + outbox::Dialect>(
    pool: Pool<DB>,
    schema: Option<Identifier>,
) -> Result<Inbox<DB>, OperateError> {
    let options = InboxOptions::default().schema(schema).call_timeout(CALL_TIMEOUT);
    Ok(Inbox::open_for_operators(pool, options).await?)
}

impl InboxDatabase {
    /// Connects to an inbox and checks its schema.
    pub(crate) async fn open(tables: &Tables) -> Result<Self, OperateError> {
        tables.open("relay operate", open, open).await
    }

    pub(crate) async fn dead_letters(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetter>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.dead_letters(query).await))
    }

    /// Returns the dead letters of a message without their payloads, the open ones first.
    pub(crate) async fn letters_of(
        &self,
        message_id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<DeadLetter>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.dead_letters_of(message_id, consumer).await))
    }

    /// Returns a dead letter with its payload.
    pub(crate) async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.dead_letter_by_id(id).await))
    }

    /// Returns a dead letter without its payload, which may be large: finds the first one from its
    /// id on.
    pub(crate) async fn letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, OperateError> {
        let query = DeadLetterQuery {
            consumer: None,
            resolved_too: true,
            after: id.0.as_u128().checked_sub(1).map(|before| DeadLetterId(Uuid::from_u128(before))),
            limit: NonZeroU32::MIN,
            with_payloads: false,
        };
        Ok(self.dead_letters(&query).await?.into_iter().find(|letter| letter.id == id))
    }

    pub(crate) async fn activity(&self, period: Duration) -> Result<Vec<Activity>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.activity(period).await))
    }

    pub(crate) async fn known(&self, id: Uuid) -> Result<Vec<Known>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.known(id).await))
    }

    /// Returns those of these messages that the consumer, or any, has applied or has among its dead
    /// letters.
    pub(crate) async fn settled(
        &self,
        ids: &[Uuid],
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<Uuid>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.settled(ids, consumer).await))
    }

    /// Returns whether a consumer has opened it. Before that it is empty and has forgotten nothing.
    pub(crate) fn has_memory(&self) -> bool {
        on!(&self.on, inbox => inbox.has_memory())
    }

    /// Returns the time before which messages are not remembered: now, if no consumer has opened
    /// the inbox yet.
    pub(crate) fn remembers_from(&self) -> OffsetDateTime {
        let window = on!(&self.on, inbox => inbox.window());
        if self.has_memory() { window.retained_from } else { window.now }
    }

    pub(crate) async fn decisions_before(
        &self,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.decisions_before(before, limit).await))
    }

    /// Returns the latest decisions about each of these dead letters, at most `limit` for each.
    pub(crate) async fn decisions_of(
        &self,
        letters: &[DeadLetterId],
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.decisions_of(letters, limit).await))
    }

    /// Returns the dead letters among these that belong to a topic.
    pub(crate) async fn letters_of_topic(
        &self,
        letters: &[DeadLetterId],
        topic: &str,
    ) -> Result<Vec<DeadLetterId>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.letters_of_topic(letters, topic).await))
    }

    /// Returns the next open dead letters that match a filter, without their payloads.
    pub(crate) async fn open_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
        limit: u32,
    ) -> Result<LetterSlice<DeadLetter>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.open_letters(filter, after, limit).await))
    }

    /// Returns the next open dead letters that match a filter, for a decision.
    pub(crate) async fn choose_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<FoundLetter>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.choose_letters(filter, after).await))
    }

    /// Returns the database's time.
    pub(crate) async fn now(&self) -> Result<OffsetDateTime, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.now().await))
    }

    pub(crate) async fn survey(&self, filter: &LetterFilter) -> Result<LetterSurvey, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.survey(filter).await))
    }

    /// Groups the errors of a consumer's oldest and newest open dead letters.
    pub(crate) async fn letter_errors(
        &self,
        consumer: &ConsumerName,
    ) -> Result<Vec<LetterGroup>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.letter_errors(consumer).await))
    }

    /// Requests redrives in one transaction.
    pub(crate) async fn request_redrives(
        &self,
        letters: &[SeenLetter],
        options: RedriveOptions,
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Requested, RedriveError>>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.request_redrives(letters, options, decided).await))
    }

    /// Discards dead letters in one transaction, if none of them prevents it.
    pub(crate) async fn discard_all(
        &self,
        letters: &[SeenLetter],
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Redriven, RedriveError>>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.discard_all(letters, decided).await))
    }

    /// Returns the next dead letters of a key, open and closed.
    pub(crate) async fn letters_of_key(
        &self,
        of: &LettersOfKey,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<KeyedLetter>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.letters_of_key(of, after).await))
    }

    /// Counts the results of messages.
    pub(crate) async fn results_of(
        &self,
        ids: &[Uuid],
        tenant: Option<&Tenant>,
    ) -> Result<u64, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.results_of(ids, tenant).await))
    }

    /// Removes the results of messages.
    pub(crate) async fn erase_results(
        &self,
        ids: &[Uuid],
        tenant: Option<&Tenant>,
    ) -> Result<u64, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.erase_results(ids, tenant).await).map_err(refused))
    }

    /// Removes what closed dead letters hold.
    pub(crate) async fn erase_letters(&self, letters: &[DeadLetterId]) -> Result<u64, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.erase_letters(letters).await).map_err(refused))
    }

    /// Returns the result of a decision about many dead letters.
    pub(crate) async fn decision(
        &self,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>, OperateError> {
        self.answer(on!(&self.on, inbox => inbox.decision(id, consumer).await))
    }

    pub(crate) async fn close(&self) {
        on!(&self.on, inbox => close(inbox.pool()).await);
    }
}

/// Distinguishes a missing right.
fn refused(error: StoreError) -> OperateError {
    OperateError::of_statement(error.fault(), &error)
}
