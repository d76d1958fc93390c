//! `relay doctor` knows every right that the scripts of roles grant or revoke. Oracle: PostgreSQL
//! itself, by one statement that changes one right.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use brokers::Secret;
use migrations::rights::{Granted, ObjectKind, Revoked, Rights};
use migrations::{Identifier, Line, Migrator, Roles};
use operate::doctor::{CheckState, Finding, RoleNames, examine_grants};
use outbox_log::LogOptions;
use sqlx::Postgres;
use tests::Role;

use crate::outbox::roles::with_every_line;
use crate::outbox::support::Database;

tests::cases! { "roles/grants/{on}/{case}":
    on_postgres {
        roles_that_were_just_made_have_their_rights_and_no_other,
        a_missing_right_of_each_kind_is_named_with_the_statement_that_grants_it,
        a_right_beyond_the_list_is_named_for_each_role_and_kind,
        rights_on_columns_and_partitions_are_seen,
        no_right_is_needed_to_learn_what_is_missing,
    }
    night on_postgres {
        each_missing_right_is_named_with_the_statement_that_grants_it,
        each_right_beyond_the_list_is_named,
    }
}

const SCHEMA: &str = "rights";

/// The roles of the suites. Those of keys and sagas are members of no other role.
fn roles() -> Roles {
    let name = |name: &str| Identifier::new(name).unwrap();
    let mut roles = Roles::standard();
    roles.migrator = name("outbox_test_migrator");
    roles.producer = name(Role::Producer.user());
    roles.relay = name(Role::Relay.user());
    roles.consumer = name(Role::Consumer.user());
    roles.claimant = name("outbox_test_claimant");
    roles.worker = name("outbox_test_worker");
    roles.observer = name(Role::Observer.user());
    roles
}

fn name_of(role: &str) -> String {
    let roles = roles();
    let name = match role {
        "migrator" => &roles.migrator,
        "producer" => &roles.producer,
        "relay" => &roles.relay,
        "consumer" => &roles.consumer,
        "claimant" => &roles.claimant,
        "worker" => &roles.worker,
        "observer" => &roles.observer,
        _ => return String::from("PUBLIC"),
    };
    name.to_string()
}

fn names() -> RoleNames {
    RoleNames {
        migrator: name_of("migrator"),
        producer: name_of("producer"),
        consumer: name_of("consumer"),
        claimant: name_of("claimant"),
        worker: name_of("worker"),
        observer: name_of("observer"),
    }
}

/// A database of the doctor, with every line in a schema in which `PUBLIC` has no right.
struct Examined<'a> {
    db: &'a Database<Postgres>,
    place: operate::Database,
}

impl<'a> Examined<'a> {
    async fn new(db: &'a Database<Postgres>) -> Self {
        let schema = Identifier::new(SCHEMA).unwrap();
        let defaults = "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC";
        db.run(&format!("{defaults}; CREATE SCHEMA {SCHEMA}")).await;
        for line in Line::ALL {
            let migrator = Migrator::<Postgres>::new(line).schema(Some(schema.clone()));
            migrator.up(&mut db.admin.acquire().await.unwrap()).await.unwrap();
        }
        let options = LogOptions::default().schema(Some(schema));
        let place = operate::Database::new(Secret::Text(db.relay_url().into()), options);
        let examined = Self { db, place };
        for line in Line::ALL {
            examined.make_roles(line).await;
        }
        examined
    }

    async fn make_roles(&self, line: Line) {
        let schema = Identifier::new(SCHEMA).unwrap();
        self.db.run(roles().script(line, Some(&schema)).as_str()).await;
    }

    async fn findings(&self) -> Vec<Finding> {
        examine_grants(&self.place, &names()).await
    }

    /// Returns the one finding that did not pass.
    async fn problem(&self, about: &str) -> Finding {
        let findings = self.findings().await;
        let mut problems: Vec<Finding> =
            findings.into_iter().filter(|finding| finding.state != CheckState::Pass).collect();
        assert_eq!(problems.len(), 1, "{about}: {problems:#?}");
        problems.remove(0)
    }

    /// Demands that each role passes. Returns the number of rights that were checked.
    async fn all_pass(&self) -> usize {
        passed(&self.findings().await)
    }
}

