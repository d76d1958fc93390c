//! An operator's settings for Kafka: validation, and the librdkafka properties derived from them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use message::SizeLimit;
use message::loopback::is_loopback;
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

#[cfg(feature = "kafka-aws")]
use super::msk::{Signer, region_of};
use super::properties;
use crate::oauth::{OAuth, TokenError, TokenSource};
use crate::plaintext;
use crate::secret::Secret;
use crate::settings::InvalidSetting;
use crate::tls::Tls;

/// The broker's default `message.max.bytes` is 1,048,588. librdkafka's default and ours leave room
/// for the batch header.
const MESSAGE_BYTES_MAX: usize = 1_000_000;
/// More than the relay keeps in flight, so that publishing practically never waits for room.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// Interval of librdkafka's statistics, in milliseconds.
pub(super) const STATISTICS_EVERY_MS: &str = "10000";

/// A Kafka cluster and how to connect to it; the section `[kafka]` of a configuration file.
///
/// ```
/// let config: brokers::kafka::Config = serde_json::from_str(
///     r#"{ "bootstrap_servers": ["kafka-1:9093", "kafka-2:9093"], "tls": {}, "compression": "zstd" }"#,
/// )?;
/// config.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// `host:port` of one or more brokers; the rest of the cluster is learned from them.
    pub bootstrap_servers: Vec<String>,
    /// The name by which the brokers' logs and quotas know this client. Default `outbox`.
    #[serde(default = "client_id")]
    pub client_id: String,
    /// TLS. Without this section the connection is plaintext, which is accepted for this machine
    /// only.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Whether plaintext connections to other machines are allowed. Default no. Even then no
    /// password is sent to them in the clear, and TLS, where it is used, is still verified.
    #[serde(default)]
    pub allow_plaintext: bool,
    /// User and password, or tokens; without this section there is no authentication (or only TLS
    /// client certificates).
    #[serde(default)]
    pub sasl: Option<Sasl>,
    /// How batches are compressed. Default none.
    #[serde(default)]
    pub compression: Compression,
    /// How long the producer waits for a batch to fill, in milliseconds, 0 to 900,000. Default 1:
    /// under load, batches fill while others are in flight. The wait is paid once per batch, not
    /// per message.
    #[serde(default = "linger_ms")]
    pub linger_ms: u32,
    /// Maximum size of a message in bytes including key, headers and envelope, 1,000 to
    /// 1,000,000,000. Default 1,000,000; to raise it, raise `max.message.bytes` of the topics as
    /// well. It also bounds a batch: a topic with a lower limit refuses whole batches of small
    /// messages, which are then sent one by one, slowly.
    #[serde(default = "message_bytes_max")]
    pub message_bytes_max: usize,
    /// Maximum bytes that the producer buffers before publishing waits, at least 1 MiB and twice
    /// `message_bytes_max`. Default 256 MiB.
    #[serde(default = "queue_bytes_max")]
    pub queue_bytes_max: usize,
    /// Maximum time for connecting, in milliseconds, 100 to 600,000. Default 5,000.
    #[serde(default = "connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// Whether brokers that have `auto.create.topics.enable` may create a missing topic. Default
    /// no: a misspelt topic would receive messages and have no consumer.
    #[serde(default)]
    pub create_topics: bool,
    /// Whether a relay publishes in transactions: readers of committed records
    /// (`isolation.level=read_committed`) see each message once, however the relay ends. Default
    /// no. Consumers ignore it.
    #[serde(default)]
    pub transactional: bool,
    /// Other librdkafka properties, by their own names. Properties that the guarantees depend on
    /// are refused.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, String>"))]
    pub properties: BTreeMap<String, SecretString>,
}

/// SASL authentication: with a user and a password, or with tokens.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Sasl {
    /// The mechanism.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// The user's name. Required for a mechanism with a password.
    #[serde(default)]
    pub username: String,
    /// The password. It can be given in `password_file` instead.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub password: Option<SecretString>,
    /// The file that holds the password, read on every connect.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Where tokens come from. Required for `OAUTHBEARER`.
    #[serde(default)]
    pub oauth: Option<OAuth>,
    /// The credentials of `AWS_MSK_IAM`. Default those of the default chain.
    #[serde(default)]
    pub aws: Option<Aws>,
    /// SASL extensions that are sent with a token, each with its value, such as `logicalCluster`
    /// for Confluent Cloud. Names consist of letters.
    #[serde(default)]
    pub extensions: BTreeMap<String, String>,
}

