//! The settings of tokens, and their validation.

use std::path::PathBuf;
use std::sync::Arc;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
use std::time::Duration;

use message::loopback::is_loopback;
use secrecy::SecretString;
use serde::Deserialize;
use url::Url;

#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
use super::endpoint::Endpoint;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
use super::file::TokenFile;
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
use super::renewal::TokenSource;
use super::source::{Client, Source};
use super::token::TokenProvider;
use crate::secret::Secret;
use crate::settings::InvalidSetting;

/// Maximum bytes of a name that is sent to the token endpoint.
const NAME_BYTES_MAX: usize = 4_096;

/// Where access tokens come from: a token endpoint, a file, or (only in the library) a provider.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OAuth {
    /// The token endpoint (`https://…`), which gives tokens for the client's credentials (grant
    /// type `client_credentials`). `http://` is accepted for this machine only.
    #[serde(default)]
    pub token_url: Option<String>,
    /// The client's id; needs `token_url`.
    #[serde(default)]
    pub client_id: Option<String>,
    /// The client's secret. It can be given in `client_secret_file` instead.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub client_secret: Option<SecretString>,
    /// The file that holds the client's secret, read for every token.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    /// The scopes to ask for, separated by spaces. Default none.
    #[serde(default)]
    pub scope: Option<String>,
    /// The parameter `audience`, which some issuers require. Default none.
    #[serde(default)]
    pub audience: Option<String>,
    /// The certificate authority that signed the token endpoint's certificate; without it, the
    /// system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The file that holds a token, such as a projected token of a Kubernetes service account. Read
    /// on every connect, and again before its token expires.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Maximum time for getting a token, in milliseconds, 100 to 60,000. Default 10,000.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// The service's own source of tokens.
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub provider: Option<Arc<dyn TokenProvider>>,
}

/// How much longer an endpoint may take: it ends its request after the time limit itself, and its
/// error says which part of the settings is to blame.
#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
const ENDPOINT_TELLS: Duration = Duration::from_secs(1);

fn timeout_ms() -> u64 {
    10_000
}

impl OAuth {
    fn none() -> Self {
        Self {
            token_url: None,
            client_id: None,
            client_secret: None,
            client_secret_file: None,
            scope: None,
            audience: None,
            ca_file: None,
            token_file: None,
            timeout_ms: timeout_ms(),
            provider: None,
        }
    }

    /// Returns the settings of a client of a token endpoint, which needs a secret or its file.
    #[must_use]
    pub fn client(token_url: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self { token_url: Some(token_url.into()), client_id: Some(client_id.into()), ..Self::none() }
    }

    /// Returns the settings of a token in a file.
    #[must_use]
    pub fn file(token_file: impl Into<PathBuf>) -> Self {
        Self { token_file: Some(token_file.into()), ..Self::none() }
    }

    /// Returns the settings of a provider.
    #[must_use]
    pub fn provider(provider: Arc<dyn TokenProvider>) -> Self {
        Self { provider: Some(provider), ..Self::none() }
    }

