//! SeaORM: the statements of the toolkit in a `DatabaseTransaction`.

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, SqlxError,
    TransactionTrait,
};
use statements::message::Message;
use statements::{
    Admission, Alone, Call, Error, Failure, Handled, Inbox, Operation, Outcome, RedriveRequest, Row,
    Statement, Value, passes,
};

/// Runs an operation in a transaction.
///
/// # Errors
/// [`Error`]. Roll the transaction back.
pub async fn run<O: Operation>(
    transaction: &DatabaseTransaction,
    operation: O,
) -> Result<O::Output, Error<DbErr>> {
    send(transaction, operation).await
}

/// Runs an operation that needs no transaction.
///
/// # Errors
/// [`Error`].
pub async fn run_alone<O: Alone>(
    connection: &DatabaseConnection,
    operation: O,
) -> Result<O::Output, Error<DbErr>> {
    send(connection, operation).await
}

async fn send<O: Operation>(
    connection: &impl ConnectionTrait,
    operation: O,
) -> Result<O::Output, Error<DbErr>> {
    let mut call = Call::new(operation);
    while let Some(statement) = call.statement() {
        call.answer(row(connection, &statement).await);
    }
    call.end()
}

async fn row(connection: &impl ConnectionTrait, statement: &Statement) -> Result<Option<Row>, DbErr> {
    let values = statement.values().iter().map(|value| match value {
        Value::Text(text) => sea_orm::Value::from(text.clone()),
        Value::Bytes(bytes) => sea_orm::Value::from(bytes.to_vec()),
    });
    let query = sea_orm::Statement::from_sql_and_values(DbBackend::Postgres, statement.text(), values);
    let Some(row) = connection.query_one_raw(query).await? else { return Ok(None) };
    Ok(Some(Row { answer: row.try_get_by("answer")?, payload: row.try_get_by("payload")? }))
}

/// Handles a message in a transaction of its own: its effect happens once.
///
/// # Errors
/// An error that [passes](is_passing): nothing was done or counted, so try again. Or the failure
/// could not be recorded. A call that was dropped is rolled back, unless its commit was on its way.
pub async fn apply(
    connection: &DatabaseConnection,
    inbox: &Inbox,
    message: &Message,
    handler: impl AsyncFnOnce(&DatabaseTransaction) -> Result<(), Failure<DbErr>>,
) -> Result<Outcome, Error<DbErr>> {
    let transaction = connection.begin().await?;
    let handled = attempt(&transaction, inbox, message, handler).await;
    match end(transaction, handled).await {
        Ok(handled) => Ok(handled.after_commit()),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => Ok(run_alone(connection, inbox.fail(message, &failure)).await?.after_commit()),
    }
}

async fn attempt(
    transaction: &DatabaseTransaction,
    inbox: &Inbox,
    message: &Message,
    handler: impl AsyncFnOnce(&DatabaseTransaction) -> Result<(), Failure<DbErr>>,
) -> Result<Handled, Failure<DbErr>> {
    match run(transaction, inbox.admit(message)).await? {
        Admission::New(guard) => {
            handler(transaction).await?;
            Ok(Handled::Applied(run(transaction, guard.finish()).await?))
        }
        Admission::Known(known) => Ok(Handled::Known(known)),
        Admission::Refused(refusal) => Err(Failure::Refused(refusal)),
    }
}

/// Commits what was handled, or rolls back.
async fn end<T>(
    transaction: DatabaseTransaction,
    handled: Result<T, Failure<DbErr>>,
) -> Result<T, Failure<DbErr>> {
    match handled {
        Ok(handled) => {
            transaction.commit().await?;
            Ok(handled)
        }
        // The first error says more than an error of the rollback would.
        Err(failure) => {
            let _ = transaction.rollback().await;
            Err(failure)
        }
    }
}

/// Handles the next message that an operator asked to redrive. Returns whether there was one.
///
/// # Errors
/// As for [`apply`].
pub async fn redrive(
    connection: &DatabaseConnection,
    inbox: &Inbox,
    handler: impl AsyncFnOnce(&DatabaseTransaction, &Message) -> Result<(), Failure<DbErr>>,
) -> Result<bool, Error<DbErr>> {
    let Some(request) = run_alone(connection, inbox.begin_redrive()).await? else { return Ok(false) };
    let transaction = connection.begin().await?;
    let handled = attempt_redrive(&transaction, inbox, request, handler).await;
    match end(transaction, handled).await {
        Ok(()) => Ok(true),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => run_alone(connection, inbox.fail_redrive(request, &failure)).await,
    }
}

async fn attempt_redrive(
    transaction: &DatabaseTransaction,
    inbox: &Inbox,
    request: RedriveRequest,
    handler: impl AsyncFnOnce(&DatabaseTransaction, &Message) -> Result<(), Failure<DbErr>>,
) -> Result<(), Failure<DbErr>> {
    let Some(redrive) = run(transaction, inbox.take_redrive(request)).await? else { return Ok(()) };
    handler(transaction, redrive.message()?).await?;
    // A redrive has no delivery to settle.
    let _kept = run(transaction, redrive.finish()).await?;
    Ok(())
}

/// Whether an error passes by itself, because another transaction or an outage is its cause.
#[must_use]
pub fn is_passing(error: &Error<DbErr>) -> bool {
    match error {
        Error::Database(DbErr::Conn(_) | DbErr::ConnectionAcquire(_)) => true,
        Error::Database(
            DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error)),
        ) => match &**error {
            SqlxError::Database(answer) => answer.code().is_some_and(|code| passes(&code)),
            error => matches!(error, SqlxError::Io(_) | SqlxError::PoolTimedOut | SqlxError::PoolClosed),
        },
        _ => false,
    }
}
