//! Diesel's answers.

use diesel::connection::Connection;
use diesel::pg::PgConnection;
use diesel::result::Error as DriverError;
use diesel::{RunQueryDsl, sql_query};
use drivers::diesel::{apply, is_passing, redrive, run, run_alone};
use statements::message::Message;
use statements::{Enqueued, Error, Failure, Inbox, NewMessage, Outbox, Outcome};

use crate::driver::{Done, Driver, Step};

pub(crate) struct Diesel(PgConnection);

type Result<T, E = Failure<DriverError>> = std::result::Result<T, E>;

fn does(connection: &mut PgConnection, outbox: &Outbox, steps: &[Step], done: &mut Done) -> Result<()> {
    for step in steps {
        match step {
            Step::Sql(sql) => drop(sql_query(sql).execute(connection)?),
            Step::Enqueue(message) => done.enqueued.push(run(connection, outbox.enqueue(message.clone()))?),
            Step::Verify => run(connection, outbox.verify(done.enqueued.last().expect("a message")))?,
            Step::Ignoring(step) => drop(does(connection, outbox, std::slice::from_ref(step), done)),
            Step::Within(steps) => drop(connection.transaction(|inner| does(inner, outbox, steps, done))),
            Step::Meet(barrier) => drop(barrier.wait()),
            Step::Fail(why) => return Err(Failure::retry(*why)),
            Step::Reject(why) => return Err(Failure::reject(*why)),
        }
    }
    Ok(())
}

impl Driver for Diesel {
    const NAME: &'static str = "diesel";
    const HAS_SQLSTATES: bool = false;
    type Error = DriverError;

    fn connect_to(url: &str) -> Self {
        Self(PgConnection::establish(url).expect("a connection"))
    }

    fn transaction(&mut self, is_serializable: bool, outbox: &Outbox, steps: &[Step]) -> Result<Done> {
        let mut done = Done::default();
        if is_serializable {
            let mut transaction = self.0.build_transaction().serializable();
            transaction.run(|connection| does(connection, outbox, steps, &mut done))?;
        } else {
            self.0.transaction(|connection| does(connection, outbox, steps, &mut done))?;
        }
        Ok(done)
    }

    fn apply(
        &mut self,
        inbox: &Inbox,
        message: &Message,
        steps: &[Step],
    ) -> Result<Outcome, Error<DriverError>> {
        apply(&mut self.0, inbox, message, |connection| {
            does(connection, &Outbox::new(), steps, &mut Done::default())
        })
    }

    fn redrive(&mut self, inbox: &Inbox, steps: &[Step]) -> Result<bool, Error<DriverError>> {
        redrive(&mut self.0, inbox, |connection, _| {
            does(connection, &Outbox::new(), steps, &mut Done::default())
        })
    }

    fn maintain(&mut self, inbox: &Inbox) -> Result<Vec<String>, Error<DriverError>> {
        run_alone(&mut self.0, inbox.maintain())
    }

    fn enqueue_outside(&mut self, message: NewMessage) -> Option<Result<Enqueued, Error<DriverError>>> {
        Some(run(&mut self.0, Outbox::new().enqueue(message)))
    }

    fn is_passing(error: &Error<DriverError>) -> bool {
        is_passing(error)
    }
}
