//! tokio-postgres' answers.

use drivers::tokio_postgres::{apply, is_passing, redrive, run, run_alone};
use statements::message::Message;
use statements::{Enqueued, Error, Failure, Inbox, NewMessage, Outbox, Outcome};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Error as DriverError, IsolationLevel, NoTls, Transaction};

use crate::driver::{Done, Driver, Step};

pub(crate) struct TokioPostgres {
    runtime: Runtime,
    client: Client,
}

type Result<T, E = Failure<DriverError>> = std::result::Result<T, E>;

async fn does(
    transaction: &mut Transaction<'_>,
    outbox: &Outbox,
    steps: &[Step],
    done: &mut Done,
) -> Result<()> {
    for step in steps {
        if let Step::Within(steps) = step {
            let mut inner = transaction.transaction().await?;
            match Box::pin(does(&mut inner, outbox, steps, done)).await {
                Ok(()) => inner.commit().await?,
                Err(_) => inner.rollback().await?,
            }
        } else {
            does_one(transaction, outbox, step, done).await?;
        }
    }
    Ok(())
}

async fn does_one(
    transaction: &Transaction<'_>,
    outbox: &Outbox,
    step: &Step,
    done: &mut Done,
) -> Result<()> {
    match step {
        Step::Sql(sql) => transaction.batch_execute(sql).await?,
        Step::Enqueue(message) => {
            done.enqueued.push(run(transaction, outbox.enqueue(message.clone())).await?);
        }
        Step::Verify => run(transaction, outbox.verify(done.enqueued.last().expect("a message"))).await?,
        Step::Ignoring(step) => drop(Box::pin(does_one(transaction, outbox, step, done)).await),
        Step::Within(_) => unreachable!("a handler of this driver has no savepoint"),
        Step::Meet(barrier) => drop(barrier.wait()),
        Step::Fail(why) => return Err(Failure::retry(*why)),
        Step::Reject(why) => return Err(Failure::reject(*why)),
    }
    Ok(())
}

async fn handle(transaction: &Transaction<'_>, steps: &[Step]) -> Result<()> {
    let outbox = Outbox::new();
    let mut done = Done::default();
    for step in steps {
        does_one(transaction, &outbox, step, &mut done).await?;
    }
    Ok(())
}

impl Driver for TokioPostgres {
    const NAME: &'static str = "tokio_postgres";
    const HAS_SQLSTATES: bool = true;
    type Error = DriverError;

    fn connect_to(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let connected = runtime.block_on(tokio_postgres::connect(url, NoTls));
        let (client, connection) = connected.expect("a connection");
        runtime.spawn(connection);
        Self { runtime, client }
    }

    fn transaction(&mut self, is_serializable: bool, outbox: &Outbox, steps: &[Step]) -> Result<Done> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let mut done = Done::default();
            let mut begin = client.build_transaction();
            if is_serializable {
                begin = begin.isolation_level(IsolationLevel::Serializable);
            }
            let mut transaction = begin.start().await?;
            does(&mut transaction, outbox, steps, &mut done).await?;
            transaction.commit().await?;
            Ok(done)
        })
    }

    fn apply(
        &mut self,
        inbox: &Inbox,
        message: &Message,
        steps: &[Step],
    ) -> Result<Outcome, Error<DriverError>> {
        let handler = async |transaction: &Transaction<'_>| handle(transaction, steps).await;
        self.runtime.block_on(apply(&mut self.client, inbox, message, handler))
    }

    fn redrive(&mut self, inbox: &Inbox, steps: &[Step]) -> Result<bool, Error<DriverError>> {
        let handler = async |transaction: &Transaction<'_>, _: &Message| handle(transaction, steps).await;
        self.runtime.block_on(redrive(&mut self.client, inbox, handler))
    }

    fn maintain(&mut self, inbox: &Inbox) -> Result<Vec<String>, Error<DriverError>> {
        self.runtime.block_on(run_alone(&self.client, inbox.maintain()))
    }

    fn enqueue_outside(&mut self, _: NewMessage) -> Option<Result<Enqueued, Error<DriverError>>> {
        None
    }

    fn is_passing(error: &Error<DriverError>) -> bool {
        is_passing(error)
    }
}
