//! The guard: the inbox row and the effect commit together, or neither does.
//!
//! One `INSERT … ON CONFLICT DO NOTHING` in the caller's transaction, then a look at the affected
//! rows. A racing second consumer waits on the first one's uncommitted row; then it sees a
//! duplicate, or takes over if the first rolled back. No state "in progress" is needed, because the
//! effect is in the same transaction.

use bytes::Bytes;
use message::crash_points::reached;
use message::{Committed, Fingerprint, Message, MessageId};
use migrations::SqlErrorKind;
use sqlx::{Connection as _, Transaction};
use time::OffsetDateTime;

use crate::canonical_json::canonical;
use crate::crash_points;
use crate::day::Day;
use crate::dead_letter::DeadLetterId;
use crate::dialect::{Content, Dialect, Inserted, Key, Mark, Session, Stored};
use crate::error::{AdmitError, ConfirmError};
use crate::inbox::{Inbox, PayloadComparison, SourceComparison};
use crate::name::{ConsumerName, Tenant};
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::telemetry;

/// The outcome of admitting a message that was not refused.
#[derive(Debug)]
#[must_use = "a fresh message is to be handled, a duplicate is not"]
pub enum Admission<DB: Dialect> {
    /// It has not taken effect: handle it in this transaction.
    Fresh(Guard<DB>),
    /// It has taken effect, or is a dead letter: do nothing.
    Duplicate(Duplicate),
}

/// A message that took effect before, or that ended as a dead letter: an operator redrives that, or
/// has given it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// When it took effect or was dead-lettered, by the database's clock.
    pub processed_at: OffsetDateTime,
    /// The result that its handler returned.
    pub result: Option<Bytes>,
    /// The dead letter that it ended as; it took no effect then.
    pub dead_letter: Option<DeadLetterId>,
}

impl From<Stored> for Duplicate {
    fn from(Stored { result, processed_at, dead_letter, .. }: Stored) -> Self {
        Self { processed_at, result: result.map(Bytes::from), dead_letter }
    }
}

/// The right to apply one message's effect in the transaction that admitted it.
#[derive(Debug)]
pub struct Guard<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: ConsumerName,
    scope: Tenant,
    id: MessageId,
    /// The database's session that holds the transaction, where it has a name.
    session: Option<Session>,
}

impl<DB: Dialect> Guard<DB> {
    pub(crate) fn new(
        inbox: &Inbox<DB>,
        consumer: &ConsumerName,
        scope: &Tenant,
        message: &Message,
        session: Option<Session>,
    ) -> Self {
        let (consumer, scope) = (consumer.clone(), scope.clone());
        Self { inbox: inbox.clone(), consumer, scope, id: message.id, session }
    }

    /// Ends the statement that its transaction runs at this moment, on another connection: the one
    /// in use answers only when the statement has ended. The transaction can only be rolled back
    /// after that. Nothing on SQLite.
    ///
    /// # Errors
    /// [`StoreError`] when the database was away or refused.
    pub(crate) async fn interrupt(&self) -> Result<(), StoreError> {
        match self.session {
            Some(session) => self.inbox.interrupt(session).await,
            None => Ok(()),
        }
    }

    /// The message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Stores the handler's result in the inbox row; every duplicate gets it back. In the
    /// transaction that admitted the message.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused, or when this transaction does not hold the row.
    /// Roll back then.
    pub async fn complete(self, tx: &mut Transaction<'_, DB>, result: &[u8]) -> Result<(), StoreError> {
        let what = "store a message's result";
        let rows = DB::complete(tx, self.inbox.statements(), self.key(), result)
            .await
            .map_err(StoreError::during(what))?;
        if rows == 1 {
            return Ok(());
        }
        let problem = "the transaction does not hold the inbox row: it is another one, or was rolled back";
        Err(StoreError::new(what, SqlErrorKind::Refused, problem))
    }

    fn key(&self) -> Key<'_> {
        key(&self.consumer, &self.scope, self.id)
    }
}

pub(crate) fn key<'a>(consumer: &'a ConsumerName, scope: &'a Tenant, id: MessageId) -> Key<'a> {
    Key { consumer: consumer.as_str(), scope: scope.as_str(), id: id.as_uuid() }
}

