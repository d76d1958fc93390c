//! Tokens from a file that another program keeps up to date.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use secrecy::ExposeSecret as _;

use super::jwt::Claims;
use super::token::{Token, TokenError, TokenProvider};
use crate::secret::Secret;

/// Assumed lifetime of a token that does not say when it expires: it is read again before this.
const LIFETIME_ASSUMED: Duration = Duration::from_secs(300);

/// A file that holds a token.
#[derive(Debug, Clone)]
pub(crate) struct TokenFile {
    pub(crate) path: PathBuf,
    /// The setting that names it.
    pub(crate) setting: String,
}

impl TokenFile {
    /// Reads the token. Blocks for a local read.
    pub(crate) fn read(&self) -> Result<Token, TokenError> {
        let setting = self.setting.trim_end_matches("_file");
        let value = Secret::File(self.path.clone()).load(setting)?;
        let claims = Claims::of(value.expose_secret()).unwrap_or_default();
        let expires_at = claims.expires_at().unwrap_or_else(|| SystemTime::now() + LIFETIME_ASSUMED);
        let named = |error: TokenError| error.at(&format!("{}: {}", self.setting, self.path.display()));
        let token = Token::new(value, expires_at).map_err(named)?;
        Ok(token.owner(claims.sub.as_deref().unwrap_or_default()))
    }
}

#[async_trait]
impl TokenProvider for TokenFile {
    async fn token(&self) -> Result<Token, TokenError> {
        let file = self.clone();
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        read.map_err(|error| TokenError::unavailable(format!("reading a token was interrupted: {error}")))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::Fault;
    use std::time::UNIX_EPOCH;

    fn read(content: &str) -> Result<Token, TokenError> {
        let path = std::env::temp_dir().join(format!("{}-token", uuid::Uuid::now_v7()));
        std::fs::write(&path, content).unwrap();
        let setting = String::from("kafka.sasl.oauth.token_file");
        let read = TokenFile { path: path.clone(), setting }.read();
        std::fs::remove_file(path).unwrap();
        read
    }

    #[test]
    fn a_token_says_when_it_expires_or_is_read_again_soon() {
        // {"exp":4102444800,"sub":"system:serviceaccount:shop:relay"}
        let jwt =
            "e30.eyJleHAiOjQxMDI0NDQ4MDAsInN1YiI6InN5c3RlbTpzZXJ2aWNlYWNjb3VudDpzaG9wOnJlbGF5In0.c2ln\n";
        let token = read(jwt).unwrap();
        assert_eq!(token.expires_at(), UNIX_EPOCH + Duration::from_secs(4_102_444_800));
        assert_eq!(token.owner_or(""), "system:serviceaccount:shop:relay");
        let opaque = read("opaque").unwrap();
        let left = opaque.left(SystemTime::now());
        assert!(left <= LIFETIME_ASSUMED && left > LIFETIME_ASSUMED / 2);
    }

    #[test]
    fn a_file_without_a_usable_token_is_named() {
        // {"exp":1000000000}
        for (content, problem) in
            [("", "empty"), ("s3cret s3cret", "spaces"), ("e30.eyJleHAiOjEwMDAwMDAwMDB9.s3cret", "clocks")]
        {
            let error = read(content).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.fault(), Fault::Operator);
            assert!(text.contains("kafka.sasl.oauth.token_file: /") && text.contains(problem), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
