//! Checks that several databases have in common. Pure.

use super::report::{CheckState, Finding};

pub(super) const DATABASE: &str = "database";

const POOLER: &str = "pooler";
const POOLER_REMEDY: &str = "a pooler shares server sessions between clients: point database.url at the \
                             server or at a pooler in session mode; with PgBouncer in transaction mode, use \
                             1.21 or newer and max_prepared_statements above 0";

/// Checks whether a pooler shares sessions of the server.
#[cfg(feature = "postgres")]
pub(super) fn pooler(shared_session: bool) -> Finding {
    let (measured, problem) = if shared_session {
        ("two connections share one server session", Some((CheckState::Warn, String::from(POOLER_REMEDY))))
    } else {
        ("each connection has its own session", None)
    };
    Finding::unless(POOLER, DATABASE, measured, problem)
}

/// Returns the finding for a pooler that prevents every query.
pub(super) fn handed_on(reason: String) -> Finding {
    Finding::fail(POOLER, DATABASE, reason, POOLER_REMEDY)
}

/// Checks whether the relay opens the database.
pub(super) fn accepted(refused: Option<&str>) -> Finding {
    let measured = if refused.is_none() { "the relay accepts it" } else { "the relay refuses it" };
    Finding::unless("opens", DATABASE, measured, refused.map(|why| (CheckState::Fail, why.to_owned())))
}