/// Demands that each role passes. Returns the number of rights that were checked.
fn passed(findings: &[Finding]) -> usize {
    assert_eq!(findings.len(), 7, "{findings:#?}");
    let rights = findings.iter().map(|finding| {
        assert_eq!(finding.state, CheckState::Pass, "{finding:?}");
        let number = finding.measured.split(' ').nth(1).unwrap();
        number.parse::<usize>().unwrap()
    });
    rights.sum()
}

/// Returns every right of every script once: several lines grant rights on the table of versions.
fn granted() -> BTreeSet<Granted> {
    Line::ALL.into_iter().flat_map(|line| Rights::of(line).unwrap().granted).collect()
}

fn object(kind: ObjectKind, name: &str) -> String {
    match kind {
        ObjectKind::Schema => format!("SCHEMA {SCHEMA}"),
        ObjectKind::Table | ObjectKind::Partitions => format!("{SCHEMA}.{name}"),
        ObjectKind::Sequence => format!("SEQUENCE {SCHEMA}.{name}"),
        ObjectKind::Function => format!("FUNCTION {SCHEMA}.{name}"),
    }
}

async fn roles_that_were_just_made_have_their_rights_and_no_other(db: &Database<Postgres>) {
    let examined = Examined::new(db).await;
    let distinct: BTreeSet<_> =
        granted().into_iter().map(|right| (right.role, right.kind, right.object, right.privilege)).collect();
    assert_eq!(examined.all_pass().await, distinct.len());
    // A user of several roles, who is a producer by membership, has no excess right. The search
    // path has the tables.
    with_every_line(db).await;
    let service = || String::from(Role::Service.user());
    let names = RoleNames { producer: service(), claimant: service(), worker: service(), ..names() };
    let url = Secret::Text(db.relay_url().into());
    let place = operate::Database::new(url, LogOptions::default());
    assert_eq!(passed(&examine_grants(&place, &names).await), distinct.len());
}

async fn each_missing_right_is_named_with_the_statement_that_grants_it(db: &Database<Postgres>) {
    missing_rights_are_named(db, granted()).await;
}

async fn a_missing_right_of_each_kind_is_named_with_the_statement_that_grants_it(db: &Database<Postgres>) {
    let mut seen = BTreeSet::new();
    let mut granted = granted();
    granted.retain(|right| seen.insert((right.role, right.kind, right.column.is_some())));
    assert!(granted.len() >= 15, "{granted:?}");
    missing_rights_are_named(db, granted).await;
}

/// Revokes one right after the other, and restores each by the remedy.
async fn missing_rights_are_named(db: &Database<Postgres>, rights: BTreeSet<Granted>) {
    let examined = Examined::new(db).await;
    for right in rights {
        let role = name_of(right.role);
        let privilege = match &right.column {
            Some(column) => format!("{} ({column})", right.privilege),
            None => right.privilege.to_owned(),
        };
        db.run(&format!("REVOKE {privilege} ON {} FROM {role}", object(right.kind, &right.object))).await;
        let problem = examined.problem(&format!("{right:?}")).await;
        assert_eq!(problem.state, CheckState::Fail, "{problem:?}");
        assert_eq!(problem.subject, format!("{} role {role}", right.role));
        let named = if right.kind == ObjectKind::Schema { "the schema" } else { &right.object };
        assert_eq!(problem.measured, format!("lacks {privilege} on {named}"));
        let remedy = problem.remedy.unwrap();
        let (_, statement) = remedy.split_once(", or: ").unwrap();
        assert!(statement.starts_with("GRANT ") && statement.ends_with(&format!(" TO {role};")), "{remedy}");
        db.run(statement).await;
    }
    examined.all_pass().await;
}

async fn each_right_beyond_the_list_is_named(db: &Database<Postgres>) {
    rights_beyond_the_list_are_named(db, |_| true).await;
}

async fn a_right_beyond_the_list_is_named_for_each_role_and_kind(db: &Database<Postgres>) {
    let mut seen = BTreeSet::new();
    rights_beyond_the_list_are_named(db, |revoked| seen.insert((revoked.role, revoked.kind))).await;
    assert!(seen.len() >= 10, "{seen:?}");
}

