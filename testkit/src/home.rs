//! The tables of a world: an empty database, or a schema of one, that nothing else uses.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use migrations::{Line, Migrator};
use outbox_log::Address;
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Sqlite};

use crate::database::Database;
use crate::failure::Failure;

/// Creates a home.
pub(crate) type Open<DB> = Arc<dyn Fn() -> Opening<DB> + Send + Sync>;

/// A home that is being created.
pub(crate) type Opening<DB> = Pin<Box<dyn Future<Output = Result<Home<DB>, Failure>> + Send>>;

/// A place for the tables of one world. Dropping it removes them.
pub(crate) struct Home<DB: Database> {
    pub(crate) pool: Pool<DB>,
    pub(crate) address: Address,
    /// Removes the tables when it is dropped.
    pub(crate) _removal: Box<dyn Any + Send + Sync>,
}

impl<DB: Database> Home<DB> {
    /// Creates the tables of these lines.
    pub(crate) async fn migrate(&self, lines: &[Line]) -> Result<(), Failure> {
        let mut connection = connection(&self.pool).await?;
        for line in lines {
            let migrator = Migrator::<DB>::new(*line);
            migrator.up(&mut connection).await.map_err(Failure::during("create the tables"))?;
        }
        Ok(())
    }

    /// Runs one or more statements.
    pub(crate) async fn run(&self, sql: &'static str, what: &'static str) -> Result<(), Failure> {
        let mut connection = connection(&self.pool).await?;
        DB::run_script(&mut connection, sql).await.map_err(Failure::during(what))
    }
}

/// Returns a connection of a pool.
pub(crate) async fn connection<DB: Database>(pool: &Pool<DB>) -> Result<PoolConnection<DB>, Failure> {
    pool.acquire().await.map_err(Failure::during("get a connection to the database"))
}

/// Returns a function that creates a SQLite database in a temporary folder.
pub(crate) fn sqlite() -> Open<Sqlite> {
    Arc::new(|| Box::pin(open_sqlite()))
}

async fn open_sqlite() -> Result<Home<Sqlite>, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::during("make a temporary folder"))?;
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("world.db").display());
    let pool = outbox::pool::<Sqlite>(&url).await.map_err(Failure::during("open the database"))?;
    Ok(Home { pool, address: Address::from(&url), _removal: Box::new(folder) })
}
