//! Roles of least privilege on PostgreSQL, and their rights on the tables of a line.

use crate::identifier::{Identifier, InvalidIdentifier};
use crate::line::Line;
use crate::sql::{Statement, Template};

/// The names of the roles. The script creates those that are missing; users of services become
/// members of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Roles {
    /// Migrates: owns the tables.
    pub migrator: Identifier,
    /// Enqueues messages.
    pub producer: Identifier,
    /// Runs the relay, and decides about dead messages.
    pub relay: Identifier,
    /// Consumes messages.
    pub consumer: Identifier,
    /// Claims and completes idempotency keys.
    pub claimant: Identifier,
    /// Starts and runs sagas.
    pub worker: Identifier,
    /// Reads states, ids and names; sees no payload, header or result.
    pub observer: Identifier,
}

impl Roles {
    /// Returns `outbox_migrator`, `outbox_producer`, `outbox_relay`, `inbox_consumer`,
    /// `idempotency_claimant`, `saga_worker` and `outbox_observer`.
    #[must_use]
    pub fn standard() -> Self {
        let name = Identifier::of_program;
        Self {
            migrator: name("outbox_migrator"),
            producer: name("outbox_producer"),
            relay: name("outbox_relay"),
            consumer: name("inbox_consumer"),
            claimant: name("idempotency_claimant"),
            worker: name("saga_worker"),
            observer: name("outbox_observer"),
        }
    }

    /// Like [`standard`](Self::standard), but with a consumer, a claimant and a worker of one
    /// service: `<service>_inbox_consumer`, `<service>_idempotency_claimant` and
    /// `<service>_saga_worker`. With tables in the service's own schema, no other service can touch
    /// its records.
    ///
    /// # Errors
    /// [`InvalidIdentifier`] when one of these names is too long.
    pub fn of_service(service: &Identifier) -> Result<Self, InvalidIdentifier> {
        let service = service.as_str();
        Ok(Self {
            consumer: Identifier::new(format!("{service}_inbox_consumer"))?,
            claimant: Identifier::new(format!("{service}_idempotency_claimant"))?,
            worker: Identifier::new(format!("{service}_saga_worker"))?,
            ..Self::standard()
        })
    }

    /// Returns the script that creates the roles of a line and grants exactly what each needs, in
    /// one transaction. It can be run again: it revokes every right that it does not grant.
    #[must_use]
    pub fn script(&self, line: Line, schema: Option<&Identifier>) -> Statement {
        let template = Template::new(template(line)).schema(schema);
        let named = self.named().into_iter();
        named.fold(template, |template, (role, name)| template.identifier(role, name)).render()
    }

    /// Returns each role as the scripts call it, with its name.
    pub(crate) fn named(&self) -> [(&'static str, &Identifier); 7] {
        [
            ("migrator", &self.migrator),
            ("producer", &self.producer),
            ("relay", &self.relay),
            ("consumer", &self.consumer),
            ("claimant", &self.claimant),
            ("worker", &self.worker),
            ("observer", &self.observer),
        ]
    }
}

/// Returns the script of a line, with placeholders for its schema and roles.
pub(crate) fn template(line: Line) -> &'static str {
    match line {
        Line::Outbox => include_str!("../sql/postgres/roles/outbox.sql"),
        Line::Inbox => include_str!("../sql/postgres/roles/inbox.sql"),
        Line::Idempotency => include_str!("../sql/postgres/roles/idempotency.sql"),
        Line::Saga => include_str!("../sql/postgres/roles/saga.sql"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_names_schema_and_roles_and_leaves_no_placeholder() {
        let schema = Identifier::new("shop").unwrap();
        for line in Line::ALL {
            let script = Roles::standard().script(line, Some(&schema));
            let text = script.as_str();
            assert!(text.contains("\"shop\".outbox_toolkit_migration"), "{text}");
            assert!(!text.contains('{') && text.ends_with("COMMIT;\n"), "{text}");
        }
        let script = Roles::standard().script(Line::Outbox, None);
        assert!(script.as_str().contains("ON outbox_message TO \"outbox_producer\""), "{script}");
    }

    #[test]
    fn nobody_but_the_owner_may_change_or_remove_messages() {
        for line in [Line::Outbox, Line::Inbox] {
            let script = Roles::standard().script(line, None).to_string();
            let lines: Vec<&str> = script.lines().filter(|line| !line.starts_with("--")).collect();
            let script = lines.join("\n");
            let grants = script.split(';').map(str::trim).filter(|grant| grant.starts_with("GRANT"));
            let about_messages: Vec<&str> = grants.filter(|grant| grant.contains("_message")).collect();
            assert!(about_messages.len() >= 2, "{script}");
            for grant in about_messages {
                assert!(!grant.contains("DELETE") && !grant.contains("TRUNCATE"), "{grant}");
                assert!(
                    !grant.contains("UPDATE")
                        || grant.contains("UPDATE (result, dead_letter, canonical_fingerprint)"),
                    "{grant}"
                );
            }
        }
    }

    #[test]
    fn services_decide_about_no_key_and_rename_none() {
        let script = Roles::standard().script(Line::Idempotency, None).to_string();
        let lines: Vec<&str> = script.lines().filter(|line| !line.starts_with("--")).collect();
        let script = lines.join("\n");
        let grants: Vec<&str> = script.split(';').filter(|grant| grant.contains("GRANT ")).collect();
        let granted = |what: &str| grants.iter().any(|grant| grant.contains(what));
        assert!(granted("GRANT INSERT (scope, operation, key"), "{script}");
        for word in [
            "GRANT INSERT ON",
            "GRANT UPDATE ON",
            "UPDATE (scope",
            "reported_at, decided_by",
            "TRUNCATE",
            "ALL",
        ] {
            assert!(!granted(word), "{word}: {script}");
        }
        let writes = grants.iter().filter(|grant| grant.contains("INSERT") || grant.contains("UPDATE"));
        assert!(writes.into_iter().all(|grant| !grant.contains("decided_by")), "{script}");
    }
}
