//! An operator's settings for HTTP, and their validation.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use message::{HeaderName, SizeLimit};
use serde::Deserialize;

use super::address::{HostPattern, Target};
use super::networks::Networks;
use super::secrets::Secrets;
use crate::plaintext;
use crate::settings::InvalidSetting;
use crate::tls::Tls;

/// The form of a request.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The attributes are headers (`ce-id`), and the body is the payload byte for byte.
    #[default]
    Binary,
    /// The body is one CloudEvent in JSON, so that a signature covers the attributes as well.
    Structured,
}

/// An endpoint: where requests go, and how they are signed.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Endpoint {
    /// Its address: `https://host[:port]/path`. Only scheme, host and port are ever shown.
    pub url: String,
    /// The files with its secrets (`whsec_…`, one a line), read again when they change. Without
    /// any, requests are not signed.
    #[serde(default)]
    pub secret_files: Vec<PathBuf>,
}

impl Endpoint {
    /// Makes an endpoint whose requests are not signed.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), secret_files: Vec::new() }
    }
}

/// A host that messages may name.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AllowedHost {
    /// The files with its secrets, like those of an endpoint.
    pub secret_files: Vec<PathBuf>,
}

/// Settings of HTTP endpoints that messages are posted to. Unknown settings are refused. There must
/// be a `url`, an endpoint of a topic, or an `endpoint_header`.
///
/// ```toml
/// url = "https://hooks.example.com/outbox"
/// secret_files = ["/run/secrets/webhook"]
/// ```
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The endpoint of every topic without one of its own: `https://host[:port]/path`. Only scheme,
    /// host and port are ever shown.
    pub url: Option<String>,
    /// The files with the secrets of `url` (`whsec_…`, one a line), read again when they change.
    /// Each secret adds a signature (Standard Webhooks). Without any, requests are not signed.
    pub secret_files: Vec<PathBuf>,
    /// The endpoints of topics.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The message header whose value is the URL that the message goes to. It needs `hosts`. The
    /// header itself is not sent. A message without it goes to the endpoint of its topic.
    pub endpoint_header: Option<String>,
    /// The hosts that `endpoint_header` may name, with their secrets: `hooks.example.com`,
    /// `*.example.com` (any name below it), `hooks.example.com:8443`. Without a port, only the port
    /// of the scheme is allowed. If several allow a URL, the most exact one gives the secrets: a
    /// name before `*.`, and a longer one before a shorter one.
    pub hosts: BTreeMap<String, AllowedHost>,
    /// `binary` (default) or `structured`, the two forms of CloudEvents over HTTP.
    pub mode: Mode,
    /// How connections are encrypted. `verify = false` is not supported.
    pub tls: Option<Tls>,
    /// Whether `http` to another machine is allowed. Default no: every message would cross the
    /// network in the clear.
    pub allow_plaintext: bool,
    /// Networks and addresses besides the public internet that requests may go to: `10.1.0.0/16`,
    /// `127.0.0.1`. Default none: an address that a host resolves to must be public.
    pub private_networks: Vec<String>,
    /// Statuses from 400 to 499 by which an endpoint reports that it already has the message, such
    /// as 409. They count as success. Default none.
    pub accepted_statuses: Vec<u16>,
    /// Statuses from 400 to 499 for which the endpoint is at fault and not the message, such as
    /// 401, 403 and 404: its topics stop, and their messages wait. Default none: the message is
    /// refused.
    pub stopping_statuses: Vec<u16>,
    /// Maximum seconds for which an endpoint's `Retry-After` is respected, 1 to 86,400 (default
    /// 300).
    pub retry_after_max_secs: u64,
    /// Maximum requests in flight to one endpoint, and to one host whose URLs messages name, 1 to
    /// 256 (default 16). After a failure, one request at a time tries whether the endpoint is back.
    /// Where there are several endpoints, 32 times as many messages may wait for each, and further
    /// ones wait in the database.
    pub concurrency: usize,
    /// Maximum requests in flight to all endpoints, 1 to 4,096 (default 256). A request that is not
    /// answered within a second counts only for its own endpoint and among 2,048 such requests, so
    /// that a hanging endpoint leaves the others alone.
    pub requests_max: usize,
    /// Maximum bytes of headers and body of a request, 1,024 to 16,777,216 (default 1 MiB).
    pub message_bytes_max: usize,
    /// Maximum milliseconds to open a connection, 100 to 60,000 (default 3,000).
    pub connect_timeout_ms: u64,
    /// Maximum milliseconds until the answer to a request, 500 to 300,000 (default 10,000).
    pub request_timeout_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: None,
            secret_files: Vec::new(),
            endpoints: BTreeMap::new(),
            endpoint_header: None,
            hosts: BTreeMap::new(),
            mode: Mode::Binary,
            tls: None,
            allow_plaintext: false,
            private_networks: Vec::new(),
            accepted_statuses: Vec::new(),
            stopping_statuses: Vec::new(),
            retry_after_max_secs: 300,
            concurrency: 16,
            requests_max: 256,
            message_bytes_max: SizeLimit::HTTP.message_bytes_max,
            connect_timeout_ms: 3_000,
            request_timeout_ms: 10_000,
        }
    }
}

