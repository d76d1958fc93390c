//! The endpoint that a message goes to.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use message::loopback::is_loopback;
use message::{Fault, FaultScope, Message, PublishError};

use super::address::{HostPattern, Target};
use super::config::Config;
use super::secrets::Secrets;

/// An endpoint, and the reach of its failures.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) target: Target,
    pub(super) secrets: Option<Arc<Secrets>>,
    /// The topic, if all messages of a topic go to it; otherwise the message.
    pub(super) scope: FaultScope,
    /// Whether the message names it.
    pub(super) is_named: bool,
    /// The name of its share of the requests: its URL if it is configured, the host of a URL that
    /// a message names.
    pub(super) share: Arc<str>,
}

/// All endpoints.
#[derive(Debug)]
pub(super) struct Endpoints {
    default: Option<Arc<Endpoint>>,
    by_topic: HashMap<String, Arc<Endpoint>>,
    header: Option<String>,
    /// The most exact first: the first one that allows a URL has its secrets.
    hosts: Vec<(HostPattern, Option<Arc<Secrets>>)>,
    allow_plaintext: bool,
}

impl Endpoints {
    /// Reads the endpoints from checked settings, leaving out what cannot be read.
    pub(super) fn new(config: &Config) -> Self {
        let secrets = |setting: String, files: &[PathBuf]| {
            (!files.is_empty()).then(|| Arc::new(Secrets::new(&setting, files)))
        };
        let endpoint = |url: &str, secrets| {
            let target = Target::parse(url).ok()?;
            // Where messages name endpoints, a topic has several.
            let scope = if config.names_endpoints() { FaultScope::Message } else { FaultScope::Topic };
            let share = target.uri.to_string().into();
            Some(Arc::new(Endpoint { target, secrets, scope, is_named: false, share }))
        };
        let own = secrets(String::from("http.secret_files"), &config.secret_files);
        let by_topic = config.endpoints.iter().filter_map(|(topic, settings)| {
            let setting = format!("http.endpoints.{topic}.secret_files");
            Some((topic.clone(), endpoint(&settings.url, secrets(setting, &settings.secret_files))?))
        });
        let hosts = config.hosts.iter().filter_map(|(host, settings)| {
            let setting = format!("http.hosts.{host}.secret_files");
            Some((HostPattern::parse(host).ok()?, secrets(setting, &settings.secret_files)))
        });
        let mut hosts: Vec<_> = hosts.collect();
        hosts.sort_by_key(|(pattern, _)| Reverse(pattern.exactness()));
        Self {
            default: config.url.as_ref().and_then(|url| endpoint(url, own)),
            by_topic: by_topic.collect(),
            header: config.endpoint_header.clone(),
            hosts,
            allow_plaintext: config.allow_plaintext,
        }
    }

    /// Returns the header that names endpoints.
    pub(super) fn header(&self) -> Option<&str> {
        self.header.as_deref()
    }

    /// Returns the configured endpoint of a topic.
    pub(super) fn of_topic(&self, topic: &str) -> Option<&Arc<Endpoint>> {
        self.by_topic.get(topic).or(self.default.as_ref())
    }

    /// Returns all configured endpoints.
    pub(super) fn configured(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.default.iter().chain(self.by_topic.values())
    }

    /// Returns whether all messages go to one endpoint.
    pub(super) fn is_one(&self) -> bool {
        let urls: HashSet<&Uri> = self.configured().map(|endpoint| &endpoint.target.uri).collect();
        self.header.is_none() && urls.len() <= 1
    }

    /// Returns the endpoint of a message.
    ///
    /// # Errors
    /// The operator's fault if its topic has none; the message's if it names one that is not
    /// allowed.
    pub(super) fn of(&self, message: &Message) -> Result<Arc<Endpoint>, PublishError> {
        if let Some(header) = &self.header
            && let Some(named) = self.named_by(header, message)
        {
            return named.map_err(|problem| PublishError::refused(problem).without_retry());
        }
        self.of_topic(message.topic.as_str()).cloned().ok_or_else(|| {
            let scope = if self.header.is_some() { FaultScope::Message } else { FaultScope::Topic };
            let reason =
                format!("topic {} has no endpoint; set http.url, or add it to http.endpoints", message.topic);
            PublishError::new(Fault::Operator, scope, reason)
        })
    }

    /// Returns the endpoint that a message names, if it names one. Message headers are
    /// case-sensitive and names of HTTP headers are not, so any spelling counts.
    fn named_by(&self, header: &str, message: &Message) -> Option<Result<Arc<Endpoint>, String>> {
        let mut urls = message.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(header));
        let (_, url) = urls.next()?;
        if urls.next().is_some() {
            return Some(Err(format!(
                "the message has the header {header} more than once, in different spellings"
            )));
        }
        Some(self.named(header, url))
    }

    fn named(&self, header: &str, url: &str) -> Result<Arc<Endpoint>, String> {
        let target =
            Target::parse(url).map_err(|problem| format!("the URL in the header {header} {problem}"))?;
        let name = &target.name;
        let Some((_, secrets)) = self.hosts.iter().find(|(pattern, _)| pattern.allows(&target)) else {
            return Err(format!(
                "the header {header} names {name}, which is not allowed; add its host to http.hosts"
            ));
        };
        if !target.is_encrypted() && !self.allow_plaintext && !is_loopback(target.host()) {
            return Err(format!("the header {header} names {name}, which is not encrypted; write https://"));
        }
        let secrets = secrets.clone();
        let share = target.name.as_str().into();
        Ok(Arc::new(Endpoint { target, secrets, scope: FaultScope::Message, is_named: true, share }))
    }
}

