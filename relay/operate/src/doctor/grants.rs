//! Checks of rights in PostgreSQL: those of the relay's role, of the other roles, and of every
//! role. The expected rights are those in the scripts of `relay migrate roles`.

use std::collections::BTreeMap;

use super::facts::{RoleFacts, RoleNames, WrongGrant};
use super::gather::Unreachable;
#[cfg(feature = "postgres")]
use super::gather::grants::gather;
use super::report::Finding;
use crate::Database;

const CHECK: &str = "grants";
const REMEDY: &str = "run the output of `relay migrate roles` as the owner of the tables";
/// Maximum number of rights that a finding names. The script corrects any number.
const NAMED_MAX: usize = 5;
/// The roles without which a service works only as the owner of the tables.
const OF_SERVICES: [&str; 4] = ["producer", "consumer", "claimant", "worker"];

/// Compares the rights of the roles in a database with those that `relay migrate roles` grants and
/// revokes: for the relay's role, for each of `names` that exists, and for `PUBLIC`. Covers the
/// lines whose tables the database has. Empty on SQLite, and if the database cannot be reached.
/// Writes nothing. Cancel-safe.
pub async fn examine_grants(database: &Database, names: &RoleNames) -> Vec<Finding> {
    match gather(database, names).await {
        Ok(roles) => check(&roles),
        // The check of the connection reports it.
        Err(Unreachable { unavailable: true, .. }) => Vec::new(),
        Err(Unreachable { reason, .. }) => {
            let remedy = "no right was checked: correct the named cause";
            vec![Finding::unknown(CHECK, "database", reason, remedy)]
        }
    }
}

/// Gathers nothing: SQLite has no roles.
#[cfg(not(feature = "postgres"))]
async fn gather(_: &Database, _: &RoleNames) -> Result<Vec<RoleFacts>, Unreachable> {
    Ok(Vec::new())
}

/// Returns the rights that the relay's own role lacks. Empty if they cannot be read.
#[cfg(feature = "postgres")]
pub(super) async fn lacking_of_relay(database: &Database) -> Option<Finding> {
    let roles = gather(database, &RoleNames::default()).await.ok()?;
    lacking(roles.iter().find(|role| role.part == "relay")?)
}

/// Checks the gathered facts. Pure.
pub(super) fn check(roles: &[RoleFacts]) -> Vec<Finding> {
    let of_everyone: &[WrongGrant] = match roles.iter().find(|role| role.part == "public") {
        Some(public) => &public.wrong,
        None => &[],
    };
    let others = roles.iter().filter(|role| role.part != "public");
    let mut findings: Vec<Finding> = others.filter_map(|role| of_role(role, of_everyone)).collect();
    findings.extend(of_public(of_everyone));
    findings
}

fn of_role(role: &RoleFacts, of_everyone: &[WrongGrant]) -> Option<Finding> {
    let RoleFacts { part, role: name, .. } = role;
    if !role.there {
        let remedy =
            format!("{REMEDY}, and add the services' users to the role; or name your own role with --{part}");
        let absent = || {
            Finding::unknown(CHECK, format!("role of the {part}"), format!("there is no role {name}"), remedy)
        };
        return OF_SERVICES.contains(&part.as_str()).then(absent);
    }
    if role.superuser {
        let remedy = format!("give the {part} its own role: {REMEDY}, and make its user a member");
        return Some(Finding::warn(CHECK, subject(role), "a superuser", remedy));
    }
    if let Some(finding) = lacking(role) {
        return Some(finding);
    }
    let excess: Vec<&WrongGrant> = role.wrong.iter().filter(|right| !of_everyone.contains(right)).collect();
    if excess.is_empty() {
        let measured = format!("all {} rights that its script grants, none that it revokes", role.rights);
        return Some(Finding::pass(CHECK, subject(role), measured));
    }
    let remedy = format!("it can do more than it needs: {REMEDY}");
    Some(Finding::warn(CHECK, subject(role), format!("has {}", named(&excess)), remedy))
}

fn lacking(role: &RoleFacts) -> Option<Finding> {
    let missing: Vec<&WrongGrant> = role.wrong.iter().filter(|right| right.remedy.is_some()).collect();
    let statements: Vec<&str> = missing.iter().filter_map(|right| right.remedy.as_deref()).collect();
    let remedy = match statements.len() {
        0 => return None,
        1..=NAMED_MAX => format!("{REMEDY}, or: {};", statements.join("; ")),
        _ => REMEDY.to_owned(),
    };
    Some(Finding::fail(CHECK, subject(role), format!("lacks {}", named(&missing)), remedy))
}

