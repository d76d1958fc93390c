//! diesel-async: the statements of the toolkit in a transaction of an `AsyncPgConnection`.

use diesel::pg::Pg;
use diesel::result::{DatabaseErrorKind, Error as DriverError};
use diesel::sql_types::{Binary, Nullable, Text};
use diesel::{OptionalExtension, QueryableByName, sql_query};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, TransactionManager};
use statements::message::Message;
use statements::{
    Admission, Alone, Call, Error, Failure, Handled, Inbox, Operation, Outcome, RedriveRequest, Row,
    Statement, Value,
};

type Manager = <AsyncPgConnection as AsyncConnection>::TransactionManager;

/// Runs an operation in the transaction of the connection (`connection.transaction`).
///
/// # Errors
/// [`Error`]. Return it from the transaction, which is then rolled back.
pub async fn run<O: Operation>(
    connection: &mut AsyncPgConnection,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    if !is_in_transaction(connection)? {
        return Err(Error::NoTransaction);
    }
    send(connection, operation).await
}

fn is_in_transaction(connection: &mut AsyncPgConnection) -> Result<bool, DriverError> {
    let status = Manager::transaction_manager_status_mut(connection);
    Ok(status.transaction_depth()?.is_some())
}

/// Runs an operation that needs no transaction.
///
/// # Errors
/// [`Error`].
pub async fn run_alone<O: Alone>(
    connection: &mut AsyncPgConnection,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    send(connection, operation).await
}

async fn send<O: Operation>(
    connection: &mut AsyncPgConnection,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    let mut call = Call::new(operation);
    while let Some(statement) = call.statement() {
        call.answer(row(connection, &statement).await);
    }
    call.end()
}

#[derive(QueryableByName)]
struct Columns {
    #[diesel(sql_type = Nullable<Text>)]
    answer: Option<String>,
    #[diesel(sql_type = Nullable<Binary>)]
    payload: Option<Vec<u8>>,
}

async fn row(connection: &mut AsyncPgConnection, statement: &Statement) -> Result<Option<Row>, DriverError> {
    let mut query = sql_query(statement.text()).into_boxed::<Pg>();
    for value in statement.values() {
        query = match value {
            Value::Text(text) => query.bind::<Nullable<Text>, _>(text.as_deref()),
            Value::Bytes(bytes) => query.bind::<Binary, _>(&bytes[..]),
        };
    }
    let columns: Option<Columns> = query.get_result(connection).await.optional()?;
    Ok(columns.map(|Columns { answer, payload }| Row { answer, payload }))
}

/// Handles a message in a transaction of its own: its effect happens once.
///
/// # Errors
/// An error that [passes](is_passing): nothing was done or counted, so try again. Or the failure
/// could not be recorded. Not cancel-safe: a call that was dropped leaves its transaction open, so
/// drop the connection too.
pub async fn apply(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    message: &Message,
    handler: impl AsyncFnOnce(&mut AsyncPgConnection) -> Result<(), Failure<DriverError>>,
) -> Result<Outcome, Error<DriverError>> {
    if is_in_transaction(connection)? {
        return Err(Error::OpenTransaction);
    }
    Manager::begin_transaction(connection).await?;
    let handled = attempt(connection, inbox, message, handler).await;
    match end(connection, handled).await {
        Ok(handled) => Ok(handled.after_commit()),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => Ok(run_alone(connection, inbox.fail(message, &failure)).await?.after_commit()),
    }
}

async fn attempt(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    message: &Message,
    handler: impl AsyncFnOnce(&mut AsyncPgConnection) -> Result<(), Failure<DriverError>>,
) -> Result<Handled, Failure<DriverError>> {
    match run(connection, inbox.admit(message)).await? {
        Admission::New(guard) => {
            handler(connection).await?;
            Ok(Handled::Applied(run(connection, guard.finish()).await?))
        }
        Admission::Known(known) => Ok(Handled::Known(known)),
        Admission::Refused(refusal) => Err(Failure::Refused(refusal)),
    }
}

/// Commits what was handled, or rolls back.
async fn end<T>(
    connection: &mut AsyncPgConnection,
    handled: Result<T, Failure<DriverError>>,
) -> Result<T, Failure<DriverError>> {
    match handled {
        Ok(handled) => {
            Manager::commit_transaction(connection).await?;
            Ok(handled)
        }
        // The first error says more than an error of the rollback would.
        Err(failure) => {
            let _ = Manager::rollback_transaction(connection).await;
            Err(failure)
        }
    }
}

/// Handles the next message that an operator asked to redrive. Returns whether there was one.
///
/// # Errors
/// As for [`apply`].
pub async fn redrive(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    handler: impl AsyncFnOnce(&mut AsyncPgConnection, &Message) -> Result<(), Failure<DriverError>>,
) -> Result<bool, Error<DriverError>> {
    if is_in_transaction(connection)? {
        return Err(Error::OpenTransaction);
    }
    let Some(request) = run_alone(connection, inbox.begin_redrive()).await? else { return Ok(false) };
    Manager::begin_transaction(connection).await?;
    let handled = attempt_redrive(connection, inbox, request, handler).await;
    match end(connection, handled).await {
        Ok(()) => Ok(true),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => run_alone(connection, inbox.fail_redrive(request, &failure)).await,
    }
}

async fn attempt_redrive(
    connection: &mut AsyncPgConnection,
    inbox: &Inbox,
    request: RedriveRequest,
    handler: impl AsyncFnOnce(&mut AsyncPgConnection, &Message) -> Result<(), Failure<DriverError>>,
) -> Result<(), Failure<DriverError>> {
    let Some(redrive) = run(connection, inbox.take_redrive(request)).await? else { return Ok(()) };
    handler(connection, redrive.message()?).await?;
    // A redrive has no delivery to settle.
    let _kept = run(connection, redrive.finish()).await?;
    Ok(())
}

/// The server's texts, in English, of errors that pass and for which Diesel has no kind: a
/// deadlock, a limit of time (of a statement or a lock), memory, a full disk.
const PASSING: [&str; 4] =
    ["deadlock detected", "canceling statement due to ", "out of memory", "could not extend file "];

/// Whether an error passes by itself, because another transaction or an outage is its cause.
#[must_use]
pub fn is_passing(error: &Error<DriverError>) -> bool {
    use DatabaseErrorKind::{
        ClosedConnection, ReadOnlyTransaction, SerializationFailure, UnableToSendCommand,
    };
    match error {
        Error::Database(DriverError::DatabaseError(kind, information)) => {
            matches!(
                kind,
                ClosedConnection | ReadOnlyTransaction | SerializationFailure | UnableToSendCommand
            ) || PASSING.iter().any(|text| information.message().starts_with(text))
        }
        Error::Database(DriverError::BrokenTransactionManager) => true,
        _ => false,
    }
}
