//! Each service behind a port, with one attempt to use it.

use std::path::PathBuf;

use brokers::{Tls, kafka, rabbitmq, sqs};
use message::{Connector, Fault, Receipts};
use outbox_log::{LogOptions, RelayName};
use tests::tls::Opening;
use tests::{Backend, Database, Failure, Stage};

/// Long enough for a handshake on a loaded machine, but short enough to wait for a refusal.
const PATIENCE_MS: u64 = 60_000;

/// Certificates to trust and to present.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust {
    pub(crate) authority: Option<PathBuf>,
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl Trust {
    pub(crate) fn tls(&self) -> Tls {
        let (cert_file, key_file) = self.client.clone().unzip();
        let mut tls = Tls::default();
        tls.ca_file.clone_from(&self.authority);
        (tls.cert_file, tls.key_file) = (cert_file, key_file);
        tls
    }
}

/// A service as a client reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Postgres,
    Kafka,
    Rabbitmq,
    Sqs,
}

/// The failure of an attempt.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) fault: Fault,
    pub(crate) text: String,
}

impl Place {
    pub(crate) const ALL: [Self; 4] = [Self::Postgres, Self::Kafka, Self::Rabbitmq, Self::Sqs];

    pub(crate) fn backend(self) -> Backend {
        match self {
            Self::Postgres => Backend::Postgres,
            Self::Kafka => Backend::Kafka,
            Self::Rabbitmq => Backend::Rabbitmq,
            Self::Sqs => Backend::Sqs,
        }
    }

    pub(crate) fn opening(self) -> Opening {
        if self == Self::Postgres { Opening::Requested } else { Opening::Direct }
    }

    /// Returns `host:port` of the service's plain port.
    pub(crate) fn target(self) -> Result<String, Failure> {
        let address = self.backend().address()?;
        let rest = address.split_once("://").map_or(address.as_str(), |(_, rest)| rest);
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        Ok(rest.split('/').next().unwrap_or_default().to_owned())
    }

    /// Returns whether the service is fully usable behind a front. A Kafka broker redirects its
    /// clients to its own plain port.
    pub(crate) fn works_behind_a_front(self) -> bool {
        self != Self::Kafka
    }

    /// Connects over TLS and gets an answer from the service.
    pub(crate) async fn attempt(
        self,
        stage: &Stage,
        port: u16,
        trust: &Trust,
    ) -> Result<Result<(), Refused>, Failure> {
        if self == Self::Postgres {
            return postgres(stage, port, trust).await;
        }
        let connector = self.connector(port, trust)?;
        let (receipts, _) = Receipts::channel();
        Ok(match connector.connect(receipts).await {
            Ok(publisher) => {
                publisher.close(std::time::Duration::from_secs(5)).await;
                Ok(())
            }
            Err(error) => Err(Refused { fault: error.fault(), text: error.to_string() }),
        })
    }

    fn connector(self, port: u16, trust: &Trust) -> Result<Box<dyn Connector>, Failure> {
        Ok(match self {
            Self::Kafka => {
                let mut config = kafka::Config::new([format!("127.0.0.1:{port}")]);
                config.connect_timeout_ms = PATIENCE_MS;
                config.tls = Some(trust.tls());
                Box::new(kafka::Connector::new(config)?)
            }
            Self::Rabbitmq => {
                let url = format!("amqps://guest:guest@127.0.0.1:{port}/%2f");
                let config = rabbitmq::Config::new(url).tls(trust.tls()).connect_timeout_ms(PATIENCE_MS);
                Box::new(rabbitmq::Connector::new(&config)?)
            }
            Self::Sqs => Box::new(sqs::Connector::new(&sqs_config(port, trust))?),
            Self::Postgres => return Err("no broker".into()),
        })
    }
}

/// Returns a configuration for SQS over TLS at this port.
pub(crate) fn sqs_config(port: u16, trust: &Trust) -> sqs::Config {
    sqs::Config::default()
        .region("elasticmq")
        .endpoint_url(format!("https://127.0.0.1:{port}"))
        .access_key_id("x")
        .secret_access_key("x")
        .tls(trust.tls())
        .attempts(1)
}

/// Returns the relay's URL of a database at this port, over TLS and with verification of the
/// server's identity.
pub(crate) fn verified(url: &str, port: u16, trust: &Trust) -> Result<String, Failure> {
    let (head, database) = url.rsplit_once('/').ok_or("a URL without a database")?;
    let (user, _) = head.rsplit_once('@').ok_or("a URL without a user")?;
    let mut url = format!("{user}@127.0.0.1:{port}/{database}?sslmode=verify-full");
    if let Some(authority) = &trust.authority {
        url.push_str(&format!("&sslrootcert={}", authority.display()));
    }
    if let Some((cert, key)) = &trust.client {
        url.push_str(&format!("&sslcert={}&sslkey={}", cert.display(), key.display()));
    }
    Ok(url)
}

async fn postgres(stage: &Stage, port: u16, trust: &Trust) -> Result<Result<(), Refused>, Failure> {
    let database = Database::<sqlx::Postgres>::migrated(stage).await?;
    let url = verified(&database.relay_url()?, port, trust)?;
    let log = outbox_log::open(&url, message::Source::new("/tls")?, LogOptions::default())?;
    let opened = log.reader(&RelayName::new("tls")?).await;
    Ok(opened.map(drop).map_err(|error| Refused { fault: error.fault(), text: error.to_string() }))
}
