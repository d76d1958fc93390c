//! Asks databases and brokers; changes nothing in them.
//!
//! | module | what it holds |
//! |---|---|
//! | `postgres`, `sqlite` | a pipeline's database |
//! | `inbox` | the memory of an inbox |
//! | `lines` | the schema's versions |
//! | `asked` | questions without parameters, with a time limit |

#[cfg(feature = "postgres")]
mod asked;
pub(super) mod inbox;
mod lines;
#[cfg(feature = "postgres")]
pub(super) mod postgres;
pub(super) mod sqlite;

#[cfg(feature = "postgres")]
use std::time::Duration;

use message::Fault;
use outbox::log::LogError;

/// How long connecting may take, and one question.
#[cfg(feature = "postgres")]
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Why nothing could be gathered.
#[derive(Debug)]
pub(super) struct Unreachable {
    pub(super) reason: String,
    /// Whether it may pass by itself.
    pub(super) unavailable: bool,
}

impl From<LogError> for Unreachable {
    fn from(error: LogError) -> Self {
        Self { unavailable: error.fault() == Fault::Broker, reason: error.to_string() }
    }
}

impl Unreachable {
    fn operator(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), unavailable: false }
    }

    /// Something was asked and failed.
    fn asking(error: sqlx::Error) -> Self {
        let unavailable = error.as_database_error().is_none();
        let told = message::error_text::chain(&error);
        let why = outbox::connect::shared_session(&error).map(|why| format!(": {why}"));
        Self { reason: format!("it could not be asked: {told}{}", why.unwrap_or_default()), unavailable }
    }

    #[cfg(feature = "postgres")]
    fn late() -> Self {
        Self { reason: format!("no answer within {} s", TIME_LIMIT.as_secs()), unavailable: true }
    }
}
