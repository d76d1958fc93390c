//! Runs an operation: which statement comes next, and what its answer means.

use std::error::Error as StdError;

use crate::error::{Error, Refused};
use crate::statement::{Row, Statement, Value};

/// The next step of an operation.
#[derive(Debug)]
pub enum Next<T> {
    /// Send this statement.
    Send(Statement),
    /// It is complete.
    Done(Result<T, Refused>),
}

/// Something that the outbox or the inbox does by one statement or two. Nothing happens until a
/// driver [runs](Call) it. Its methods are for [`Call`] alone.
pub trait Operation {
    /// The result.
    type Output;

    /// Returns the first step.
    #[doc(hidden)]
    fn begin(&mut self) -> Next<Self::Output>;

    /// Returns the next step after an answer. `None`: the statement returned no row.
    #[doc(hidden)]
    fn read(&mut self, row: Option<Row>) -> Next<Self::Output>;
}

/// An operation that is complete in itself: it may run outside a transaction. All others belong in
/// the transaction of an effect.
pub trait Alone: Operation {}

/// A statement that always fails, which makes PostgreSQL refuse the commit of its transaction. It
/// has no text of the message, because the server logs it.
const POISON: &str = "SELECT ('a message of this transaction was refused: roll it back'
    || pg_backend_pid()::text)::integer::text AS answer, NULL::bytea AS payload";

/// The course of one operation. A driver sends each [`statement`](Self::statement) in the caller's
/// transaction and passes on its answer:
///
/// ```
/// use statements::{Call, Error, Operation, Row, Statement};
///
/// fn run<O: Operation, D: std::error::Error>(
///     operation: O,
///     mut row: impl FnMut(&Statement) -> Result<Option<Row>, D>,
/// ) -> Result<O::Output, Error<D>> {
///     let mut call = Call::new(operation);
///     while let Some(statement) = call.statement() {
///         call.answer(row(&statement));
///     }
///     call.end()
/// }
/// ```
///
/// If the operation is refused, the last statement is one that fails. PostgreSQL then refuses the
/// commit of the transaction, or of its innermost savepoint. So a caller that ignores the error
/// cannot commit its business rows without their message.
#[derive(Debug)]
#[must_use = "an operation does nothing until its statements are sent"]
pub struct Call<O: Operation, D> {
    operation: O,
    state: State<O::Output, D>,
}

#[derive(Debug)]
enum State<T, D> {
    Send(Statement),
    Sent,
    /// The operation is refused; the transaction does not know it yet.
    Refused(Refused),
    Done(Result<T, Error<D>>),
}

impl<T, D> From<Next<T>> for State<T, D> {
    fn from(next: Next<T>) -> Self {
        match next {
            Next::Send(statement) => Self::Send(statement),
            Next::Done(Ok(output)) => Self::Done(Ok(output)),
            Next::Done(Err(refused)) => Self::Refused(refused),
        }
    }
}

impl<O: Operation, D> Call<O, D> {
    /// Begins an operation. Sends nothing.
    pub fn new(mut operation: O) -> Self {
        let state = operation.begin().into();
        Self { operation, state }
    }

    /// Returns the next statement to send, or `None` if the operation has ended.
    pub fn statement(&mut self) -> Option<Statement> {
        match std::mem::replace(&mut self.state, State::Sent) {
            State::Send(statement) => Some(statement),
            State::Refused(refused) => {
                self.state = State::Done(Err(Error::Refused(Box::new(refused))));
                Some(Statement::new(POISON, []))
            }
            state => {
                self.state = state;
                None
            }
        }
    }

    /// Passes on what the database answered to the last statement: its row, if there was one.
    pub fn answer(&mut self, answer: Result<Option<Row>, D>) {
        // After a refusal an answer changes nothing: the statement was meant to fail.
        if !matches!(self.state, State::Sent) {
            return;
        }
        self.state = match answer {
            Ok(row) => self.operation.read(row).into(),
            Err(error) => State::Done(Err(Error::Database(error))),
        };
    }

    /// Returns the result.
    ///
    /// # Errors
    /// [`Error`]. Roll the transaction back.
    pub fn end(self) -> Result<O::Output, Error<D>> {
        match self.state {
            State::Done(done) => done,
            State::Refused(refused) => Err(Error::Refused(Box::new(refused))),
            State::Send(_) | State::Sent => Err(Error::Unfinished),
        }
    }
}

impl<D: StdError> Error<D> {
    /// Returns the refusal, if the operation was refused and the database did not fail.
    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            _ => None,
        }
    }
}

/// Reads an answer and continues with it.
pub(crate) fn then<A, T>(answer: Result<A, Refused>, next: impl FnOnce(A) -> Next<T>) -> Next<T> {
    answer.map_or_else(|refused| Next::Done(Err(refused)), next)
}

/// Returns the values of a statement, in the order of its parameters.
pub(crate) fn values<const N: usize>(values: [Value; N]) -> Vec<Value> {
    values.into()
}
