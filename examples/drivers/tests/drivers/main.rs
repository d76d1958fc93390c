//! The promises of every driver's file, on real PostgreSQL and RabbitMQ: `OUTBOX_POSTGRES_URL` and
//! `OUTBOX_RABBITMQ_URL` name the servers. Each run makes a database of its own.
//!
//! | module | what it holds |
//! |---|---|
//! | `cases` | the cases, which run on every driver |
//! | `vectors` | the rules that clients repeat, from `examples/clients/vectors.json` |
//! | `page`, `receiving` | the programs that docs/drivers.md shows |
//! | `driver` | what a case asks of a driver |
//! | `diesel`, `diesel_async`, `sea_orm`, `tokio_postgres` | its answers |
//! | `database` | the database of a run, and what is stored in it |

mod cases;
mod database;
mod diesel;
mod diesel_async;
mod driver;
mod page;
mod receiving;
mod sea_orm;
mod tokio_postgres;
mod vectors;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let arguments = Arguments::from_args();
    if arguments.list {
        libtest_mimic::run(&arguments, trials()).exit();
    }
    let database = database::create();
    let conclusion = libtest_mimic::run(&arguments, trials());
    database::remove(&database);
    conclusion.exit();
}

fn trials() -> Vec<Trial> {
    let mut trials = cases::trials::<diesel::Diesel>();
    trials.extend(cases::trials::<diesel_async::DieselAsync>());
    trials.extend(cases::trials::<sea_orm::SeaOrm>());
    trials.extend(cases::trials::<tokio_postgres::TokioPostgres>());
    trials.extend(page::trials());
    trials.extend(receiving::trials());
    trials
}
