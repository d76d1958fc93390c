//! How the log's connections are made.

use std::time::Duration;

use migrations::Identifier;

/// How the log's connections are made. Start from [`LogOptions::default`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogOptions {
    /// The PostgreSQL schema of the tables; `None` leaves it to the `search_path`. Default: `None`.
    pub schema: Option<Identifier>,
    /// Accept unencrypted connections to other machines. Default: no.
    pub allow_plaintext: bool,
    /// How long connecting may take. Default: 10 s.
    pub connect_timeout: Duration,
    /// How long one call may take; the server ends the statement after the same time. Default: 30
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

    /// Sets how long connecting may take.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long one call may take.
    #[must_use]
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }
}
