//! Handles a password that is replaced during a connection, like the access tokens of OAuth 2.
//!
//! A token that expires ends no connection, but from then on the broker refuses every operation on
//! it (rabbitmq.com/docs/oauth2). So the file is checked at an interval, and the broker receives
//! the new password. For users in RabbitMQ's own database, the broker accepts any secret there and
//! never checks it. So a new password is first tried in a separate login.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lapin::types::{LongString, ShortString};
use message::PublishError;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::connection::Renewal;
use super::endpoint::{Endpoint, PASSWORD};
use crate::secret::Secret;

/// Interval at which the file is checked: tokens are replaced a minute or more before they expire.
const LOOK_EVERY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 15_000 });
/// Maximum time for the broker's answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Checks the password's file for a connection that was opened with the password `used`. Returns
/// `None` if the password is written in the configuration.
pub(super) fn of(client: &Arc<lapin::Connection>, endpoint: &Endpoint, used: &str) -> Option<Renewal> {
    let password = endpoint.password().filter(|password| matches!(password, Secret::File(_)))?.clone();
    let client = Arc::downgrade(client);
    let used = SecretString::from(used);
    Some(Renewal::spawn(look(client, endpoint.clone(), password, used)))
}

async fn look(client: Weak<lapin::Connection>, endpoint: Endpoint, password: Secret, mut used: SecretString) {
    let mut tick = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut refused: Option<SecretString> = None;
    loop {
        tick.tick().await;
        let read = password.clone();
        // A file that is being replaced is checked again later.
        let Ok(Ok(now)) = tokio::task::spawn_blocking(move || read.load(PASSWORD)).await else { continue };
        if now.expose_secret() == used.expose_secret() {
            refused = None;
            continue;
        }
        if let Err(error) = endpoint.try_login(&now).await {
            // The broker may get the new password after the file: it is tried again, and reported
            // once.
            if refused.is_none_or(|refused| refused.expose_secret() != now.expose_secret()) {
                let error = PublishError::from(error);
                tracing::warn!(
                    %error,
                    "rabbitmq refuses the new password of a connection, which continues with the previous one; \
                     the next connection will be refused"
                );
            }
            refused = Some(now);
            continue;
        }
        refused = None;
        let Some(client) = client.upgrade() else { return };
        let secret = LongString::from(now.expose_secret().as_bytes());
        let answer = client.update_secret(secret, ShortString::from("password file changed"));
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(Ok(())) => tracing::info!("rabbitmq accepts the new password of a connection"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "rabbitmq does not accept the new password of a connection");
            }
            Err(_) => tracing::warn!("rabbitmq did not confirm the new password of a connection"),
        }
        used = now;
    }
}
