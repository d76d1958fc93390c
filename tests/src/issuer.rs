//! An issuer of access tokens of the test's own: a token endpoint over HTTPS, whose tokens the
//! services' Kafka accepts. It shares a key with that Kafka (`cargo xtask services`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::json;

use crate::backends::Backend;
use crate::stage::Stage;
use crate::tls::{Authority, Front, Opening, Shown};
use crate::trial::{Failure, Outcome};

/// The client that the issuer knows, and its secret.
pub const CLIENT: &str = "outbox";
/// The secret of [`CLIENT`].
pub const SECRET: &str = "outbox-s3cret";
/// The audience and the issuer that the services' Kafka demands.
const AUDIENCE: &str = "kafka";
const ISSUER: &str = "https://issuer.test";
const KEY_ID: &str = "outbox-toolkit-tests";
/// Lifetime of a token in seconds, unless the test sets another one.
const LIFETIME_SECS: u64 = 3_600;

/// A key that signs tokens.
#[derive(Debug)]
pub struct TokenKey(KeyPair);

impl TokenKey {
    /// Reads the key whose public half the services' Kafka has.
    ///
    /// # Errors
    /// This run has no such key.
    pub fn of_services() -> Result<Self, Failure> {
        let path = PathBuf::from(Backend::TlsFiles.address()?).join("token.key");
        Ok(Self(KeyPair::from_pem(&std::fs::read_to_string(path)?)?))
    }

    /// Makes a key that no broker knows.
    ///
    /// # Errors
    /// No key could be made.
    pub fn foreign() -> Result<Self, Failure> {
        Ok(Self(KeyPair::generate()?))
    }

    /// Returns a token for this audience that lives for some time.
    ///
    /// # Errors
    /// The clock stands before 1970, or the key does not sign.
    pub fn token(&self, audience: &str, lifetime: Duration) -> Result<String, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let head = json!({ "alg": "ES256", "typ": "JWT", "kid": KEY_ID });
        let claims = json!({
            "iss": ISSUER, "aud": audience, "sub": CLIENT, "scope": "kafka",
            "iat": now, "exp": now + lifetime.as_secs(),
        });
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = fixed(&self.0.sign(signed.as_bytes())?).ok_or("no signature of ECDSA")?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Returns a token that the services' Kafka accepts, if this is their key.
    ///
    /// # Errors
    /// As for [`TokenKey::token`].
    pub fn accepted(&self, lifetime: Duration) -> Result<String, Failure> {
        self.token(AUDIENCE, lifetime)
    }
}

/// Turns a signature in DER, a sequence of two numbers, into the two numbers of 32 bytes each.
fn fixed(der: &[u8]) -> Option<Vec<u8>> {
    let numbers = der.strip_prefix(&[0x30])?.get(1..)?;
    let mut rest = numbers;
    let mut fixed = Vec::new();
    for _ in 0..2 {
        let (length, from) = rest.strip_prefix(&[2])?.split_first()?;
        let (number, behind) = from.split_at_checked(usize::from(*length))?;
        let number = &number[number.len().saturating_sub(32)..];
        fixed.extend(std::iter::repeat_n(0, 32 - number.len()).chain(number.iter().copied()));
        rest = behind;
    }
    Some(fixed)
}

#[derive(Debug)]
struct Desk {
    key: TokenKey,
    lifetime_secs: AtomicU64,
    knows_client: AtomicBool,
    granted: AtomicUsize,
}

/// A token endpoint. It ends with the stage.
pub struct Issuer {
    desk: Arc<Desk>,
    port: u16,
    authority: PathBuf,
}

impl Issuer {
    /// Starts an endpoint that shows a certificate.
    ///
    /// # Errors
    /// No port is free, or this run has no key for tokens.
    pub async fn start(stage: &Stage, shown: Shown) -> Result<Self, Failure> {
        let desk = Arc::new(Desk {
            key: TokenKey::of_services()?,
            lifetime_secs: AtomicU64::new(LIFETIME_SECS),
            knows_client: AtomicBool::new(true),
            granted: AtomicUsize::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let target = listener.local_addr()?.to_string();
        let routes = Router::new().route("/token", post(grant)).with_state(Arc::clone(&desk));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        stage.afterwards("an issuer", async move {
            serving.abort();
            Outcome::Ok(())
        });
        let authority = Authority::new()?;
        let front = Front::start(stage, target, Opening::Direct, &authority, shown, None).await?;
        Ok(Self { desk, port: front.port, authority: authority.file(stage)? })
    }

    /// Returns the address of the token endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}/token", self.port)
    }

    /// Returns the file of the authority that signed its certificate.
    #[must_use]
    pub fn authority(&self) -> &Path {
        &self.authority
    }

    /// Sets the lifetime of the next tokens.
    pub fn set_lifetime(&self, lifetime: Duration) {
        self.desk.lifetime_secs.store(lifetime.as_secs(), Ordering::Release);
    }

    /// Makes the issuer forget its client, or know it again.
    pub fn set_known(&self, known: bool) {
        self.desk.knows_client.store(known, Ordering::Release);
    }

    /// Returns how many tokens were granted.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.desk.granted.load(Ordering::Acquire)
    }
}

async fn grant(State(desk): State<Arc<Desk>>, headers: HeaderMap, form: String) -> Response {
    let expected = format!("Basic {}", STANDARD.encode(format!("{CLIENT}:{SECRET}")));
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(expected.as_str()) || !desk.knows_client.load(Ordering::Acquire) {
        // Some issuers repeat what they were sent.
        let error = json!({ "error": "invalid_client", "error_description": format!("who is {given:?}?") });
        let known = json!({ "error": "invalid_client" });
        let body = if given == Some(expected.as_str()) { known } else { error };
        return (StatusCode::UNAUTHORIZED, body.to_string()).into_response();
    }
    if !form.contains("grant_type=client_credentials") {
        return (StatusCode::BAD_REQUEST, json!({ "error": "unsupported_grant_type" }).to_string())
            .into_response();
    }
    let seconds = desk.lifetime_secs.load(Ordering::Acquire);
    let Ok(token) = desk.key.accepted(Duration::from_secs(seconds)) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    desk.granted.fetch_add(1, Ordering::AcqRel);
    json!({ "access_token": token, "token_type": "Bearer", "expires_in": seconds })
        .to_string()
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_has_two_numbers_of_fixed_length() {
        let mut long = vec![0x30, 0x45, 2, 33, 0];
        long.extend([0x80; 32]);
        long.extend([2, 31]);
        long.extend([7; 31]);
        let expected: Vec<u8> = [0x80; 32].into_iter().chain([0]).chain([7; 31]).collect();
        assert_eq!(fixed(&long), Some(expected));
        assert_eq!(fixed(&[0x30, 2, 2, 9, 1]), None);
    }
}
