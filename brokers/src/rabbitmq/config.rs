//! An operator's settings for RabbitMQ, and their validation.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use message::{SizeLimit, Topic};
use secrecy::SecretString;
use serde::Deserialize;

use super::management_url;
use crate::oauth::OAuth;
use crate::settings::InvalidSetting;
use crate::tls::Tls;

/// The section of tokens.
pub(super) const OAUTH: &str = "rabbitmq.oauth";

/// Maximum length of an AMQP short string in bytes: names of exchanges, queues, applications.
pub(super) const SHORT_BYTES_MAX: usize = 255;

/// Settings of a RabbitMQ broker, for publishing and for consuming. Unknown settings are refused.
///
/// ```toml
/// url = "amqps://rabbit.example:5671/shop"
/// username = "relay"
/// password_file = "/run/secrets/rabbitmq"
/// exchange = "events"
/// ```
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// `amqp[s]://[user[:password]@]host[:port][,host[:port]…][/vhost]`; no path means the virtual
    /// host `/`. Up to 16 nodes of a cluster: a connection is opened to the first that accepts it,
    /// beginning with the one of the last connection. A secret, because it may hold a password.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub url: SecretString,
    /// The user, instead of the one in `url`. Without either, RabbitMQ's `guest` (loopback only);
    /// with `oauth`, RabbitMQ takes the name from the token.
    pub username: Option<String>,
    /// The password, instead of the one in `url`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub password: Option<SecretString>,
    /// The file that holds the password, read on every connect.
    pub password_file: Option<PathBuf>,
    /// Where access tokens of OAuth 2 come from. The login uses them instead of a password. The
    /// broker needs the plugin `rabbitmq_auth_backend_oauth2`.
    pub oauth: Option<OAuth>,
    /// How to log in: `plain` (default), or `external` with the client certificate.
    pub auth: Auth,
    /// Certificates for `amqps`.
    pub tls: Option<Tls>,
    /// `http[s]://host[:port]` of the management API. `relay doctor` asks it for the settings of
    /// queues, with the same user. Without it those settings are unknown.
    pub management_url: Option<String>,
    /// Whether `amqp` to another machine is allowed. Default no: the password and every message
    /// would cross the network in the clear. `amqps` connections are still verified.
    pub allow_plaintext: bool,
    /// The connection's name in the broker's management page, 1 to 200 bytes.
    pub connection_name: String,
    /// Seconds between heartbeats, 1 to 300 (default 20). A silent peer is considered lost after
    /// about twice this time.
    pub heartbeat_secs: u16,
    /// Maximum milliseconds to open a connection, and for each step of opening its session,
    /// 100 to 300,000 (default 10,000).
    pub connect_timeout_ms: u64,
    /// The exchange to publish on. The default is the default exchange, where the topic is the
    /// queue's name. It must exist; the topic is the routing key.
    pub exchange: String,
    /// Handling of a message that no queue takes: it waits, it is dead at once, or it passes.
    pub unroutable: Unroutable,
    /// Other handling for some topics, by name, or by what names begin with and an asterisk:
    /// `audit.*`. A full name takes precedence over a beginning, and a longer beginning over a
    /// shorter one.
    pub unroutable_topics: BTreeMap<String, Unroutable>,
    /// Value of the property `app_id`.
    pub app_id: Option<String>,
    /// Connections per publishing session, 1 to 16 (default 1), each with two channels and one
    /// thread.
    pub connections: usize,
    /// Messages of one topic that are confirmed together, 1 to 2,000 (default 200). For a confirm
    /// of many messages the client scans all pending ones, so larger windows cost more than they
    /// save. When a queue takes nothing, the broker stops reading the whole connection after 200 to
    /// 400 messages of one channel (its credit flow). So with larger windows, one queue without a
    /// majority delays the others.
    pub window_messages_max: usize,
    /// Maximum payload in bytes, 1 to 512 MiB (default 16 MiB, RabbitMQ 4's own
    /// `max_message_size`).
    pub payload_bytes_max: usize,
    /// Milliseconds until a window without confirms counts as lost, 100 to 600,000 (default
    /// 30,000). Its messages then have an unknown outcome and are sent again: on the same
    /// connection if other windows were confirmed meanwhile, else on a new one.
    pub confirm_timeout_ms: u64,
    /// Maximum unsettled deliveries of one subscription, 1 to 65,535 (default 500).
    pub prefetch: u16,
}

/// Handling of a message that no queue takes.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unroutable {
    /// Its topic waits until a queue is bound: right for commands, which need a receiver.
    #[default]
    Wait,
    /// It is dead at once, and its topic continues: for events that an operator decides about.
    Dead,
    /// It counts as published, and RabbitMQ drops it: for events that need no listener.
    Pass,
}

