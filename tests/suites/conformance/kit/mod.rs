//! The test kit: worlds keep their promises on both databases, and their checker finds violations.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod postgres;
mod sagas;
mod world;

/// The code of `docs/testing.md` for PostgreSQL, which runs here because it needs a server.
#[rustfmt::skip]
#[path = "../../../../examples/tests/pages/testing_on_postgres.rs"]
mod page;

use libtest_mimic::Trial;
use migrations::Template;
use migrations::query::Query;
use sqlx::{Postgres, Sqlite};
use testkit::WorldBuilder;
use tests::{Dialect, Failure};

/// Makes one trial for each case and database. With `postgres_at_night`, a case creates the tables
/// of many runs, which takes a minute on PostgreSQL.
macro_rules! kit_cases {
    ($suite:literal: $($case:ident),*; postgres_at_night: $($at_night:ident),* $(,)?) => {
        pub(super) fn trials() -> Vec<libtest_mimic::Trial> {
            use sqlx::{Postgres, Sqlite};
            use tests::{Backend, trial};
            let case = |backend: Backend, name: &str| format!("{}/{backend}/{name}", $suite);
            let mut trials = vec![
                $(
                    trial(case(Backend::Postgres, stringify!($case)), &[Backend::Postgres], |_| $case::<Postgres>()),
                    trial(case(Backend::Sqlite, stringify!($case)), &[Backend::Sqlite], |_| $case::<Sqlite>()),
                )*
                $(trial(case(Backend::Sqlite, stringify!($at_night)), &[Backend::Sqlite], |_| {
                    $at_night::<Sqlite>()
                }),)*
            ];
            trials.extend(tests::trial::at_night(vec![
                $(trial(case(Backend::Postgres, stringify!($at_night)), &[Backend::Postgres], |_| {
                    $at_night::<Postgres>()
                }),)*
            ]));
            trials
        }
    };
}
use kit_cases;

pub(crate) fn trials() -> Vec<Trial> {
    [postgres::trials(), sagas::trials(), world::trials()].into_iter().flatten().collect()
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
