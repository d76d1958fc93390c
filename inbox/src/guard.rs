//! The guard: the inbox row and the effect commit together, or neither does.
//!
//! It is one `INSERT … ON CONFLICT DO NOTHING` in the caller's transaction, then a check of the
//! affected rows. A racing second consumer waits for the first one's uncommitted row. Then it sees
//! a duplicate, or takes over if the first rolled back. No "in progress" state is needed, because
//! the effect is in the same transaction.

use message::crash_points::reached;
use message::{Committed, Message, MessageId};
use migrations::SqlErrorKind;
use sqlx::{Connection as _, Transaction};

use crate::comparison::{
    Content, Duplicate, PayloadComparison, Stored, canonical_content, compare, identity,
};
use crate::crash_points;
use crate::day::Day;
use crate::dialect::{Dialect, Inserted, Mark, NewRow, Session};
use crate::error::{AdmitError, ConfirmError};
use crate::ids::{ConsumerName, Key, Tenant, key};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::telemetry;

/// The outcome of admitting a message that was not refused.
#[derive(Debug)]
#[must_use = "handle a new message, and skip a duplicate"]
pub enum Admission<DB: Dialect> {
    /// It has not taken effect: handle it in this transaction.
    Fresh(Guard<DB>),
    /// It has taken effect, or is a dead letter: do nothing.
    Duplicate(Duplicate),
}

/// The right to apply one message's effect in the transaction that admitted it.
#[derive(Debug)]
pub struct Guard<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: ConsumerName,
    tenant: Tenant,
    id: MessageId,
    /// The database session of the transaction, when the database identifies sessions.
    session: Option<Session>,
}

impl<DB: Dialect> Guard<DB> {
    pub(crate) fn new(
        inbox: &Inbox<DB>,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
        session: Option<Session>,
    ) -> Self {
        let consumer = consumer.clone();
        let tenant = tenant.clone();
        Self { inbox: inbox.clone(), consumer, tenant, id: message.id, session }
    }

    /// Cancels the running statement of its transaction, over another connection: its own
    /// connection answers only when the statement has ended. After that the transaction can only be
    /// rolled back. Does nothing on SQLite.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or was unavailable.
    pub(crate) async fn interrupt(&self) -> Result<(), StoreError> {
        match self.session {
            Some(session) => self.inbox.interrupt(session).await,
            None => Ok(()),
        }
    }

    /// Returns the id of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Stores the handler's result in the inbox row; every duplicate returns it. Call it in the
    /// transaction that admitted the message.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused, or when this transaction does not hold the row.
    /// Then roll back.
    pub async fn complete(self, tx: &mut DB::Connection, result: &[u8]) -> Result<(), StoreError> {
        let what = "store a message's result";
        let rows =
            self.inbox.tables().complete(tx, self.key(), result).await.map_err(StoreError::during(what))?;
        if rows == 1 {
            return Ok(());
        }
        let problem = "this transaction does not contain the inbox row: it is a different transaction, or it was rolled back";
        Err(StoreError::new(what, SqlErrorKind::Refused, problem))
    }

    fn key(&self) -> Key<'_> {
        key(&self.consumer, &self.tenant, self.id)
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Cancels the statement that a session runs in a transaction.
    pub(crate) async fn interrupt(&self, session: Session) -> Result<(), StoreError> {
        let failed = StoreError::during;
        // Not from the pool: all of its connections may hang.
        let mut connection = DB::Connection::connect_with(&self.pool().connect_options())
            .await
            .map_err(failed("connect to interrupt a statement"))?;
        DB::interrupt(&mut connection, session).await.map_err(failed("interrupt a statement"))?;
        connection.close().await.map_err(failed("close the connection that interrupted a statement"))
    }