/// A SASL mechanism.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Mechanism {
    /// The password itself crosses the connection: refused without TLS, except on this machine.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Challenge and response over SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Challenge and response over SHA-512 (default).
    #[default]
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
    /// A token of OAuth 2. The token itself crosses the connection, so it is refused without TLS,
    /// except on this machine.
    #[serde(rename = "OAUTHBEARER")]
    OAuthBearer,
    /// A token that is signed with credentials of AWS, for Amazon MSK with IAM access control. On
    /// the wire it is `OAUTHBEARER`.
    #[serde(rename = "AWS_MSK_IAM")]
    AwsMskIam,
}

/// The credentials of AWS with which tokens are signed.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Aws {
    /// The cluster's region. Default the one in the name of the first bootstrap server.
    pub region: Option<String>,
    /// The profile in the files of AWS. Default that of the default chain: environment, profile,
    /// web identity, container or instance role.
    pub profile: Option<String>,
}

/// How a batch is compressed.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression (default).
    #[default]
    None,
    /// Good ratio, slow.
    Gzip,
    /// Fast.
    Snappy,
    /// Fastest.
    Lz4,
    /// The best ratio for its speed.
    Zstd,
}

fn client_id() -> String {
    String::from("outbox")
}

fn linger_ms() -> u32 {
    1
}

fn message_bytes_max() -> usize {
    MESSAGE_BYTES_MAX
}

fn queue_bytes_max() -> usize {
    QUEUE_BYTES_MAX
}

fn connect_timeout_ms() -> u64 {
    5_000
}

impl Config {
    /// Returns the configured size limit of messages.
    #[must_use]
    pub fn size_limit(&self) -> SizeLimit {
        SizeLimit { message_bytes_max: self.message_bytes_max, ..SizeLimit::KAFKA }
    }

