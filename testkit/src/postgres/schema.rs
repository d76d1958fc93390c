//! The schema of a world.

use std::time::Duration;

use migrations::Template;
use outbox_log::Address;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, Postgres};

use super::name::Name;
use super::removal::{remove, remove_leftovers_once};
use super::server::Server;
use crate::failure::Failure;
use crate::home::Home;

/// Lifts the time limits of role and database for the session that holds the lock.
const NO_TIME_LIMITS: &str = "SELECT set_config(name, '0', false) FROM (VALUES ('statement_timeout'), \
    ('lock_timeout'), ('idle_session_timeout')) AS limits (name) WHERE current_setting(name, true) IS NOT NULL";

/// The schema that new tables get, and the one that has tables of the toolkit.
const FOUND: &str = "SELECT current_schema()::text, (SELECT relnamespace::regnamespace::text FROM pg_class \
    WHERE oid = to_regclass('outbox_toolkit_migration'))";

/// SQLSTATE of a missing right.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// The maximum duration of a removal.
const REMOVAL_MAX: Duration = Duration::from_secs(20);

/// Creates a schema in the database of this URL.
pub(super) async fn open(url: String) -> Result<Home<Postgres>, Failure> {
    let server = Server::at(&url)?;
    let mut keeper = server.connect().await?;
    remove_leftovers_once(&server, &mut keeper).await;
    let name = Name::new()?;
    lock(&mut keeper, &name).await.map_err(Failure::during("lock the schema of the world"))?;
    let path = path(&server, &mut keeper, &name).await?;
    let mut schema = Schema { name, server, keeper };
    schema.create().await?;
    let pool = schema.pool(&path).await?;
    schema.check(&pool).await?;
    Ok(Home { address: Address::from(&pool), pool, _removal: Box::new(schema) })
}

/// Locks the name of a schema for as long as the session lives.
async fn lock(keeper: &mut PgConnection, name: &Name) -> Result<(), sqlx::Error> {
    sqlx::query(NO_TIME_LIMITS).execute(&mut *keeper).await?;
    sqlx::query("SELECT pg_advisory_lock($1)").bind(name.number).execute(keeper).await?;
    Ok(())
}

/// Returns the `search_path` of the world: its schema, then those that the URL names.
async fn path(server: &Server, keeper: &mut PgConnection, name: &Name) -> Result<String, Failure> {
    let is_named = server.options.get_options().is_some_and(|options| options.contains("search_path"));
    if !is_named {
        return Ok(name.to_string());
    }
    let named: String = sqlx::query_scalar("SELECT current_setting('search_path')")
        .fetch_one(keeper)
        .await
        .map_err(Failure::during("read the search_path of the URL"))?;
    Ok(format!("{name}, {named}"))
}

/// A schema that is removed when it is dropped.
struct Schema {
    name: Name,
    server: Server,
    /// The session that holds the lock.
    keeper: PgConnection,
}

impl Schema {
    async fn create(&mut self) -> Result<(), Failure> {
        let create =
            Template::new("CREATE SCHEMA {name}").identifier("name", self.name.identifier()).render();
        let created = sqlx::query(&create).execute(&mut self.keeper).await;
        created.map(drop).map_err(|error| {
            let code = error.as_database_error().and_then(|error| error.code());
            let what = match code.as_deref() {
                Some(INSUFFICIENT_PRIVILEGE) => format!(
                    "the role {role} may not create schemas in this database: let its owner run GRANT CREATE ON \
                     DATABASE {database} TO {role}",
                    role = self.server.role(),
                    database = self.server.database(),
                ),
                _ => format!("cannot create a schema at {}", self.server.place()),
            };
            Failure::because(what, error)
        })
    }

    /// Opens the pool of the world.
    async fn pool(&self, path: &str) -> Result<PgPool, Failure> {
        let options: PgConnectOptions = self.server.options.clone();
        let options = options.options([("search_path", path)]).application_name(self.name.as_str());
        let opened = outbox::pool_options::<Postgres>().connect_with(options).await;
        opened.map_err(Failure::during("open the pool of the world"))
    }

    /// Checks that tables will be created in this schema.
    async fn check(&self, pool: &PgPool) -> Result<(), Failure> {
        let found: (Option<String>, Option<String>) =
            sqlx::query_as(FOUND).fetch_one(pool).await.map_err(Failure::during("check the search_path"))?;
        match found {
            (_, Some(other)) => Err(Failure::new(format!(
                "the search_path of the URL leads to tables of the toolkit in the schema {other}, and the \
                 world would use them: list only schemas of extensions in it"
            ))),
            (Some(schema), None) if schema == self.name.as_str() => Ok(()),
            (schema, None) => Err(Failure::new(format!(
                "sessions at {} do not keep the search_path that they begin with (they use the schema {}): connect to \
                 the server itself, or through a pooler in session mode",
                self.server.place(),
                schema.as_deref().unwrap_or("of no name"),
            ))),
        }
    }
}

impl Drop for Schema {
    /// Removes the schema. Blocks the thread, because the runtime may end with the test. The
    /// sessions of the world may still be open, so they are ended where they are in the way.
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let removed = tokio::time::timeout(REMOVAL_MAX, removed(&server, &name)).await;
                removed.map_err(|_| format!("not removed within {REMOVAL_MAX:?}"))?
            })
        });
        if let Err(problem) = removal.join().unwrap_or_else(|_| Err(String::from("a panic"))) {
            eprintln!("testkit: cannot remove the schema {} ({problem}); the next run removes it", self.name);
        }
    }
}

async fn removed(server: &Server, name: &Name) -> Result<(), String> {
    let mut connection = server.connect().await.map_err(|failure| format!("{failure:?}"))?;
    remove(&mut connection, name).await.map_err(|error| error.to_string())
}
