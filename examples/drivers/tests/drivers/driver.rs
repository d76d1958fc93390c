//! The operations that the cases need from a driver.

use std::fmt::Debug;
use std::sync::{Arc, Barrier};

use statements::message::Message;
use statements::{Enqueued, Error, Failure, Inbox, NewMessage, Outbox, Outcome};

use crate::database;

/// A step in a transaction of a driver.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a case has a few steps")]
pub(crate) enum Step {
    Sql(String),
    Enqueue(NewMessage),
    /// Checks that the transaction still holds the message that was enqueued last.
    Verify,
    /// Does a step and goes on after its error.
    Ignoring(Box<Step>),
    /// Does steps in a savepoint, which is rolled back if one fails. The error is ignored.
    Within(Vec<Step>),
    /// Waits for another transaction to get here.
    Meet(Arc<Barrier>),
    Fail(&'static str),
    Reject(&'static str),
}

impl Step {
    pub(crate) fn sql(text: impl Into<String>) -> Self {
        Self::Sql(text.into())
    }

    pub(crate) fn ignoring(step: Self) -> Self {
        Self::Ignoring(Box::new(step))
    }
}

/// The messages that the steps of a transaction have enqueued.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) enqueued: Vec<Enqueued>,
}

/// A driver, with a connection of its own.
pub(crate) trait Driver: Sized + Send + 'static {
    const NAME: &'static str;
    /// Whether its errors have a SQLSTATE. Those of Diesel have a kind, and the server's text.
    const HAS_SQLSTATES: bool;
    type Error: std::error::Error + Debug + 'static;

    /// Connects to a URL.
    fn connect_to(url: &str) -> Self;

    /// Connects to the database of the run.
    fn connect() -> Self {
        Self::connect_to(database::url())
    }

    /// Does steps in one transaction, and commits it unless one of them fails.
    fn transaction(
        &mut self,
        is_serializable: bool,
        outbox: &Outbox,
        steps: &[Step],
    ) -> Result<Done, Failure<Self::Error>>;

    /// Handles a message by the driver's `apply`. The steps are the handler.
    fn apply(
        &mut self,
        inbox: &Inbox,
        message: &Message,
        steps: &[Step],
    ) -> Result<Outcome, Error<Self::Error>>;

    /// Carries out a redrive. The steps are the handler.
    fn redrive(&mut self, inbox: &Inbox, steps: &[Step]) -> Result<bool, Error<Self::Error>>;

    /// Maintains an inbox. Returns what failed.
    fn maintain(&mut self, inbox: &Inbox) -> Result<Vec<String>, Error<Self::Error>>;

    /// Enqueues a message on a connection that is in no transaction. `None`: the driver's types do
    /// not permit it.
    fn enqueue_outside(&mut self, message: NewMessage) -> Option<Result<Enqueued, Error<Self::Error>>>;

    fn is_passing(error: &Error<Self::Error>) -> bool;
}
