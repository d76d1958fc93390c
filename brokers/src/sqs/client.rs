//! The SDK's client, made from the settings.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{Builder, Credentials, ProvideCredentials};
use message::{Fault, PublishError, Scope, SubscriptionError};
use secrecy::ExposeSecret;

use super::config::Config;
use super::fault;
use crate::secret::Secret;
use crate::settings::InvalidSetting;

/// Makes clients with one set of settings.
#[derive(Debug, Clone)]
pub(super) struct ClientFactory {
    config: Config,
    key: Option<(String, Secret)>,
    destination: String,
}

/// Why no client was made; always for an operator to repair.
#[derive(Debug)]
pub(super) struct NoClient(String);

impl From<NoClient> for PublishError {
    fn from(NoClient(reason): NoClient) -> Self {
        Self::new(Fault::Operator, Scope::Session, reason)
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

    /// `sqs <endpoint or region>`, for logs.
    pub(super) fn destination(&self) -> &str {
        &self.destination
    }

    /// A client with credentials at hand.
    pub(super) async fn client(&self) -> Result<Client, NoClient> {
        let builder = match &self.key {
            Some((key, secret)) => self.with_static_key(key, secret)?,
            None => self.with_environment().await?,
        };
        let retry = RetryConfig::standard().with_max_attempts(self.config.attempts);
        Ok(Client::from_conf(
            builder.retry_config(retry).timeout_config(self.timeouts(Duration::ZERO)).build(),
        ))
    }

    /// The limits of a request that SQS itself may hold for `poll`: without them the SDK waits for ever.
    pub(super) fn timeouts(&self, poll: Duration) -> TimeoutConfig {
        TimeoutConfig::builder()
            .connect_timeout(Duration::from_millis(self.config.connect_timeout_ms))
            .operation_attempt_timeout(poll + Duration::from_millis(self.config.request_timeout_ms))
            .build()
    }

    /// Reads nothing from the environment, so that no lookup of an absent instance role delays the start.
    fn with_static_key(&self, key: &str, secret: &Secret) -> Result<Builder, NoClient> {
        let secret = secret.load("sqs.secret_access_key").map_err(|error| NoClient(error.to_string()))?;
        let credentials = Credentials::new(key, secret.expose_secret(), None, None, "settings");
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
            NoClient(format!("no AWS credentials were found: {}; {advice}", fault::chain(&error)))
        })?;
        Ok(Builder::from(&shared))
    }
}
