//! New databases for tests, and their removal.
//!
//! A migrated database is a copy of one that this process has migrated, because the hundred
//! statements of the migrations took longer than most cases. A PostgreSQL database is removed in
//! the background, because each removal waits for a checkpoint of the server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use migrations::{Line, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Sqlite};
use tokio::sync::OnceCell;

use crate::backends::Backend;
use crate::roles;
use crate::stage::random;
use crate::trial::{Failure, Outcome, chain};

/// A value that is made once for each set of lines.
type Once<T> = LazyLock<Mutex<BTreeMap<Vec<Line>, &'static OnceCell<T>>>>;

/// URLs of the databases that others are copied from, by lines.
static ORIGINALS: Once<String> = LazyLock::new(Mutex::default);
/// Contents of the database files that others are copied from, by lines.
static FILES: Once<Vec<u8>> = LazyLock::new(Mutex::default);
/// Removals of databases under way, with their URLs.
static REMOVALS: Mutex<Vec<(String, JoinHandle<Outcome>)>> = Mutex::new(Vec::new());

/// Creates a PostgreSQL database with these options of `CREATE DATABASE`. Returns its
/// administrator's URL.
///
/// # Errors
/// The server refused or is unavailable.
pub async fn postgres(options: &str) -> Result<String, Failure> {
    let server = Backend::Postgres.address()?;
    roles::exist().await?;
    let name = format!("t_{}", random());
    let mut admin = PgConnection::connect(&server).await?;
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name} {options}"))).await?;
    admin.close().await?;
    let (base, _) = server.rsplit_once('/').ok_or("OUTBOX_POSTGRES_URL names no database")?;
    Ok(format!("{base}/{name}"))
}

/// Creates the tables of these lines in a PostgreSQL database, and grants the roles their rights.
///
/// # Errors
/// The server refused or is unavailable.
pub(crate) async fn migrate(admin: &mut PgConnection, lines: &[Line]) -> Outcome {
    for line in lines {
        Migrator::<sqlx::Postgres>::new(*line).up(admin).await?;
    }
    roles::grant(admin, lines, None).await
}

/// Creates a PostgreSQL database with the tables of these lines and the rights of the roles.
/// Returns its administrator's URL.
///
/// # Errors
/// The server refused or is unavailable.
pub async fn migrated_postgres(lines: &[Line]) -> Result<String, Failure> {
    let original = once(&ORIGINALS, lines).get_or_try_init(async || {
        let url = postgres("").await?;
        let mut admin = PgConnection::connect(&url).await?;
        migrate(&mut admin, lines).await?;
        admin.close().await?;
        Ok::<_, Failure>(url)
    });
    let (_, name) = original.await?.rsplit_once('/').ok_or("a URL without a database")?;
    postgres(&format!("TEMPLATE {name}")).await
}

/// Writes an SQLite database with the tables of these lines to a new file.
///
/// # Errors
/// SQLite failed, or the file could not be written.
pub async fn migrated_sqlite(lines: &[Line], file: &Path) -> Outcome {
    let content = once(&FILES, lines).get_or_try_init(async || {
        let folder = tempfile::tempdir()?;
        let original = folder.path().join("original.db");
        let options = SqliteConnectOptions::new().filename(&original).create_if_missing(true);
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await?;
        for line in lines {
            Migrator::<Sqlite>::new(*line).up(&mut connection).await?;
        }
        connection.close().await?;
        Ok::<_, Failure>(std::fs::read(original)?)
    });
    Ok(std::fs::write(file, content.await?)?)
}

fn once<T>(all: &Once<T>, lines: &[Line]) -> &'static OnceCell<T> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(lines.to_vec()).or_insert_with(|| Box::leak(Box::default()))
}

/// Attempts to remove a database, one a second. Another case may crash the server meanwhile, and on
/// a busy machine recovery takes some time.
const REMOVALS_MAX: u32 = 30;

/// Begins to remove a PostgreSQL database and ends every session in it.
pub fn remove_postgres(url: &str) {
    let own = url.to_owned();
    let removal = thread::spawn(move || {
        let (server, name) = own.rsplit_once('/').ok_or("a URL without a database")?;
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let mut attempt = 1;
            while let Err(error) = drop_database(server, name).await {
                if attempt == REMOVALS_MAX {
                    return Err(error.into());
                }
                attempt += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        })
    });
    REMOVALS.lock().unwrap_or_else(PoisonError::into_inner).push((url.to_owned(), removal));
}

async fn drop_database(server: &str, name: &str) -> Result<(), sqlx::Error> {
    let mut admin = PgConnection::connect(&format!("{server}/postgres")).await?;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))).await?;
    admin.close().await
}

/// Removes the databases that others were copied from, and waits until no database of this process
/// is left. Reports those that could not be removed.
pub(crate) fn clean_up() -> Result<(), String> {
    let originals = ORIGINALS.lock().unwrap_or_else(PoisonError::into_inner);
    originals.values().filter_map(|original| original.get()).for_each(|url| remove_postgres(url));
    let removals = std::mem::take(&mut *REMOVALS.lock().unwrap_or_else(PoisonError::into_inner));
    let ends = removals.into_iter().filter_map(|(url, removal)| {
        let problem = match removal.join() {
            Ok(Ok(())) => return None,
            Ok(Err(failure)) => chain(failure.as_ref()),
            Err(_) => "a panic, see above".to_owned(),
        };
        let name = url.rsplit_once('/').map_or("", |(_, name)| name);
        Some(format!("database {name} could not be removed: {problem}"))
    });
    let problems: Vec<String> = ends.collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}