#[cfg(test)]
mod tests {
    use message::{EventType, Topic};

    use super::*;
    use crate::http::config;

    fn message(topic: &str, url: Option<&str>) -> Message {
        let mut message = Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), "{}");
        if let Some(url) = url {
            message.headers.insert("endpoint", url).unwrap();
        }
        message
    }

    #[test]
    fn the_header_wins_over_the_topic_and_the_topic_over_the_default() {
        let mut config = Config::new("https://a.example");
        config.endpoints.insert(String::from("bills"), config::Endpoint::new("https://b.example"));
        let of = |config: &Config, message: &Message| Endpoints::new(config).of(message).unwrap();
        let endpoint = of(&config, &message("orders", Some("https://c.example")));
        assert_eq!((endpoint.target.name.as_str(), endpoint.scope), ("https://a.example", FaultScope::Topic));
        assert_eq!(of(&config, &message("bills", None)).target.name, "https://b.example");
        config.endpoint_header = Some(String::from("endpoint"));
        config.hosts.insert(String::from("c.example"), config::AllowedHost::default());
        let endpoint = of(&config, &message("bills", Some("https://c.example/x")));
        assert_eq!(
            (endpoint.target.name.as_str(), endpoint.scope),
            ("https://c.example", FaultScope::Message)
        );
        let endpoint = of(&config, &message("bills", None));
        assert_eq!(
            (endpoint.target.name.as_str(), endpoint.scope),
            ("https://b.example", FaultScope::Message)
        );
    }

    /// Goal: no spelling of the header leads to the endpoint of the topic. Oracle: the endpoint.
    #[test]
    fn the_header_counts_in_any_case_and_only_once() {
        let mut config = Config::new("https://a.example").endpoint_header("Webhook-Url");
        config.hosts.insert(String::from("c.example"), config::AllowedHost::default());
        let endpoints = Endpoints::new(&config);
        let mut sent = message("orders", None);
        sent.headers.insert("webhook-URL", "https://c.example/x").unwrap();
        let endpoint = endpoints.of(&sent).unwrap();
        assert_eq!((endpoint.target.name.as_str(), endpoint.is_named), ("https://c.example", true));
        sent.headers.insert("Webhook-Url", "https://c.example/y").unwrap();
        let error = endpoints.of(&sent).unwrap_err();
        assert_eq!((error.fault(), error.is_final()), (Fault::Message, true), "{error}");
    }

    #[test]
    fn the_most_exact_host_has_the_secrets() {
        let mut config = Config::default().endpoint_header("endpoint");
        for host in ["*.example.com", "*.eu.example.com", "pay.eu.example.com", "pay.example.com"] {
            let allowed = config::AllowedHost { secret_files: vec![PathBuf::from("/does/not/exist")] };
            config.hosts.insert(String::from(host), allowed);
        }
        let endpoints = Endpoints::new(&config);
        for (url, host) in [
            ("https://pay.example.com/x", "pay.example.com"),
            ("https://other.example.com/x", "*.example.com"),
            ("https://pay.eu.example.com/x", "pay.eu.example.com"),
            ("https://other.eu.example.com/x", "*.eu.example.com"),
        ] {
            let endpoint = endpoints.of(&message("orders", Some(url))).unwrap();
            let error = endpoint.secrets.as_ref().unwrap().keys().unwrap_err();
            assert_eq!(error.setting, format!("http.hosts.{host}.secret_files"), "{url}");
        }
    }

    #[test]
    fn a_topic_without_an_endpoint_stops_and_a_forbidden_url_is_refused_for_good() {
        let mut config = Config::default();
        config.endpoints.insert(String::from("bills"), config::Endpoint::new("https://b.example"));
        let error = Endpoints::new(&config).of(&message("orders", None)).unwrap_err();
        assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Topic));
        assert!(error.to_string().contains("topic orders has no endpoint"), "{error}");
        config.endpoint_header = Some(String::from("endpoint"));
        config.hosts.insert(String::from("c.example"), config::AllowedHost::default());
        for url in
            ["https://d.example/s3cret", "http://c.example/s3cret", "s3cret", "https://c.example:9/s3cret"]
        {
            let error = Endpoints::new(&config).of(&message("orders", Some(url))).unwrap_err();
            assert_eq!((error.fault(), error.is_final()), (Fault::Message, true), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
