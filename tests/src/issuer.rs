//! An issuer of access tokens of the test's own: a token endpoint over HTTPS, whose tokens the
//! services' Kafka accepts (`cargo xtask services`), or a RabbitMQ node of the test. It shares a
//! key with either.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::brokers::oauth::OAuth;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};
use sha2::Sha256;

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

/// The key's name that a RabbitMQ node of a test knows (`cargo xtask services`).
const RABBITMQ_KEY_ID: &str = "tests";
/// How far the clock of an issuer with a wrong clock is off.
const CLOCK_OFF: u64 = 3_600;

/// A key that signs tokens.
#[derive(Debug)]
pub struct TokenKey(Signer);

#[derive(Debug)]
enum Signer {
    /// For Kafka, which has the public half.
    Pair(KeyPair),
    /// For RabbitMQ, which has the same key.
    Shared(Vec<u8>),
}

impl TokenKey {
    /// Reads the key whose public half the services' Kafka has.
    ///
    /// # Errors
    /// This run has no such key.
    pub fn of_services() -> Result<Self, Failure> {
        let path = PathBuf::from(Backend::TlsFiles.address()?).join("token.key");
        Ok(Self(Signer::Pair(KeyPair::from_pem(&std::fs::read_to_string(path)?)?)))
    }

    /// Makes a key that no broker knows.
    ///
    /// # Errors
    /// No key could be made.
    pub fn foreign() -> Result<Self, Failure> {
        Ok(Self(Signer::Pair(KeyPair::generate()?)))
    }

    /// Takes the key of a RabbitMQ node ([`RabbitmqNode::start_with_tokens`]).
    ///
    /// [`RabbitmqNode::start_with_tokens`]: crate::rabbitmq_node::RabbitmqNode::start_with_tokens
    #[must_use]
    pub fn shared(key: &[u8]) -> Self {
        Self(Signer::Shared(key.to_vec()))
    }

    /// Returns a token for this audience that lives for some time.
    ///
    /// # Errors
    /// The clock stands before 1970, or the key does not sign.
    pub fn token(&self, audience: &str, lifetime: Duration) -> Result<String, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        self.signed(json!({
            "iss": ISSUER, "aud": audience, "sub": CLIENT, "scope": "kafka",
            "iat": now, "exp": now + lifetime.as_secs(),
        }))
    }

    /// Returns a token that the broker with this key accepts.
    ///
    /// # Errors
    /// As for [`TokenKey::token`].
    pub fn accepted(&self, lifetime: Duration) -> Result<String, Failure> {
        match &self.0 {
            Signer::Pair(_) => self.token(AUDIENCE, lifetime),
            Signer::Shared(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
                self.for_rabbitmq(Some(now), now + lifetime.as_secs())
            }
        }
    }

    /// Returns a token for RabbitMQ, issued and expiring at these seconds since 1970.
    ///
    /// # Errors
    /// The key does not sign.
    pub fn for_rabbitmq(&self, issued_at: Option<u64>, expires_at: u64) -> Result<String, Failure> {
        let mut claims = json!({
            "sub": CLIENT,
            "aud": ["rabbitmq"],
            "scope": ["rabbitmq.configure:*/*", "rabbitmq.read:*/*", "rabbitmq.write:*/*"],
            "exp": expires_at,
        });
        if let Some(issued_at) = issued_at {
            claims["iat"] = issued_at.into();
        }
        self.signed(claims)
    }

    fn signed(&self, claims: Value) -> Result<String, Failure> {
        let head = match &self.0 {
            Signer::Pair(_) => json!({ "alg": "ES256", "typ": "JWT", "kid": KEY_ID }),
            Signer::Shared(_) => json!({ "alg": "HS256", "typ": "JWT", "kid": RABBITMQ_KEY_ID }),
        };
        let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let text = format!("{}.{}", part(head), part(claims));
        let signature = match &self.0 {
            Signer::Pair(pair) => fixed(&pair.sign(text.as_bytes())?).ok_or("no signature of ECDSA")?,
            Signer::Shared(key) => {
                let mut mac = Hmac::<Sha256>::new_from_slice(key)?;
                mac.update(text.as_bytes());
                mac.finalize().into_bytes().to_vec()
            }
        };
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
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

/// How an issuer answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As it should.
    Honest,
    /// Never.
    Silent,
    /// With a token that says nothing of its issue, and lives for less than the answer says.
    Boasting,
    /// By a clock that is an hour ahead, and without `expires_in`.
    Ahead,
    /// By a clock that is an hour behind, and without `expires_in`.
    Behind,
}

#[derive(Debug)]
struct Desk {
    key: TokenKey,
    manner: Mutex<Manner>,
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
    /// Starts an endpoint for the services' Kafka that shows a certificate.
    ///
    /// # Errors
    /// No port is free, or this run has no key for tokens.
    pub async fn start(stage: &Stage, shown: Shown) -> Result<Self, Failure> {
        Self::start_with(stage, shown, TokenKey::of_services()?).await
    }

    /// Starts an endpoint whose tokens have this key.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start_with(stage: &Stage, shown: Shown, key: TokenKey) -> Result<Self, Failure> {
        let desk = Arc::new(Desk {
            key,
            manner: Mutex::new(Manner::Honest),
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

    /// Returns the settings of its client.
    #[must_use]
    pub fn client(&self) -> OAuth {
        OAuth::client(self.url(), CLIENT).client_secret(SECRET).ca_file(self.authority())
    }

    /// Sets how the issuer answers from now on.
    pub fn set_manner(&self, manner: Manner) {
        *self.desk.manner.lock().unwrap_or_else(PoisonError::into_inner) = manner;
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
    let manner = { *desk.manner.lock().unwrap_or_else(PoisonError::into_inner) };
    let Ok(answer) = desk.answer(manner, seconds) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if manner == Manner::Silent {
        return std::future::pending().await;
    }
    desk.granted.fetch_add(1, Ordering::AcqRel);
    answer.to_string().into_response()
}

impl Desk {
    fn answer(&self, manner: Manner, seconds: u64) -> Result<Value, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let by_clock = |now: u64| self.key.for_rabbitmq(Some(now), now + seconds);
        let mut answer = json!({ "token_type": "Bearer" });
        answer["access_token"] = match manner {
            Manner::Honest | Manner::Silent => self.key.accepted(Duration::from_secs(seconds))?,
            Manner::Boasting => self.key.for_rabbitmq(None, now + seconds)?,
            Manner::Ahead => by_clock(now + CLOCK_OFF)?,
            Manner::Behind => by_clock(now - CLOCK_OFF)?,
        }
        .into();
        match manner {
            Manner::Honest | Manner::Silent => answer["expires_in"] = seconds.into(),
            Manner::Boasting => answer["expires_in"] = LIFETIME_SECS.into(),
            Manner::Ahead | Manner::Behind => {}
        }
        Ok(answer)
    }
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
