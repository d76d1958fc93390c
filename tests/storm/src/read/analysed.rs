//! Tables that have statistics.

use sqlx::{Connection as _, PgConnection};

use crate::Failure;
use crate::pair::DatabaseKind;
use crate::setup::Plot;
use crate::stage::Stage;

/// `pg_stat_user_tables` has the time of the last analysis, but a crash of the server forgets it.
/// The statistics themselves stay.
const ANALYSED: &str = "SELECT DISTINCT current_database() || '.' || c.relname FROM pg_statistic s \
     JOIN pg_class c ON c.oid = s.starelid JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') ORDER BY 1";

/// Lists the tables that were analysed, of a storm in which none may be.
///
/// # Errors
/// A database cannot be read.
pub async fn analysed(plot: &Plot, stage: &Stage) -> Result<Vec<String>, Failure> {
    let mut tables = Vec::new();
    if !plot.never_analysed || plot.pair.database != DatabaseKind::Postgres {
        return Ok(tables);
    }
    let of = &stage.database;
    for url in [&of.producers, &of.consumers, &of.sagas, &of.bank] {
        let mut connection = PgConnection::connect(url).await?;
        tables.extend(sqlx::query_scalar::<_, String>(ANALYSED).fetch_all(&mut connection).await?);
        connection.close().await?;
    }
    Ok(tables)
}
