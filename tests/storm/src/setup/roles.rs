//! The users of least privilege with which the processes connect to PostgreSQL. The storm itself is
//! the administrator.

use migrations::{Identifier, Line, Roles, Statement, Template};
use sqlx::{Executor as _, PgConnection};
use url::Url;

use crate::Failure;
use crate::pair::DatabaseKind;
use crate::stage::Role;

/// The password of all users.
const PASSWORD: &str = "storm";

fn user(role: Role) -> &'static str {
    match role {
        Role::Producer => "storm_producer",
        Role::Relay => "storm_relay",
        Role::Consumer => "storm_consumer",
        Role::Worker => "storm_worker",
    }
}

/// Grants for the business tables, in addition to the toolkit's own grants.
const BUSINESS: [(Role, &str); 3] = [
    (Role::Producer, "GRANT SELECT, INSERT, UPDATE ON account TO {user}"),
    (Role::Producer, "GRANT SELECT, INSERT ON business TO {user}"),
    (Role::Consumer, "GRANT INSERT ON effect TO {user}"),
];

/// Grants for the services of sagas, and for the process that cancels some sagas.
const SHOP: [&str; 4] = [
    "GRANT INSERT ON shop_order, saga_effect TO {user}",
    "GRANT SELECT, UPDATE ON stock TO {user}",
    "GRANT SELECT, INSERT, UPDATE ON shipment TO {user}",
    "GRANT INSERT ON saga_audit TO {user}",
];
const BANK: [&str; 3] = [
    "GRANT INSERT ON saga_effect TO {user}",
    "GRANT SELECT, UPDATE ON bank_account TO {user}",
    "GRANT SELECT, INSERT, UPDATE ON bank_ledger TO {user}",
];

/// Returns an administrator's URL, changed to the user of a role. A SQLite file has no users.
pub(super) fn url(kind: DatabaseKind, role: Role, admin: &str) -> Result<String, Failure> {
    if kind == DatabaseKind::Sqlite {
        return Ok(admin.to_owned());
    }
    let mut url = Url::parse(admin)?;
    let refused = |()| Failure::from("a URL that cannot have a user");
    url.set_username(user(role)).map_err(refused)?;
    url.set_password(Some(PASSWORD)).map_err(refused)?;
    Ok(url.to_string())
}

/// Creates the users, which belong to the whole server, and grants them the necessary rights in
/// these two databases. For the toolkit's tables it uses only the toolkit's own script.
pub(super) async fn grant(producers: &mut PgConnection, consumers: &mut PgConnection) -> Result<(), Failure> {
    for role in [Role::Producer, Role::Relay, Role::Consumer] {
        producers.execute(&create(role)?).await?;
    }
    let roles = roles()?;
    producers.execute(&roles.script(Line::Outbox, None)).await?;
    consumers.execute(&roles.script(Line::Inbox, None)).await?;
    for (role, grant) in BUSINESS {
        let grant = Template::new(grant).identifier("user", &Identifier::new(user(role))?).render();
        let connection = if role == Role::Consumer { &mut *consumers } else { &mut *producers };
        connection.execute(&grant).await?;
    }
    Ok(())
}

/// Creates the user of sagas, and grants it the necessary rights.
pub(super) async fn grant_sagas(sagas: &mut PgConnection, bank: &mut PgConnection) -> Result<(), Failure> {
    sagas.execute(&create(Role::Worker)?).await?;
    let mut roles = roles()?;
    (roles.producer, roles.consumer) = (roles.worker.clone(), roles.worker.clone());
    for line in [Line::Outbox, Line::Inbox, Line::Saga] {
        sagas.execute(&roles.script(line, None)).await?;
    }
    let user = Identifier::new(user(Role::Worker))?;
    for grant in SHOP {
        sagas.execute(&Template::new(grant).identifier("user", &user).render()).await?;
    }
    for grant in BANK {
        bank.execute(&Template::new(grant).identifier("user", &user).render()).await?;
    }
    Ok(())
}

fn create(role: Role) -> Result<Statement, Failure> {
    let template = "DO $$ BEGIN IF to_regrole('{user}') IS NULL THEN CREATE ROLE {user} LOGIN PASSWORD 'storm'; \
                    END IF; END $$";
    Ok(Template::new(template).identifier("user", &Identifier::new(user(role))?).render())
}

fn roles() -> Result<Roles, Failure> {
    let mut roles = Roles::standard();
    roles.migrator = Identifier::new("storm_migrator")?;
    roles.producer = Identifier::new(user(Role::Producer))?;
    roles.relay = Identifier::new(user(Role::Relay))?;
    roles.consumer = Identifier::new(user(Role::Consumer))?;
    roles.worker = Identifier::new(user(Role::Worker))?;
    roles.observer = Identifier::new("storm_observer")?;
    Ok(roles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_its_own_user_and_a_file_has_none() {
        let admin = "postgres://outbox:outbox@127.0.0.1:15432/db";
        let relay = url(DatabaseKind::Postgres, Role::Relay, admin).unwrap();
        assert_eq!(relay, "postgres://storm_relay:storm@127.0.0.1:15432/db");
        assert_eq!(url(DatabaseKind::Sqlite, Role::Relay, "sqlite:x.db").unwrap(), "sqlite:x.db");
    }
}
