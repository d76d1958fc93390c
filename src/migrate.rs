//! Brings the tables up to date.

use migrations::{Backend, Line, MigrateError, Migrator};
use sqlx::Pool;

/// Creates the tables of outbox, inbox, idempotency keys and sagas by the `search_path`, or brings
/// them up to date. Several processes may do it at once: one does, the others wait.
///
/// Where services may not change their schema, run `relay migrate up` instead, or print the SQL
/// with `relay migrate sql`; [`Migrator`] does one line at a time, in a schema of your choice.
///
/// # Errors
/// [`MigrateError`]: the database is not available, its tables are newer than this build, or a
/// statement was refused. Lines that were done before stay done.
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
