//! Plaintext stays on this machine unless an operator allows otherwise.

use message::loopback::is_loopback;

use crate::settings::InvalidSetting;

/// Refuses an unencrypted connection to another machine. `setting` names the setting to change,
/// `remedy` the change.
///
/// # Errors
/// [`InvalidSetting`] naming the host and `<section>.allow_plaintext`.
pub(crate) fn check(
    section: &str,
    setting: &str,
    host: &str,
    allowed: bool,
    remedy: &str,
) -> Result<(), InvalidSetting> {
    if allowed || is_loopback(host) {
        return Ok(());
    }
    let problem = format!(
        "{host} is another machine, and messages and secrets would cross the network unencrypted; {remedy}, or set \
         {section}.allow_plaintext = true"
    );
    Err(InvalidSetting::new(format!("{section}.{setting}"), problem))
}

/// Logs that messages cross a network unencrypted. Called once per connector or subscriber.
pub(crate) fn warn(destination: &str) {
    tracing::warn!(destination, "the connection is not encrypted: allow_plaintext is set");
}

/// Logs that anyone on the network path can pose as the broker. Called once per connector or
/// subscriber.
#[cfg(feature = "kafka")]
pub(crate) fn warn_unverified(destination: &str) {
    tracing::warn!(destination, "the broker's certificate is not verified: tls.verify is false");
}
