//! Opens publishing sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::loopback::is_loopback;
use message::{Fault, FaultScope, PublishError, Publisher, Receipts};
use tokio::task::JoinSet;
use tower_service::Service as _;

use super::client::Connections;
use super::config::Config;
use super::dispatcher::Pace;
use super::endpoints::{Endpoint, Endpoints};
use super::fault::Failure;
use super::networks::Networks;
use super::publisher::HttpPublisher;
use super::send::Sender;
use super::stops::Stops;
use crate::plaintext;
use crate::settings::InvalidSetting;

/// Opens publishing sessions with HTTP endpoints. It remembers which endpoints are gone (410) or
/// asked to wait (`Retry-After`), over all its sessions.
#[derive(Debug)]
pub struct Connector {
    config: Config,
    networks: Networks,
    endpoints: Arc<Endpoints>,
    stops: Arc<Stops>,
    destination: String,
}

impl Connector {
    /// Creates a connector with these settings. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
    pub fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let networks = config.check()?;
        let endpoints = Arc::new(Endpoints::new(config));
        let destination = destination(&endpoints);
        let is_exposed = |endpoint: &Arc<Endpoint>| {
            !endpoint.target.is_encrypted() && !is_loopback(endpoint.target.host())
        };
        if endpoints.configured().any(is_exposed) {
            plaintext::warn(&destination);
        }
        Ok(Self { config: config.clone(), networks, endpoints, stops: Arc::default(), destination })
    }
}

/// Returns `http`, with the endpoint's scheme, host and port if there is one.
fn destination(endpoints: &Endpoints) -> String {
    let mut names: Vec<&str> = endpoints.configured().map(|endpoint| endpoint.target.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [] => String::from("http"),
        [name] => format!("http {name}"),
        [name, ..] => format!("http {name} and {} more", names.len() - 1),
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        &self.destination
    }

    fn connect_max(&self) -> Duration {
        Duration::from_millis(self.config.connect_timeout_ms) + BESIDES_CONNECTIONS
    }

    /// The time of one request: messages that wait for an endpoint are answered one by one.
    fn answer_max(&self) -> Option<Duration> {
        let one = self.config.connect_timeout_ms.saturating_add(self.config.request_timeout_ms);
        Some(Duration::from_millis(one))
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let connections = self.connections()?;
        // Where messages name endpoints, those of the settings must not keep them from a session.
        if self.endpoints.header().is_none() {
            self.probe(&connections).await?;
        }
        let Config { concurrency, requests_max, .. } = self.config;
        let pace = Pace::new(concurrency, requests_max, self.endpoints.is_one());
        let sender = Sender::new(&self.config, connections.client(), Arc::clone(&self.stops));
        Ok(Box::new(HttpPublisher::new(receipts, Arc::clone(&self.endpoints), sender, pace)))
    }
}

/// Maximum time for reading the certificates of the machine.
const BESIDES_CONNECTIONS: Duration = Duration::from_secs(10);

/// Maximum number of hosts that are tried before a session.
const PROBES_MAX: usize = 16;

impl Connector {
    /// Finds out, without a request, whether an endpoint of the settings accepts connections.
    /// [`connect`](message::Connector::connect) does the same, unless messages name endpoints.
    /// Those cannot be tried beforehand. Succeeds if the settings have no endpoint. Cancel-safe.
    ///
    /// # Errors
    /// [`PublishError`] with [`FaultScope::Session`]: none can be reached (the broker's fault), or
    /// may be connected to (the operator's).
    pub async fn try_configured(&self) -> Result<(), PublishError> {
        self.probe(&self.connections()?).await
    }

    fn connections(&self) -> Result<Connections, PublishError> {
        Connections::new(&self.config, self.networks.clone()).map_err(|error: InvalidSetting| {
            PublishError::new(Fault::Operator, FaultScope::Session, error.to_string())
        })
    }

    /// Finds out whether an endpoint of the settings accepts connections, without a request. HTTP
    /// has no sessions, so a single endpoint never stops the others. But while none can be reached,
    /// a session would only park messages.
    async fn probe(&self, connections: &Connections) -> Result<(), PublishError> {
        // Each scheme, host and port once: the topics of one service share them.
        let endpoints = self.endpoints.configured();
        let hosts: HashMap<&str, _> =
            endpoints.map(|endpoint| (endpoint.target.name.as_str(), endpoint)).collect();
        let mut probes = JoinSet::new();
        for endpoint in hosts.values().take(PROBES_MAX) {
            let mut connections = connections.clone();
            let endpoint = Arc::clone(endpoint);
            probes.spawn(async move {
                let opened = connections.call(endpoint.target.uri.clone()).await;
                opened.map(drop).map_err(|error| (Failure::of_error(error.as_ref(), true), endpoint))
            });
        }
        let mut failed = None;
        while let Some(probed) = probes.join_next().await {
            match probed {
                Ok(Ok(())) => return Ok(()),
                // An endpoint that may come back by itself decides whether to wait.
                Ok(Err((failure, endpoint))) => {
                    if failure.fault() == Fault::Broker || failed.is_none() {
                        failed = Some((failure, endpoint));
                    }
                }
                Err(error) => {
                    return Err(
                        PublishError::session_lost("a probe failed because of a bug").with_source(error)
                    );
                }
            }
        }
        if hosts.len() > PROBES_MAX {
            // The others may be reachable.
            return Ok(());
        }
        failed.map_or(Ok(()), |(failure, endpoint)| {
            let reason = failure.reason(&endpoint.target.name);
            Err(PublishError::new(failure.fault(), FaultScope::Session, reason))
        })
    }
}
