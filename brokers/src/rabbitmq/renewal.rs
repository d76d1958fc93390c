//! Replaces the credential of a connection while it lasts: a password whose file has changed, or a
//! token of OAuth 2 before it expires.
//!
//! A token that expires ends no connection, but from then on the broker refuses every operation on
//! it (rabbitmq.com/docs/oauth2). So the file is checked at an interval, and an issuer is asked
//! before the token expires; then the broker receives the new secret. For users in RabbitMQ's own
//! database, the broker accepts any secret there and never checks it; and it ends a connection
//! whose new token it refuses. So a new secret is first tried in a separate login.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use lapin::types::{LongString, ShortString};
use message::PublishError;
use secrecy::{ExposeSecret as _, SecretString};

use super::connection::Renewal;
use super::credential::{Credential, PASSWORD, Proof};
use super::endpoint::Endpoint;
use super::token::Expiry;
use crate::oauth::{self, AGAIN_MAX, Token, TokenSource};
use crate::secret::Secret;

/// Interval at which the file is checked: tokens are replaced a minute or more before they expire.
const LOOK_EVERY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 15_000 });
/// Shortest interval: a token that expires sooner is checked more often.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1_000 });
/// A token that is not replaced is reported this long before it expires.
const REPORTED_BEFORE: Duration = Duration::from_secs(60);
/// Maximum time for the broker's answer.
pub(super) const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 10_000 });

/// Keeps the credential of a connection up to date. The connection was opened with `used`. Returns
/// `None` if the password is written in the configuration.
pub(super) fn of(client: &Arc<lapin::Connection>, endpoint: &Endpoint, used: Proof) -> Option<Renewal> {
    let client = Arc::downgrade(client);
    let endpoint_of = endpoint.clone();
    match (endpoint.credential()?, used) {
        (Credential::Password(file @ Secret::File(_)), Proof::Password(used)) => {
            Some(Renewal::spawn(look(client, endpoint_of, file.clone(), used)))
        }
        (Credential::Tokens(tokens), Proof::Token(used)) => {
            Some(Renewal::spawn(renew(client, endpoint_of, tokens.clone(), used)))
        }
        (Credential::Password(_), _) | (Credential::Tokens(_), Proof::Password(_)) => None,
    }
}

/// Returns the pause before the next look: a third of what is left of a token, so that there is
/// time for a second one.
fn pause(used: &SecretString) -> Duration {
    let left = Expiry::of(used.expose_secret()).map(|expiry| expiry.left(SystemTime::now()));
    match left {
        Some(left) if !left.is_zero() => (left / 3).clamp(LOOK_EVERY_MIN, LOOK_EVERY),
        _ => LOOK_EVERY,
    }
}

async fn look(client: Weak<lapin::Connection>, endpoint: Endpoint, password: Secret, mut used: SecretString) {
    let mut refused: Option<SecretString> = None;
    let mut is_reported = false;
    loop {
        tokio::time::sleep(pause(&used)).await;
        let read = password.clone();
        // A file that is being replaced is checked again later.
        let Ok(Ok(now)) = tokio::task::spawn_blocking(move || read.load(PASSWORD)).await else { continue };
        if now.expose_secret() == used.expose_secret() {
            refused = None;
            is_reported = is_reported || report_expiry(&used);
            continue;
        }
        if let Err(error) = endpoint.try_login(&Proof::Password(now.clone())).await {
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
        if give(&client, &now, "password").await {
            used = now;
            is_reported = false;
        }
    }
}

/// Asks for the next token before the previous one expires, and again after every failure: the
/// connection keeps its token meanwhile, also when it has expired. The broker then refuses what
/// needs a permission, so the session ends, and the next one has the issuer's reason.
async fn renew(client: Weak<lapin::Connection>, endpoint: Endpoint, tokens: TokenSource, mut used: Token) {
    let mut due = oauth::Renewal::of(used.left(SystemTime::now()), Instant::now());
    loop {
        tokio::time::sleep_until(due.due_at.into()).await;
        match next(&endpoint, &tokens).await {
            Ok(token) => {
                let Some(client) = client.upgrade() else { return };
                if give(&client, token.value(), "token").await {
                    let left = token.left(SystemTime::now());
                    tracing::debug!(
                        lives_secs = left.as_secs(),
                        "the connection to rabbitmq has a new token"
                    );
                    used = token;
                    due = oauth::Renewal::of(left, Instant::now());
                } else {
                    due = again(&used);
                }
            }
            Err(error) => {
                let left = used.left(SystemTime::now());
                let left_secs = left.as_secs();
                if left.is_zero() {
                    tracing::warn!(
                        %error,
                        "rabbitmq: the token of a connection has expired and was not renewed. The broker refuses \
                         what needs a permission; the relay or the consumer asks for a token again"
                    );
                } else {
                    tracing::warn!(
                        %error, left_secs,
                        "rabbitmq: the token was not renewed. The connection uses the previous one until it \
                         expires, and asks again"
                    );
                }
                due = again(&used);
            }
        }
    }
}

/// Returns when to ask again for a token that replaces the one of the connection.
fn again(used: &Token) -> oauth::Renewal {
    let (left, now) = (used.left(SystemTime::now()), Instant::now());
    if left.is_zero() {
        return oauth::Renewal { due_at: now + AGAIN_MAX };
    }
    oauth::Renewal::after_failure(left, now)
}

/// Gets a token with which the broker accepts a login.
async fn next(endpoint: &Endpoint, tokens: &TokenSource) -> Result<Token, PublishError> {
    let token = tokens.token().await?;
    endpoint.try_login(&Proof::Token(token.clone())).await?;
    Ok(token)
}

/// Gives the broker the new secret of a connection: a password or a token, as `kind` says. Returns
/// whether the broker confirmed it: otherwise the connection has the previous one.
async fn give(client: &lapin::Connection, secret: &SecretString, kind: &str) -> bool {
    let secret = LongString::from(secret.expose_secret().as_bytes());
    let answer = client.update_secret(secret, ShortString::from(format!("new {kind}")));
    match tokio::time::timeout(ANSWER_MAX, answer).await {
        Ok(Ok(())) => {
            tracing::info!("rabbitmq accepts the new {kind} of a connection");
            return true;
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "rabbitmq does not accept the new {kind} of a connection");
        }
        Err(_) => tracing::warn!("rabbitmq did not confirm the new {kind} of a connection"),
    }
    false
}

/// Reports a token that expires soon and was not replaced. Returns whether it reported one.
fn report_expiry(used: &SecretString) -> bool {
    let now = SystemTime::now();
    let Some(expiry) = Expiry::of(used.expose_secret()) else { return false };
    if expiry.left(now) > REPORTED_BEFORE {
        return false;
    }
    tracing::warn!(
        "the token in rabbitmq.password_file {} and has not been replaced: rabbitmq refuses everything on its \
         connections then; check what renews the file",
        expiry.told(now)
    );
    true
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn token(expires_in: u64) -> SecretString {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + expires_in;
        SecretString::from(format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{at}}}"))))
    }

    #[test]
    fn a_token_is_reported_only_shortly_before_it_expires() {
        assert!(!report_expiry(&token(120)));
        assert!(report_expiry(&token(40)));
        assert!(report_expiry(&token(0)));
        assert!(!report_expiry(&SecretString::from("a password")));
        assert_eq!(pause(&SecretString::from("a password")), LOOK_EVERY);
    }
}
