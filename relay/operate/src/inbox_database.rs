//! An inbox in either database.

use std::num::NonZeroU32;
use std::time::Duration;

use inbox::{
    Activity, ConsumerName, DeadLetter, DeadLetterId, DeadLetterQuery, Decision, Dialect as Store,
    FoundLetter, Inbox, InboxOptions, Known, LetterDecision, LetterFilter, LetterSlice, LetterSurvey,
    ManyDecided, RedriveError, RedriveOptions, Redriven, Requested, SeenLetter,
};
use migrations::Identifier;
#[cfg(feature = "postgres")]
use outbox::connect::answering;
#[cfg(feature = "postgres")]
use outbox_log::in_time;
#[cfg(feature = "postgres")]
use outbox_log::postgres::unconnected;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::{ConnectOptions as _, Postgres};
use sqlx::{Connection, Sqlite};
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::OperateError;
#[cfg(feature = "postgres")]
use super::tables::{CLOSE_MAX, CONNECT_TIMEOUT};
use super::tables::{ConnectOptions, Tables, close, open_with};

/// Timeout for each call, the same as for an outbox: a host that has disappeared does not answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// An open inbox with one connection.
pub(crate) struct InboxDatabase {
    opened: Opened,
    /// Its location, without secrets.
    location: String,
}

enum Opened {
    #[cfg(feature = "postgres")]
    Postgres(Inbox<Postgres>),
    Sqlite(Inbox<Sqlite>),
}

impl InboxDatabase {
    /// Connects to an inbox and checks its schema. Its location is for errors.
    pub(crate) async fn open(tables: &Tables, location: &str) -> Result<Self, OperateError> {
        let opened = Opened::at(tables).await;
        let opened = opened.map_err(|error| error.of_place(location))?;
        Ok(Self { opened, location: location.to_owned() })
    }

    /// Returns the answer of a call, or the error with the location.
    fn answer<T, E>(&self, answer: Result<T, E>) -> Result<T, OperateError>
    where
        OperateError: From<E>,
    {
        answer.map_err(|error| OperateError::from(error).of_place(&self.location))
    }
}

impl Opened {
    async fn at(tables: &Tables) -> Result<Self, OperateError> {
        let schema = tables.options.schema.clone();
        Ok(match tables.connect_options("relay operate")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => {
                Self::Postgres(opened(answered(&options).await?, schema).await?)
            }
            ConnectOptions::Sqlite(options) => Self::Sqlite(opened(options, schema).await?),
        })
    }
}

/// Connects once: a pool would retry while a server is unreachable. Returns the options with the
/// address that answered: another address of the same name may be silent.
#[cfg(feature = "postgres")]
async fn answered(options: &PgConnectOptions) -> Result<PgConnectOptions, OperateError> {
    let mut place = options.clone();
    let connecting = async {
        place = answering(options).await;
        place.connect().await
    };
    let connected = in_time(CONNECT_TIMEOUT, connecting).await?;
    let connection = connected.map_err(|error| unconnected(options, error))?;
    // A failure to close has no consequence.
    let _ = in_time(CLOSE_MAX, connection.close()).await;
    Ok(place)
}

async fn opened<DB: Store + outbox::Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<Inbox<DB>, OperateError> {
    let of_inbox = InboxOptions::default().schema(schema).call_timeout(CALL_TIMEOUT);
    Ok(open_with(options, async |pool| Inbox::open_for_operators(pool, of_inbox).await).await?)
}

/// Makes the same call on either database.
macro_rules! on {
    ($opened:expr, $inbox:ident => $call:expr) => {
        match &$opened.opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres($inbox) => $call.await,
            Opened::Sqlite($inbox) => $call.await,
        }
    };
}

