//! The test kit: worlds keep their promises on both databases, and their checker finds violations.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod postgres;
mod sagas;
mod world;

/// The code of `docs/testing.md` for PostgreSQL, which runs here because it needs a server.
#[rustfmt::skip]
#[path = "../../../../examples/tests/pages/testing_on_postgres.rs"]
mod page;

use migrations::Template;
use migrations::query::Query;
use sqlx::{Postgres, Sqlite};
use testkit::WorldBuilder;
use tests::{Dialect, Failure};

tests::cases! {
    modules { postgres, sagas, world }
}

/// A database of worlds.
trait Kit: Dialect + testkit::Database {
    fn builder() -> Result<WorldBuilder<Self>, Failure>;
}

impl Kit for Postgres {
    fn builder() -> Result<WorldBuilder<Self>, Failure> {
        Ok(testkit::World::builder().postgres(testkit::postgres::url()?))
    }
}

impl Kit for Sqlite {
    fn builder() -> Result<WorldBuilder<Self>, Failure> {
        Ok(testkit::World::builder())
    }
}

/// Adds to the only row of the table `counter`.
async fn add<DB: Kit>(connection: &mut DB::Connection, count: i64) -> Result<(), sqlx::Error> {
    let statement = Template::new("UPDATE counter SET n = n + $1").render();
    Query::<DB>::new(&statement).bind(count).run(connection).await.map(drop)
}