    /// Returns the defaults for these brokers.
    #[must_use]
    pub fn new(bootstrap_servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.into_iter().map(Into::into).collect(),
            client_id: client_id(),
            tls: None,
            allow_plaintext: false,
            sasl: None,
            compression: Compression::None,
            linger_ms: linger_ms(),
            message_bytes_max: message_bytes_max(),
            queue_bytes_max: queue_bytes_max(),
            connect_timeout_ms: connect_timeout_ms(),
            create_topics: false,
            transactional: false,
            properties: BTreeMap::new(),
        }
    }

    /// Checks everything that can be checked without a broker. Opens the configured files.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        self.check_settings()?;
        #[cfg(feature = "kafka-tls")]
        if let Some(tls) = &self.tls {
            tls.check("kafka.tls")?;
        }
        self.sasl.as_ref().map_or(Ok(()), Sasl::check_files)
    }

    /// Checks only the settings: files may be mounted or rotated later.
    pub(super) fn check_settings(&self) -> Result<(), InvalidSetting> {
        self.check_servers()?;
        let within = InvalidSetting::unless_within;
        within("kafka", "linger_ms", u64::from(self.linger_ms), 0..=900_000)?;
        within("kafka", "message_bytes_max", self.message_bytes_max as u64, 1_000..=1_000_000_000)?;
        // At least two messages of the largest size, or nothing would ever fit.
        let queue_bytes_min = (1 << 20).max(2 * self.message_bytes_max as u64);
        let queue_bytes_max = (i32::MAX as u64) << 10;
        within("kafka", "queue_bytes_max", self.queue_bytes_max as u64, queue_bytes_min..=queue_bytes_max)?;
        within("kafka", "connect_timeout_ms", self.connect_timeout_ms, 100..=600_000)?;
        if self.client_id.is_empty() {
            return Err(InvalidSetting::new("kafka.client_id", "is empty; give this client a name"));
        }
        // librdkafka writes it unescaped into its statistics, which could then not be parsed.
        if self.client_id.contains(|c: char| c == '"' || c == '\\' || c.is_control()) {
            let problem =
                format!("is {:?}; leave out quotes, backslashes and control characters", self.client_id);
            return Err(InvalidSetting::new("kafka.client_id", problem));
        }
        match &self.tls {
            #[cfg(feature = "kafka-tls")]
            Some(tls) => tls.check_settings("kafka.tls")?,
            #[cfg(not(feature = "kafka-tls"))]
            Some(_) => {
                let problem =
                    "this program was built without TLS for Kafka; build it with the feature kafka-tls";
                return Err(InvalidSetting::new("kafka.tls", problem));
            }
            None => self.check_plaintext()?,
        }
        if let Some(sasl) = &self.sasl {
            #[cfg(not(feature = "kafka-tls"))]
            if sasl.mechanism != Mechanism::Plain {
                let problem =
                    "needs OpenSSL; this program was built without it: build it with the feature kafka-tls";
                return Err(InvalidSetting::new("kafka.sasl.mechanism", problem));
            }
            sasl.check_settings()?;
            #[cfg(feature = "kafka-aws")]
            if sasl.mechanism == Mechanism::AwsMskIam {
                self.region()?;
            }
        }
        self.properties.iter().try_for_each(|(name, value)| properties::check(name, value.expose_secret()))
    }

    fn check_servers(&self) -> Result<(), InvalidSetting> {
        let wrong = |problem: String| InvalidSetting::new("kafka.bootstrap_servers", problem);
        if self.bootstrap_servers.is_empty() {
            return Err(wrong(String::from("is empty; name at least one host:port")));
        }
        let is_address = |server: &&String| {
            let port = server.rsplit_once(':').and_then(|(host, port)| {
                (!host.is_empty()).then_some(port).and_then(|port| port.parse::<u16>().ok())
            });
            port.is_some_and(|port| port > 0) && !server.contains([',', ' ', '/'])
        };
        match self.bootstrap_servers.iter().find(|server| !is_address(server)) {
            Some(server) => Err(wrong(format!("{server:?} is not of the form host:port"))),
            None => Ok(()),
        }
    }

    fn check_plaintext(&self) -> Result<(), InvalidSetting> {
        let sent = self.sasl.as_ref().and_then(|sasl| match sasl.mechanism {
            Mechanism::Plain => Some("PLAIN sends the password itself"),
            Mechanism::OAuthBearer | Mechanism::AwsMskIam => Some("OAUTHBEARER sends the token itself"),
            Mechanism::ScramSha256 | Mechanism::ScramSha512 => None,
        });
        for host in self.hosts() {
            if let Some(sent) = sent.filter(|_| !is_loopback(host)) {
                let problem = format!(
                    "{sent}, and {host} is another machine; add the section kafka.tls, or use SCRAM-SHA-512"
                );
                return Err(InvalidSetting::new("kafka.sasl.mechanism", problem));
            }
            plaintext::check("kafka", "tls", host, self.allow_plaintext, "add this section")?;
        }
        Ok(())
    }

    fn hosts(&self) -> impl Iterator<Item = &str> {
        self.bootstrap_servers.iter().filter_map(|server| Some(server.rsplit_once(':')?.0))
    }

    /// Logs which protection the connection lacks.
    pub(super) fn warn(&self) {
        match &self.tls {
            Some(tls) if !tls.verify => plaintext::warn_unverified(&self.destination()),
            None if !self.hosts().all(is_loopback) => plaintext::warn(&self.destination()),
            _ => {}
        }
    }

    /// Returns the maximum time for connecting.
    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// Names the cluster that this connects to, for logs. Contains no secret.
    pub(super) fn destination(&self) -> String {
        format!("kafka {}", self.bootstrap_servers.join(","))
    }

    /// Returns the properties shared by producers, consumers and the admin client. Reads the
    /// password's file.
    pub(super) fn client(&self) -> Result<ClientConfig, InvalidSetting> {
        self.check()?;
        let mut client = ClientConfig::new();
        // librdkafka reports lost records only as warnings, so these stay enabled whatever log
        // level the program has chosen.
        if (client.log_level as i32) < RDKafkaLogLevel::Warning as i32 {
            client.log_level = RDKafkaLogLevel::Warning;
        }
        for (name, value) in &self.properties {
            client.set(name, value.expose_secret());
        }
        client.set("bootstrap.servers", self.bootstrap_servers.join(","));
        client.set("client.id", &self.client_id);
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        client.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            set_tls(&mut client, tls);
        }
        if let Some(sasl) = &self.sasl {
            client.set("sasl.mechanism", sasl.mechanism.as_str());
            if let Some(password) = sasl.load_password()? {
                client.set("sasl.username", &sasl.username);
                client.set("sasl.password", password.expose_secret());
            }
        }
        Ok(client)
    }

    /// Returns where tokens come from, if this logs in with tokens.
    #[cfg(feature = "kafka-tls")]
    pub(super) fn tokens(&self) -> Result<Option<TokenSource>, TokenError> {
        let Some(sasl) = &self.sasl else { return Ok(None) };
        #[cfg(feature = "kafka-aws")]
        if sasl.mechanism == Mechanism::AwsMskIam {
            let profile = sasl.aws.as_ref().and_then(|aws| aws.profile.clone());
            let provider = Arc::new(Signer { region: self.region()?, profile });
            return Ok(Some(TokenSource { provider, limit: Signer::TIMEOUT, prefix: Sasl::OAUTH }));
        }
        let Some(oauth) = sasl.of_tokens() else { return Ok(None) };
        Ok(Some(oauth.tokens(Sasl::OAUTH)?))
    }

    /// Returns the region of a cluster of Amazon MSK.
    #[cfg(feature = "kafka-aws")]
    fn region(&self) -> Result<String, InvalidSetting> {
        let set = self.sasl.as_ref().and_then(|sasl| sasl.aws.as_ref()?.region.as_deref());
        let region = set.or_else(|| self.hosts().next().and_then(region_of));
        let Some(region) = region else {
            let problem = "missing; name the cluster's region, which bootstrap_servers do not show";
            return Err(InvalidSetting::new("kafka.sasl.aws.region", problem));
        };
        // It becomes part of a host's name.
        if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let problem = format!("is {region:?}; name a region, such as eu-central-1");
            return Err(InvalidSetting::new("kafka.sasl.aws.region", problem));
        }
        Ok(region.to_owned())
    }

    /// Tokens need OpenSSL, so settings with them were refused.
    #[cfg(not(feature = "kafka-tls"))]
    pub(super) fn tokens(&self) -> Result<Option<TokenSource>, TokenError> {
        Ok(None)
    }

    /// Returns the SASL extensions.
    pub(super) fn sasl_extensions(&self) -> Arc<[(String, String)]> {
        let extensions = self.sasl.iter().flat_map(|sasl| sasl.extensions.clone());
        extensions.collect()
    }
}