/// Grants all on one object after the other, of those that are chosen, and makes the roles again.
async fn rights_beyond_the_list_are_named(
    db: &Database<Postgres>,
    mut is_chosen: impl FnMut(&Revoked) -> bool,
) {
    let examined = Examined::new(db).await;
    let granted = granted();
    for line in Line::ALL {
        for revoked in Rights::of(line).unwrap().revoked {
            let is_granted = |right: &Granted| right.role == revoked.role && right.object == revoked.object;
            let has_all = revoked.kind == ObjectKind::Function && granted.iter().any(is_granted);
            if has_all || revoked.kind == ObjectKind::Partitions || !is_chosen(&revoked) {
                continue;
            }
            let role = name_of(revoked.role);
            db.run(&format!("GRANT ALL ON {} TO {role}", object(revoked.kind, &revoked.object))).await;
            let problem = examined.problem(&format!("{revoked:?}")).await;
            assert_eq!(problem.state, CheckState::Warn, "{problem:?}");
            let subject = match revoked.role {
                "public" => role,
                part => format!("{part} role {role}"),
            };
            assert_eq!(problem.subject, subject);
            assert!(problem.measured.contains(&revoked.object), "{problem:?}");
            // The remedy.
            examined.make_roles(line).await;
        }
    }
    examined.all_pass().await;
}

async fn rights_on_columns_and_partitions_are_seen(db: &Database<Postgres>) {
    let examined = Examined::new(db).await;
    db.run(&format!("SELECT {SCHEMA}.inbox_create_days(current_date, current_date)")).await;
    let day = format!(
        "SELECT relname::text FROM pg_class AS c JOIN pg_inherits AS i ON i.inhrelid = c.oid WHERE i.inhparent = '{SCHEMA}.inbox_message'::regclass"
    );
    let day: String = sqlx::query_scalar(sqlx::AssertSqlSafe(day)).fetch_one(&db.admin).await.unwrap();
    for (line, role, privilege, object) in [
        (Line::Outbox, "relay", "UPDATE (topic, xid)", "outbox_message"),
        (Line::Outbox, "producer", "SELECT (payload)", "outbox_message"),
        (Line::Outbox, "producer", "SELECT", "outbox_message_0"),
        (Line::Outbox, "relay", "TRUNCATE", "outbox_message_3"),
        (Line::Inbox, "consumer", "DELETE", day.as_str()),
        (Line::Inbox, "consumer", "UPDATE", "inbox_message"),
        (Line::Inbox, "observer", "SELECT (payload)", "inbox_dead_letter"),
        (Line::Saga, "worker", "UPDATE (input)", "saga"),
    ] {
        db.run(&format!("GRANT {privilege} ON {SCHEMA}.{object} TO {}", name_of(role))).await;
        let problem = examined.problem(object).await;
        assert_eq!(problem.state, CheckState::Warn, "{problem:?}");
        assert_eq!(problem.measured, format!("has {privilege} on {object}"));
        examined.make_roles(line).await;
        examined.all_pass().await;
    }
}

/// A relay that may not even use the schema gets an error that states this, whether its
/// configuration or its search path names the schema.
async fn no_right_is_needed_to_learn_what_is_missing(db: &Database<Postgres>) {
    let examined = Examined::new(db).await;
    let relay = Role::Relay.user();
    let revoke = "REVOKE ALL ON ALL TABLES IN SCHEMA";
    db.run(&format!("REVOKE USAGE ON SCHEMA {SCHEMA} FROM {relay}; {revoke} {SCHEMA} FROM {relay}")).await;
    let configured = examined.problem("configured").await;
    let path =
        format!("ALTER ROLE {relay} IN DATABASE {} SET search_path = '$user', {SCHEMA}", database(db).await);
    db.run(&path).await;
    let url = Secret::Text(db.relay_url().into());
    let place = operate::Database::new(url, LogOptions::default());
    let searched = examine_grants(&place, &names()).await;
    let searched: Vec<&Finding> =
        searched.iter().filter(|finding| finding.state == CheckState::Fail).collect();
    for finding in [&configured].into_iter().chain(searched.iter().copied()) {
        assert_eq!(finding.subject, format!("relay role {relay}"));
        assert!(finding.measured.starts_with("lacks USAGE on the schema, "), "{finding:?}");
    }
    assert_eq!(searched.len(), 1);
}

async fn database(db: &Database<Postgres>) -> String {
    sqlx::query_scalar("SELECT current_database()::text").fetch_one(&db.admin).await.unwrap()
}
