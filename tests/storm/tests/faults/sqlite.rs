//! SQLite: a busy file.

use std::str::FromStr as _;
use std::time::Duration;

use libtest_mimic::Trial;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Sqlite};
use storm::faults::database::sqlite::Busy;
use tests::{Backend, Outcome, Stage, trial};

use crate::scene::{heal, inject, with_database};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("sqlite/a_busy_file_refuses_writers", &[Backend::Sqlite], a_busy_file_refuses_writers)]
}

async fn a_busy_file_refuses_writers(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Sqlite>(&test, 1).await?;
    let options = SqliteConnectOptions::from_str(&database.url)?.busy_timeout(Duration::from_millis(20));
    let mut writer: SqliteConnection = options.connect().await?;
    let mut fault = Busy::default();
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    let error = sqlx::query("INSERT INTO account VALUES ('a', 0)").execute(&mut writer).await.err();
    let error = error.and_then(sqlx::Error::into_database_error).ok_or("it was not busy")?;
    assert_eq!(error.code().as_deref(), Some("5"), "{error}");
    heal(&mut fault, &stage).await?;
    sqlx::query("INSERT INTO account VALUES ('a', 0)").execute(&mut writer).await?;
    Ok(())
}
