//! The roles of least privilege that the suites run under on PostgreSQL, with users that can log
//! in.

use migrations::{Identifier, Line, Roles};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::sync::OnceCell;

use crate::backends::Backend;
use crate::trial::{Failure, Outcome};

/// The password of every user.
pub(crate) const PASSWORD: &str = "outbox";

/// A role that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Enqueues messages.
    Producer,
    /// Runs the relay, and decides about dead messages.
    Relay,
    /// Consumes messages.
    Consumer,
    /// Takes idempotency keys, runs sagas, and enqueues.
    Service,
    /// Only reads.
    Observer,
}

impl Role {
    /// Returns its user, which is the same in every database of a server.
    #[must_use]
    pub fn user(self) -> &'static str {
        match self {
            Self::Producer => "outbox_test_producer",
            Self::Relay => "outbox_test_relay",
            Self::Consumer => "outbox_test_consumer",
            Self::Service => "outbox_test_service",
            Self::Observer => "outbox_test_observer",
        }
    }

    /// Returns an administrator's URL with this user instead.
    ///
    /// # Errors
    /// The URL has no user.
    pub fn url(self, admin: &str) -> Result<String, Failure> {
        url_of(self.user(), admin)
    }
}

/// Returns an administrator's URL with this user instead, whose password is that of all users.
pub(crate) fn url_of(user: &str, admin: &str) -> Result<String, Failure> {
    let (scheme, rest) = admin.split_once("://").ok_or("no URL")?;
    let (_, place) = rest.rsplit_once('@').ok_or("a URL without a user")?;
    Ok(format!("{scheme}://{user}:{PASSWORD}@{place}"))
}

const ALL: [Role; 5] = [Role::Producer, Role::Relay, Role::Consumer, Role::Service, Role::Observer];

/// Another test process may do the same at this time, and roles belong to the whole server.
const LOCK: &str = "SELECT pg_advisory_xact_lock(8031170788430771317)";

/// Runs the toolkit's own script of rights on a migrated database.
///
/// # Errors
/// The connection or a statement failed.
pub async fn grant(connection: &mut PgConnection, lines: &[Line], schema: Option<&Identifier>) -> Outcome {
    exist().await?;
    for line in lines {
        connection.execute(AssertSqlSafe(names()?.script(*line, schema).to_string())).await?;
    }
    Ok(())
}

/// Grants a role the rights of a producer, for a service that consumes and enqueues.
///
/// # Errors
/// The connection or a statement failed.
pub async fn grant_outbox_to(
    connection: &mut PgConnection,
    role: Role,
    schema: Option<&Identifier>,
) -> Outcome {
    exist().await?;
    let mut roles = names()?;
    roles.producer = Identifier::new(role.user())?;
    connection.execute(AssertSqlSafe(roles.script(Line::Outbox, schema).to_string())).await?;
    // A script revokes rights that it does not grant: here, those of the role named as the
    // producer.
    grant(connection, &[Line::Inbox], schema).await
}

fn names() -> Result<Roles, Failure> {
    let mut roles = Roles::standard();
    roles.migrator = Identifier::new("outbox_test_migrator")?;
    roles.producer = Identifier::new(Role::Producer.user())?;
    roles.relay = Identifier::new(Role::Relay.user())?;
    roles.consumer = Identifier::new(Role::Consumer.user())?;
    roles.claimant = Identifier::new(Role::Service.user())?;
    roles.worker = Identifier::new(Role::Service.user())?;
    roles.observer = Identifier::new(Role::Observer.user())?;
    Ok(roles)
}

/// Creates the users on the shared server, once per process.
pub(crate) async fn exist() -> Outcome {
    static MADE: OnceCell<()> = OnceCell::const_new();
    MADE.get_or_try_init(make).await?;
    Ok(())
}

async fn make() -> Outcome {
    make_at(&Backend::Postgres.address()?).await
}

/// Creates the users on the server of an administrator's URL.
pub(crate) async fn make_at(server: &str) -> Outcome {
    let mut admin = PgConnection::connect(server).await?;
    let mut tx = admin.begin().await?;
    tx.execute(LOCK).await?;
    let users = ALL.map(|role| (role.user(), format!("LOGIN PASSWORD '{PASSWORD}'")));
    // The last two are members of no other role.
    let others = ["outbox_test_migrator", "outbox_test_claimant", "outbox_test_worker"];
    let others = others.map(|role| (role, String::from("NOLOGIN")));
    for (user, options) in users.into_iter().chain(others) {
        let create = format!(
            "DO $$ BEGIN IF to_regrole('{user}') IS NULL THEN CREATE ROLE {user} {options}; END IF; END $$"
        );
        tx.execute(AssertSqlSafe(create)).await?;
    }
    // A service that claims keys enqueues as well.
    let member = format!("GRANT {} TO {}", Role::Producer.user(), Role::Service.user());
    tx.execute(AssertSqlSafe(member)).await?;
    tx.commit().await?;
    admin.close().await?;
    Ok(())
}
