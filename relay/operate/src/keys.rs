//! Idempotency keys whose holder has disappeared, and decisions about them.

use std::num::NonZeroU32;

use idempotency::{
    Action, ClaimError, DecideError, Decision, IdempotencyKeys, KeyId, KeyOptions, KeyStore, KeysOfName,
    NamedSlice, StuckKey,
};
use message::error_text;
use migrations::Identifier;
use outbox::StoreError;
use serde::Serialize;
use sqlx::{Pool, Sqlite};
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
use super::seconds;
use super::tables::{Opened, Postgres, Tables, close, on};

/// A key whose lease has expired and which no request has taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyLine {
    /// The scope: tenant or account.
    pub scope: String,
    /// The requested operation: `POST /orders`.
    pub operation: String,
    /// The key.
    pub key: String,
    /// Number of times it was held.
    pub attempt: u32,
    /// The time when its holder claimed it or last renewed it.
    #[serde(serialize_with = "seconds::serialize")]
    pub claimed_at: OffsetDateTime,
    /// The time when its lease expired.
    #[serde(serialize_with = "seconds::serialize")]
    pub lease_until: OffsetDateTime,
    /// The number of its last holder, as in logs.
    pub holder: Uuid,
}

/// A decision about a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecidedLine {
    /// The time, by the database's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub at: OffsetDateTime,
    /// The author.
    pub actor: String,
    /// `release` or `discard`.
    pub action: &'static str,
    /// The scope of the key: tenant or account.
    pub scope: String,
    /// The requested operation.
    pub operation: String,
    /// The key.
    pub key: String,
    /// The reason.
    pub note: String,
}

/// The keys of one database.
pub(crate) type Keys = Opened<IdempotencyKeys<Postgres>, IdempotencyKeys<Sqlite>>;

/// Lists at most `limit` keys whose lease has expired and which no request has taken over, longest
/// expired first. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view keys, or when the database has no such tables or
/// is unreachable.
pub async fn stuck(
    tables: &Tables,
    operator: &Operator,
    limit: NonZeroU32,
) -> Result<Vec<KeyLine>, OperateError> {
    operator.permit(Role::Viewer, "view idempotency keys")?;
    let keys = Keys::open(tables).await?;
    let stuck = keys.answer(on!(&keys.on, keys => keys.stuck(limit).await).map_err(failed));
    keys.close().await;
    Ok(stuck?.iter().map(KeyLine::of).collect())
}

/// Decides about a stuck key. If a holder is given, the key must not have been held since. Not
/// cancel-safe: list the keys again.
///
/// # Errors
/// [`OperateError`] when the operator may not decide, when the key is not stuck, or when the
/// database refuses.
pub async fn decide(
    tables: &Tables,
    signed: &Signed,
    id: &KeyId,
    holder: Option<Uuid>,
    action: Action,
) -> Result<(), OperateError> {
    signed.check("decide about idempotency keys")?;
    let keys = Keys::open(tables).await?;
    let signature = signed.signature(None);
    let was_stuck = on!(&keys.on, keys => keys.decide(id, holder, action, &signature).await);
    keys.close().await;
    let was_stuck = was_stuck.map_err(|error| match error {
        DecideError::Store(error) => failed(error),
        error => OperateError::new(OperateErrorKind::Refused, error),
    })?;
    if was_stuck {
        return Ok(());
    }
    let help = "`relay keys list` shows stuck keys; a key whose lease has not expired may still complete";
    Err(OperateError::new(OperateErrorKind::Conflict, format_args!("not stuck: {id}")).with_help(help))
}

/// Returns at most `limit` decisions with numbers below `before`, latest first. Cancel-safe.
///
/// # Errors
/// Those of [`stuck`].
pub async fn decisions(
    tables: &Tables,
    operator: &Operator,
    before: i64,
    limit: NonZeroU32,
) -> Result<Vec<Decision>, OperateError> {
    operator.permit(Role::Viewer, "read the audit of idempotency keys")?;
    let keys = Keys::open(tables).await?;
    let decisions =
        keys.answer(on!(&keys.on, keys => keys.decisions_before(before, limit).await).map_err(failed));
    keys.close().await;
    decisions
}

impl Keys {
    pub(crate) async fn open(tables: &Tables) -> Result<Self, OperateError> {
        tables.open("relay keys", open, open).await
    }

    /// Returns the next keys with a name.
    pub(crate) async fn named(
        &self,
        of: &KeysOfName,
        after: Option<&KeyId>,
    ) -> Result<NamedSlice, OperateError> {
        self.answer(on!(&self.on, keys => keys.named(of, after).await).map_err(failed))
    }

    /// Removes the answer of a key.
    pub(crate) async fn erase(&self, id: &KeyId, actor: &str) -> Result<bool, OperateError> {
        self.answer(on!(&self.on, keys => keys.erase(id, actor).await).map_err(failed))
    }

    pub(crate) async fn close(self) {
        on!(&self.on, keys => close(keys.pool()).await);
    }
}

async fn open<DB: KeyStore>(
    pool: Pool<DB>,
    schema: Option<Identifier>,
) -> Result<IdempotencyKeys<DB>, OperateError> {
    let opened = IdempotencyKeys::open(pool, KeyOptions::default().schema(schema)).await;
    opened.map_err(|error| match error {
        ClaimError::Schema(error) => OperateError::of_schema(error),
        error => OperateError::by_fault(error.fault(), error_text::chain(&error)),
    })
}

fn failed(error: StoreError) -> OperateError {
    OperateError::of_statement(error.fault(), &error)
}

impl From<Decision> for DecidedLine {
    fn from(Decision { at, signature, action, subject: id, .. }: Decision) -> Self {
        Self {
            at,
            actor: signature.actor,
            action: action.as_str(),
            scope: id.tenant().to_string(),
            operation: id.operation().to_string(),
            key: id.key().to_string(),
            note: signature.note,
        }
    }
}

impl KeyLine {
    fn of(stuck: &StuckKey) -> Self {
        let StuckKey { id, attempt, holder, claimed_at, lease_until, .. } = stuck;
        Self {
            scope: id.tenant().to_string(),
            operation: id.operation().to_string(),
            key: id.key().to_string(),
            attempt: *attempt,
            claimed_at: *claimed_at,
            lease_until: *lease_until,
            holder: *holder,
        }
    }
}
