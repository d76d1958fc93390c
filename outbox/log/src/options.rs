//! Options of the log's connections.

use std::time::Duration;

use migrations::Identifier;

/// Options of the log's connections. Start from [`LogOptions::default`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogOptions {
    /// The PostgreSQL schema of the tables; with `None` the `search_path` decides. Default: `None`.
    pub schema: Option<Identifier>,
    /// Whether to accept unencrypted connections to other machines. Default: no.
    pub allow_plaintext: bool,
    /// Maximum time for connecting, for all addresses of a host together. The error may take a
    /// second longer, in which the addresses are looked up. Default: 10 s.
    pub connect_timeout: Duration,
    /// Maximum duration of one call. The server ends the statement after the same time. Default: 30
    /// s.
    pub call_timeout: Duration,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            schema: None,
            allow_plaintext: false,
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(30),
        }
    }
}

impl LogOptions {
    message::setters! {
        /// Sets the PostgreSQL schema.
        schema as Option<Identifier>,
        /// Accepts unencrypted connections to other machines.
        allow_plaintext: bool,
        /// Sets the maximum duration of connecting.
        connect_timeout: Duration,
        /// Sets the maximum duration of one call.
        call_timeout: Duration,
    }
}