    /// Returns the part of an inbox row that distinguishes copies of the message from other
    /// messages.
    pub(crate) fn content<'a>(&self, message: &'a Message) -> Content<'a> {
        Content::of(message, self.options().payloads)
    }

    /// Compares a stored row with a received message: by its bytes, then by its content if contents
    /// are compared.
    pub(crate) async fn duplicate(
        &self,
        connection: &mut DB::Connection,
        mut stored: Stored,
        consumer: &ConsumerName,
        key: Key<'_>,
        message: &Message,
    ) -> Result<Result<Duplicate, Refusal>, StoreError> {
        let received = identity(message);
        if self.options().payloads == PayloadComparison::CanonicalJson && stored.fingerprint != received {
            let noted = self
                .tables()
                .canonical(connection, key)
                .await
                .map_err(StoreError::during("find the content of a message"))?;
            if noted.is_some() && noted == canonical_content(message) {
                stored.fingerprint = received;
            }
        }
        Ok(compare(stored, consumer, message, self.options().sources))
    }

    /// Admits a message in the caller's own transaction. Apply the effect in the same transaction,
    /// and only when the message is fresh. After the commit, [`confirm`](Self::confirm) returns the
    /// proof that settles the delivery. [`begin`](Self::begin) offers a transaction that returns
    /// the proof itself.
    ///
    /// The commit waits for the disk even if the server's settings do not ask for it: a crash must
    /// not undo what was confirmed. Do not set `synchronous_commit` in the transaction afterwards.
    ///
    /// On SQLite, begin the transaction with `BEGIN IMMEDIATE`: a later upgrade fails with BUSY
    /// without waiting. The connection needs `PRAGMA synchronous` at FULL or EXTRA, which cannot be
    /// changed in the transaction.
    ///
    /// # Errors
    /// [`AdmitError`]; roll the transaction back. [`AdmitError::Store`] also on SQLite below FULL.
    /// Not cancel-safe: when the future was dropped, roll back as well.
    pub async fn admit(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Admission<DB>, AdmitError> {
        self.check_it_waits(tx).await?;
        self.admit_marked(tx, consumer, tenant, message, Mark::No).await
    }

    /// Refuses a transaction of the caller's own whose commit would not wait for the disk, if that
    /// cannot be changed inside it.
    pub(crate) async fn check_it_waits(&self, tx: &mut Transaction<'_, DB>) -> Result<(), StoreError> {
        let checked = DB::check_it_waits_for_the_disk(tx).await;
        checked.map_err(StoreError::during("make the commit wait for the disk"))
    }

    pub(crate) async fn admit_marked(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
        mark: Mark,
    ) -> Result<Admission<DB>, AdmitError> {
        let admitted = match self.validate(tx, message.id, false).await {
            Ok(()) => self.admit_validated(tx, consumer, tenant, message, mark).await,
            Err(error) => Err(error),
        };
        if let Err(AdmitError::Refused(refusal)) = &admitted {
            telemetry::refused(consumer, refusal);
        }
        admitted
    }

    /// Inserts a message whose time has been validated.
    pub(crate) async fn admit_validated(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
        mark: Mark,
    ) -> Result<Admission<DB>, AdmitError> {
        if let Some(refusal) = Refusal::of_fragment(message) {
            return Err(refusal.into());
        }
        let key = key(consumer, tenant, message.id);
        let row = NewRow { key, content: self.content(message) };
        let inserted =
            self.tables().insert(tx, row, mark).await.map_err(StoreError::during("admit a message"))?;
        match inserted {
            Inserted::New { session, .. } => {
                reached(crash_points::AFTER_ADMIT);
                Ok(Admission::Fresh(Guard::new(self, consumer, tenant, message, session)))
            }
            Inserted::Exists(stored) => {
                Ok(Admission::Duplicate(self.duplicate(tx, stored, consumer, key, message).await??))
            }
            Inserted::Forgotten => Err(self.forgotten(tx, message.id).await?),
        }
    }

    /// Validates the time of an id and makes sure that its day can be stored. Before it refuses, it
    /// reads the database's clock again. Otherwise a process that slept (on a suspended machine)
    /// would refuse present messages as coming from the future.
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

    /// Handles a message whose day expired while it was being admitted. When the transaction is
    /// still intact (SQLite), returns the refusal if the message is too old by now.
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

    /// Proves that a message took effect, became a dead letter, or is a stored chunk. Reads its
    /// committed inbox row over another connection, for callers that committed their own
    /// transaction. Also resolves a commit whose outcome is unknown. Cancel-safe.
    ///
    /// # Errors
    /// [`ConfirmError::NotCommitted`] when there is no such row (yet); the others as documented
    /// there.
    pub async fn confirm(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Committed, ConfirmError> {
        let mut connection = self.acquire("find an inbox row").await?;
        let key = key(consumer, tenant, message.id);
        let stored = self
            .tables()
            .find(&mut connection, key)
            .await
            .map_err(StoreError::during("find an inbox row"))?;
        let proven = match (stored, message.chunk.as_deref()) {
            (Some(stored), _) => {
                self.duplicate(&mut connection, stored, consumer, key, message).await??;
                true
            }
            (None, Some(chunk)) => self.keeps(&mut connection, consumer, tenant, message.id, chunk).await?,
            (None, None) => false,
        };
        if !proven {
            return Err(ConfirmError::NotCommitted { id: message.id });
        }
        Ok(Committed::attest(message.id.as_uuid()))
    }
}