/// The fingerprint of the message; of a chunk that of the whole.
pub(crate) fn identity(message: &Message) -> Fingerprint {
    message.chunk.as_ref().map_or_else(|| Fingerprint::of(message), |chunk| chunk.fingerprint())
}

/// Compares what is stored with what came.
pub(crate) fn compare(
    stored: Stored,
    consumer: &ConsumerName,
    message: &Message,
    sources: SourceComparison,
) -> Result<Duplicate, Refusal> {
    let source = message.source.as_str();
    if let (SourceComparison::Compared, Some(other)) = (sources, &stored.source)
        && other != source
    {
        return Err(Refusal::OtherSource {
            id: message.id,
            consumer: consumer.clone(),
            stored: other.clone(),
            received: source.to_owned(),
            processed_at: stored.processed_at,
        });
    }
    let received = identity(message);
    if stored.fingerprint == received {
        return Ok(stored.into());
    }
    let (consumer, Stored { fingerprint, processed_at, .. }) = (consumer.clone(), stored);
    Err(Refusal::KeyReused { id: message.id, consumer, stored: fingerprint, received, processed_at })
}

/// The fingerprint of a whole message's content, where that is JSON.
pub(crate) fn canonical_content(message: &Message) -> Option<Fingerprint> {
    if message.chunk.is_some() || !message.content_type.is_json() {
        return None;
    }
    let content = canonical(&message.payload)?;
    Some(Fingerprint::of_parts(message.kind.as_str(), message.content_type.as_str(), &content))
}

impl<DB: Dialect> Inbox<DB> {
    /// Ends the statement that a session runs at this moment in a transaction.
    pub(crate) async fn interrupt(&self, session: Session) -> Result<(), StoreError> {
        let failed = StoreError::during;
        // Outside the pool, all of whose connections may hang.
        let mut connection = DB::Connection::connect_with(&self.pool().connect_options())
            .await
            .map_err(failed("connect to interrupt a statement"))?;
        DB::interrupt(&mut connection, session).await.map_err(failed("interrupt a statement"))?;
        connection.close().await.map_err(failed("close the connection that interrupted a statement"))
    }