    /// Returns the maximum time for getting a token.
    #[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Checks only the settings, and returns the source. Files may be mounted later. `prefix` is
    /// the path of this section (`kafka.sasl.oauth`).
    pub(crate) fn source(&self, prefix: &str) -> Result<Source, InvalidSetting> {
        let wrong =
            |setting: &str, problem: String| InvalidSetting::new(format!("{prefix}.{setting}"), problem);
        InvalidSetting::unless_within(prefix, "timeout_ms", self.timeout_ms, 100..=60_000)?;
        let of_client = [
            ("client_id", self.client_id.is_some()),
            ("client_secret", self.client_secret.is_some()),
            ("client_secret_file", self.client_secret_file.is_some()),
            ("scope", self.scope.is_some()),
            ("audience", self.audience.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ];
        let stray = of_client.iter().find(|(_, is_set)| *is_set).map(|(name, _)| *name);
        match (&self.token_url, &self.token_file, &self.provider) {
            (Some(url), None, None) => self.client_of(url, prefix).map(Source::Endpoint),
            (None, Some(file), None) => match stray {
                Some(stray) => {
                    Err(wrong(stray, String::from("belongs to token_url; remove it beside token_file")))
                }
                None => Ok(Source::File(file.clone())),
            },
            (None, None, Some(provider)) => match stray {
                Some(stray) => {
                    Err(wrong(stray, String::from("belongs to token_url; remove it beside the provider")))
                }
                None => Ok(Source::Provider(Arc::clone(provider))),
            },
            (None, None, None) => Err(wrong("token_url", String::from("missing; set it or token_file"))),
            _ => Err(wrong("token_url", String::from("set one source: token_url, token_file or a provider"))),
        }
    }

    /// Checks settings and files.
    #[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
    pub(crate) fn check(&self, prefix: &str) -> Result<(), InvalidSetting> {
        let checked = match self.source(prefix)? {
            Source::Endpoint(client) => self.endpoint(client, prefix).check(),
            Source::File(path) => token_file(path, prefix).read().map(drop),
            Source::Provider(_) => Ok(()),
        };
        checked.map_err(|error| error.into_setting(prefix))
    }

    /// Returns the source of the tokens. Reads no file.
    #[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
    pub(crate) fn tokens(&self, prefix: &'static str) -> Result<TokenSource, InvalidSetting> {
        let mut limit = self.timeout();
        let provider: Arc<dyn TokenProvider> = match self.source(prefix)? {
            Source::Endpoint(client) => {
                limit += ENDPOINT_TELLS;
                Arc::new(self.endpoint(client, prefix))
            }
            Source::File(path) => Arc::new(token_file(path, prefix)),
            Source::Provider(provider) => provider,
        };
        Ok(TokenSource { provider, limit, prefix })
    }

    #[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
    fn endpoint(&self, client: Client, prefix: &str) -> Endpoint {
        Endpoint { client, prefix: prefix.to_owned(), timeout: self.timeout() }
    }

    fn client_of(&self, url: &str, prefix: &str) -> Result<Client, InvalidSetting> {
        let setting = |name: &str| format!("{prefix}.{name}");
        let wrong = |problem: String| InvalidSetting::new(setting("token_url"), problem);
        // The text may hold a password, so it is not repeated.
        let url =
            Url::parse(url).map_err(|error| wrong(format!("is not a URL ({error}); write https://…")))?;
        let host = url.host_str().unwrap_or_default();
        if host.is_empty() || !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(format!("has the scheme {:?}; write https://…", url.scheme())));
        }
        if url.scheme() == "http" && !is_loopback(host) {
            return Err(wrong(format!(
                "{host} is another machine, and the client's secret would cross the network unencrypted; write https://…"
            )));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(wrong(String::from(
                "has a user, a password or a fragment; write them into client_id and client_secret",
            )));
        }
        let named = |name: &str, value: &Option<String>| match value {
            Some(value) => InvalidSetting::unless_name(prefix, name, value, NAME_BYTES_MAX),
            None => Ok(()),
        };
        named("scope", &self.scope)?;
        named("audience", &self.audience)?;
        named("client_id", &self.client_id)?;
        let id = self.client_id.clone().ok_or_else(|| {
            InvalidSetting::new(setting("client_id"), "missing; name the client that token_url knows")
        })?;
        let secret = Secret::from_pair(
            &setting("client_secret"),
            self.client_secret.clone(),
            self.client_secret_file.clone(),
        )?;
        let (scope, audience) = (self.scope.clone(), self.audience.clone());
        Ok(Client { url, id, secret, scope, audience, ca_file: self.ca_file.clone() })
    }
}

#[cfg(any(feature = "kafka-tls", feature = "rabbitmq"))]
fn token_file(path: PathBuf, prefix: &str) -> TokenFile {
    TokenFile { path, setting: format!("{prefix}.token_file") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(json: &str) -> Result<Source, String> {
        let settings: OAuth = serde_json::from_str(json).map_err(|error| error.to_string())?;
        settings.source("kafka.sasl.oauth").map_err(|error| error.to_string())
    }

    #[test]
    fn every_wrong_setting_is_named_and_no_secret_is_shown() {
        let url = r#""token_url": "https://login/token""#;
        let client = format!(r#"{url}, "client_id": "relay", "client_secret": "s3cret""#);
        for (json, named) in [
            (String::from("{}"), "kafka.sasl.oauth.token_url: missing"),
            (format!("{{{url}}}"), "kafka.sasl.oauth.client_id: missing"),
            (format!(r#"{{{url}, "client_id": ""}}"#), "client_id (bytes): is 0"),
            (format!(r#"{{{url}, "client_id": "relay"}}"#), "kafka.sasl.oauth.client_secret: missing"),
            (format!(r#"{{{client}, "client_secret_file": "/x"}}"#), "not both"),
            (format!(r#"{{{client}, "token_file": "/x"}}"#), "one source"),
            (format!(r#"{{{client}, "timeout_ms": 99}}"#), "kafka.sasl.oauth.timeout_ms: is 99"),
            (format!(r#"{{{client}, "scope": "a\nb"}}"#), "kafka.sasl.oauth.scope"),
            (format!(r#"{{{client}, "provider": 1}}"#), "unknown field `provider`"),
            (
                String::from(r#"{"token_file": "/x", "client_secret": "s3cret"}"#),
                "oauth.client_secret: belongs",
            ),
            (String::from(r#"{"token_url": "login/s3cret"}"#), "oauth.token_url: is not a URL"),
            (String::from(r#"{"token_url": "ftp://login/s3cret"}"#), "the scheme \"ftp\""),
            (String::from(r#"{"token_url": "http://login/s3cret"}"#), "login is another machine"),
            (String::from(r#"{"token_url": "https://u:s3cret@login/"}"#), "a password"),
        ] {
            let error = source(&json).expect_err(&json);
            assert!(error.contains(named) && !error.contains("s3cret"), "{json}: {error}");
        }
    }

    #[test]
    fn each_source_is_known() {
        let secret = r#""client_id": "relay", "client_secret": "s3cret""#;
        for url in ["https://login/token", "http://127.0.0.1:1/token", "http://localhost:1/token"] {
            let found = source(&format!(r#"{{"token_url": "{url}", {secret}}}"#)).unwrap();
            assert!(matches!(&found, Source::Endpoint(_)) && !format!("{found:?}").contains("s3cret"));
        }
        assert!(matches!(source(r#"{"token_file": "/x"}"#), Ok(Source::File(_))));
    }
}
