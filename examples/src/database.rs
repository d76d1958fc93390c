//! The database of an example service.

use migrations::{Line, Migrator};
use sqlx::{PgPool, Postgres};

use crate::setting::{Failure, required};

/// Opens the database of `DATABASE_URL`, and creates the tables of these lines and of the service.
/// A real service leaves the tables to its deployment: `relay migrate up`.
///
/// # Errors
/// The variable is not set, or the database refused.
pub async fn prepared(lines: &[Line], tables: &'static str) -> Result<PgPool, Failure> {
    let pool = outbox::pool::<Postgres>(&required("DATABASE_URL")?).await?;
    let mut connection = pool.acquire().await?;
    for line in lines {
        Migrator::<Postgres>::new(*line).up(&mut connection).await?;
    }
    sqlx::raw_sql(tables).execute(&mut *connection).await?;
    Ok(pool)
}
