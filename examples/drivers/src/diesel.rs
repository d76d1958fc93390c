//! Diesel: the statements of the toolkit in a transaction of a `PgConnection`.

use diesel::connection::{Connection, TransactionManager};
use diesel::pg::{Pg, PgConnection};
use diesel::result::{DatabaseErrorKind, Error as DriverError};
use diesel::sql_types::{Binary, Nullable, Text};
use diesel::{OptionalExtension, QueryableByName, RunQueryDsl, sql_query};
use statements::message::Message;
use statements::{
    Admission, Alone, Call, Error, Failure, Handled, Inbox, Operation, Outcome, Row, Statement, Value,
};

/// Runs an operation in the transaction of the connection (`connection.transaction`).
///
/// # Errors
/// [`Error`]. Return it from the transaction, which is then rolled back.
pub fn run<O: Operation>(
    connection: &mut PgConnection,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    if !is_in_transaction(connection)? {
        return Err(Error::NoTransaction);
    }
    send(connection, operation)
}

fn is_in_transaction(connection: &mut PgConnection) -> Result<bool, DriverError> {
    type Manager = <PgConnection as Connection>::TransactionManager;
    let status = Manager::transaction_manager_status_mut(connection);
    Ok(status.transaction_depth()?.is_some())
}

/// Runs an operation that needs no transaction.
///
/// # Errors
/// [`Error`].
pub fn run_alone<O: Alone>(
    connection: &mut PgConnection,
    operation: O,
) -> Result<O::Output, Error<DriverError>> {
    send(connection, operation)
}

fn send<O: Operation>(connection: &mut PgConnection, operation: O) -> Result<O::Output, Error<DriverError>> {
    let mut call = Call::new(operation);
    while let Some(statement) = call.statement() {
        call.answer(row(connection, &statement));
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

fn row(connection: &mut PgConnection, statement: &Statement) -> Result<Option<Row>, DriverError> {
    let mut query = sql_query(statement.text()).into_boxed::<Pg>();
    for value in statement.values() {
        query = match value {
            Value::Text(text) => query.bind::<Nullable<Text>, _>(text.as_deref()),
            Value::Bytes(bytes) => query.bind::<Binary, _>(&bytes[..]),
        };
    }
    let columns: Option<Columns> = query.get_result(connection).optional()?;
    Ok(columns.map(|Columns { answer, payload }| Row { answer, payload }))
}

/// Handles a message in a transaction of its own: its effect happens once.
///
/// # Errors
/// An error that [passes](is_passing): nothing was done or counted, so try again. Or the failure
/// could not be recorded.
pub fn apply(
    connection: &mut PgConnection,
    inbox: &Inbox,
    message: &Message,
    handler: impl FnOnce(&mut PgConnection) -> Result<(), Failure<DriverError>>,
) -> Result<Outcome, Error<DriverError>> {
    if is_in_transaction(connection)? {
        return Err(Error::OpenTransaction);
    }
    let handled: Result<_, Failure<DriverError>> =
        connection.transaction(|connection| match run(connection, inbox.admit(message))? {
            Admission::New(guard) => {
                handler(connection)?;
                Ok(Handled::Applied(run(connection, guard.finish())?))
            }
            Admission::Known(known) => Ok(Handled::Known(known)),
            Admission::Refused(refusal) => Err(Failure::Refused(refusal)),
        });
    match handled {
        Ok(handled) => Ok(handled.after_commit()),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => Ok(run_alone(connection, inbox.fail(message, &failure))?.after_commit()),
    }
}

/// Handles the next message that an operator asked to redrive. Returns whether there was one.
///
/// # Errors
/// As for [`apply`].
pub fn redrive(
    connection: &mut PgConnection,
    inbox: &Inbox,
    handler: impl FnOnce(&mut PgConnection, &Message) -> Result<(), Failure<DriverError>>,
) -> Result<bool, Error<DriverError>> {
    if is_in_transaction(connection)? {
        return Err(Error::OpenTransaction);
    }
    let Some(request) = run_alone(connection, inbox.begin_redrive())? else { return Ok(false) };
    let handled: Result<_, Failure<DriverError>> = connection.transaction(|connection| {
        let Some(redrive) = run(connection, inbox.take_redrive(request))? else { return Ok(()) };
        handler(connection, redrive.message()?)?;
        // A redrive has no delivery to settle.
        let _kept = run(connection, redrive.finish())?;
        Ok(())
    });
    match handled {
        Ok(()) => Ok(true),
        Err(Failure::Error(error)) if is_passing(&error) => Err(error),
        Err(failure) => run_alone(connection, inbox.fail_redrive(request, &failure)),
    }
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