    /// Returns the part of an inbox row that tells copies of the message from other messages.
    pub(crate) fn content<'a>(&self, message: &'a Message) -> Content<'a> {
        Content::of(message, self.options().payloads)
    }

    /// Compares what is stored with what came: by its bytes, then by its content where contents are
    /// compared.
    pub(crate) async fn duplicate(
        &self,
        connection: &mut DB::Connection,
        mut stored: Stored,
        (consumer, key): (&ConsumerName, Key<'_>),
        message: &Message,
    ) -> Result<Result<Duplicate, Refusal>, StoreError> {
        let received = identity(message);
        if self.options().payloads == PayloadComparison::CanonicalJson && stored.fingerprint != received {
            let noted = DB::canonical(connection, self.statements(), key)
                .await
                .map_err(StoreError::during("look for the content of a message"))?;
            if noted.is_some() && noted == canonical_content(message) {
                stored.fingerprint = received;
            }
        }
        Ok(compare(stored, consumer, message, self.options().sources))
    }

    /// Admits a message in the caller's own transaction. Apply the effect in the same transaction
    /// only when it is fresh; after the commit, [`confirm`](Self::confirm) gives the proof that
    /// settles the delivery. [`begin`](Self::begin) offers a transaction that gives the proof
    /// itself.
    ///
    /// On SQLite begin the transaction with `BEGIN IMMEDIATE`: a later upgrade fails with BUSY
    /// without waiting.
    ///
    /// # Errors
    /// [`AdmitError`]; roll the transaction back. Not cancel-safe: when the future was dropped,
    /// roll back as well.
    pub async fn admit(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        scope: &Tenant,
        message: &Message,
    ) -> Result<Admission<DB>, AdmitError> {
        self.admit_marked(tx, consumer, scope, message, Mark::No).await
    }

    pub(crate) async fn admit_marked(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        scope: &Tenant,
        message: &Message,
        mark: Mark,
    ) -> Result<Admission<DB>, AdmitError> {
        let admitted = match self.validate(tx, message.id, false).await {
            Ok(()) => self.admit_validated(tx, consumer, scope, message, mark).await,
            Err(error) => Err(error),
        };
        if let Err(AdmitError::Refused(refusal)) = &admitted {
            telemetry::refused(consumer, refusal);
        }
        admitted
    }

    /// Inserts a message whose time was validated.
    pub(crate) async fn admit_validated(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        scope: &Tenant,
        message: &Message,
        mark: Mark,
    ) -> Result<Admission<DB>, AdmitError> {
        if let Some(refusal) = Refusal::of_fragment(message) {
            return Err(refusal.into());
        }
        let key = key(consumer, scope, message.id);
        let inserted = DB::insert(tx, self.statements(), key, self.content(message), mark)
            .await
            .map_err(StoreError::during("admit a message"))?;
        match inserted {
            Inserted::New { session, .. } => {
                reached(crash_points::AFTER_ADMIT);
                Ok(Admission::Fresh(Guard::new(self, consumer, scope, message, session)))
            }
            Inserted::Exists(stored) => {
                Ok(Admission::Duplicate(self.duplicate(tx, stored, (consumer, key), message).await??))
            }
            Inserted::Forgotten => Err(self.forgotten(tx, message.id).await?),
        }
    }

    /// Judges an id by its time and makes sure that its day can be stored. A refusal is based on
    /// the database's clock of this moment: a process that slept (a suspended machine) would
    /// otherwise refuse present messages as coming from the future.
    pub(crate) async fn validate(
        &self,
        tx: &mut Transaction<'_, DB>,
        id: MessageId,
        late: bool,
    ) -> Result<(), AdmitError> {
        let validated = |inbox: &Self| {
            let window = inbox.window();
            if late { window.validate_late(id) } else { window.validate(id) }
        };
        if validated(self).is_err() {
            self.refresh_on(tx).await?;
            validated(self)?;
        }
        let day = Day::of_id(id);
        if !self.knows_day(day) {
            self.ensure_day(day).await?;
            validated(self)?;
        }
        Ok(())
    }

    /// The day of a message went while it was being admitted. Where the transaction is still intact
    /// (SQLite), it tells that the message is too old by now.
    pub(crate) async fn forgotten(
        &self,
        tx: &mut Transaction<'_, DB>,
        id: MessageId,
    ) -> Result<AdmitError, StoreError> {
        let day = Day::of_id(id);
        self.unlearn_day(day);
        if DB::DAYS_ARE_IMPLICIT {
            self.refresh_on(tx).await?;
            if let Err(refusal) = self.window().validate_late(id) {
                return Ok(refusal.into());
            }
        }
        Ok(AdmitError::Expired { id, day })
    }

    /// Proves that a message took effect or is a dead letter, or that a chunk is kept, by reading
    /// its committed inbox row on another connection: for callers who committed a transaction of
    /// their own. Also resolves a commit whose outcome is unknown. Cancel-safe.
    ///
    /// # Errors
    /// [`ConfirmError::NotCommitted`] when there is no such row (yet); others as named there.
    pub async fn confirm(
        &self,
        consumer: &ConsumerName,
        scope: &Tenant,
        message: &Message,
    ) -> Result<Committed, ConfirmError> {
        let mut connection = self.acquire("look for an inbox row").await?;
        let key = key(consumer, scope, message.id);
        let stored = DB::find(&mut connection, self.statements(), key)
            .await
            .map_err(StoreError::during("look for an inbox row"))?;
        let proven = match (stored, message.chunk.as_deref()) {
            (Some(stored), _) => {
                self.duplicate(&mut connection, stored, (consumer, key), message).await??;
                true
            }
            (None, Some(chunk)) => self.keeps(&mut connection, consumer, scope, message.id, chunk).await?,
            (None, None) => false,
        };
        if !proven {
            return Err(ConfirmError::NotCommitted { id: message.id });
        }
        Ok(Committed::attest(message.id.as_uuid()))
    }
}
