//! Decisions about dead letters: who decided what, why, and the outcome.
//!
//! A discard is carried out at once. A redrive needs the handler, which runs in the service. So the
//! decision is a request, which a consumer of this name carries out within seconds.

use std::num::NonZeroU32;
use std::time::Duration;

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
use crate::transaction::InboxTransaction;

/// Who decides, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The person or program that decided: 1 to 255 bytes.
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
    /// The dead letter of the decision.
    pub dead_letter: DeadLetterId,
    /// The consumer of the dead letter.
    pub consumer: String,
    /// The choice of an operator about a dead letter.
    pub action: Action,
    /// Whether a redrive may apply a message that is older than the inbox remembers.
    pub accept_late: bool,
    /// How the dead letter was closed, or why it was not; `None` while a request is open.
    pub outcome: Option<String>,
    /// When the outcome was recorded.
    pub done_at: Option<OffsetDateTime>,
    /// The id of a decision about many dead letters; `None` for a decision about this one alone.
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

/// A request that is recorded, but not committed.
struct Noted<DB: Dialect> {
    tx: InboxTransaction<DB>,
    /// Whether the same request was not open before.
    is_new: bool,
}

impl<DB: Dialect> Inbox<DB> {
    /// Asks the consumer of a dead letter to redrive it. Any process of that consumer does so
    /// within seconds, with its handler. [`decisions`](Self::decisions) shows the outcome.
    ///
    /// # Errors
    /// [`RedriveError::NotFound`]; [`RedriveError::Held`] for a held message while an earlier dead
    /// letter of its key is open (for other dead letters the consumer checks this itself, if it
    /// holds keys); [`RedriveError::NotAMessage`] when there is no message to pass to a handler;
    /// [`RedriveError::InHand`] while a redrive of it runs for longer than half the [call
    /// timeout](crate::InboxOptions::call_timeout); [`RedriveError::Store`]. Runs to its end even if this call is dropped.
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
            let noting = Box::pin(inbox.note_request(id, options, &signature));
            let noted: Result<_, RedriveError> = inbox.in_time("note a request", noting).await;
            match noted.map_err(|error| error.of_decision(id))? {
                Ok(Noted { tx, is_new }) => {
                    drop(tx.commit().await?);
                    Ok(if is_new { Requested::Now } else { Requested::Already })
                }
                Err(closed) => Ok(Requested::Closed(closed)),
            }
        })
        .await
    }

    /// Begins the transaction of a decision about one or more dead letters.
    pub(crate) async fn begin_decision(&self) -> Result<InboxTransaction<DB>, StoreError> {
        self.begin_decision_of(1).await
    }

    /// Begins the transaction of one of several decisions, which together wait for locks as long as
    /// one decision does. A redrive locks its dead letter for as long as its handler runs. Half of
    /// the call timeout leaves time for the answer.
    pub(crate) async fn begin_decision_of(&self, all: u32) -> Result<InboxTransaction<DB>, StoreError> {
        let mut tx = self.begin().await?;
        let wait = self.options().call_timeout / 2 / all.max(1);
        // A limit of zero would be none.
        let limited = DB::limit_lock_waits(&mut tx, wait.max(Duration::from_millis(1))).await;
        limited.map_err(StoreError::during("limit its waits for locks"))?;
        Ok(tx)
    }

    /// Records a request, in a transaction to commit. For a closed dead letter, returns how it was
    /// closed.
    async fn note_request(
        &self,
        id: DeadLetterId,
        options: RedriveOptions,
        signature: &Signature,
    ) -> Result<Result<Noted<DB>, Redriven>, RedriveError> {
        let mut tx = self.begin_decision().await?;
        let letter = match self.open_letter(&mut tx, id).await? {
            Ok(letter) => letter,
            Err(closed) => return Ok(Err(closed)),
        };
        letter.message().map_err(|problem| RedriveError::NotAMessage { id, problem })?;
        self.check_turn(&mut tx, &letter, options.after_dead_letter).await?;
        let decision = Decision {
            accept_late: options.accept_late,
            ..Decision::new(&letter, Action::Redrive, signature)
        };
        let noted = self.tables().note_decision(&mut tx, &decision).await;
        let is_new = noted.map_err(StoreError::during("note a request"))?.is_some();
        Ok(Ok(Noted { tx, is_new }))
    }

    /// Returns the decisions about dead letters, newest first, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, StoreError> {
        self.decisions_before(i64::MAX, limit).await
    }

    /// Returns the decisions about dead letters with a [`number`](Decision::number) below `before`,
    /// newest first, at most `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn decisions_before(
        &self,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, StoreError> {
        let what = "list the decisions about dead letters";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().decisions(&mut connection, before, limit.get()).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns the decisions about these dead letters, newest first, at most `limit` for each.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn decisions_of(
        &self,
        letters: &[DeadLetterId],
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, StoreError> {
        let what = "list the decisions about dead letters";
        let letters: Vec<Uuid> = letters.iter().map(|letter| letter.0).collect();
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().decisions_of(&mut connection, &letters, limit.get()).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns the dead letters among these that belong to a topic and are still stored, in no
    /// order. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn letters_of_topic(
        &self,
        letters: &[DeadLetterId],
        topic: &str,
    ) -> Result<Vec<DeadLetterId>, StoreError> {
        let what = "look up the topics of dead letters";
        let letters: Vec<Uuid> = letters.iter().map(|letter| letter.0).collect();
        let looking = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().letters_of_topic(&mut connection, &letters, topic).await;
            found.map_err(StoreError::during(what))
        };
        Ok(self.in_time(what, looking).await?.into_iter().map(DeadLetterId).collect())
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

    /// Records why a requested redrive did not succeed; the dead letter stays open.
    pub(crate) async fn fail_request(&self, number: i64, outcome: &str) -> Result<(), StoreError> {
        let mut connection = self.acquire("store the outcome of a redrive").await?;
        self.tables()
            .finish_request(&mut connection, number, outcome)
            .await
            .map_err(StoreError::during("store the outcome of a redrive"))?;
        Ok(())
    }
}
