//! The addresses of servers, direct and through proxies.

use std::net::SocketAddr;

use proxy::Proxy;
use url::Url;

use crate::Failure;
use crate::pair::{BrokerKind, DatabaseKind, Pair};
use crate::stage::{Broker, Peer, Role, Wire, Wires};

/// The addresses of the servers, from the environment.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    postgres: Option<Url>,
    kafka: Option<String>,
    /// For relays, consumers and workers: the port at which Kafka listens for a proxy, and the port
    /// that it announces for that proxy.
    kafka_proxied: Vec<(u16, u16)>,
    rabbitmq: Option<Url>,
    sqs: Option<Url>,
}

impl Servers {
    /// Reads the variables that the task runner sets.
    ///
    /// # Errors
    /// A variable cannot be read.
    pub fn from_environment() -> Result<Self, Failure> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let url = |name: &str| -> Result<Option<Url>, Failure> {
            let parsed = text(name).map(|value| Url::parse(&value)).transpose();
            parsed.map_err(|error| format!("{name}: {error}").into())
        };
        let proxied = text("OUTBOX_KAFKA_PROXIED").unwrap_or_default();
        Ok(Self {
            postgres: url("OUTBOX_POSTGRES_URL")?,
            kafka: text("OUTBOX_KAFKA_BROKERS"),
            kafka_proxied: ports(&proxied).ok_or_else(|| format!("OUTBOX_KAFKA_PROXIED={proxied}"))?,
            rabbitmq: url("OUTBOX_RABBITMQ_URL")?,
            sqs: url("OUTBOX_SQS_ENDPOINT")?,
        })
    }

    pub(super) fn postgres(&self) -> Result<&Url, Failure> {
        self.postgres.as_ref().ok_or_else(|| missing("OUTBOX_POSTGRES_URL"))
    }

    pub(super) fn kafka(&self) -> Result<&str, Failure> {
        self.kafka.as_deref().ok_or_else(|| missing("OUTBOX_KAFKA_BROKERS"))
    }

    pub(super) fn rabbitmq(&self) -> Result<&Url, Failure> {
        self.rabbitmq.as_ref().ok_or_else(|| missing("OUTBOX_RABBITMQ_URL"))
    }

    pub(super) fn sqs(&self) -> Result<&Url, Failure> {
        self.sqs.as_ref().ok_or_else(|| missing("OUTBOX_SQS_ENDPOINT"))
    }
}

fn missing(variable: &str) -> Failure {
    format!("{variable} is not set: run this through `cargo xtask storm`").into()
}

fn ports(text: &str) -> Option<Vec<(u16, u16)>> {
    let pair = |part: &str| {
        let (listening, announced) = part.split_once(':')?;
        Some((listening.parse().ok()?, announced.parse().ok()?))
    };
    text.split(',').filter(|part| !part.is_empty()).map(pair).collect()
}

pub(super) fn host_and_port(url: &Url) -> Result<String, Failure> {
    let (host, port) = (url.host_str(), url.port_or_known_default());
    let (Some(host), Some(port)) = (host, port) else {
        return Err(format!("{} names no host and port", url.scheme()).into());
    };
    Ok(format!("{host}:{port}"))
}

/// Returns the same URL with the address of a proxy.
pub(super) fn through(url: &Url, proxy: SocketAddr) -> Result<String, Failure> {
    let mut url = url.clone();
    let wrong = || Failure::from("a URL that cannot have a host and a port");
    url.set_host(Some(&proxy.ip().to_string())).map_err(|_| wrong())?;
    url.set_port(Some(proxy.port())).map_err(|()| wrong())?;
    Ok(url.to_string())
}

/// Starts a proxy between every role and every server.
pub(super) async fn wire(
    pair: Pair,
    servers: &Servers,
    broker: &Broker,
    wires: &mut Wires,
) -> Result<(), Failure> {
    let mut add = async |role, peer, port, upstream: String| -> Result<(), Failure> {
        let proxy = Proxy::start(port, upstream).await?;
        wires.proxies.insert(Wire { role, peer }, proxy);
        Ok(())
    };
    if pair.database == DatabaseKind::Postgres {
        for role in [Role::Producer, Role::Relay, Role::Consumer, Role::Worker] {
            add(role, Peer::Database, 0, host_and_port(servers.postgres()?)?).await?;
        }
        wires.own = Some(Proxy::start(0, host_and_port(servers.postgres()?)?).await?);
    }
    for (place, role) in [Role::Relay, Role::Consumer, Role::Worker].into_iter().enumerate() {
        let (port, upstream) = match pair.broker {
            BrokerKind::Rabbitmq => match broker.confirms.as_ref().filter(|_| role == Role::Relay) {
                Some(confirms) => (0, confirms.address().to_string()),
                None => (0, host_and_port(servers.rabbitmq()?)?),
            },
            BrokerKind::Sqs | BrokerKind::SqsFifo => {
                match broker.gateway.as_ref().filter(|_| role != Role::Worker) {
                    Some(gateway) => (0, gateway.address().to_string()),
                    None => (0, host_and_port(servers.sqs()?)?),
                }
            }
            BrokerKind::Kafka => match servers.kafka_proxied.get(place) {
                Some((listening, announced)) => (*announced, format!("127.0.0.1:{listening}")),
                None => continue,
            },
            // Receivers listen themselves.
            BrokerKind::Http if role != Role::Consumer => match &broker.endpoint {
                Some(endpoint) => (0, endpoint.address().to_string()),
                None => continue,
            },
            BrokerKind::MockKafka | BrokerKind::Http => continue,
        };
        add(role, Peer::Broker, port, upstream).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_ports_are_read() {
        assert_eq!(ports(""), Some(Vec::new()));
        assert_eq!(ports("1:2,3:4"), Some(vec![(1, 2), (3, 4)]));
        assert_eq!(ports("1"), None);
        assert_eq!(ports("1:x"), None);
    }

    #[test]
    fn only_host_and_port_change_at_a_proxy() {
        let url = Url::parse("postgres://outbox:outbox@127.0.0.1:15432/db?a=b").unwrap();
        let proxied = through(&url, "127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(proxied, "postgres://outbox:outbox@127.0.0.1:9/db?a=b");
    }
}
