//! The transaction that holds rows back, as outputs show it.

use outbox_log::admin::Blocker;
use serde::{Serialize, Serializer};

/// Returns the statement that ends an open transaction as a last resort, and rolls its work back.
/// Its coordinator decides about a prepared one: `None`.
#[must_use]
pub fn statement_that_ends(blocker: &Blocker) -> Option<String> {
    blocker.pid().map(statement_that_ends_session)
}

/// Returns the statement that ends a session of PostgreSQL, which rolls its open transaction back.
pub(crate) fn statement_that_ends_session(pid: i32) -> String {
    format!("SELECT pg_terminate_backend({pid})")
}

/// An open transaction as the outputs show it.
#[derive(Serialize)]
struct Shown<'a> {
    /// 0 for a prepared transaction.
    pid: i32,
    /// The name of a prepared transaction.
    application_name: &'a str,
    /// `prepared` for a prepared transaction.
    state: Option<&'a str>,
    age_seconds: Option<f64>,
}

/// Serializes a transaction in one shape for sessions and prepared transactions.
#[expect(clippy::ref_option, reason = "serde passes a reference")]
pub(super) fn serialize<S: Serializer>(blocker: &Option<Blocker>, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = blocker.as_ref().map(|blocker| {
        let (application_name, state) = match blocker {
            Blocker::Session { application_name, state, .. } => (application_name, state.as_deref()),
            Blocker::Prepared { name, .. } => (name, Some("prepared")),
        };
        let age_seconds = blocker.age().map(|age| age.as_secs_f64());
        Shown { pid: blocker.pid().unwrap_or_default(), application_name, state, age_seconds }
    });
    shown.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::status::PipelineStatus;

    #[test]
    fn a_prepared_transaction_has_the_shape_of_a_session() {
        let shown = |blocker| {
            let status = PipelineStatus::of("orders", None, Some(blocker));
            serde_json::to_value(status).unwrap()["held_back_by"].take()
        };
        let prepared = Blocker::Prepared {
            name: String::from("order-7"),
            transaction: String::from("100"),
            age: Duration::from_secs(90),
        };
        assert_eq!(statement_that_ends(&prepared), None, "its coordinator decides");
        assert_eq!(
            shown(prepared),
            json!({"pid": 0, "application_name": "order-7", "state": "prepared", "age_seconds": 90.0})
        );
        let session = Blocker::Session {
            pid: 7,
            transaction: String::from("100"),
            application_name: String::from("report"),
            state: None,
            age: None,
        };
        assert_eq!(statement_that_ends(&session).as_deref(), Some("SELECT pg_terminate_backend(7)"));
        assert_eq!(
            shown(session),
            json!({"pid": 7, "application_name": "report", "state": null, "age_seconds": null})
        );
    }
}
