//! The committed descriptions of the schemas equal those of a fresh database. `UPDATE_SNAPSHOTS=1`
//! writes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::support::{Database, TestDialect};
use migrations::{Backend, Line, Migrator};

tests::cases! { "migrations/snapshots/{on}/{case}":
    every { every_line_is_as_described }
}

async fn every_line_is_as_described<DB: TestDialect>(db: &Database<DB>) {
    let mut connection = db.admin.acquire().await.unwrap();
    for line in Line::ALL {
        let migrator = Migrator::<DB>::new(line);
        migrator.up(&mut connection).await.unwrap();
        let found = migrator.snapshot(&mut connection).await.unwrap();
        let path = format!("../migrations/snapshots/{}-{line}.txt", <DB as Backend>::DIALECT);
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        assert_eq!(found, std::fs::read_to_string(&path).unwrap(), "run with UPDATE_SNAPSHOTS=1 and review");
    }
    drop(connection);
}
