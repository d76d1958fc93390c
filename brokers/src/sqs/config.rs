//! An operator's settings for SQS, and their validation.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use message::SizeLimit;
use secrecy::SecretString;
use serde::Deserialize;

use crate::plaintext;
use crate::secret::Secret;
use crate::settings::InvalidSetting;
use crate::tls::Tls;

/// Settings of Amazon SQS or a server that speaks its protocol, for publishing and for consuming.
/// Unknown settings are refused. Without any setting, region and credentials come from the AWS
/// environment (variables, profile, instance role).
///
/// ```toml
/// region = "eu-central-1"
/// queues = { "order.placed" = "orders.fifo" }
/// ```
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The AWS region. Default: that of the environment.
    pub region: Option<String>,
    /// The endpoint of an SQS-compatible server or of a VPC endpoint: `http://127.0.0.1:9324`.
    pub endpoint_url: Option<String>,
    /// The certificate authority of an SQS-compatible server or a proxy; only `ca_file` is
    /// supported.
    pub tls: Option<Tls>,
    /// Whether `http` to another machine is allowed. Default no: every message would cross the
    /// network in the clear.
    pub allow_plaintext: bool,
    /// The profile of the AWS configuration files.
    pub profile: Option<String>,
    /// A static access key. It needs `secret_access_key` or its file, and `region`. With it,
    /// nothing is read from the environment.
    pub access_key_id: Option<String>,
    /// The file that holds the access key, read on every connect: a rotation changes both halves.
    pub access_key_id_file: Option<PathBuf>,
    /// The secret of the access key.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub secret_access_key: Option<SecretString>,
    /// The file that holds the secret of the access key, read on every connect.
    pub secret_access_key_file: Option<PathBuf>,
    /// The session token of a temporary access key, as AWS STS and Vault issue them.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub session_token: Option<SecretString>,
    /// The file that holds the session token, read on every connect, like the key's two files.
    pub session_token_file: Option<PathBuf>,
    /// The queue of each topic, by name or URL. A topic that is not listed is the name of its
    /// queue. A name that ends in `.fifo` is a FIFO queue.
    pub queues: BTreeMap<String, String>,
    /// The AWS account, 12 digits, that owns the queues given by name. Default: the account of the
    /// credentials. A queue given by URL belongs to the account in its URL.
    pub queue_owner: Option<String>,
    /// Maximum requests in flight per publishing session, 1 to 256 (default 16). Each carries up to
    /// 10 messages. A request that is not answered within a second counts only for its queue, so
    /// that a silent queue leaves the others alone. A queue that SQS throttles gets fewer for a
    /// time.
    pub concurrency: usize,
    /// Milliseconds that a batch waits for more messages while other requests are in flight, 0 to
    /// 100 (default 2).
    pub linger_ms: u64,
    /// Whether a message to a standard queue carries its ordering key as message group (fair
    /// queues). Default no, because servers other than AWS may refuse it.
    pub fair_queues: bool,
    /// Maximum bytes of a message and of a batch, 1,024 to 1,048,576 (default 1 MiB, SQS' limit
    /// since August 2025).
    pub message_bytes_max: usize,
    /// Maximum milliseconds to open a connection, 100 to 60,000 (default 3,000).
    pub connect_timeout_ms: u64,
    /// Maximum milliseconds for one attempt of a request, besides a long poll's own wait, 500 to
    /// 300,000 (default 10,000).
    pub request_timeout_ms: u64,
    /// Attempts of one request, 1 to 5 (default 2). The relay sends again anyway; this only bridges
    /// short failures.
    pub attempts: u32,
    /// Seconds until an unsettled delivery is redelivered, 1 to 43,200 (default 60).
    pub visibility_timeout_secs: u32,
    /// Seconds that SQS holds a receive request while the queue is empty, 1 to 20 (default 5).
    /// Closing a subscription waits for requests in flight, because SQS would hide the messages
    /// that it hands to a dead one.
    pub poll_wait_secs: u32,
    /// Receive requests in flight while the queue is busy, 1 to 32 (default 4).
    pub receive_concurrency: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            region: None,
            endpoint_url: None,
            tls: None,
            allow_plaintext: false,
            profile: None,
            access_key_id: None,
            access_key_id_file: None,
            secret_access_key: None,
            secret_access_key_file: None,
            session_token: None,
            session_token_file: None,
            queues: BTreeMap::new(),
            queue_owner: None,
            concurrency: 16,
            linger_ms: 2,
            fair_queues: false,
            message_bytes_max: 1 << 20,
            connect_timeout_ms: 3_000,
            request_timeout_ms: 10_000,
            attempts: 2,
            visibility_timeout_secs: 60,
            poll_wait_secs: 5,
            receive_concurrency: 4,
        }
    }
}

