//! diesel-async's answers.

use std::pin::Pin;

use diesel::result::Error as DriverError;
use diesel::sql_query;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use drivers::diesel_async::{apply, is_passing, redrive, run, run_alone};
use statements::message::Message;
use statements::{Enqueued, Error, Failure, Inbox, NewMessage, Outbox, Outcome};
use tokio::runtime::Runtime;

use crate::driver::{Done, Driver, Step};

pub(crate) struct DieselAsync {
    runtime: Runtime,
    connection: AsyncPgConnection,
}

type Result<T, E = Failure<DriverError>> = std::result::Result<T, E>;

/// Returns a boxed future: a transaction demands one that is `Send`, which the compiler does not
/// see through a function that calls itself.
fn does<'a>(
    connection: &'a mut AsyncPgConnection,
    outbox: &'a Outbox,
    steps: &'a [Step],
    done: &'a mut Done,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(async move { does_all(connection, outbox, steps, done).await })
}

async fn does_all(
    connection: &mut AsyncPgConnection,
    outbox: &Outbox,
    steps: &[Step],
    done: &mut Done,
) -> Result<()> {
    for step in steps {
        match step {
            Step::Sql(sql) => drop(sql_query(sql).execute(connection).await?),
            Step::Enqueue(message) => {
                done.enqueued.push(run(connection, outbox.enqueue(message.clone())).await?);
            }
            Step::Verify => {
                run(connection, outbox.verify(done.enqueued.last().expect("a message"))).await?;
            }
            Step::Ignoring(step) => {
                drop(does(connection, outbox, std::slice::from_ref(step), done).await);
            }
            Step::Within(steps) => {
                let inner = connection.transaction(async |inner: &mut AsyncPgConnection| {
                    does(inner, outbox, steps, done).await
                });
                drop(inner.await);
            }
            Step::Meet(barrier) => drop(barrier.wait()),
            Step::Fail(why) => return Err(Failure::retry(*why)),
            Step::Reject(why) => return Err(Failure::reject(*why)),
        }
    }
    Ok(())
}

impl Driver for DieselAsync {
    const NAME: &'static str = "diesel_async";
    const HAS_SQLSTATES: bool = false;
    type Error = DriverError;

    fn connect_to(url: &str) -> Self {
        // The connection's own task needs a thread besides the one that waits.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let connection = runtime.block_on(AsyncPgConnection::establish(url));
        Self { runtime, connection: connection.expect("a connection") }
    }

    fn transaction(&mut self, is_serializable: bool, outbox: &Outbox, steps: &[Step]) -> Result<Done> {
        let connection = &mut self.connection;
        self.runtime.block_on(async {
            let mut done = Done::default();
            if is_serializable {
                let mut transaction = connection.build_transaction().serializable();
                let work = async |inner: &mut AsyncPgConnection| does(inner, outbox, steps, &mut done).await;
                transaction.run(work).await?;
            } else {
                let work = async |inner: &mut AsyncPgConnection| does(inner, outbox, steps, &mut done).await;
                connection.transaction(work).await?;
            }
            Ok(done)
        })
    }

    fn apply(
        &mut self,
        inbox: &Inbox,
        message: &Message,
        steps: &[Step],
    ) -> Result<Outcome, Error<DriverError>> {
        let outbox = Outbox::new();
        self.runtime.block_on(apply(&mut self.connection, inbox, message, async |connection| {
            does(connection, &outbox, steps, &mut Done::default()).await
        }))
    }

    fn redrive(&mut self, inbox: &Inbox, steps: &[Step]) -> Result<bool, Error<DriverError>> {
        let outbox = Outbox::new();
        self.runtime.block_on(redrive(&mut self.connection, inbox, async |connection, _| {
            does(connection, &outbox, steps, &mut Done::default()).await
        }))
    }

    fn maintain(&mut self, inbox: &Inbox) -> Result<Vec<String>, Error<DriverError>> {
        self.runtime.block_on(run_alone(&mut self.connection, inbox.maintain()))
    }

    fn enqueue_outside(&mut self, message: NewMessage) -> Option<Result<Enqueued, Error<DriverError>>> {
        Some(self.runtime.block_on(run(&mut self.connection, Outbox::new().enqueue(message))))
    }

    fn is_passing(error: &Error<DriverError>) -> bool {
        is_passing(error)
    }
}
