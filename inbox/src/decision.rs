//! Decisions about dead letters: who decided what, why, and the outcome.
//!
//! A discard is carried out at once. A redrive needs the handler, which runs in the service. So the
//! decision is a request, which a consumer of this name carries out within seconds.

use std::num::NonZeroU32;

use message::{InvalidText, shield};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::dialect::Dialect;
use crate::error::RedriveError;
use crate::inbox::Inbox;
use crate::name::ConsumerName;
use crate::redrive::{RedriveOptions, Redriven};
use crate::store_error::StoreError;

/// Who decides, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The person or program: 1 to 255 bytes.
    pub actor: String,
    /// The reason: 1 to 2,000 bytes.
    pub note: String,
    /// The filter that selected the dead letter, and how many it selected; `None` when unknown.
    pub selection: Option<String>,
}

impl Signature {
    /// Checks that the audit can store the signature.
    ///
    /// # Errors
    /// [`InvalidText`]: an actor or a note that is empty or too long, or holds a NUL character.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), InvalidText> {
        message::check_signature(&self.actor, &self.note)
    }
}

/// The choice of an operator about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Run the handler once more.
    Redrive,
    /// Discard the message.
    Discard,
}

impl Action {
    /// Returns the lower-case word for tables and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    /// Parses such a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Redrive, Self::Discard].into_iter().find(|action| action.as_str() == word)
    }
}

/// A stored decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Sequence number; ascends.
    pub number: i64,
    /// When the decision was made, by the database's clock.
    pub at: OffsetDateTime,
    /// Who decided, and why.
    pub signature: Signature,
    /// The dead letter that it is about.
    pub dead_letter: DeadLetterId,
    /// The consumer of the dead letter.
    pub consumer: String,
    /// The choice of an operator about a dead letter.
    pub action: Action,
    /// Whether a redrive may apply a message that is older than the inbox remembers.
    pub accept_late: bool,
    /// How the dead letter was closed, or why it was not; `None` while a request is open.
    pub outcome: Option<String>,
    /// When the outcome was noted.
    pub done_at: Option<OffsetDateTime>,
    /// The id of a decision about many dead letters; `None` when this one was decided about by
    /// itself.
    pub decision: Option<Uuid>,
}

/// The outcome of a request to redrive a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requested {
    /// The request is stored; its consumer will carry it out.
    Now,
    /// The same request is already open.
    Already,
    /// The dead letter is closed; no request was stored.
    Closed(Redriven),
}

impl Decision {
    /// Makes a decision about a dead letter, without storing it.
    pub(crate) fn new(letter: &DeadLetter, action: Action, signature: &Signature) -> Self {
        Self {
            number: 0,
            at: OffsetDateTime::UNIX_EPOCH,
            signature: signature.clone(),
            dead_letter: letter.id,
            consumer: letter.consumer.clone(),
            action,
            accept_late: false,
            outcome: None,
            done_at: None,
            decision: None,
        }
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Asks the consumer of a dead letter to redrive it. Any process of that consumer does so
    /// within seconds, with its handler. [`decisions`](Self::decisions) shows the outcome.
    ///
    /// # Errors
    /// [`RedriveError::NotFound`]; [`RedriveError::Held`] for a held message while an earlier dead
    /// letter of its key is open (for other dead letters the consumer checks this itself, if it
    /// holds keys); [`RedriveError::NotAMessage`] when there is no message to pass to a handler;
    /// [`RedriveError::Store`]. Runs to its end even if this call is dropped.
    pub async fn request_redrive(
        &self,
        id: DeadLetterId,
        options: RedriveOptions,
        signature: &Signature,
    ) -> Result<Requested, RedriveError> {
        signature.check()?;
        let inbox = self.clone();
        let signature = signature.clone();
        shield(async move {
            let failed = StoreError::during;
            let mut tx = inbox.begin().await?;
            let letter = match inbox.open_letter(&mut tx, id).await? {
                Ok(letter) => letter,
                Err(closed) => return Ok(Requested::Closed(closed)),
            };
            letter.message().map_err(|problem| RedriveError::NotAMessage { id, problem })?;
            inbox.check_turn(&mut tx, &letter, options.after_dead_letter).await?;
            let decision = Decision {
                accept_late: options.accept_late,
                ..Decision::new(&letter, Action::Redrive, &signature)
            };
            let noted =
                inbox.tables().note_decision(&mut tx, &decision).await.map_err(failed("note a request"))?;
            drop(tx.commit().await?);
            Ok(if noted.is_some() { Requested::Now } else { Requested::Already })
        })
        .await
    }

    /// Returns the decisions about dead letters, newest first, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, StoreError> {
        let mut connection = self.acquire("list the decisions about dead letters").await?;
        self.tables()
            .decisions(&mut connection, limit.get())
            .await
            .map_err(StoreError::during("list the decisions about dead letters"))
    }

    /// Returns the open requests for redrives of a consumer after a sequence number, oldest first.
    /// Cancel-safe.
    pub(crate) async fn redrive_requests(
        &self,
        consumer: &ConsumerName,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut connection = self.acquire("list requested redrives").await?;
        self.tables()
            .requests(&mut connection, consumer.as_str(), after, limit)
            .await
            .map_err(StoreError::during("list requested redrives"))
    }

    /// Notes why a requested redrive did not succeed; the dead letter stays open.
    pub(crate) async fn fail_request(&self, number: i64, outcome: &str) -> Result<(), StoreError> {
        let mut connection = self.acquire("store the outcome of a redrive").await?;
        self.tables()
            .finish_request(&mut connection, number, outcome)
            .await
            .map_err(StoreError::during("store the outcome of a redrive"))?;
        Ok(())
    }
}
