//! Checks of rights in PostgreSQL: those of the relay's role and of the services' roles. Pure.

use super::facts::{PostgresFacts, RoleFacts, WrongGrant};
use super::report::{CheckState, Finding};

const REMEDY: &str = "run the output of `relay migrate roles` as the owner of the tables";

pub(super) fn check(facts: &PostgresFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts.roles.iter().map(|role| of_role(role, facts)).collect();
    for (part, name) in [("producer", &facts.services.producer), ("consumer", &facts.services.consumer)] {
        let is_here = facts.roles.iter().any(|role| role.part == part);
        let line = if part == "consumer" { "inbox" } else { "outbox" };
        let has_tables = facts.lines.iter().any(|facts| facts.line == line && facts.version > 0);
        if !is_here && has_tables {
            let remedy = format!(
                "{REMEDY}, and add the services' users to the role; or name your own role with --{part}"
            );
            let measured = format!("there is no role {name}");
            findings.push(Finding::unknown("grants", format!("role of the {part}"), measured, remedy));
        }
    }
    if !facts.public.is_empty() {
        let measured = format!("every role has: {}", facts.public.join("; "));
        findings.push(Finding::warn("grants", "PUBLIC", measured, REMEDY));
    }
    findings
}

fn of_role(role: &RoleFacts, facts: &PostgresFacts) -> Finding {
    let subject = format!("{} role {}", role.part, role.role);
    if role.part == "relay" && facts.superuser {
        let remedy = format!("give the relay its own role: {REMEDY}, and GRANT outbox_relay TO its user");
        return Finding::warn("grants", subject, "a superuser", remedy);
    }
    if let Some(finding) = lacking(role) {
        return finding;
    }
    match &role.wrong.iter().collect::<Vec<_>>()[..] {
        [] => Finding::pass("grants", subject, "exactly the rights that it needs"),
        excess => {
            let remedy = format!("it can change or delete messages: {REMEDY}");
            let measured = format!("has {}", named(excess));
            Finding::unless("grants", &subject, measured, Some((CheckState::Warn, remedy)))
        }
    }
}

/// Returns the failure for a role that lacks a right; `None` for one that has all it needs.
pub(super) fn lacking(role: &RoleFacts) -> Option<Finding> {
    let missing: Vec<&WrongGrant> = role.wrong.iter().filter(|grant| grant.wanted).collect();
    let subject = format!("{} role {}", role.part, role.role);
    (!missing.is_empty())
        .then(|| Finding::fail("grants", subject, format!("lacks {}", named(&missing)), REMEDY))
}

fn named(grants: &[&WrongGrant]) -> String {
    let texts: Vec<String> =
        grants.iter().take(5).map(|grant| format!("{} on {}", grant.privilege, grant.object)).collect();
    let more = grants.len().saturating_sub(texts.len());
    if more > 0 { format!("{} and {more} more", texts.join(", ")) } else { texts.join(", ") }
}
