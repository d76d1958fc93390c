//! Whether this user may begin transactions.
//!
//! Nothing but `InitProducerId` asks for that right, and under a relay's own id it would shut the
//! relay out. So it is asked under another id, which the same grant for a prefix covers. The
//! coordinator forgets it after `transactional.id.expiration.ms`.

use std::time::Duration;

use super::opening::{begin, blocking, client, transactional_id};
use crate::inspect::InspectError;
use crate::kafka::config::Config;

/// How long the transactions of the probe might stay open: it begins none. Few clusters allow less.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Begins transactions beside those of a relay, and returns the id under which it did. Cancel-safe.
///
/// # Errors
/// [`InspectError`] of the operator's without the right to do so; of the broker's when it does not
/// answer.
pub(super) async fn probe(config: &Config, log: &str, relay: &str) -> Result<String, InspectError> {
    let id = format!("{}/doctor", transactional_id(log, relay));
    let (config, named) = (config.clone(), id.clone());
    let begun = blocking(move |asker| {
        begin(&client(&config, TIMEOUT, true)?, named, config.connect_timeout(), &asker).map(drop)
    });
    match begun.await {
        Ok(()) => Ok(id),
        Err(error) => Err(InspectError { fault: error.fault(), reason: format!("{id}: {error}") }),
    }
}
