//! Detects TLS handshakes that fail after the client was connected, because certificates changed
//! during its lifetime.
//!
//! librdkafka reads certificates and authorities when a client is created, and never again
//! (confluentinc/librdkafka#2868). Only a new client uses a renewed certificate. The symptom of a
//! refused certificate depends on the version of TLS: a failed handshake, or a connection that the
//! broker closes right after it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rdkafka::Statistics;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::config::Config;

/// Maximum time that every broker may refuse handshakes before a new client is created. Its failure
/// also shows the party at fault. A broker that is down refuses no handshake.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// A client's certificate files, and whether its brokers refuse them.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    files: Vec<PathBuf>,
    /// Hash of the files' content, if all of them could be read.
    read: Option<u64>,
    refused_since: Option<Instant>,
}

/// The reason why a client must be replaced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stale {
    /// A connection failed, and the files have changed since.
    #[error("kafka's certificate files have changed since the client was created; a new one reads them")]
    Renewed,
    /// No change of the files is known.
    #[error("every kafka broker has refused TLS for {} s; a new client tries again", REFUSED_MAX.as_secs())]
    Refused,
}

impl Handshakes {
    /// Creates the state of a client that is about to be created. Reads the certificate files.
    pub(super) fn of(config: &Config) -> Self {
        let tls = config.tls.iter();
        let files = tls.flat_map(|tls| [&tls.ca_file, &tls.cert_file, &tls.key_file]).flatten().cloned();
        let files: Vec<PathBuf> = files.collect();
        Self { read: read(&files), files, refused_since: None }
    }

    /// Handles a connection error that librdkafka reported. Reads the certificate files.
    ///
    /// # Errors
    /// [`Stale`] when they have changed.
    pub(super) fn failed(&mut self, code: Code, now: Instant) -> Result<(), Stale> {
        if !matches!(code, Code::SSL | Code::BrokerTransportFailure | Code::AllBrokersDown) {
            return Ok(());
        }
        if code == Code::SSL {
            self.refused_since.get_or_insert(now);
        }
        // A file that is being replaced is checked again at the next error.
        let changed = self.read.zip(read(&self.files)).is_some_and(|(before, now)| before != now);
        if changed { Err(Stale::Renewed) } else { Ok(()) }
    }

    /// Evaluates what librdkafka's statistics say about its brokers.
    ///
    /// # Errors
    /// [`Stale`] when handshakes have failed for too long, and no broker is connected.
    pub(super) fn check(&mut self, statistics: &Statistics, now: Instant) -> Result<(), Stale> {
        if statistics.brokers.values().any(|broker| broker.state == "UP") {
            self.refused_since = None;
        }
        let is_over = |since: Instant| now.duration_since(since) >= REFUSED_MAX;
        if self.refused_since.is_some_and(is_over) { Err(Stale::Refused) } else { Ok(()) }
    }
}

fn read(files: &[PathBuf]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).ok()?.hash(&mut hasher);
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Tls;
    use rdkafka::statistics::Broker;

    #[test]
    fn renewed_files_end_a_client_at_its_next_failed_connection() {
        let path = std::env::temp_dir().join(format!("{}-ca.pem", uuid::Uuid::now_v7()));
        std::fs::write(&path, "old").unwrap();
        let mut config = Config::new(["127.0.0.1:9092"]);
        config.tls = Some(Tls { ca_file: Some(path.clone()), ..Tls::default() });
        let (mut handshakes, now) = (Handshakes::of(&config), Instant::now());
        assert_eq!(handshakes.failed(Code::SSL, now), Ok(()));
        std::fs::write(&path, "new").unwrap();
        assert_eq!(handshakes.failed(Code::UnknownTopic, now), Ok(()), "no connection failed");
        for code in [Code::SSL, Code::BrokerTransportFailure] {
            assert_eq!(handshakes.failed(code, now), Err(Stale::Renewed));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(handshakes.failed(Code::SSL, now), Ok(()), "it is being replaced");
        assert_eq!(Handshakes::of(&Config::new(["127.0.0.1:9092"])).failed(Code::SSL, now), Ok(()));
    }

    #[test]
    fn a_client_that_every_broker_refuses_is_replaced() {
        let told = |state: &str| {
            let broker = Broker { state: state.to_owned(), ..Broker::default() };
            Statistics { brokers: [(String::from("1"), broker)].into(), ..Statistics::default() }
        };
        let (mut handshakes, begin) = (Handshakes::default(), Instant::now());
        assert_eq!(handshakes.check(&told("INIT"), begin + REFUSED_MAX), Ok(()), "it is down");
        assert_eq!(handshakes.failed(Code::SSL, begin), Ok(()));
        assert_eq!(handshakes.check(&told("UP"), begin + REFUSED_MAX), Ok(()), "one is connected");
        assert_eq!(handshakes.failed(Code::SSL, begin + REFUSED_MAX), Ok(()));
        assert_eq!(handshakes.check(&told("INIT"), begin + REFUSED_MAX), Ok(()));
        assert_eq!(handshakes.check(&told("INIT"), begin + REFUSED_MAX * 2), Err(Stale::Refused));
    }
}
