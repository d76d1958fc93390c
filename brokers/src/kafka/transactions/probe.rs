//! Checks whether this user may begin transactions.
//!
//! Only `InitProducerId` checks that right, and under a relay's own id it would fence off the
//! relay. So it is sent under another id, which the same prefixed grant covers. The coordinator
//! forgets that id after `transactional.id.expiration.ms`.

use std::time::Duration;

use super::opening::{begin, blocking, client, transactional_id};
use crate::inspect::InspectError;
use crate::kafka::config::Config;
use crate::kafka::login::Login;

/// Timeout of the probe's transactions, of which it begins none. Few clusters allow less.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Begins transactions beside those of a relay. Returns the id used. Cancel-safe.
///
/// # Errors
/// [`InspectError`]: the right to do so is missing (the operator's fault), or the broker does not
/// answer.
pub(super) async fn probe(config: &Config, log: &str, relay: &str) -> Result<String, InspectError> {
    let id = format!("{}/doctor", transactional_id(log, relay));
    let (config, named) = (config.clone(), id.clone());
    let begun = blocking(move |asker| {
        let login = Login::of(&config, None)?;
        let client = client(&config, TIMEOUT, true)?;
        begin(&client, &login, named, config.connect_timeout(), &asker).map(drop)
    });
    match begun.await {
        Ok(()) => Ok(id),
        Err(error) => Err(InspectError { fault: error.fault(), reason: format!("{id}: {error}") }),
    }
}