/// How to log in.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Auth {
    /// User name and password (SASL PLAIN).
    #[default]
    Plain,
    /// The client certificate (SASL EXTERNAL); needs `amqps`, `tls.cert_file` and the broker's
    /// `rabbitmq_auth_mechanism_ssl` plugin.
    External,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: SecretString::default(),
            username: None,
            password: None,
            password_file: None,
            oauth: None,
            auth: Auth::Plain,
            tls: None,
            management_url: None,
            allow_plaintext: false,
            connection_name: String::from("outbox"),
            heartbeat_secs: 20,
            connect_timeout_ms: 10_000,
            exchange: String::new(),
            unroutable: Unroutable::default(),
            unroutable_topics: BTreeMap::new(),
            app_id: None,
            connections: 1,
            window_messages_max: 200,
            payload_bytes_max: 16 << 20,
            confirm_timeout_ms: 30_000,
            prefetch: 500,
        }
    }
}

impl Config {
    /// Returns the configured size limit of messages.
    #[must_use]
    pub fn size_limit(&self) -> SizeLimit {
        SizeLimit { message_bytes_max: self.payload_bytes_max, ..SizeLimit::RABBITMQ }
    }

    /// Returns the defaults for one broker.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: SecretString::from(url.into()), ..Self::default() }
    }

    /// Checks the files that the settings name: certificates, and those of tokens. Passwords may be
    /// mounted later.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting and the file.
    pub fn check_files(&self) -> Result<(), InvalidSetting> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check("rabbitmq.tls"))?;
        self.oauth.as_ref().map_or(Ok(()), |oauth| oauth.check(OAUTH))
    }

    /// Checks every setting except the URL and the credentials, which [`Endpoint`](super::endpoint)
    /// parses.
    pub(super) fn check(&self) -> Result<(), InvalidSetting> {
        within("heartbeat_secs", self.heartbeat_secs, 1..=300)?;
        within("connect_timeout_ms", self.connect_timeout_ms, 100..=300_000)?;
        within("connections", self.connections, 1..=16)?;
        within("window_messages_max", self.window_messages_max, 1..=2_000)?;
        within("payload_bytes_max", self.payload_bytes_max, 1..=512 << 20)?;
        within("confirm_timeout_ms", self.confirm_timeout_ms, 100..=600_000)?;
        within("prefetch", self.prefetch, 1..=u16::MAX)?;
        if let Some(url) = &self.management_url {
            management_url::check(url, self.oauth.as_ref(), self.allow_plaintext)?;
        }
        for pattern in self.unroutable_topics.keys() {
            // An empty beginning would fit all topics, which `unroutable` is for.
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            Topic::new(name).map_err(|error| {
                invalid("unroutable_topics", format!("{pattern:?} fits no topic: {error}"))
            })?;
        }
        InvalidSetting::unless_name("rabbitmq", "connection_name", &self.connection_name, 200)?;
        // The empty name is the default exchange.
        let named = [("exchange", Some(&self.exchange)), ("app_id", self.app_id.as_ref())];
        for (setting, name) in named {
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                InvalidSetting::unless_name("rabbitmq", setting, name, SHORT_BYTES_MAX)?;
            }
        }
        Ok(())
    }
}

/// Returns the report of an invalid setting of this adapter.
pub(super) fn invalid(setting: &str, problem: impl Into<String>) -> InvalidSetting {
    InvalidSetting::new(format!("rabbitmq.{setting}"), problem)
}

fn within<T: PartialOrd + Display>(
    setting: &str,
    value: T,
    bounds: RangeInclusive<T>,
) -> Result<(), InvalidSetting> {
    InvalidSetting::unless_within("rabbitmq", setting, value, bounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_settings_are_refused_and_defaults_are_valid() {
        let config: Config = serde_json::from_str(r#"{"url": "amqp://localhost"}"#).unwrap();
        config.check().unwrap();
        assert!(serde_json::from_str::<Config>(r#"{"url": "amqp://localhost", "exhange": "x"}"#).is_err());
    }

    #[test]
    fn a_value_out_of_bounds_is_named_with_its_bounds() {
        let config = Config { connections: 0, ..Config::new("amqp://localhost") };
        let error = config.check().unwrap_err();
        assert_eq!(error.to_string(), "rabbitmq.connections: is 0; choose a value from 1 to 16");
        for hostile in [" x", "x\0y", "x\ny", &"x".repeat(256)] {
            let config = Config { exchange: hostile.to_owned(), ..Config::new("amqp://localhost") };
            assert!(config.check().unwrap_err().setting.starts_with("rabbitmq.exchange"));
        }
    }

    #[test]
    fn topics_have_a_handling_of_their_own_by_name_or_beginning() {
        let config: Config = serde_json::from_str(
            r#"{"url": "amqp://localhost", "unroutable_topics": {"audit.*": "pass", "orders": "dead"}}"#,
        )
        .unwrap();
        config.check().unwrap();
        for hostile in ["", "*", "a b", "a*b", "*.audit"] {
            let topics = BTreeMap::from([(hostile.to_owned(), Unroutable::Pass)]);
            let error = Config::new("amqp://localhost").unroutable_topics(topics).check().unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with("rabbitmq.unroutable_topics: ") && text.contains("fits no topic"),
                "{text}"
            );
        }
    }

    #[test]
    fn debug_prints_no_secret() {
        let mut config = Config::new("amqp://me:s3cret@localhost");
        config.password = Some(SecretString::from("s3cret"));
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