/// Returns the finding about rights that every role has, by object.
fn of_public(rights: &[WrongGrant]) -> Option<Finding> {
    let mut objects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for right in rights {
        objects.entry(&right.object).or_default().push(&right.privilege);
    }
    let texts = objects.iter().map(|(object, privileges)| format!("{object}: {}", privileges.join(", ")));
    let measured = format!("every role has: {}", some_of(texts.collect(), "; "));
    (!objects.is_empty()).then(|| Finding::warn(CHECK, "PUBLIC", measured, REMEDY))
}

fn subject(role: &RoleFacts) -> String {
    format!("{} role {}", role.part, role.role)
}

fn named(rights: &[&WrongGrant]) -> String {
    some_of(rights.iter().map(|right| format!("{} on {}", right.privilege, right.object)).collect(), ", ")
}

/// Joins the first texts, and counts the others.
fn some_of(texts: Vec<String>, separator: &str) -> String {
    let more = texts.len().saturating_sub(NAMED_MAX);
    let first = texts.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join(separator);
    if more > 0 { format!("{first} and {more} more") } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::CheckState;

    fn right(object: &str, remedy: Option<&str>) -> WrongGrant {
        WrongGrant {
            object: object.to_owned(),
            privilege: String::from("UPDATE"),
            remedy: remedy.map(str::to_owned),
        }
    }

    fn role(part: &str, wrong: Vec<WrongGrant>) -> RoleFacts {
        RoleFacts {
            part: part.to_owned(),
            role: format!("the_{part}"),
            there: true,
            superuser: false,
            rights: 9,
            wrong,
        }
    }

    fn only(roles: &[RoleFacts]) -> Finding {
        let mut findings = check(roles);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }

    #[test]
    fn a_right_that_is_missing_matters_more_than_one_in_excess() {
        let sound = only(&[role("relay", Vec::new())]);
        assert_eq!((sound.state, sound.subject.as_str()), (CheckState::Pass, "relay role the_relay"));
        assert!(sound.measured.starts_with("all 9 rights"), "{sound:?}");
        let excess = only(&[role("relay", vec![right("a", None)])]);
        assert_eq!((excess.state, excess.measured.as_str()), (CheckState::Warn, "has UPDATE on a"));
        let both = only(&[role("relay", vec![right("a", None), right("b", Some("GRANT b"))])]);
        assert_eq!((both.state, both.measured.as_str()), (CheckState::Fail, "lacks UPDATE on b"));
        assert!(both.remedy.is_some_and(|remedy| remedy.ends_with("or: GRANT b;")));
        let many = only(&[role("relay", vec![right("a", Some("GRANT a")); 7])]);
        assert!(many.measured.ends_with("and 2 more"), "{many:?}");
        assert_eq!(many.remedy.as_deref(), Some(REMEDY));
        let superuser = only(&[RoleFacts { superuser: true, ..role("relay", vec![right("a", None)]) }]);
        assert_eq!((superuser.state, superuser.measured.as_str()), (CheckState::Warn, "a superuser"));
    }

    #[test]
    fn a_right_of_every_role_is_reported_once() {
        let public = role("public", vec![right("a", None)]);
        let findings = check(&[public, role("relay", vec![right("a", None)])]);
        let states: Vec<_> =
            findings.iter().map(|finding| (finding.subject.as_str(), finding.state)).collect();
        assert_eq!(states, [("relay role the_relay", CheckState::Pass), ("PUBLIC", CheckState::Warn)]);
        assert_eq!(findings[1].measured, "every role has: a: UPDATE");
        assert_eq!(check(&[role("public", Vec::new())]), []);
    }

    #[test]
    fn an_absent_role_of_a_service_is_not_checked_and_reported_as_such() {
        let absent = |part| RoleFacts { there: false, ..role(part, vec![right("a", Some("GRANT a"))]) };
        for part in OF_SERVICES {
            let finding = only(&[absent(part)]);
            assert_eq!(finding.state, CheckState::Unknown, "{finding:?}");
            assert!(finding.remedy.is_some_and(|remedy| remedy.ends_with(&format!("--{part}"))));
        }
        assert_eq!(check(&[absent("observer"), absent("migrator")]), []);
    }
}