impl Config {
    /// Returns the configured size limit of messages.
    #[must_use]
    pub fn size_limit(&self) -> SizeLimit {
        SizeLimit { message_bytes_max: self.message_bytes_max, ..SizeLimit::SQS }
    }

    /// Checks every setting. Returns the static access key, if one is configured.
    pub(super) fn check(&self) -> Result<Option<StaticKey>, InvalidSetting> {
        within("concurrency", self.concurrency, 1..=256)?;
        within("linger_ms", self.linger_ms, 0..=100)?;
        within("message_bytes_max", self.message_bytes_max, 1_024..=1 << 20)?;
        within("connect_timeout_ms", self.connect_timeout_ms, 100..=60_000)?;
        within("request_timeout_ms", self.request_timeout_ms, 500..=300_000)?;
        within("attempts", self.attempts, 1..=5)?;
        within("visibility_timeout_secs", self.visibility_timeout_secs, 1..=43_200)?;
        within("poll_wait_secs", self.poll_wait_secs, 1..=20)?;
        within("receive_concurrency", self.receive_concurrency, 1..=32)?;
        self.check_endpoint()?;
        self.check_tls()?;
        for (topic, queue) in &self.queues {
            if !is_url(queue) && !is_queue_name(queue) {
                return Err(invalid(&format!("queues.{topic}"), NOT_A_QUEUE));
            }
        }
        if let Some(owner) = &self.queue_owner
            && !(owner.len() == 12 && owner.bytes().all(|digit| digit.is_ascii_digit()))
        {
            let problem = format!("{owner:?} is not an AWS account: it has 12 digits");
            return Err(invalid("queue_owner", problem));
        }
        self.check_credentials()
    }