impl Sasl {
    /// Returns the settings of a user, who needs a password or its file.
    #[must_use]
    pub fn new(username: impl Into<String>) -> Self {
        let username = username.into();
        Self {
            mechanism: Mechanism::default(),
            username,
            password: None,
            password_file: None,
            oauth: None,
            aws: None,
            extensions: BTreeMap::new(),
        }
    }

    /// Returns the settings of a login with tokens (`OAUTHBEARER`).
    #[must_use]
    pub fn oauth(oauth: OAuth) -> Self {
        let none = Self::new(String::new());
        Self { mechanism: Mechanism::OAuthBearer, oauth: Some(oauth), ..none }
    }

    /// Returns the settings of a login to Amazon MSK with IAM (`AWS_MSK_IAM`).
    #[must_use]
    pub fn aws(aws: Aws) -> Self {
        let none = Self::new(String::new());
        Self { mechanism: Mechanism::AwsMskIam, aws: Some(aws), ..none }
    }

    const PASSWORD: &str = "kafka.sasl.password";
    #[cfg(feature = "kafka-tls")]
    const OAUTH: &str = "kafka.sasl.oauth";

    fn has_tokens(&self) -> bool {
        matches!(self.mechanism, Mechanism::OAuthBearer | Mechanism::AwsMskIam)
    }

    #[cfg(feature = "kafka-tls")]
    fn of_tokens(&self) -> Option<&OAuth> {
        self.oauth.as_ref().filter(|_| self.mechanism == Mechanism::OAuthBearer)
    }

