//! Creates the SDK's client from the settings.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{Builder, Credentials, ProvideCredentials, SharedHttpClient};
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use base64::Engine as _;
use message::loopback::is_loopback;
use message::{Fault, FaultScope, PublishError, SubscriptionError};
use secrecy::ExposeSecret;

use super::config::{ACCESS_KEY, Config, SECRET_KEY, SESSION_TOKEN, StaticKey};
use super::encrypted::{EncryptedOnly, plaintext_host};
use super::queues::Queues;
use crate::causes::chain;
use crate::plaintext;
use crate::settings::InvalidSetting;
use crate::tls::Tls;

/// Creates clients with one set of settings.
#[derive(Debug, Clone)]
pub(super) struct ClientFactory {
    config: Config,
    key: Option<StaticKey>,
    destination: String,
}

/// The reason why no client was created, which is always for an operator to fix.
#[derive(Debug)]
pub(super) struct NoClient(String);

impl From<NoClient> for PublishError {
    fn from(NoClient(reason): NoClient) -> Self {
        Self::new(Fault::Operator, FaultScope::Session, reason)
    }
}

impl From<NoClient> for SubscriptionError {
    fn from(NoClient(reason): NoClient) -> Self {
        Self::operator(reason)
    }
}

impl ClientFactory {
    /// Checks the settings.
    pub(super) fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let key = config.check()?;
        let place = config.endpoint_url.as_ref().or(config.region.as_ref());
        let destination = place.map_or_else(|| String::from("sqs"), |place| format!("sqs {place}"));
        Ok(Self { config: config.clone(), key, destination })
    }

    /// Returns `sqs <endpoint or region>`, for logs.
    pub(super) fn destination(&self) -> &str {
        &self.destination
    }

    /// Returns the queues of a session, none of which has been looked up.
    pub(super) fn queues(&self) -> Queues {
        Queues::of_config(&self.config)
    }

    /// Creates a client and makes sure that it has credentials.
    pub(super) async fn client(&self) -> Result<Client, NoClient> {
        let mut builder = match &self.key {
            Some(key) => self.with_static_key(key)?,
            None => self.with_environment().await?,
        };
        if let Some(tls) = &self.config.tls
            && let Some(http) = http(tls)?
        {
            builder = builder.http_client(http);
        }
        if !self.config.allow_plaintext {
            builder = builder.interceptor(EncryptedOnly);
        }
        let retry = RetryConfig::standard().with_max_attempts(self.config.attempts);
        Ok(Client::from_conf(
            builder.retry_config(retry).timeout_config(self.timeouts(Duration::ZERO)).build(),
        ))
    }

    /// Logs which protection the connection lacks.
    pub(super) fn warn(&self) {
        let host = self.config.endpoint_url.as_deref().and_then(plaintext_host);
        if host.is_some_and(|host| !is_loopback(&host)) {
            plaintext::warn(&self.destination);
        }
    }

    /// Returns the timeouts of a request that SQS itself may hold for `poll`. Without them the SDK
    /// waits forever.
    pub(super) fn timeouts(&self, poll: Duration) -> TimeoutConfig {
        TimeoutConfig::builder()
            .connect_timeout(Duration::from_millis(self.config.connect_timeout_ms))
            .operation_attempt_timeout(poll + Duration::from_millis(self.config.request_timeout_ms))
            .build()
    }

    /// Reads nothing from the environment, so that looking up an absent instance role does not
    /// delay the start.
    fn with_static_key(&self, key: &StaticKey) -> Result<Builder, NoClient> {
        let unreadable = |error: InvalidSetting| NoClient(error.to_string());
        let id = key.id.load(ACCESS_KEY).map_err(unreadable)?;
        let secret = key.secret.load(SECRET_KEY).map_err(unreadable)?;
        let session = key.session.as_ref().map(|session| session.load(SESSION_TOKEN));
        let session = session.transpose().map_err(unreadable)?;
        let session = session.map(|session| session.expose_secret().to_owned());
        let credentials =
            Credentials::new(id.expose_secret(), secret.expose_secret(), session, None, "settings");
        let mut builder = Builder::new()
            .behavior_version(BehaviorVersion::latest())
            .region(self.config.region.clone().map(Region::new))
            .credentials_provider(credentials);
        builder.set_endpoint_url(self.config.endpoint_url.clone());
        Ok(builder)
    }

    async fn with_environment(&self) -> Result<Builder, NoClient> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &self.config.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(profile) = &self.config.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(endpoint) = &self.config.endpoint_url {
            loader = loader.endpoint_url(endpoint);
        }
        let shared = loader.load().await;
        if shared.region().is_none() {
            let advice = "set sqs.region, AWS_REGION or the profile's region";
            return Err(NoClient(format!("no AWS region is known: {advice}")));
        }
        let Some(provider) = shared.credentials_provider() else {
            return Err(NoClient(String::from("no AWS credentials are configured")));
        };
        provider.provide_credentials().await.map_err(|error| {
            let advice = "set AWS_ACCESS_KEY_ID, a profile or an instance role, or sqs.access_key_id";
            NoClient(format!("no AWS credentials were found: {}; {advice}", chain(&error)))
        })?;
        Ok(Builder::from(&shared))
    }
}

/// Creates an HTTP client that trusts only the configured authority; `None` if none is configured.
fn http(tls: &Tls) -> Result<Option<SharedHttpClient>, NoClient> {
    let unusable = |error: &dyn std::fmt::Display| NoClient(error.to_string());
    let Some(authorities) = tls.authorities("sqs.tls").map_err(|error| unusable(&error))? else {
        return Ok(None);
    };
    let mut trusted = TrustStore::empty();
    for authority in authorities {
        trusted.add_pem_certificate(pem(&authority));
    }
    let context = TlsContext::builder()
        .with_trust_store(trusted)
        .build()
        .map_err(|error| NoClient(format!("sqs.tls: {error}")))?;
    let provider = Provider::Rustls(CryptoMode::AwsLc);
    Ok(Some(aws_smithy_http_client::Builder::new().tls_provider(provider).tls_context(context).build_https()))
}

/// Encodes a certificate as PEM, the only format that the SDK accepts.
fn pem(certificate: &[u8]) -> Vec<u8> {
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n").into_bytes()
}
