//! The promises of the two database seams, on PostgreSQL and SQLite. The suites cover producers,
//! the log that relays read, leases and exceptions, migrations, the guard, dead letters, retention,
//! the consumer runner, idempotency keys, sagas and the test kit.
//!
//! The broker seams have their own binary, `brokers`.

/// Makes one trial for each case and database. Cases under `every` run on both backends, those
/// under `on_postgres` and `on_sqlite` on one; each gets a database of its own. Cases under
/// `postgres` and `sqlite` bring theirs. Cases `at_night` wait for a clock, measure times, or take
/// a minute.
macro_rules! cases {
    ($suite:literal:
        $(every { $($every:ident),* $(,)? })?
        $(on_postgres { $($on_postgres:ident),* $(,)? })?
        $(on_sqlite { $($on_sqlite:ident),* $(,)? })?
        $(postgres { $($postgres:ident),* $(,)? })?
        $(sqlite { $($sqlite:ident),* $(,)? })?
        $(every_at_night { $($every_at_night:ident),* $(,)? })?
        $(on_postgres_at_night { $($on_postgres_at_night:ident),* $(,)? })?
        $(postgres_at_night { $($postgres_at_night:ident),* $(,)? })?
    ) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            use tests::Backend;
            #[allow(unused_mut, reason = "most suites have no case of the night")]
            let mut trials = vec![
                $($(
                    $crate::case($suite, Backend::Postgres, stringify!($every), || {
                        super::each::<sqlx::Postgres>($every)
                    }),
                    $crate::case($suite, Backend::Sqlite, stringify!($every), || {
                        super::each::<sqlx::Sqlite>($every)
                    }),
                )*)?
                $($($crate::case($suite, Backend::Postgres, stringify!($on_postgres), || {
                    super::on::<sqlx::Postgres>($on_postgres)
                }),)*)?
                $($($crate::case($suite, Backend::Sqlite, stringify!($on_sqlite), || {
                    super::on::<sqlx::Sqlite>($on_sqlite)
                }),)*)?
                $($($crate::case($suite, Backend::Postgres, stringify!($postgres), $postgres),)*)?
                $($($crate::case($suite, Backend::Sqlite, stringify!($sqlite), $sqlite),)*)?
            ];
            $(trials.extend(tests::trial::at_night(vec![$(
                $crate::case($suite, Backend::Postgres, stringify!($every_at_night), || {
                    super::each::<sqlx::Postgres>($every_at_night)
                }),
                $crate::case($suite, Backend::Sqlite, stringify!($every_at_night), || {
                    super::each::<sqlx::Sqlite>($every_at_night)
                }),
            )*]));)?
            $(trials.extend(tests::trial::at_night(vec![$(
                $crate::case($suite, Backend::Postgres, stringify!($on_postgres_at_night), || {
                    super::on::<sqlx::Postgres>($on_postgres_at_night)
                }),
            )*]));)?
            $(trials.extend(tests::trial::at_night(vec![$(
                $crate::case($suite, Backend::Postgres, stringify!($postgres_at_night), $postgres_at_night),
            )*]));)?
            trials
        }
    };
}

mod audit;
mod audits;
mod begun;
mod clocks;
mod durability;
mod features;
mod inbox;
mod keys;
mod kit;
mod outbox;
mod page;
mod proxied;
mod release;
mod sagas;
mod statistics;
mod synchronous;
mod vanished;
mod versions;

use libtest_mimic::Trial;
use tests::{Backend, trial};

/// Makes a trial of a case that fails by panicking.
fn case<F: Future<Output = ()>>(
    suite: &str,
    backend: Backend,
    name: &str,
    body: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    trial(format!("{suite}/{backend}/{name}"), &[backend], |_| async {
        body().await;
        Ok(())
    })
}

fn main() -> std::process::ExitCode {
    tests::log::keep("off,idempotency=info,inbox=info");
    let mut trials = outbox::trials();
    trials.extend(audit::trials());
    trials.extend(audits::trials());
    trials.extend(clocks::trials());
    trials.extend(trial::at_night(durability::trials()));
    trials.extend(features::trials());
    trials.extend(inbox::trials());
    trials.extend(keys::trials());
    trials.extend(kit::trials());
    trials.extend(page::trials());
    trials.extend(sagas::trials());
    trials.extend(release::trials());
    trials.extend(statistics::trials());
    trials.extend(synchronous::trials());
    trials.extend(vanished::trials());
    trials.extend(versions::trials());
    tests::run(trials)
}