    /// Checks that a mechanism has what it needs, and no settings of another one. Reads no file.
    fn check_settings(&self) -> Result<(), InvalidSetting> {
        let wrong = |setting: &str, problem: String| {
            Err(InvalidSetting::new(format!("kafka.sasl.{setting}"), problem))
        };
        let of_password = [
            ("username", !self.username.is_empty()),
            ("password", self.password.is_some()),
            ("password_file", self.password_file.is_some()),
        ];
        let (oauth, aws) = (("oauth", self.oauth.is_some()), ("aws", self.aws.is_some()));
        let extensions = ("extensions", !self.extensions.is_empty());
        let strays: &[(&str, bool)] = match self.mechanism {
            Mechanism::Plain | Mechanism::ScramSha256 | Mechanism::ScramSha512 => &[oauth, aws, extensions],
            Mechanism::OAuthBearer => &[of_password[0], of_password[1], of_password[2], aws],
            Mechanism::AwsMskIam => &[of_password[0], of_password[1], of_password[2], oauth, extensions],
        };
        if let Some((setting, _)) = strays.iter().find(|(_, is_set)| *is_set) {
            let name = self.mechanism.name();
            return wrong(
                setting,
                format!("does not belong to the mechanism {name}; remove it, or correct mechanism"),
            );
        }
        match (self.mechanism, &self.oauth) {
            (Mechanism::Plain | Mechanism::ScramSha256 | Mechanism::ScramSha512, _) => {
                return self.secret().map(drop);
            }
            (Mechanism::OAuthBearer, Some(oauth)) => oauth.source("kafka.sasl.oauth").map(drop)?,
            (Mechanism::OAuthBearer, None) => {
                let problem = "missing; OAUTHBEARER needs this section, with token_url or token_file";
                return wrong("oauth", problem.to_owned());
            }
            (Mechanism::AwsMskIam, _) if cfg!(feature = "kafka-aws") => {}
            (Mechanism::AwsMskIam, _) => {
                let problem =
                    "this program was built without AWS for Kafka; build it with the feature kafka-aws";
                return wrong("mechanism", problem.to_owned());
            }
        }
        self.extensions.iter().try_for_each(|(name, value)| {
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
            if !is_name || name == "auth" {
                return wrong(
                    "extensions",
                    format!("{name:?} is not the name of an extension; use letters, and not \"auth\""),
                );
            }
            if !value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
                return wrong(
                    "extensions",
                    format!("the value of {name} has characters beyond visible ASCII; remove them"),
                );
            }
            Ok(())
        })
    }

    /// Checks the files as well.
    fn check_files(&self) -> Result<(), InvalidSetting> {
        self.load_password()?;
        #[cfg(feature = "kafka-tls")]
        if let Some(oauth) = self.of_tokens() {
            oauth.check(Self::OAUTH)?;
        }
        Ok(())
    }

    /// Returns the password, or the file that holds it.
    fn secret(&self) -> Result<Secret, InvalidSetting> {
        if self.username.is_empty() {
            return Err(InvalidSetting::new("kafka.sasl.username", "is empty; name the user"));
        }
        Secret::from_pair(Self::PASSWORD, self.password.clone(), self.password_file.clone())
    }

    /// Returns the password itself, if the mechanism has one. Reads the file.
    fn load_password(&self) -> Result<Option<SecretString>, InvalidSetting> {
        if self.has_tokens() {
            return Ok(None);
        }
        self.secret()?.load(Self::PASSWORD).map(Some)
    }
}

impl Mechanism {
    /// Returns its name in the settings.
    fn name(self) -> &'static str {
        match self {
            Self::AwsMskIam => "AWS_MSK_IAM",
            other => other.as_str(),
        }
    }

    /// Returns its name on the wire.
    fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OAuthBearer | Self::AwsMskIam => "OAUTHBEARER",
        }
    }
}

