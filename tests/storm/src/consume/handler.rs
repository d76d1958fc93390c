//! Applies messages, and fails where a message requests it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use checker::Digest;
use inbox::{Admission, ConsumerName, Handler, HandlerError, Inbox, Tenant, Tx};
use message::{Message, MessageId};
use sqlx::Database as _;

use crate::content::HEADER_PREFIX;
use crate::load::{Hint, Payload};
use crate::workload::{Effect, Workload};

/// Duration of a hang: longer than the visibility timeout of a message, and than a lease.
pub(crate) const HANG: Duration = Duration::from_secs(6);

/// Returns the tenant whose account a message touches.
pub(super) fn tenant_of(message: &Message) -> Tenant {
    let tenant = message.headers.get(&format!("{HEADER_PREFIX}tenant"));
    tenant.and_then(|tenant| Tenant::new(tenant).ok()).unwrap_or_else(Tenant::none)
}

/// Applies messages under one name, and in the same transaction under a second one if it has one.
pub(super) struct Apply<DB: Workload> {
    pub(super) consumer: ConsumerName,
    pub(super) also: Option<(Inbox<DB>, ConsumerName)>,
    pub(super) known: Known,
}

/// The messages that have failed or hung in this process.
#[derive(Debug, Default)]
pub(super) struct Known {
    ids: Mutex<HashSet<MessageId>>,
    /// Whether a handler of this process has hung.
    has_hung: AtomicBool,
}

impl Known {
    fn is_first_time(&self, id: MessageId) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id)
    }
}

impl<DB: Workload> Apply<DB> {
    /// Returns whether the handler hangs on this message. On SQLite a hanging handler keeps every
    /// consumer from writing. So after the first hang, few messages hang in the same process;
    /// otherwise the other consumers would never get a turn.
    fn hangs(&self, id: MessageId) -> bool {
        const SQLITE_SHARE: u128 = 32;
        let has_hung = || self.known.has_hung.swap(true, Ordering::Relaxed);
        let is_spared = DB::NAME == sqlx::Sqlite::NAME
            && has_hung()
            && !id.as_uuid().as_u128().is_multiple_of(SQLITE_SHARE);
        !is_spared && self.known.is_first_time(id)
    }
}

#[async_trait]
impl<DB: Workload> Handler<DB> for Apply<DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let payload: Payload = serde_json::from_slice(&message.payload)
            .map_err(|error| HandlerError::reject("the payload is not of this storm").with_source(error))?;
        apply::<DB>(tx, &self.consumer, message).await?;
        if let Some((inbox, also)) = &self.also {
            let admitted = inbox.admit(tx.as_sqlx(), also, &tenant_of(message), message).await;
            match admitted.map_err(|error| HandlerError::unavailable("not admitted").with_source(error))? {
                Admission::Fresh(_) => apply::<DB>(tx, also, message).await?,
                Admission::Duplicate(_) => {}
            }
        }
        // The failure comes after the effect, so that there is something to roll back.
        match payload.hint {
            Some(Hint::FailOnce) if self.known.is_first_time(message.id) => {
                Err(HandlerError::retry("it fails for the first time"))
            }
            Some(Hint::FailAlways) => Err(HandlerError::retry("it fails always")),
            Some(Hint::Reject) => Err(HandlerError::reject("it is refused")),
            Some(Hint::Hang) if self.hangs(message.id) => {
                tokio::time::sleep(HANG).await;
                Ok(None)
            }
            _ => Ok(Some(payload.row.into_bytes())),
        }
    }
}

async fn apply<DB: Workload>(
    tx: &mut Tx<DB>,
    consumer: &ConsumerName,
    message: &Message,
) -> Result<(), HandlerError> {
    let own = message.headers.iter().filter(|(name, _)| name.starts_with(HEADER_PREFIX));
    let (payload, headers) = (Digest::of(&message.payload).to_string(), Digest::of_headers(own).to_string());
    let scope = tenant_of(message);
    let effect = Effect {
        consumer: consumer.as_str(),
        scope: scope.as_str(),
        id: message.id.as_uuid(),
        key: message.key.as_ref().map_or("", |key| key.as_str()),
        cents: 0,
        payload: &payload,
        headers: &headers,
    };
    Ok(DB::apply(tx, &effect).await?)
}
