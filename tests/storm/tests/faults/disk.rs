//! Full disks.

use libtest_mimic::Trial;
use sqlx::{Connection as _, PgConnection, Postgres, Sqlite};
use storm::faults::database::disk;
use tests::{Backend, Outcome, Stage, trial};

use crate::scene::{heal, inject, with_database};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("disk/a_full_disk_refuses_rows_in_postgres", &[Backend::Postgres], postgres),
        trial("disk/a_full_disk_refuses_rows_in_sqlite", &[Backend::Sqlite], sqlite),
    ]
}

/// A seed with which the fault hits the outbox, not the inbox.
const OUTBOX: u64 = 1;

async fn postgres(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Postgres>(&test, 1).await?;
    // The table is larger than a WAL segment of the usual size, because the limit must not affect
    // the WAL.
    database
        .execute(
            "INSERT INTO outbox_message (topic, payload) \
             SELECT 't', convert_to(repeat(md5(n::text), 50), 'UTF8') FROM generate_series(1, 12000) AS n",
        )
        .await?;
    let mut writer = PgConnection::connect(&database.url).await?;
    let insert = "INSERT INTO outbox_message (topic, payload) \
                  SELECT 't', convert_to(repeat('x', 1500), 'UTF8') FROM generate_series(1, 40) AS n";
    let mut fault = disk::PostgresFull::default();
    heal(&mut fault, &stage).await?;
    let injected = inject(&mut fault, &stage, OUTBOX).await?;
    assert_eq!(injected.target, "outbox_message");
    let error = sqlx::query(insert).execute(&mut writer).await.err().ok_or("there was room")?;
    let error = error.into_database_error().ok_or("the session was lost")?;
    assert_eq!(error.code().as_deref(), Some("53100"), "{injected}: {error}");
    heal(&mut fault, &stage).await?;
    sqlx::query(insert).execute(&mut writer).await?;
    Ok(())
}

async fn sqlite(test: Stage) -> Outcome {
    let (stage, database) = with_database::<Sqlite>(&test, 1).await?;
    let mut writer = database.admin.acquire().await?;
    let insert = "INSERT INTO outbox_message (topic, payload) VALUES ('t', zeroblob(50000))";
    let mut fault = disk::SqliteFull;
    heal(&mut fault, &stage).await?;
    inject(&mut fault, &stage, 1).await?;
    disk::SqliteFull::obey(&mut writer, test.folder()).await?;
    let error = sqlx::query(insert).execute(&mut *writer).await.err().ok_or("there was room")?;
    let error = error.into_database_error().ok_or("not the database's error")?;
    assert_eq!(error.code().as_deref(), Some("13"), "{error}");
    heal(&mut fault, &stage).await?;
    disk::SqliteFull::obey(&mut writer, test.folder()).await?;
    sqlx::query(insert).execute(&mut *writer).await?;
    Ok(())
}