impl Compression {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

fn set_tls(client: &mut ClientConfig, tls: &Tls) {
    let files = [
        ("ssl.ca.location", &tls.ca_file),
        ("ssl.certificate.location", &tls.cert_file),
        ("ssl.key.location", &tls.key_file),
    ];
    for (name, path) in files {
        if let Some(path) = path {
            client.set(name, path.to_string_lossy());
        }
    }
    client.set("enable.ssl.certificate.verification", if tls.verify { "true" } else { "false" });
    client.set("ssl.endpoint.identification.algorithm", if tls.verify { "https" } else { "none" });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Config, String> {
        let config: Config = serde_json::from_str(json).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn every_wrong_setting_is_named() {
        let server = r#""bootstrap_servers": ["127.0.0.1:9092"]"#;
        for (json, named) in [
            (String::from(r#"{"bootstrap_servers": []}"#), "kafka.bootstrap_servers"),
            (String::from(r#"{"bootstrap_servers": ["kafka"]}"#), "\"kafka\" is not of the form host:port"),
            (String::from(r#"{"bootstrap_servers": ["k:0"]}"#), "host:port"),
            (String::from(r#"{"bootstrap_servers": ["a:1,b:2"]}"#), "host:port"),
            (format!(r#"{{{server}, "linger": 3}}"#), "unknown field `linger`"),
            (format!(r#"{{{server}, "linger_ms": 900001}}"#), "kafka.linger_ms: is 900001"),
            (format!(r#"{{{server}, "message_bytes_max": 10}}"#), "kafka.message_bytes_max"),
            (format!(r#"{{{server}, "queue_bytes_max": 10}}"#), "kafka.queue_bytes_max"),
            (format!(r#"{{{server}, "connect_timeout_ms": 1}}"#), "kafka.connect_timeout_ms"),
            (format!(r#"{{{server}, "client_id": ""}}"#), "kafka.client_id"),
            (format!(r#"{{{server}, "client_id": "a\"b"}}"#), "kafka.client_id"),
            (format!(r#"{{{server}, "compression": "rar"}}"#), "rar"),
            (format!(r#"{{{server}, "sasl": {{"username": "u"}}}}"#), "kafka.sasl.password: missing"),
            (format!(r#"{{{server}, "sasl": {{"username": "", "password": "p"}}}}"#), "kafka.sasl.username"),
            (format!(r#"{{{server}, "sasl": {{"password": "p"}}}}"#), "kafka.sasl.username: is empty"),
            (
                format!(r#"{{{server}, "sasl": {{"username": "u", "password": "p", "aws": {{}}}}}}"#),
                "kafka.sasl.aws: does not belong to the mechanism SCRAM-SHA-512",
            ),
            (format!(r#"{{{server}, "sasl": {{"mechanism": "OAUTHBEARER"}}}}"#), "kafka.sasl.oauth: missing"),
            (
                format!(r#"{{{server}, "sasl": {{"mechanism": "OAUTHBEARER", "username": "u"}}}}"#),
                "kafka.sasl.username: does not belong to the mechanism OAUTHBEARER",
            ),
            (
                format!(
                    r#"{{{server}, "sasl": {{"mechanism": "OAUTHBEARER", "oauth": {{"token_file": "/does/not"}}}}}}"#
                ),
                "kafka.sasl.oauth.token_file: /does/not",
            ),
            (
                format!(
                    r#"{{{server}, "sasl": {{"mechanism": "OAUTHBEARER", "oauth": {{"token_file": "/x"}},
                        "extensions": {{"auth": "x"}}}}}}"#
                ),
                "kafka.sasl.extensions: \"auth\" is not the name",
            ),
            (
                format!(r#"{{{server}, "sasl": {{"mechanism": "AWS_MSK_IAM"}}}}"#),
                "kafka.sasl.aws.region: missing",
            ),
            (
                format!(
                    r#"{{{server}, "sasl": {{"mechanism": "AWS_MSK_IAM", "aws": {{"region": "x/y"}}}}}}"#
                ),
                "kafka.sasl.aws.region: is \"x/y\"",
            ),
            (format!(r#"{{{server}, "tls": {{"cert_file": "/c"}}}}"#), "kafka.tls.key_file"),
            (format!(r#"{{{server}, "properties": {{"acks": "1"}}}}"#), "kafka.properties.acks"),
            (
                String::from(r#"{"bootstrap_servers": ["127.0.0.1:1", "k:2"]}"#),
                "kafka.tls: k is another machine",
            ),
            (
                String::from(
                    r#"{"bootstrap_servers": ["k:1"], "allow_plaintext": true,
                        "sasl": {"mechanism": "PLAIN", "username": "u", "password": "p"}}"#,
                ),
                "kafka.sasl.mechanism: PLAIN sends the password itself",
            ),
        ] {
            let error = parse(&json).expect_err(&json);
            assert!(error.contains(named), "{json}: {error}");
        }
    }

    #[test]
    fn no_secret_is_printed() {
        let config = parse(
            r#"{"bootstrap_servers": ["[::1]:1"], "sasl": {"username": "u", "password": "s3cret"},
                "properties": {"ssl.key.password": "s3cret"}}"#,
        )
        .unwrap();
        assert!(!format!("{config:?}").contains("s3cret"));
        assert_eq!(config.client().unwrap().get("sasl.password"), Some("s3cret"));
    }

    #[test]
    fn security_follows_from_the_sections_given() {
        let tls = r#""tls": {}"#;
        let sasl = r#""sasl": {"mechanism": "SCRAM-SHA-256", "username": "u", "password": "p"}"#;
        for (sections, protocol) in [
            (String::new(), "plaintext"),
            (format!(", {tls}"), "ssl"),
            (format!(", {sasl}"), "sasl_plaintext"),
            (format!(", {tls}, {sasl}"), "sasl_ssl"),
        ] {
            let config =
                parse(&format!(r#"{{"bootstrap_servers": ["k:1"], "allow_plaintext": true{sections}}}"#))
                    .unwrap();
            assert_eq!(config.client().unwrap().get("security.protocol"), Some(protocol));
        }
    }
}
