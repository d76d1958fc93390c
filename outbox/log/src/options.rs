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
    /// Sets the PostgreSQL schema.
    #[must_use]
    pub fn schema(mut self, schema: Option<Identifier>) -> Self {
        self.schema = schema;
        self
    }

    /// Accepts unencrypted connections to other machines.
    #[must_use]
    pub fn allow_plaintext(mut self, allow: bool) -> Self {
        self.allow_plaintext = allow;
        self
    }

    /// Sets the maximum duration of connecting.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the maximum duration of one call.
    #[must_use]
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }
}
