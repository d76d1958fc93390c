//! The endpoints of topics. Opens connections without sending requests.

use tower_service::Service as _;

use super::client::Connections;
use super::config::Config;
use super::endpoints::{Endpoint, Endpoints};
use super::fault::Failure;
use crate::inspect::{BrokerFacts, InspectError, Inspected};

/// Facts about a topic's endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointFacts {
    /// Its scheme, host and port.
    pub endpoint: String,
    /// Whether requests to it are encrypted.
    pub is_encrypted: bool,
    /// How many secrets sign requests to it, or why they cannot be read.
    pub secrets: Result<usize, String>,
}

/// Connects to the endpoints of these topics, each once. A topic whose messages name their
/// endpoints has none here. Cancel-safe.
///
/// # Errors
/// [`InspectError`] when settings or their files are wrong.
pub async fn inspect(config: &Config, topics: &[String]) -> Result<BrokerFacts<EndpointFacts>, InspectError> {
    let wrong = |error: crate::InvalidSetting| InspectError::operator(error.to_string());
    let networks = config.check().map_err(wrong)?;
    let connections = Connections::new(config, networks).map_err(wrong)?;
    let endpoints = Endpoints::new(config);
    let mut inspected = Vec::new();
    for topic in topics {
        let facts = match endpoints.of_topic(topic) {
            Some(endpoint) => look(&connections, endpoint).await,
            None if endpoints.header().is_some() => continue,
            None => {
                let reason =
                    format!("topic {topic} has no endpoint; set http.url, or add it to http.endpoints");
                Err(InspectError::operator(reason))
            }
        };
        inspected.push(Inspected { topic: topic.clone(), facts });
    }
    Ok(BrokerFacts { version: None, nodes: None, clock: None, alarms: None, topics: inspected })
}

async fn look(connections: &Connections, endpoint: &Endpoint) -> Result<EndpointFacts, InspectError> {
    connections.clone().call(endpoint.target.uri.clone()).await.map_err(|error| {
        let failure = Failure::of_error(error.as_ref(), true);
        InspectError { fault: failure.fault(), reason: failure.reason(&endpoint.target.name) }
    })?;
    let count = endpoint.secrets.as_ref().map(|secrets| secrets.load().map(|keys| keys.len()));
    Ok(EndpointFacts {
        endpoint: endpoint.target.name.clone(),
        is_encrypted: endpoint.target.is_encrypted(),
        secrets: count.unwrap_or(Ok(0)).map_err(|error| error.to_string()),
    })
}
