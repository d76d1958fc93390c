//! Brings the tables up to date.

use migrations::{Backend, Line, MigrateError, Migrator};
use sqlx::Pool;

/// Creates the tables of outbox, inbox, idempotency keys and sagas where the `search_path` puts
/// them, or brings them up to date. Several processes may call it at once: one migrates, the others
/// wait, at most 10 minutes.
///
/// Where services may not change their schema, run `relay migrate up` instead, or print the SQL
/// with `relay migrate sql`. [`Migrator`] migrates one line at a time, in a schema of your choice.
///
/// # Errors
/// [`MigrateError`]: the database is not available, its tables are newer than this build, another
/// process has not finished in time, or a statement was refused. Lines that were migrated before
/// the error stay migrated.
pub async fn migrate<DB: Backend>(pool: &Pool<DB>) -> Result<(), MigrateError> {
    let mut connection = pool.acquire().await.map_err(|source| MigrateError::Database {
        what: String::from("lend a connection for migrating"),
        source: Box::new(source),
    })?;
    for line in Line::ALL {
        Migrator::<DB>::new(line).up(&mut connection).await?;
    }
    Ok(())
}
