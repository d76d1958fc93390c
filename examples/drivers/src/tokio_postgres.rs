//! tokio-postgres: the statements of the toolkit in a `Transaction`. A pool such as deadpool lends
//! the same types.

use statements::message::Message;
use statements::{
    Admission, Alone, Call, Error, Failure, Handled, Inbox, Operation, Outcome, RedriveRequest, Row,
    Statement, Value, passes,
};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error as DriverError, GenericClient, Transaction};

/// Runs an operation in a transaction.
///
/// # Errors
/// [`Error`]. Roll the transaction back.
pub async fn run<O: Operation>(
    transaction: &Transaction<'_>,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    send(transaction, operation).await
}

/// Runs an operation that needs no transaction.
///
/// # Errors
/// [`Error`].
pub async fn run_alone<O: Alone>(client: &Client, operation: O) -> Result<O::Output, Error<DriverError>> {
    send(client, operation).await
}

async fn send<O: Operation>(
    client: &impl GenericClient,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    let mut call = Call::new(operation);
    while let Some(statement) = call.statement() {
        call.answer(row(client, &statement).await);
    }
    call.end()
}

async fn row(client: &impl GenericClient, statement: &Statement) -> Result<Option<Row>, DriverError> {
    let bytes: Vec<&[u8]> = statement.values().iter().map(bytes).collect();
    let values = statement.values().iter().zip(&bytes).map(|(value, bytes)| match value {
        Value::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
        Value::Bytes(_) => (bytes as _, Type::BYTEA),
    });
    let values: Vec<_> = values.collect();
    let Some(row) = client.query_typed_opt(statement.text(), &values).await? else { return Ok(None) };
    Ok(Some(Row { answer: row.try_get("answer")?, payload: row.try_get("payload")? }))
}

fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::Text(_) => &[],
        Value::Bytes(bytes) => bytes,
    }
}

/// Handles a message in a transaction of its own: its effect happens once.
///
/// # Errors
/// An error that [passes](is_passing): nothing was done or counted, so try again. Or the failure
/// could not be recorded. A call that was dropped is rolled back, unless its commit was on its way.
pub async fn apply(
    client: &mut Client,
    inbox: &Inbox,
    message: &Message,
    handler: impl AsyncFnOnce(&Transaction<'_>) -> Result<(), Failure<DriverError>>,
) -> Result<Outcome, Error<DriverError>> {
    let transaction = client.transaction().await?;
    let handled = attempt(&transaction, inbox, message, handler).await;
    match end(transaction, handled).await {
        Ok(handled) => Ok(handled.after_commit()),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => Ok(run_alone(client, inbox.fail(message, &failure)).await?.after_commit()),
    }
}

async fn attempt(
    transaction: &Transaction<'_>,
    inbox: &Inbox,
    message: &Message,
    handler: impl AsyncFnOnce(&Transaction<'_>) -> Result<(), Failure<DriverError>>,
) -> Result<Handled, Failure<DriverError>> {
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
    transaction: Transaction<'_>,
    handled: Result<T, Failure<DriverError>>,
) -> Result<T, Failure<DriverError>> {
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
    client: &mut Client,
    inbox: &Inbox,
    handler: impl AsyncFnOnce(&Transaction<'_>, &Message) -> Result<(), Failure<DriverError>>,
) -> Result<bool, Error<DriverError>> {
    let Some(request) = run_alone(client, inbox.begin_redrive()).await? else { return Ok(false) };
    let transaction = client.transaction().await?;
    let handled = attempt_redrive(&transaction, inbox, request, handler).await;
    match end(transaction, handled).await {
        Ok(()) => Ok(true),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => run_alone(client, inbox.fail_redrive(request, &failure)).await,
    }
}

async fn attempt_redrive(
    transaction: &Transaction<'_>,
    inbox: &Inbox,
    request: RedriveRequest,
    handler: impl AsyncFnOnce(&Transaction<'_>, &Message) -> Result<(), Failure<DriverError>>,
) -> Result<(), Failure<DriverError>> {
    let Some(redrive) = run(transaction, inbox.take_redrive(request)).await? else { return Ok(()) };
    handler(transaction, redrive.message()?).await?;
    // A redrive has no delivery to settle.
    let _kept = run(transaction, redrive.finish()).await?;
    Ok(())
}

/// Whether an error passes by itself, because another transaction or an outage is its cause.
#[must_use]
pub fn is_passing(error: &Error<DriverError>) -> bool {
    let Error::Database(error) = error else { return false };
    error.is_closed() || error.code().is_some_and(|state| passes(state.code()))
}
