//! How a database moves from one version of a line to the next, whatever the versions contain.

mod apart;
mod practice;
mod steps;

use migrations::Migrator;
use tests::{Database, Dialect, Failure, Stage};

tests::cases! {
    modules { apart, steps }
}

/// Applies what is missing. Returns the names of the applied migrations.
async fn up<DB: Dialect>(db: &Database<DB>, migrator: &Migrator<DB>) -> Result<Vec<&'static str>, Failure> {
    let mut connection = db.admin.acquire().await?;
    let applied = migrator.up(&mut connection).await?;
    Ok(applied.iter().map(|migration| migration.name).collect())
}

/// Returns a database with the first version and two rows.
async fn populated<DB: Dialect>(stage: &Stage) -> Result<Database<DB>, Failure> {
    let db = Database::<DB>::empty(stage).await?;
    assert_eq!(up(&db, &practice::program(1)).await?, ["0001_table"]);
    db.execute("INSERT INTO outbox_practice (id, body) VALUES (1, 'one'), (2, 'three')").await?;
    Ok(db)
}

/// Returns the names of the applied migrations, as the database has them.
async fn recorded<DB: Dialect>(db: &Database<DB>) -> Result<Vec<String>, Failure> {
    db.texts("SELECT name FROM outbox_toolkit_migration ORDER BY version").await
}
