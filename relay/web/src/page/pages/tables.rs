//! The databases that may have idempotency keys and sagas, by their names in links and forms.

use axum::http::StatusCode;
use maud::Markup;
use operate::tables::Tables;
use operate::{OperateError, OperateErrorKind, named_tables};

use super::super::answer::Problem;
use super::super::app::App;

/// Maximum number of databases that one request queries at once. Those that do not answer together
/// take as long as one.
pub(crate) const ASKED_MAX: usize = 32;

/// Returns the database with this name.
pub(crate) fn named(app: &App, name: &str) -> Result<Tables, Problem> {
    let found = named_tables(&app.pipelines, &app.inboxes).into_iter().find(|it| it.name == name);
    let unknown = || Problem::bad(format!("no database is called {name:?} here"));
    found.ok_or_else(unknown)?.tables.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error))
}

/// Returns the name of a database for people: `Pipeline orders`, `Inbox of billing`.
pub(crate) fn heading(name: &str) -> String {
    match name.split_once(':') {
        Some(("pipeline", pipeline)) => format!("Pipeline {pipeline}"),
        Some(("inbox", consumer)) => format!("Inbox of {consumer}"),
        _ => name.to_owned(),
    }
}

/// Returns the grants of a decision to the user of its database, or to the relay's role of the
/// documentation where none is known.
pub(crate) fn grants(of_decision: &str, role: Option<&str>) -> String {
    of_decision.replace("{user}", role.unwrap_or("outbox_relay"))
}

/// Returns the refusal of a decision. If the database user lacks a right, it has the grants, and
/// the form, which can be sent again after them.
pub(crate) fn refused(error: OperateError, grants: &str, form: Option<Markup>) -> Problem {
    let is_denied = error.kind() == OperateErrorKind::NotGranted;
    let problem = Problem::from(error);
    if !is_denied {
        return problem;
    }
    let help = format!("nothing was changed; to allow it, as the owner of the tables: {grants}");
    problem.with_help(help).with_form(form)
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::super::{keys, sagas};
    use super::*;

    #[test]
    fn a_database_has_a_name_for_people() {
        for (name, shown) in [
            ("pipeline:orders", "Pipeline orders"),
            ("inbox:billing", "Inbox of billing"),
            ("inbox:billing at db1.internal:5432/billing", "Inbox of billing at db1.internal:5432/billing"),
            ("other", "other"),
        ] {
            assert_eq!(heading(name), shown);
        }
    }

    /// Goal: an operator whose database user may not decide learns what to grant, and keeps what
    /// was typed. Oracle: the help and the form of the refusal; its grants are those of the
    /// document.
    #[test]
    fn a_missing_right_names_its_grants_and_brings_the_form_back() {
        let refused_by = |kind| {
            let error = OperateError::new(kind, "permission denied for table idempotency_key");
            let grants = grants(keys::GRANT, Some("billing_ops"));
            refused(error, &grants, Some(html! { form {} }))
        };
        let denied = refused_by(OperateErrorKind::NotGranted);
        let help = denied.help.unwrap_or_default();
        assert!(help.ends_with("GRANT INSERT ON idempotency_audit TO billing_ops"), "{help}");
        assert!(!help.contains("outbox_relay") && !help.contains("{user}"), "{help}");
        assert!(denied.form.is_some());
        let conflict = refused_by(OperateErrorKind::Conflict);
        assert!(conflict.help.is_none() && conflict.form.is_none());
        let document = std::fs::read_to_string("../../docs/operations/page.md").unwrap();
        let documented = [keys::GRANT, sagas::GRANT].map(|grant| grants(grant, None)).join("; ");
        for grant in documented.split("; ") {
            let grant = grant.replace("idempotency_audit TO", "idempotency_audit, saga_audit TO");
            let grant = grant.replace("ON saga_audit TO", "ON idempotency_audit, saga_audit TO");
            assert!(document.contains(&*grant), "{grant}");
        }
    }
}