/// Statuses that already have a meaning of their own.
const FIXED_STATUSES: [u16; 4] = [408, 410, 425, 429];

impl Config {
    /// Returns settings with one endpoint for every topic.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::default() }
    }

    /// Returns the configured size limit of messages.
    #[must_use]
    pub fn size_limit(&self) -> SizeLimit {
        SizeLimit { message_bytes_max: self.message_bytes_max, ..SizeLimit::HTTP }
    }

    /// Returns whether all requests are encrypted, without regard to the URLs that messages name.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        let is_plain = self.urls().any(|(_, url)| is_plain(url));
        let may_be_plain = self.names_endpoints() && self.allow_plaintext;
        !(is_plain || may_be_plain)
    }

    /// Returns whether messages name endpoints.
    #[must_use]
    pub fn names_endpoints(&self) -> bool {
        self.endpoint_header.is_some()
    }

    /// Returns whether the certificates of endpoints are verified.
    pub(super) fn needs_authorities(&self) -> bool {
        self.names_endpoints() || self.urls().any(|(_, url)| !is_plain(url))
    }

    /// Opens the files that the settings name: certificates, keys and secrets.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting and the file, and never with a secret.
    pub fn check_files(&self) -> Result<(), InvalidSetting> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check("http.tls"))?;
        let own = [(String::from("http.secret_files"), &self.secret_files)];
        let endpoints = self.endpoints.iter().map(|(topic, endpoint)| {
            (format!("http.endpoints.{topic}.secret_files"), &endpoint.secret_files)
        });
        let hosts = self
            .hosts
            .iter()
            .map(|(host, settings)| (format!("http.hosts.{host}.secret_files"), &settings.secret_files));
        for (setting, files) in own.into_iter().chain(endpoints).chain(hosts) {
            Secrets::new(&setting, files).load()?;
        }
        Ok(())
    }

    /// Returns every configured URL with the name of its setting.
    pub(super) fn urls(&self) -> impl Iterator<Item = (String, &str)> {
        let own = self.url.iter().map(|url| (String::from("url"), url.as_str()));
        let topics = self.endpoints.iter();
        own.chain(topics.map(|(topic, endpoint)| (format!("endpoints.{topic}.url"), endpoint.url.as_str())))
    }

    /// Checks every setting, without reading files. Returns the networks that requests may go to.
    pub(super) fn check(&self) -> Result<Networks, InvalidSetting> {
        within("retry_after_max_secs", self.retry_after_max_secs, 1..=86_400)?;
        within("concurrency", self.concurrency, 1..=256)?;
        within("requests_max", self.requests_max, 1..=4_096)?;
        within("message_bytes_max", self.message_bytes_max, 1_024..=16 << 20)?;
        within("connect_timeout_ms", self.connect_timeout_ms, 100..=60_000)?;
        within("request_timeout_ms", self.request_timeout_ms, 500..=300_000)?;
        self.check_statuses()?;
        self.check_endpoints()?;
        self.check_header()?;
        if let Some(tls) = &self.tls {
            if !tls.verify {
                let problem = "cannot be false for http; name the certificate authority in ca_file";
                return Err(invalid("tls.verify", problem));
            }
            tls.check_settings("http.tls")?;
        }
        Networks::parse(&self.private_networks).map_err(|text| {
            let problem = format!("{text:?} is not a network; write 10.1.0.0/16, or an address");
            invalid("private_networks", problem)
        })
    }

    fn check_statuses(&self) -> Result<(), InvalidSetting> {
        for (setting, statuses) in
            [("accepted_statuses", &self.accepted_statuses), ("stopping_statuses", &self.stopping_statuses)]
        {
            for status in statuses {
                within(setting, *status, 400..=499)?;
                if FIXED_STATUSES.contains(status) {
                    let problem = format!("{status} already has a meaning; remove it from the list");
                    return Err(invalid(setting, problem));
                }
            }
        }
        if let Some(both) =
            self.accepted_statuses.iter().find(|status| self.stopping_statuses.contains(status))
        {
            return Err(invalid(
                "stopping_statuses",
                format!("{both} is in accepted_statuses as well; choose one"),
            ));
        }
        Ok(())
    }

    fn check_endpoints(&self) -> Result<(), InvalidSetting> {
        if self.url.is_none() && self.endpoints.is_empty() && self.endpoint_header.is_none() {
            return Err(invalid("url", "missing; set it, an endpoint of a topic, or endpoint_header"));
        }
        if self.url.is_none() && !self.secret_files.is_empty() {
            let problem = "belong to url, which is missing; give each endpoint its own";
            return Err(invalid("secret_files", problem));
        }
        for (setting, url) in self.urls() {
            let target = Target::parse(url).map_err(|problem| invalid(&setting, problem))?;
            if !target.is_encrypted() {
                let remedy = "write https://";
                plaintext::check("http", &setting, target.host(), self.allow_plaintext, remedy)?;
            }
        }
        Ok(())
    }

    fn check_header(&self) -> Result<(), InvalidSetting> {
        let Some(name) = &self.endpoint_header else {
            if self.hosts.is_empty() {
                return Ok(());
            }
            return Err(invalid("endpoint_header", "missing, although hosts are set"));
        };
        HeaderName::new(name.as_str()).map_err(|error| invalid("endpoint_header", error.to_string()))?;
        if self.hosts.is_empty() {
            let problem = "is empty; list the hosts that messages may name in endpoint_header";
            return Err(invalid("hosts", problem));
        }
        for host in self.hosts.keys() {
            HostPattern::parse(host).map_err(|problem| invalid(&format!("hosts.{host}"), problem))?;
        }
        Ok(())
    }
}

