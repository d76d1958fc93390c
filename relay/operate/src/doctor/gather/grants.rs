//! Compares the rights of roles with those that the scripts of roles grant.

use migrations::rights::Rights;
use migrations::{Dialect, Line, Template};
use outbox::connect::{Hosts, dialect_of};
use outbox_log::LogError;
use secrecy::ExposeSecret as _;
use serde::Serialize;
use sqlx::Connection as _;
use sqlx::postgres::PgRow;
use tokio::time::timeout;

use super::postgres::{connect, get, settled};
use super::{TIME_LIMIT, Unreachable, asked};
use crate::Database;
use crate::doctor::facts::{RoleFacts, RoleNames, WrongGrant};

const GRANTS: &str = include_str!("../sql/grants.sql");

/// A right that a role has on an object. Without a privilege: it has no other right there.
#[derive(Serialize)]
struct Listed {
    line: &'static str,
    part: &'static str,
    kind: &'static str,
    object: String,
    privilege: Option<&'static str>,
    of_column: Option<String>,
}

/// A part with the role that plays it; without a name, the role of the queries.
#[derive(Serialize)]
struct Named<'a> {
    part: &'static str,
    role_name: Option<&'a str>,
}

/// Gathers the roles of the lines that the database has; none on SQLite.
pub(in crate::doctor) async fn gather(
    database: &Database,
    names: &RoleNames,
) -> Result<Vec<RoleFacts>, Unreachable> {
    let url = database.url().map_err(|error| Unreachable::operator(error.to_string()))?;
    let url = url.expose_secret();
    if dialect_of(url).map_err(LogError::from)? == Dialect::Sqlite {
        return Ok(Vec::new());
    }
    let hosts = Hosts::of(url, database.options().allow_plaintext).map_err(LogError::from)?;
    let mut connection = connect(&hosts.application_name("relay doctor")).await?;
    settled(&mut connection).await?;
    let schema = database.schema().map_or("", |schema| schema.as_str());
    let comparison = Template::new(GRANTS)
        .literal("list", &json(&list()?)?)
        .literal("roles", &json(&named(names))?)
        .literal("home", schema);
    let rows = asked::run(&mut connection, comparison).await?;
    // A failure to close has no consequence.
    let _ = timeout(TIME_LIMIT, connection.close()).await;
    roles(&rows)
}

fn list() -> Result<Vec<Listed>, Unreachable> {
    let mut list = Vec::new();
    for line in Line::ALL {
        let rights = Rights::of(line).map_err(|error| Unreachable::operator(error.to_string()))?;
        let line = line.as_str();
        list.extend(rights.granted.into_iter().map(|right| Listed {
            line,
            part: right.role,
            kind: right.kind.as_str(),
            object: right.object,
            privilege: Some(right.privilege),
            of_column: right.column,
        }));
        list.extend(rights.revoked.into_iter().map(|row| Listed {
            line,
            part: row.role,
            kind: row.kind.as_str(),
            object: row.object,
            privilege: None,
            of_column: None,
        }));
    }
    Ok(list)
}

fn named(names: &RoleNames) -> [Named<'_>; 8] {
    let named = |part, name| Named { part, role_name: Some(name) };
    [
        Named { part: "relay", role_name: None },
        named("producer", &names.producer),
        named("consumer", &names.consumer),
        named("claimant", &names.claimant),
        named("worker", &names.worker),
        named("observer", &names.observer),
        named("migrator", &names.migrator),
        named("public", "public"),
    ]
}

fn json(rows: &impl Serialize) -> Result<String, Unreachable> {
    serde_json::to_string(rows).map_err(|error| Unreachable::operator(error.to_string()))
}

/// Groups rows, which are in the order of their parts, by role. A row has one wrong right, or none.
fn roles(rows: &[PgRow]) -> Result<Vec<RoleFacts>, Unreachable> {
    let mut roles: Vec<RoleFacts> = Vec::new();
    for row in rows {
        let part: String = get(row, "part")?;
        let wrong = wrong(row)?;
        match roles.last_mut().filter(|role| role.part == part) {
            Some(role) => role.wrong.extend(wrong),
            None => roles.push(RoleFacts {
                part,
                role: get(row, "role_name")?,
                there: get(row, "there")?,
                superuser: get(row, "superuser")?,
                rights: usize::try_from(get::<i64>(row, "rights")?).unwrap_or_default(),
                wrong: Vec::from_iter(wrong),
            }),
        }
    }
    Ok(roles)
}

fn wrong(row: &PgRow) -> Result<Option<WrongGrant>, Unreachable> {
    let Some(object) = get(row, "object")? else { return Ok(None) };
    Ok(Some(WrongGrant { object, privilege: get(row, "privilege")?, remedy: get(row, "remedy")? }))
}
