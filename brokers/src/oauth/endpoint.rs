//! Gets tokens from a token endpoint for a client's credentials (RFC 6749, section 4.4).

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::Engine as _;
use secrecy::{ExposeSecret as _, SecretString};
use url::{Url, form_urlencoded};

use super::answer::Answer;
use super::source::Client;
use super::token::{Token, TokenError, TokenProvider};
use crate::proxy;
use crate::tls::Tls;
use crate::unreachable;

/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: u64 = 128 << 10;

/// A token endpoint, and how this client asks it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) client: Client,
    /// The path of the settings.
    pub(crate) prefix: String,
    /// Maximum time for the whole answer.
    pub(crate) timeout: Duration,
}

/// The credentials as they are sent. Debug shows nothing of them.
struct Credentials {
    secret: SecretString,
    basic: SecretString,
}

#[async_trait]
impl TokenProvider for Endpoint {
    /// The request has its own time limit, so a dropped one ends by itself.
    async fn token(&self) -> Result<Token, TokenError> {
        let endpoint = self.clone();
        let asked = tokio::task::spawn_blocking(move || endpoint.ask()).await;
        asked.map_err(|error| {
            TokenError::unavailable(format!("asking for a token was interrupted: {error}"))
        })?
    }
}

impl Endpoint {
    /// Reads the secret and the authority's certificate, without asking the endpoint.
    pub(crate) fn check(&self) -> Result<(), TokenError> {
        self.credentials()?;
        Ok(Tls { ca_file: self.client.ca_file.clone(), ..Tls::default() }
            .https(&self.prefix)?
            .ureq()
            .map(drop)?)
    }

    fn setting(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn credentials(&self) -> Result<Credentials, TokenError> {
        let secret = self.client.secret.load(&self.setting("client_secret"))?;
        let pair = format!("{}:{}", encoded(&self.client.id), encoded(secret.expose_secret()));
        let basic = base64::engine::general_purpose::STANDARD.encode(pair);
        Ok(Credentials { secret, basic: SecretString::from(basic) })
    }

    /// Asks for a token. Blocks for at most the time limit, and follows no redirect: a secret goes
    /// to the configured address alone, through a proxy only if it is encrypted.
    fn ask(&self) -> Result<Token, TokenError> {
        let credentials = self.credentials()?;
        let tls =
            Tls { ca_file: self.client.ca_file.clone(), ..Tls::default() }.https(&self.prefix)?.ureq()?;
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(self.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls)
            .proxy(proxy::for_requests_to(&self.client.url))
            .build()
            .into();
        let asked = agent
            .post(self.client.url.as_str())
            .header("Authorization", format!("Basic {}", credentials.basic.expose_secret()))
            .header("Accept", "application/json")
            .content_type("application/x-www-form-urlencoded")
            .send(self.form());
        let answered = asked.and_then(|mut answer| {
            let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
            Ok((answer.status().as_u16(), body))
        });
        let place = place(&self.client.url);
        let setting = self.setting("token_url");
        let (status, body) = match answered {
            Ok(answer) => answer,
            Err(error) => return Err(self.unanswered(&error).at(&format!("{setting}: {place}"))),
        };
        let secrets = [credentials.secret.expose_secret(), credentials.basic.expose_secret()];
        let answer = Answer { status, body: &body, client_id: &self.client.id, secrets };
        answer.token(SystemTime::now()).map_err(|error| error.at(&format!("{setting}: {place}")))
    }

    fn form(&self) -> String {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        for (name, value) in [("scope", &self.client.scope), ("audience", &self.client.audience)] {
            if let Some(value) = value {
                form.append_pair(name, value);
            }
        }
        form.finish()
    }

    fn unanswered(&self, error: &ureq::Error) -> TokenError {
        let text = error.to_string();
        match error {
            ureq::Error::Timeout(_) => TokenError::unavailable(format!(
                "gave no whole answer within {} ms; check the issuer and the network in between, or raise timeout_ms",
                self.timeout.as_millis()
            )),
            ureq::Error::BodyExceedsLimit(_) => TokenError::refused(format!(
                "answers with more than {ANSWER_BYTES_MAX} bytes; write the address of a token endpoint"
            )),
            _ if text.contains("certificate") => TokenError::refused(format!(
                "its certificate is not accepted: {text}; check the host in token_url, and ca_file"
            )),
            _ => {
                let advice = unreachable::advice_about("issuer", &text, &self.setting("token_url"));
                TokenError::unavailable(format!("does not answer: {text}; {advice}"))
            }
        }
    }
}

/// Returns scheme, host and port: a path may name a tenant, and a query may hold a key.
fn place(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Encodes one part of the credentials as RFC 6749 requires (section 2.3.1). Leaves out characters
/// that need no encoding in a URL, for endpoints that forget to decode them.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace("%7E", "~")
}

#[cfg(test)]
mod tests;
