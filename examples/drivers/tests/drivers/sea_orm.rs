//! SeaORM's answers.

use drivers::sea_orm::{apply, is_passing, redrive, run, run_alone};
use sea_orm::{
    ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction, DbErr, IsolationLevel,
    TransactionTrait,
};
use statements::message::Message;
use statements::{Enqueued, Error, Failure, Inbox, NewMessage, Outbox, Outcome};
use tokio::runtime::Runtime;

use crate::driver::{Done, Driver, Step};

pub(crate) struct SeaOrm {
    runtime: Runtime,
    connection: DatabaseConnection,
}

type Result<T, E = Failure<DbErr>> = std::result::Result<T, E>;

async fn does(
    transaction: &DatabaseTransaction,
    outbox: &Outbox,
    steps: &[Step],
    done: &mut Done,
) -> Result<()> {
    for step in steps {
        match step {
            Step::Sql(sql) => {
                transaction.execute_unprepared(sql).await?;
            }
            Step::Enqueue(message) => {
                done.enqueued.push(run(transaction, outbox.enqueue(message.clone())).await?);
            }
            Step::Verify => {
                run(transaction, outbox.verify(done.enqueued.last().expect("a message"))).await?;
            }
            Step::Ignoring(step) => {
                drop(Box::pin(does(transaction, outbox, std::slice::from_ref(step), done)).await);
            }
            Step::Within(steps) => {
                let inner = transaction.begin().await?;
                match Box::pin(does(&inner, outbox, steps, done)).await {
                    Ok(()) => inner.commit().await?,
                    Err(_) => inner.rollback().await?,
                }
            }
            Step::Meet(barrier) => drop(barrier.wait()),
            Step::Fail(why) => return Err(Failure::retry(*why)),
            Step::Reject(why) => return Err(Failure::reject(*why)),
        }
    }
    Ok(())
}

impl Driver for SeaOrm {
    const NAME: &'static str = "sea_orm";
    const HAS_SQLSTATES: bool = true;
    type Error = DbErr;

    fn connect_to(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let connection = runtime.block_on(Database::connect(url)).expect("a connection");
        Self { runtime, connection }
    }

    fn transaction(&mut self, is_serializable: bool, outbox: &Outbox, steps: &[Step]) -> Result<Done> {
        let isolation = is_serializable.then_some(IsolationLevel::Serializable);
        self.runtime.block_on(async {
            let mut done = Done::default();
            let transaction = self.connection.begin_with_config(isolation, None).await?;
            does(&transaction, outbox, steps, &mut done).await?;
            transaction.commit().await?;
            Ok(done)
        })
    }

    fn apply(&mut self, inbox: &Inbox, message: &Message, steps: &[Step]) -> Result<Outcome, Error<DbErr>> {
        let outbox = Outbox::new();
        self.runtime.block_on(apply(&self.connection, inbox, message, async |transaction| {
            does(transaction, &outbox, steps, &mut Done::default()).await
        }))
    }

    fn redrive(&mut self, inbox: &Inbox, steps: &[Step]) -> Result<bool, Error<DbErr>> {
        let outbox = Outbox::new();
        self.runtime.block_on(redrive(&self.connection, inbox, async |transaction, _| {
            does(transaction, &outbox, steps, &mut Done::default()).await
        }))
    }

    fn maintain(&mut self, inbox: &Inbox) -> Result<Vec<String>, Error<DbErr>> {
        self.runtime.block_on(run_alone(&self.connection, inbox.maintain()))
    }

    fn enqueue_outside(&mut self, _: NewMessage) -> Option<Result<Enqueued, Error<DbErr>>> {
        None
    }

    fn is_passing(error: &Error<DbErr>) -> bool {
        is_passing(error)
    }
}