/// Returns the report of an invalid setting of this adapter.
pub(super) fn invalid(setting: &str, problem: impl Into<String>) -> InvalidSetting {
    InvalidSetting::new(format!("http.{setting}"), problem)
}

fn within<T: PartialOrd + Display>(
    setting: &str,
    value: T,
    bounds: RangeInclusive<T>,
) -> Result<(), InvalidSetting> {
    InvalidSetting::unless_within("http", setting, value, bounds)
}

/// Returns whether the scheme of a URL is `http`, in any spelling.
fn is_plain(url: &str) -> bool {
    Target::parse(url).is_ok_and(|target| !target.is_encrypted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_in_capitals_is_the_same_scheme() {
        for (url, is_encrypted) in [
            ("http://127.0.0.1/hook", false),
            ("HTTP://127.0.0.1/hook", false),
            (" Http://127.0.0.1/hook", false),
            ("https://hooks.example.com", true),
            ("HTTPS://hooks.example.com", true),
        ] {
            let config = Config { url: Some(url.to_owned()), ..Config::default() };
            let found = [config.is_encrypted(), config.needs_authorities()];
            assert_eq!(found, [is_encrypted; 2], "{url}");
        }
    }

    fn read(json: &str) -> Config {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn one_url_is_enough_and_unknown_settings_are_refused() {
        assert_eq!(read(r#"{"url": "https://hooks.example.com/o"}"#).check(), Ok(Networks::default()));
        assert!(read(r#"{"url": "http://127.0.0.1:1"}"#).check().is_ok(), "plaintext stays on this machine");
        assert!(serde_json::from_str::<Config>(r#"{"ulr": "x"}"#).is_err());
        assert!(
            serde_json::from_str::<Config>(r#"{"endpoints": {"o": {"url": "x", "secret": "y"}}}"#).is_err()
        );
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let with = |rest: &str| format!(r#"{{"url": "https://hooks.example.com", {rest}}}"#);
        for (json, setting) in [
            (String::from("{}"), "http.url"),
            (String::from(r#"{"url": "hooks.example.com"}"#), "http.url"),
            (String::from(r#"{"url": "ftp://hooks.example.com"}"#), "http.url"),
            (String::from(r#"{"url": "https://user:s3cret@hooks.example.com"}"#), "http.url"),
            (String::from(r#"{"url": "http://hooks.example.com"}"#), "http.url"),
            (with(r#""endpoints": {"orders": {"url": "http://b.example"}}"#), "http.endpoints.orders.url"),
            (with(r#""concurrency": 0"#), "http.concurrency"),
            (with(r#""requests_max": 9999"#), "http.requests_max"),
            (with(r#""message_bytes_max": 17000000"#), "http.message_bytes_max"),
            (with(r#""request_timeout_ms": 1"#), "http.request_timeout_ms"),
            (with(r#""connect_timeout_ms": 1"#), "http.connect_timeout_ms"),
            (with(r#""retry_after_max_secs": 0"#), "http.retry_after_max_secs"),
            (with(r#""accepted_statuses": [500]"#), "http.accepted_statuses"),
            (with(r#""accepted_statuses": [408]"#), "http.accepted_statuses"),
            (with(r#""stopping_statuses": [410]"#), "http.stopping_statuses"),
            (with(r#""accepted_statuses": [409], "stopping_statuses": [409]"#), "http.stopping_statuses"),
            (with(r#""private_networks": ["10.0.0.1/8"]"#), "http.private_networks"),
            (with(r#""tls": {"verify": false}"#), "http.tls.verify"),
            (with(r#""tls": {"cert_file": "/c"}"#), "http.tls.key_file"),
            (with(r#""endpoint_header": "endpoint""#), "http.hosts"),
            (with(r#""endpoint_header": "ce-id", "hosts": {"a.example": {}}"#), "http.endpoint_header"),
            (with(r#""endpoint_header": "endpoint", "hosts": {"*": {}}"#), "http.hosts.*"),
            (with(r#""hosts": {"a.example": {}}"#), "http.endpoint_header"),
            (
                String::from(
                    r#"{"endpoint_header": "e", "hosts": {"a.example": {}}, "secret_files": ["/s"]}"#,
                ),
                "http.secret_files",
            ),
        ] {
            let error = read(&json).check().unwrap_err();
            assert_eq!(error.setting, setting, "{json}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn files_are_opened_only_on_request() {
        let config = read(
            r#"{"url": "https://a.example", "endpoints": {"o": {"url": "https://b.example", "secret_files": ["/does/not/exist"]}}}"#,
        );
        config.check().unwrap();
        let error = config.check_files().unwrap_err();
        assert_eq!(error.setting, "http.endpoints.o.secret_files");
        assert!(error.problem.contains("/does/not/exist"), "{error}");
    }
}
