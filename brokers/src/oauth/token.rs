//! A token, and where it comes from.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use message::{Fault, FaultScope, PublishError, SubscriptionError};
use secrecy::{ExposeSecret as _, SecretString};

use crate::inspect::InspectError;

/// Maximum size of a token in bytes.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// An access token. `Debug` does not print it.
#[derive(Debug, Clone)]
pub struct Token {
    value: SecretString,
    expires_at: SystemTime,
    owner: Option<String>,
}

impl Token {
    /// Creates a token that expires at a time by this machine's clock.
    ///
    /// # Errors
    /// [`TokenError`], the operator's fault, when the token is empty, has more than 64 KiB or other
    /// characters than visible ASCII, or has expired.
    pub fn new(value: impl Into<SecretString>, expires_at: SystemTime) -> Result<Self, TokenError> {
        let value: SecretString = value.into();
        let text = value.expose_secret();
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::refused(format!(
                "the token has {} bytes; a token has 1 to {TOKEN_BYTES_MAX}",
                text.len()
            )));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::refused(
                "the token has spaces, line breaks or characters beyond ASCII; a token has none",
            ));
        }
        let now = SystemTime::now();
        if expires_at <= now {
            let ago = now.duration_since(expires_at).unwrap_or_default().as_secs();
            return Err(TokenError::refused(format!(
                "the token has expired {ago} s ago by this machine's clock; get a new token, or compare the clocks of \
                 this machine and of its issuer"
            )));
        }
        Ok(Self { value, expires_at, owner: None })
    }

    /// Sets the name of the token's owner, for log lines and errors. Control characters and all
    /// beyond 100 characters are dropped.
    #[must_use]
    pub fn owner(mut self, owner: &str) -> Self {
        let owner: String = owner.chars().filter(|c| !c.is_control()).take(100).collect();
        self.owner = (!owner.is_empty()).then_some(owner);
        self
    }

    /// Returns the token itself.
    #[must_use]
    pub fn value(&self) -> &SecretString {
        &self.value
    }

    /// Returns when it expires.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }

    pub(crate) fn owner_or(&self, other: &'static str) -> &str {
        self.owner.as_deref().unwrap_or(other)
    }

    /// Returns how long it can still be used.
    pub(crate) fn left(&self, now: SystemTime) -> Duration {
        self.expires_at.duration_since(now).unwrap_or_default()
    }
}

/// The reason why there is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct TokenError {
    fault: Fault,
    reason: String,
}

impl TokenError {
    /// Returns an error that an operator has to fix: a wrong setting, a client that is not
    /// permitted. `reason` may contain no secret; it ends with "; " and the remedy.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Operator, reason: reason.into() }
    }

    /// Returns an error that may be temporary: the issuer is down or slow. `reason` may contain no
    /// secret.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Broker, reason: reason.into() }
    }

    /// Returns the party at fault: the operator, or the issuer, which counts as the broker.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Puts the setting's name before the reason.
    #[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
    pub(crate) fn at(self, setting: &str) -> Self {
        Self { reason: format!("{setting}: {}", self.reason), ..self }
    }

    /// Returns the report of a setting. The reason of an error about a file begins with its
    /// setting.
    #[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
    pub(crate) fn into_setting(self, prefix: &str) -> crate::InvalidSetting {
        match self.reason.split_once(": ") {
            Some((setting, problem)) if setting.starts_with(prefix) => {
                crate::InvalidSetting::new(setting, problem)
            }
            _ => crate::InvalidSetting::new(prefix, self.reason),
        }
    }
}

impl From<TokenError> for PublishError {
    fn from(error: TokenError) -> Self {
        Self::new(error.fault(), FaultScope::Session, error.to_string()).with_source(error)
    }
}

impl From<TokenError> for SubscriptionError {
    fn from(error: TokenError) -> Self {
        match error.fault() {
            Fault::Broker => Self::lost(error.to_string()).with_source(error),
            _ => Self::operator(error.to_string()).with_source(error),
        }
    }
}

impl From<TokenError> for InspectError {
    fn from(error: TokenError) -> Self {
        Self { fault: error.fault(), reason: error.to_string() }
    }
}

impl From<crate::InvalidSetting> for TokenError {
    fn from(error: crate::InvalidSetting) -> Self {
        Self::refused(error.to_string())
    }
}

/// A source of tokens: implement it for tokens that the settings cannot get.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// use brokers::oauth::{OAuth, Token, TokenError, TokenProvider};
///
/// #[derive(Debug)]
/// struct Vault;
///
/// #[async_trait::async_trait]
/// impl TokenProvider for Vault {
///     async fn token(&self) -> Result<Token, TokenError> {
///         let text = String::from("eyJ…"); // from wherever the service gets it
///         # let text = String::from("eyJ");
///         Token::new(text, SystemTime::now() + Duration::from_secs(3_600))
///     }
/// }
///
/// let config = brokers::kafka::Config::new(["kafka-1:9093"])
///     .tls(brokers::Tls::default())
///     .sasl(brokers::kafka::Sasl::oauth(OAuth::provider(std::sync::Arc::new(Vault))));
/// config.check()?;
/// # Ok::<(), brokers::InvalidSetting>(())
/// ```
#[async_trait]
pub trait TokenProvider: fmt::Debug + Send + Sync {
    /// Returns a token that is valid now. Called on the runtime of the connection: when a client
    /// connects, before four fifths of the previous token's lifetime have passed, and until it
    /// succeeds. A call is dropped after [`timeout_ms`](super::OAuth::timeout_ms), so it must be
    /// cancel-safe.
    ///
    /// # Errors
    /// [`TokenError`]. Its text is logged and shown to operators.
    async fn token(&self) -> Result<Token, TokenError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_an_hour() -> SystemTime {
        SystemTime::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn what_is_no_token_is_refused_without_showing_it() {
        let long = "s3cret".repeat(TOKEN_BYTES_MAX);
        for value in ["", "s3cret token", "s3cret\n", "s3cr\u{e9}t", "s3cret\0", "s3cret\u{1}a=b", &long] {
            let error = Token::new(value, in_an_hour()).unwrap_err();
            assert_eq!(error.fault(), Fault::Operator);
            assert!(!error.to_string().contains("s3cr") && error.to_string().contains(';'), "{error}");
        }
        let error = Token::new("x", SystemTime::now() - Duration::from_secs(90)).unwrap_err();
        assert!(error.to_string().contains("expired 90 s ago"), "{error}");
        assert!(error.to_string().contains("clocks"), "{error}");
        assert!(Token::new("x", SystemTime::UNIX_EPOCH - Duration::from_secs(1)).is_err());
    }

    #[test]
    fn debug_hides_a_token_and_its_owner_is_one_short_line() {
        let token = Token::new("s3cret", in_an_hour()).unwrap().owner(&format!("re\nlay{}", "x".repeat(200)));
        assert!(!format!("{token:?}").contains("s3cret"));
        assert!(token.owner_or("").starts_with("relayx") && token.owner_or("").len() == 100);
        assert_eq!(token.owner("\n").owner_or("token"), "token");
    }
}