impl InboxDatabase {
    pub(crate) async fn dead_letters(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetter>, OperateError> {
        self.answer(on!(self, inbox => inbox.dead_letters(query)))
    }

    /// Returns the dead letters of a message without their payloads, the open ones first.
    pub(crate) async fn letters_of(
        &self,
        message_id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<DeadLetter>, OperateError> {
        self.answer(on!(self, inbox => inbox.dead_letters_of(message_id, consumer)))
    }

    /// Returns a dead letter with its payload.
    pub(crate) async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, OperateError> {
        self.answer(on!(self, inbox => inbox.dead_letter_by_id(id)))
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
        self.answer(on!(self, inbox => inbox.activity(period)))
    }

    pub(crate) async fn known(&self, id: Uuid) -> Result<Vec<Known>, OperateError> {
        self.answer(on!(self, inbox => inbox.known(id)))
    }

    /// Returns whether a consumer has opened it. Before that it is empty and has forgotten nothing.
    pub(crate) fn has_memory(&self) -> bool {
        match &self.opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres(inbox) => inbox.has_memory(),
            Opened::Sqlite(inbox) => inbox.has_memory(),
        }
    }

    /// Returns the time before which messages are not remembered: now, if no consumer has opened
    /// the inbox yet.
    pub(crate) fn remembers_from(&self) -> OffsetDateTime {
        let window = match &self.opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres(inbox) => inbox.window(),
            Opened::Sqlite(inbox) => inbox.window(),
        };
        if self.has_memory() { window.retained_from } else { window.now }
    }

    pub(crate) async fn decisions_before(
        &self,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        self.answer(on!(self, inbox => inbox.decisions_before(before, limit)))
    }

    /// Returns the latest decisions about each of these dead letters, at most `limit` for each.
    pub(crate) async fn decisions_of(
        &self,
        letters: &[DeadLetterId],
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, OperateError> {
        self.answer(on!(self, inbox => inbox.decisions_of(letters, limit)))
    }

    /// Returns the dead letters among these that belong to a topic.
    pub(crate) async fn letters_of_topic(
        &self,
        letters: &[DeadLetterId],
        topic: &str,
    ) -> Result<Vec<DeadLetterId>, OperateError> {
        self.answer(on!(self, inbox => inbox.letters_of_topic(letters, topic)))
    }

    /// Returns the next open dead letters that match a filter, without their payloads.
    pub(crate) async fn open_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
        limit: u32,
    ) -> Result<LetterSlice<DeadLetter>, OperateError> {
        self.answer(on!(self, inbox => inbox.open_letters(filter, after, limit)))
    }

    /// Returns the next open dead letters that match a filter, for a decision.
    pub(crate) async fn choose_letters(
        &self,
        filter: &LetterFilter,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<FoundLetter>, OperateError> {
        self.answer(on!(self, inbox => inbox.choose_letters(filter, after)))
    }

    /// Returns the database's time.
    pub(crate) async fn now(&self) -> Result<OffsetDateTime, OperateError> {
        self.answer(on!(self, inbox => inbox.now()))
    }

    pub(crate) async fn survey(&self, filter: &LetterFilter) -> Result<LetterSurvey, OperateError> {
        self.answer(on!(self, inbox => inbox.survey(filter)))
    }

    /// Requests redrives in one transaction.
    pub(crate) async fn request_redrives(
        &self,
        letters: &[SeenLetter],
        options: RedriveOptions,
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Requested, RedriveError>>, OperateError> {
        self.answer(on!(self, inbox => inbox.request_redrives(letters, options, decided)))
    }

    /// Discards dead letters in one transaction, if none of them prevents it.
    pub(crate) async fn discard_all(
        &self,
        letters: &[SeenLetter],
        decided: &ManyDecided,
    ) -> Result<Vec<Result<Redriven, RedriveError>>, OperateError> {
        self.answer(on!(self, inbox => inbox.discard_all(letters, decided)))
    }

    /// Returns the result of a decision about many dead letters.
    pub(crate) async fn decision(
        &self,
        id: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Option<LetterDecision>, OperateError> {
        self.answer(on!(self, inbox => inbox.decision(id, consumer)))
    }

    pub(crate) async fn close(&self) {
        on!(self, inbox => close(inbox.pool()));
    }
}
