//! Idempotency keys whose holder has disappeared, and decisions about them.

use std::num::NonZeroU32;

use idempotency::{
    Action, ClaimError, DecideError, Decision, IdempotencyKeys, KeyId, KeyOptions, KeyStore, StuckKey,
};
use message::error_text;
use migrations::Identifier;
use outbox::StoreError;
use serde::Serialize;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
use super::seconds;
#[cfg(feature = "postgres")]
use super::tables::reached;
use super::tables::{ConnectOptions, Tables, close, open_with};

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
    pub claimed_at: String,
    /// The time when its lease expired.
    pub lease_until: String,
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

/// The keys of one database, and its pool.
enum Opened {
    #[cfg(feature = "postgres")]
    Postgres(IdempotencyKeys<Postgres>),
    Sqlite(IdempotencyKeys<Sqlite>),
}

/// Makes the same call on either database.
macro_rules! on {
    ($opened:expr, $keys:ident => $call:expr) => {
        match $opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres($keys) => $call.await,
            Opened::Sqlite($keys) => $call.await,
        }
    };
}

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
    let keys = Opened::of(tables).await?;
    let stuck = on!(&keys, keys => keys.stuck(limit));
    let stuck = stuck.map_err(|error| failed(error).of_place(tables.location()));
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
    let keys = Opened::of(tables).await?;
    let was_stuck = on!(&keys, keys => keys.decide(id, holder, action, &signed.signature(None)));
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
    let keys = Opened::of(tables).await?;
    let decisions = on!(&keys, keys => keys.decisions_before(before, limit));
    let decisions = decisions.map_err(|error| failed(error).of_place(tables.location()));
    keys.close().await;
    decisions
}

impl Opened {
    async fn of(tables: &Tables) -> Result<Self, OperateError> {
        let schema = tables.options.schema.clone();
        Ok(match tables.connect_options("relay keys")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => {
                Self::Postgres(open(reached(&options).await?, schema).await?)
            }
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }

    async fn close(self) {
        on!(self, keys => close(keys.pool()));
    }
}

async fn open<DB: KeyStore + outbox::Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<IdempotencyKeys<DB>, OperateError> {
    let of_keys = KeyOptions::default().schema(schema);
    let open = async |pool| IdempotencyKeys::open(pool, of_keys).await;
    open_with(options, open).await.map_err(|error| match error {
        ClaimError::Schema(error) => OperateError::new(OperateErrorKind::NoTables, error),
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
        let rfc3339 = |at: &OffsetDateTime| at.format(&Rfc3339).unwrap_or_else(|_| at.to_string());
        Self {
            scope: id.tenant().to_string(),
            operation: id.operation().to_string(),
            key: id.key().to_string(),
            attempt: *attempt,
            claimed_at: rfc3339(claimed_at),
            lease_until: rfc3339(lease_until),
            holder: *holder,
        }
    }
}
