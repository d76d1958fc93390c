//! Gives a client of librdkafka its token for SASL OAUTHBEARER.
//!
//! rdkafka 0.39 asks for tokens in a callback, `ClientContext::generate_oauth_token`, that
//! - does not exist for the admin client, which therefore cannot log in (rust-rdkafka#757),
//! - takes no SASL extensions, which Confluent Cloud requires (rust-rdkafka#791),
//! - runs on the thread that polls, which waits meanwhile, and
//! - turns a failed renewal into an error of the client, although its token has some time left.
//!
//! librdkafka also takes a token from any thread, at any time. [`set_token`] does that. It is in
//! its own crate because it is the only `unsafe` code of the toolkit.

use std::ffi::{CString, NulError, c_char};
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

use rdkafka::ClientContext;
use rdkafka::bindings::rd_kafka_oauthbearer_set_token;
use rdkafka::client::Client;
use rdkafka::error::RDKafkaErrorCode;

/// Size of the buffer for librdkafka's text, which is not used: it may repeat the token.
const TEXT_BYTES: usize = 512;

/// A token and what is sent with it.
#[derive(Clone, Copy)]
pub struct Token<'a> {
    /// The token. Visible ASCII characters.
    pub value: &'a str,
    /// When it expires. librdkafka accepts only a time in the future.
    pub expires_at: SystemTime,
    /// The name of its owner, for librdkafka's log lines and errors.
    pub principal: &'a str,
    /// SASL extensions (RFC 7628, section 3.1): names of letters, other than `auth`, with values of
    /// visible ASCII characters and spaces.
    pub extensions: &'a [(String, String)],
}

/// The reason why librdkafka did not take a token. Its text contains nothing of the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotTaken {
    /// The token, the principal or an extension contains a NUL character.
    Nul,
    /// The token has expired, or it or an extension contains a character that SASL does not allow.
    Invalid,
    /// The client was not configured for OAUTHBEARER, or librdkafka was built without it.
    NotConfigured,
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nul => "a token, its principal or an extension contains a NUL character",
            Self::Invalid => {
                "the token has expired, or it or an extension has characters that are not allowed"
            }
            Self::NotConfigured => "the client does not use OAUTHBEARER",
        })
    }
}

impl std::error::Error for NotTaken {}

impl From<NulError> for NotTaken {
    /// Drops the error, which contains the text.
    fn from(_: NulError) -> Self {
        Self::Nul
    }
}

/// Gives a client its token. New connections use it, and so do connections that have to
/// authenticate again. Waits only for a lock within librdkafka. May be called from any thread,
/// before the client is connected and any number of times.
///
/// # Errors
/// [`NotTaken`]; the client keeps the previous token.
pub fn set_token<C: ClientContext>(client: &Client<C>, token: &Token<'_>) -> Result<(), NotTaken> {
    let value = CString::new(token.value)?;
    let principal = CString::new(token.principal)?;
    let mut texts = Vec::with_capacity(2 * token.extensions.len());
    for (name, extension) in token.extensions {
        texts.push(CString::new(name.as_str())?);
        texts.push(CString::new(extension.as_str())?);
    }
    let mut extensions: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
    let extensions_at = if extensions.is_empty() { ptr::null_mut() } else { extensions.as_mut_ptr() };
    let mut text: [c_char; TEXT_BYTES] = [0; TEXT_BYTES];
    #[expect(unsafe_code, reason = "rdkafka 0.39 has no safe function for it")]
    // SAFETY: `client` is borrowed, so librdkafka's handle is valid during the call, and its
    // function is thread-safe. It copies the texts, which are terminated by NUL and outlive the
    // call. `extensions` has as many pointers as its length says. It never writes beyond the end of
    // `text`.
    let code = unsafe {
        rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            millis(token.expires_at),
            principal.as_ptr(),
            extensions_at,
            extensions.len(),
            text.as_mut_ptr(),
            text.len(),
        )
    };
    match RDKafkaErrorCode::from(code) {
        RDKafkaErrorCode::NoError => Ok(()),
        RDKafkaErrorCode::InvalidArgument => Err(NotTaken::Invalid),
        _ => Err(NotTaken::NotConfigured),
    }
}

/// Returns milliseconds since 1970, limited to what librdkafka can convert to microseconds.
fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(since).unwrap_or(i64::MAX).min(i64::MAX / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::ClientConfig;
    use rdkafka::admin::AdminClient;
    use rdkafka::client::DefaultClientContext;
    use std::time::Duration;

    fn client(mechanism: &str) -> AdminClient<DefaultClientContext> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1").set("security.protocol", "sasl_plaintext");
        config.set("sasl.mechanism", mechanism).set("sasl.username", "u").set("sasl.password", "p");
        config.create().unwrap()
    }

    #[test]
    fn a_client_takes_a_token_with_its_extensions_and_refuses_what_sasl_forbids() {
        let client = client("OAUTHBEARER");
        let hour = SystemTime::now() + Duration::from_secs(3_600);
        let extensions = [(String::from("logicalCluster"), String::from("lkc-1"))];
        let good = Token { value: "e30.e30.x", expires_at: hour, principal: "me", extensions: &extensions };
        assert_eq!(set_token(client.inner(), &good), Ok(()));
        assert_eq!(set_token(client.inner(), &Token { extensions: &[], ..good }), Ok(()));
        let never = SystemTime::now() + Duration::from_secs(u64::MAX >> 8);
        assert_eq!(set_token(client.inner(), &Token { expires_at: never, ..good }), Ok(()));
        let reserved = [(String::from("auth"), String::from("x"))];
        let digits = [(String::from("a1"), String::from("x"))];
        for (token, problem) in [
            (Token { expires_at: SystemTime::now() - Duration::from_secs(1), ..good }, NotTaken::Invalid),
            (Token { expires_at: UNIX_EPOCH - Duration::from_secs(1), ..good }, NotTaken::Invalid),
            (Token { value: "s3cr\u{e9}t", ..good }, NotTaken::Invalid),
            (Token { value: "s3cret\0", ..good }, NotTaken::Nul),
            (Token { principal: "\0", ..good }, NotTaken::Nul),
            (Token { extensions: &reserved, ..good }, NotTaken::Invalid),
            (Token { extensions: &digits, ..good }, NotTaken::Invalid),
        ] {
            assert_eq!(set_token(client.inner(), &token), Err(problem));
        }
    }

    #[test]
    fn a_client_with_a_password_takes_no_token() {
        let hour = SystemTime::now() + Duration::from_secs(3_600);
        let token = Token { value: "e30.e30.x", expires_at: hour, principal: "me", extensions: &[] };
        assert_eq!(set_token(client("PLAIN").inner(), &token), Err(NotTaken::NotConfigured));
    }
}