    fn check_endpoint(&self) -> Result<(), InvalidSetting> {
        let Some(endpoint) = &self.endpoint_url else { return Ok(()) };
        let parsed = url::Url::parse(endpoint)
            .map_err(|error| invalid("endpoint_url", format!("{error}; write http[s]://host[:port]")))?;
        if !is_url(endpoint) || !parsed.has_host() {
            return Err(invalid("endpoint_url", "must be http[s]://host[:port]"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(invalid(
                "endpoint_url",
                "contains credentials; use access_key_id and secret_access_key instead",
            ));
        }
        match parsed.scheme() {
            "http" => plaintext::check(
                "sqs",
                "endpoint_url",
                parsed.host_str().unwrap_or_default(),
                self.allow_plaintext,
                "write https://",
            ),
            _ => Ok(()),
        }
    }

    fn check_tls(&self) -> Result<(), InvalidSetting> {
        let Some(tls) = &self.tls else { return Ok(()) };
        if tls.cert_file.is_some() || tls.key_file.is_some() {
            return Err(invalid(
                "tls.cert_file",
                "is not supported: SQS identifies its clients by their access keys",
            ));
        }
        if !tls.verify {
            let problem = "cannot be false for sqs; name the server's certificate authority in ca_file";
            return Err(invalid("tls.verify", problem));
        }
        tls.check_settings("sqs.tls")
    }

    fn check_credentials(&self) -> Result<Option<StaticKey>, InvalidSetting> {
        let session = (self.session_token.clone(), self.session_token_file.clone());
        let secret = (self.secret_access_key.clone(), self.secret_access_key_file.clone());
        let key = (self.access_key_id.clone().map(SecretString::from), self.access_key_id_file.clone());
        if let (None, None) = key {
            return match (secret, session) {
                ((None, None), (None, None)) => Ok(None),
                ((None, None), _) => {
                    Err(invalid("access_key_id", "missing, although a session token is set"))
                }
                _ => Err(invalid("access_key_id", "missing, although a secret is set")),
            };
        }
        let key = Secret::from_pair(ACCESS_KEY, key.0, key.1)?;
        if self.profile.is_some() {
            return Err(invalid("profile", "cannot be combined with access_key_id"));
        }
        if self.region.is_none() {
            return Err(invalid(
                "region",
                "missing; a static access key needs it (any name for other servers)",
            ));
        }
        let secret = Secret::from_pair(SECRET_KEY, secret.0, secret.1)?;
        let session = match session {
            (None, None) => None,
            (text, file) => Some(Secret::from_pair(SESSION_TOKEN, text, file)?),
        };
        Ok(Some(StaticKey { id: key, secret, session }))
    }
}

/// An access key that is configured, instead of one from the AWS environment.
#[derive(Debug, Clone)]
pub(super) struct StaticKey {
    pub(super) id: Secret,
    pub(super) secret: Secret,
    /// Belongs to a temporary key.
    pub(super) session: Option<Secret>,
}

/// The settings of the parts of a static access key.
pub(super) const ACCESS_KEY: &str = "sqs.access_key_id";
pub(super) const SECRET_KEY: &str = "sqs.secret_access_key";
pub(super) const SESSION_TOKEN: &str = "sqs.session_token";

/// The problem of a setting that should name a queue but does not.
const NOT_A_QUEUE: &str = "is neither a URL nor a queue name: 1 to 80 letters, digits, - and _, with .fifo at the end for a FIFO queue";

/// Returns whether this is a queue's URL rather than its name.
pub(super) fn is_url(queue: &str) -> bool {
    queue.starts_with("http://") || queue.starts_with("https://")
}

/// Returns whether SQS accepts this as a queue's name.
pub(super) fn is_queue_name(name: &str) -> bool {
    let stem = name.strip_suffix(".fifo").unwrap_or(name);
    !stem.is_empty()
        && name.len() <= 80
        && stem.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

/// Returns the report of an invalid setting of this adapter.
pub(super) fn invalid(setting: &str, problem: impl Into<String>) -> InvalidSetting {
    InvalidSetting::new(format!("sqs.{setting}"), problem)
}

fn within<T: PartialOrd + Display>(
    setting: &str,
    value: T,
    bounds: RangeInclusive<T>,
) -> Result<(), InvalidSetting> {
    InvalidSetting::unless_within("sqs", setting, value, bounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_needs_no_settings_and_unknown_ones_are_refused() {
        let config: Config = serde_json::from_str("{}").unwrap();
        assert!(config.check().unwrap().is_none());
        assert!(serde_json::from_str::<Config>(r#"{"regoin": "x"}"#).is_err());
    }

    #[test]
    fn a_wrong_setting_is_named() {
        for (json, setting) in [
            (r#"{"concurrency": 0}"#, "sqs.concurrency"),
            (r#"{"message_bytes_max": 2000000}"#, "sqs.message_bytes_max"),
            (r#"{"endpoint_url": "127.0.0.1:9324"}"#, "sqs.endpoint_url"),
            (r#"{"endpoint_url": "http://a:b@host"}"#, "sqs.endpoint_url"),
            (r#"{"endpoint_url": "http://sqs.internal"}"#, "sqs.endpoint_url"),
            (r#"{"endpoint_url": "https://sqs.internal", "tls": {"verify": false}}"#, "sqs.tls.verify"),
            (r#"{"tls": {"cert_file": "/c", "key_file": "/k"}}"#, "sqs.tls.cert_file"),
            (r#"{"queues": {"orders": "or.ders"}}"#, "sqs.queues.orders"),
            (r#"{"secret_access_key": "s"}"#, "sqs.access_key_id"),
            (r#"{"access_key_id": "a", "secret_access_key": "s"}"#, "sqs.region"),
            (r#"{"access_key_id": "a", "region": "r"}"#, "sqs.secret_access_key"),
            (r#"{"access_key_id": "a", "access_key_id_file": "/a", "region": "r"}"#, "sqs.access_key_id"),
            (r#"{"session_token": "t"}"#, "sqs.access_key_id"),
            (r#"{"queue_owner": "12345678901"}"#, "sqs.queue_owner"),
            (r#"{"queue_owner": "12345678901x"}"#, "sqs.queue_owner"),
        ] {
            let config: Config = serde_json::from_str(json).unwrap();
            assert_eq!(config.check().unwrap_err().setting, setting, "{json}");
        }
    }

    #[test]
    fn debug_prints_no_secret() {
        let secret = || Some("s3cret".to_owned().into());
        let config = Config { secret_access_key: secret(), session_token: secret(), ..Config::default() };
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn queue_names_follow_the_rules_of_sqs() {
        assert!(is_queue_name("orders") && is_queue_name("orders_1-x.fifo"));
        assert!(!is_queue_name("order.placed") && !is_queue_name(".fifo") && !is_queue_name(&"q".repeat(81)));
    }
}
