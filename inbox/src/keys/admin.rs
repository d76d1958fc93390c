//! The operator's side of keys: list the stuck ones and decide about them.

use std::num::NonZeroU32;

use message::{InvalidText, shield};
use time::OffsetDateTime;
use uuid::Uuid;

use super::handle::{IdempotencyKeys, again};
use super::id::KeyId;
use super::options::OnExpired;
use super::store::KeyStore;
use crate::decision::Signature;
use crate::store_error::StoreError;

/// A key whose holder has let its lease expire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckKey {
    /// Which.
    pub id: KeyId,
    /// How often it was held.
    pub attempt: u32,
    /// Its last holder's number, as logs have it.
    pub holder: Uuid,
    /// When its holder claimed it, or was heard of last.
    pub claimed_at: OffsetDateTime,
    /// When its lease expired.
    pub lease_until: OffsetDateTime,
    /// The policy for it: [`OnExpired::Refuse`] waits for an operator, anything else for the next
    /// caller who asks.
    pub on_expired: OnExpired,
}

/// The operator's decision about a stuck key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The next one who asks runs the request again.
    Release,
    /// It is given up: it never runs, and whoever asks is told so.
    Discard,
}

impl Decision {
    /// The lower-case word for tables and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Discard => "discard",
        }
    }

    /// The value of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Release, Self::Discard].into_iter().find(|decision| decision.as_str() == word)
    }
}

/// Why a decision about a key was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// The actor or the note is not one that the audit keeps: empty, too long, or with a NUL
    /// character.
    #[error(transparent)]
    Signature(#[from] InvalidText),
    /// The database refused or is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A decision that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// When, by the database's clock.
    pub at: OffsetDateTime,
    /// Who took it.
    pub actor: String,
    /// Why.
    pub note: String,
    /// The choice.
    pub decision: Decision,
    /// About which key.
    pub id: KeyId,
}

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// The keys whose lease has expired and which nobody has taken over, the longest first.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or is away.
    pub async fn stuck(&self, limit: NonZeroU32) -> Result<Vec<StuckKey>, StoreError> {
        let stuck = DB::stuck(self.pool(), self.statements(), limit.get());
        self.db().call(stuck).await.map_err(StoreError::during("list stuck idempotency keys"))
    }

    /// Decides about a stuck key; false when it is not stuck (any more), or, where a holder is
    /// named, when somebody else has held it since. The audit keeps who decided and why, the key
    /// who did. On PostgreSQL it takes the owner of the tables, or a role that may write
    /// `decided_by` and insert into `idempotency_audit`.
    ///
    /// # Errors
    /// [`DecideError`]. Run it to its end.
    pub async fn decide(
        &self,
        id: &KeyId,
        holder: Option<Uuid>,
        decision: Decision,
        signature: &Signature,
    ) -> Result<bool, DecideError> {
        signature.check()?;
        let (keys, id, signature) = (self.clone(), id.clone(), signature.clone());
        let work = async move {
            again(keys.db(), "decide about an idempotency key", || {
                DB::decide(keys.pool(), keys.statements(), (&id, holder), decision, &signature)
            })
            .await
        };
        Ok(shield(work).await?)
    }

    /// The decisions that were taken, the latest first. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or is away.
    pub async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decided>, StoreError> {
        let decisions = DB::decisions(self.pool(), self.statements(), limit.get());
        self.db().call(decisions).await.map_err(StoreError::during("list decisions about idempotency keys"))
    }
}
