//! One program after another on one database.

use migrations::{MigrateError, SchemaError};
use tests::{Database, Dialect, Failure, Outcome, Stage};

use super::practice::{ALL, edited, failing, program};
use super::{populated, recorded, up};

tests::cases! { "migrations/versions/{on}/{case}":
    databases {
        an_upgrade_keeps_and_converts_the_rows,
        a_script_continues_where_the_database_stands,
        a_program_of_another_version_is_refused,
        a_changed_version_is_named,
        a_gap_is_refused,
        a_version_that_fails_leaves_nothing_of_its_run,
    }
}

const ROWS: &str = "SELECT id || ' ' || body || ' ' || bytes FROM outbox_practice ORDER BY id";
const CONVERTED: [&str; 2] = ["1 one 3", "2 three 5"];

async fn snapshot<DB: Dialect>(db: &Database<DB>) -> Result<String, Failure> {
    let mut connection = db.admin.acquire().await?;
    Ok(program::<DB>(ALL).snapshot(&mut connection).await?)
}

/// Returns the schema of a database that got all versions at once.
async fn made_at_once<DB: Dialect>(stage: &Stage) -> Result<String, Failure> {
    let db = Database::<DB>::empty(stage).await?;
    assert_eq!(up(&db, &program(ALL)).await?.len(), ALL);
    snapshot(&db).await
}

/// Returns the reason why a program refuses to work with the database.
async fn refusal<DB: Dialect>(
    db: &Database<DB>,
    migrator: &migrations::Migrator<DB>,
) -> Result<SchemaError, Failure> {
    let mut connection = db.admin.acquire().await?;
    match migrator.check(&mut connection).await {
        Err(MigrateError::Schema(error)) => Ok(error),
        other => Err(format!("{other:?}").into()),
    }
}

/// Goal: a populated database gets the later versions. Oracle: what was applied; the rows,
/// converted; the schema of a database that got all versions at once.
async fn an_upgrade_keeps_and_converts_the_rows<DB: Dialect>(stage: Stage) -> Outcome {
    let db = populated::<DB>(&stage).await?;
    assert_eq!(up(&db, &program(ALL)).await?, ["0002_bytes", "0003_index"]);
    assert_eq!(db.texts(ROWS).await?, CONVERTED);
    assert_eq!(recorded(&db).await?, ["0001_table", "0002_bytes", "0003_index"]);
    assert_eq!(up(&db, &program(ALL)).await?, [""; 0], "once");
    let mut connection = db.admin.acquire().await?;
    program::<DB>(ALL).check(&mut connection).await?;
    drop(connection);
    assert_eq!(snapshot(&db).await?, made_at_once::<DB>(&stage).await?);
    Ok(())
}

/// Goal: an administrator applies by hand only what is missing. Oracle: the printed versions
/// satisfy the program, and make the same rows and schema; a version that it does not know is
/// refused.
async fn a_script_continues_where_the_database_stands<DB: Dialect>(stage: Stage) -> Outcome {
    let db = populated::<DB>(&stage).await?;
    let migrator = program::<DB>(ALL);
    db.execute(&migrator.sql(2..=3)?).await?;
    let mut connection = db.admin.acquire().await?;
    migrator.check(&mut connection).await?;
    drop(connection);
    assert_eq!(up(&db, &migrator).await?, [""; 0]);
    assert_eq!(db.texts(ROWS).await?, CONVERTED);
    assert_eq!(snapshot(&db).await?, made_at_once::<DB>(&stage).await?);
    let beyond = migrator.sql(2..=4);
    assert!(matches!(beyond, Err(SchemaError::TooNew { database: 4, build: 3, .. })), "{beyond:?}");
    Ok(())
}

/// Goal: a program works only with its own version, and changes nothing otherwise. Oracle: the
/// reason with both versions and the remedy, for a database that is empty, behind and ahead.
async fn a_program_of_another_version_is_refused<DB: Dialect>(stage: Stage) -> Outcome {
    let empty = Database::<DB>::empty(&stage).await?;
    let missing = refusal(&empty, &program(ALL)).await?;
    assert!(matches!(missing, SchemaError::Missing { .. }), "{missing}");

    let db = populated::<DB>(&stage).await?;
    let behind = refusal(&db, &program(ALL)).await?;
    assert!(matches!(behind, SchemaError::TooOld { database: 1, build: 3, .. }), "{behind}");
    assert!(behind.to_string().contains("relay migrate up --line outbox"), "{behind}");
    assert_eq!(recorded(&db).await?.len(), 1, "a check changes nothing");

    up(&db, &program(ALL)).await?;
    let ahead = refusal(&db, &program(2)).await?;
    assert!(matches!(ahead, SchemaError::TooNew { database: 3, build: 2, .. }), "{ahead}");
    assert!(ahead.to_string().contains("upgrade this program"), "{ahead}");
    assert!(up(&db, &program(2)).await.is_err());
    assert_eq!(recorded(&db).await?.len(), ALL);
    assert_eq!(db.texts(ROWS).await?, CONVERTED);
    Ok(())
}

/// Goal: a program does not build on a version whose content differs from its own. Oracle: that
/// version's number and name, and nothing applied.
async fn a_changed_version_is_named<DB: Dialect>(stage: Stage) -> Outcome {
    let db = populated::<DB>(&stage).await?;
    up(&db, &program(2)).await?;
    let SchemaError::Changed { version, name, .. } = refusal(&db, &edited()).await? else {
        return Err("another reason".into());
    };
    assert_eq!((version, name.as_str()), (2, "0002_bytes"));
    assert!(up(&db, &edited()).await.is_err());
    assert_eq!(recorded(&db).await?, ["0001_table", "0002_bytes"]);
    Ok(())
}

/// Goal: versions have no gaps. Oracle: a database whose records lack one in the middle is refused.
async fn a_gap_is_refused<DB: Dialect>(stage: Stage) -> Outcome {
    let db = populated::<DB>(&stage).await?;
    up(&db, &program(ALL)).await?;
    db.execute("DELETE FROM outbox_toolkit_migration WHERE version = 2").await?;
    let refused = refusal(&db, &program(ALL)).await?;
    assert!(matches!(refused, SchemaError::Changed { version: 3, .. }), "{refused}");
    assert!(up(&db, &program(ALL)).await.is_err());
    assert_eq!(recorded(&db).await?, ["0001_table", "0003_index"]);
    Ok(())
}

/// Goal: a run applies all that is pending or nothing. Oracle: the error names the version that
/// failed; its records and the table are as before the run, although the previous version
/// succeeded; a corrected program upgrades the database.
async fn a_version_that_fails_leaves_nothing_of_its_run<DB: Dialect>(stage: Stage) -> Outcome {
    let db = populated::<DB>(&stage).await?;
    let failed = up(&db, &failing()).await.err().ok_or("it was applied")?.to_string();
    assert!(failed.contains("apply migration 0003_index of the outbox"), "{failed}");
    assert_eq!(recorded(&db).await?, ["0001_table"]);
    assert!(db.texts(ROWS).await.is_err(), "the column of version 2");
    assert_eq!(up(&db, &program(ALL)).await?, ["0002_bytes", "0003_index"]);
    assert_eq!(db.texts(ROWS).await?, CONVERTED);
    Ok(())
}
