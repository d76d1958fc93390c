//! Queries databases and brokers; changes nothing in them.
//!
//! | module | what it holds |
//! |---|---|
//! | `postgres`, `sqlite` | a pipeline's database |
//! | `inbox` | the memory of an inbox |
//! | `grants` | rights of roles, compared with the scripts of roles |
//! | `lines` | the schema's versions |
//! | `asked` | queries without parameters, with a time limit |

#[cfg(feature = "postgres")]
mod asked;
#[cfg(feature = "postgres")]
pub(super) mod grants;
pub(super) mod inbox;
mod lines;
#[cfg(feature = "postgres")]
pub(super) mod postgres;
pub(super) mod sqlite;

use std::error::Error as _;
use std::time::Duration;

use outbox_log::LogError;

use crate::outage;

/// Time limit for connecting, and for one query.
#[cfg(feature = "postgres")]
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The reason why nothing could be gathered.
#[derive(Debug)]
pub(super) struct Unreachable {
    pub(super) reason: String,
    /// Whether it may be temporary.
    pub(super) unavailable: bool,
    /// Whether a pooler returned a session of another client, with that client's prepared
    /// statements.
    pub(super) is_handed_on: bool,
}

impl From<LogError> for Unreachable {
    fn from(error: LogError) -> Self {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let is_handed_on = causes.filter_map(|cause| cause.downcast_ref()).any(is_handed_on);
        let reason = outage::told(&error.to_string()).into_owned();
        Self { unavailable: error.fault().is_temporary(), reason, is_handed_on }
    }
}

fn is_handed_on(error: &sqlx::Error) -> bool {
    outbox::connect::shared_session(error).is_some()
}

impl Unreachable {
    /// Returns the remedy with which the reason ends; `None` if there is none.
    pub(super) fn remedy(&self) -> Option<&str> {
        message::error_text::remedy(&self.reason)
    }

    pub(super) fn operator(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), unavailable: false, is_handed_on: false }
    }

    pub(super) fn late_by(limit: Duration) -> Self {
        let reason = format!("no answer within {} s", limit.as_secs());
        Self { reason, unavailable: true, is_handed_on: false }
    }

    /// Converts the error of a query.
    fn asking(error: sqlx::Error) -> Self {
        let unavailable = error.as_database_error().is_none();
        let told = outage::reason(&message::error_text::chain(&error));
        let why = outbox::connect::shared_session(&error).map(|why| format!(": {why}"));
        let reason = format!("it does not answer: {told}{}", why.unwrap_or_default());
        Self { reason, unavailable, is_handed_on: is_handed_on(&error) }
    }

    #[cfg(feature = "postgres")]
    fn late() -> Self {
        Self::late_by(TIME_LIMIT)
    }
}
