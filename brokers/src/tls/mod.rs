//! TLS for connections to a broker.

#[cfg(any(feature = "http", feature = "kafka-tls", feature = "rabbitmq", feature = "sqs"))]
mod files;
#[cfg(any(feature = "http", feature = "kafka-tls", feature = "rabbitmq"))]
mod https;

use std::path::PathBuf;

use serde::Deserialize;

/// How a TLS connection is made. All files are PEM.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Tls {
    /// The certificate authority that signed the broker's certificate; without it, the system's.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate chain, for mutual TLS; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The client's private key; needs `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Whether the broker's certificate and host name are verified (default: yes). `false` lets
    /// anyone on the network path read and change everything: for tests on one machine only.
    pub verify: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self { ca_file: None, cert_file: None, key_file: None, verify: true }
    }
}
