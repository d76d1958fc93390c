//! Idempotency keys whose holder is gone, and decisions about them.

use std::num::NonZeroU32;

use inbox::StoreError;
use inbox::keys::{ClaimError, Decision, IdempotencyKeys, KeyId, KeyOptions, KeyStore, StuckKey};
use message::error_text;
use migrations::Identifier;
use serde::Serialize;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role};
use super::tables::{ConnectOptions, Tables};

/// A key whose lease has expired and which nobody has taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyLine {
    /// Whose it is: tenant or account.
    pub scope: String,
    /// The operation that was asked for: `POST /orders`.
    pub operation: String,
    /// The key.
    pub key: String,
    /// How often it was held.
    pub attempt: u32,
    /// When its holder claimed it, or was heard of last.
    pub claimed_at: String,
    /// When its lease expired.
    pub lease_until: String,
}

/// The keys of one database, and its pool.
enum Opened {
    #[cfg(feature = "postgres")]
    Postgres(IdempotencyKeys<Postgres>),
    Sqlite(IdempotencyKeys<Sqlite>),
}

/// The same call on either database.
macro_rules! on {
    ($opened:expr, $keys:ident => $call:expr) => {
        match $opened {
            #[cfg(feature = "postgres")]
            Opened::Postgres($keys) => $call.await,
            Opened::Sqlite($keys) => $call.await,
        }
    };
}

/// Lists keys whose lease has expired and which nobody has taken over, the longest first, at most
/// `limit`. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not look, or when the database has no such keys or is
/// away.
pub(crate) async fn stuck(
    tables: &Tables,
    operator: &Operator,
    limit: NonZeroU32,
) -> Result<Vec<KeyLine>, OperateError> {
    operator.permit(Role::Viewer, "look at idempotency keys")?;
    let keys = Opened::of(tables).await?;
    let stuck = on!(&keys, keys => keys.stuck(limit)).map_err(failed);
    keys.close().await;
    Ok(stuck?.iter().map(KeyLine::of).collect())
}

/// Decides about a key that is stuck; the operator's name is kept with it. Not cancel-safe: list
/// the keys again.
///
/// # Errors
/// [`OperateError`] when the operator may not, when the key is not stuck, or when the database
/// refused.
pub(crate) async fn decide(
    tables: &Tables,
    operator: &Operator,
    id: &KeyId,
    decision: Decision,
) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "decide about idempotency keys")?;
    let keys = Opened::of(tables).await?;
    let was_stuck = on!(&keys, keys => keys.decide(id, decision, operator.name())).map_err(failed);
    keys.close().await;
    if was_stuck? {
        return Ok(());
    }
    let help =
        "`relay keys list` shows the keys that are; one whose lease has not expired may still complete";
    Err(OperateError::new(OperateErrorKind::Conflict, format_args!("not stuck: {id}")).with_help(help))
}

impl Opened {
    async fn of(tables: &Tables) -> Result<Self, OperateError> {
        let schema = tables.options.schema.clone();
        Ok(match tables.connect_options("relay keys")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => Self::Postgres(open(options, schema).await?),
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }

    async fn close(self) {
        on!(self, keys => keys.pool().close());
    }
}

async fn open<DB: KeyStore + outbox::Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<IdempotencyKeys<DB>, OperateError> {
    let pool = outbox::pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let keys = IdempotencyKeys::open(pool, KeyOptions { schema, ..KeyOptions::default() }).await;
    keys.map_err(|error| match error {
        ClaimError::Schema(error) => OperateError::new(OperateErrorKind::Refused, error),
        error => OperateError::by_fault(error.fault(), error_text::chain(&error)),
    })
}

fn failed(error: StoreError) -> OperateError {
    error.into()
}

impl KeyLine {
    fn of(stuck: &StuckKey) -> Self {
        let StuckKey { id, attempt, claimed_at, lease_until, .. } = stuck;
        let rfc3339 = |at: &OffsetDateTime| at.format(&Rfc3339).unwrap_or_else(|_| at.to_string());
        Self {
            scope: id.scope().to_string(),
            operation: id.operation().to_string(),
            key: id.key().to_string(),
            attempt: *attempt,
            claimed_at: rfc3339(claimed_at),
            lease_until: rfc3339(lease_until),
        }
    }
}
