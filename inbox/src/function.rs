//! Plain `async fn`s as handlers.
//!
//! The arguments of a function determine which handler it is. The marker types at the end of the
//! traits let the compiler distinguish the forms. Users neither implement nor name these traits.

use std::future::Future;
use std::marker::PhantomData;

use async_trait::async_trait;
use message::{Event, Message};
use serde::de::DeserializeOwned;
use sqlx::Transaction;

use crate::dialect::Dialect;
use crate::handler::{HandlerError, json_problem};
use crate::received::Received;

/// The transaction of a handler; it also holds the message's inbox row. Run statements on `&mut
/// **tx`. `Tx` is PostgreSQL's, `Tx<Sqlite>` is SQLite's.
#[cfg(feature = "postgres")]
pub type Tx<DB = sqlx::Postgres> = Transaction<'static, DB>;

/// The transaction of a handler; it also holds the message's inbox row. Run statements on `&mut
/// **tx`. `Tx<Sqlite>` is SQLite's.
#[cfg(not(feature = "postgres"))]
pub type Tx<DB> = Transaction<'static, DB>;

/// The outcome of a handler: its result to store, if any.
pub(crate) type Handled = Result<Option<Vec<u8>>, HandlerError>;

/// A value that a handler returns: `()` for no result, or bytes that are stored as the message's
/// result and returned with every duplicate ([`Duplicate`](crate::Duplicate)).
pub trait IntoResult {
    /// Returns the bytes to store; `None` for no result.
    fn into_result(self) -> Option<Vec<u8>>;
}

impl IntoResult for () {
    fn into_result(self) -> Option<Vec<u8>> {
        None
    }
}

impl IntoResult for Vec<u8> {
    fn into_result(self) -> Option<Vec<u8>> {
        Some(self)
    }
}

impl IntoResult for Option<Vec<u8>> {
    fn into_result(self) -> Option<Vec<u8>> {
        self
    }
}

/// A call with two arguments whose future may borrow the transaction for `'t`.
#[doc(hidden)]
pub trait Call2<'t, DB: Dialect, T>: Send + Sync {
    /// The future of the call.
    type Calling: Future<Output = Result<Self::Done, HandlerError>> + Send + 't;
    /// The value that the function returns.
    type Done: IntoResult;
    /// Calls the function.
    fn call(&self, tx: &'t mut Tx<DB>, input: T) -> Self::Calling;
}

impl<'t, DB, T, F, Fut, R> Call2<'t, DB, T> for F
where
    DB: Dialect,
    F: Fn(&'t mut Tx<DB>, T) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 't,
    R: IntoResult,
{
    type Calling = Fut;
    type Done = R;

    fn call(&self, tx: &'t mut Tx<DB>, input: T) -> Fut {
        self(tx, input)
    }
}

/// A [`Call2`] with a third argument: the facts of the delivery, or of each delivery of a batch.
#[doc(hidden)]
pub trait Call3<'t, DB: Dialect, T, R: ?Sized>: Send + Sync {
    /// The future of the call.
    type Calling: Future<Output = Result<Self::Done, HandlerError>> + Send + 't;
    /// The value that the function returns.
    type Done: IntoResult;
    /// Calls the function.
    fn call(&self, tx: &'t mut Tx<DB>, input: T, received: &'t R) -> Self::Calling;
}

impl<'t, DB, T, R, F, Fut, D> Call3<'t, DB, T, R> for F
where
    DB: Dialect,
    R: ?Sized + 't,
    F: Fn(&'t mut Tx<DB>, T, &'t R) -> Fut + Send + Sync,
    Fut: Future<Output = Result<D, HandlerError>> + Send + 't,
    D: IntoResult,
{
    type Calling = Fut;
    type Done = D;

    fn call(&self, tx: &'t mut Tx<DB>, input: T, received: &'t R) -> Fut {
        self(tx, input, received)
    }
}

/// Marks a function without the facts of the delivery.
#[doc(hidden)]
#[derive(Debug)]
pub struct Plain;

/// Marks a function with the facts of the delivery.
#[doc(hidden)]
#[derive(Debug)]
pub struct WithFacts;

/// An `async fn(&mut Tx, E)` or `async fn(&mut Tx, E, &Received)`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for an event",
    note = "write `async fn(&mut Tx<DB>, E) -> Result<(), HandlerError>`, optionally with a third argument \
            `&Received`; `E` implements `Event` and `DeserializeOwned`, and the future is `Send`"
)]
#[async_trait]
pub trait EventFunction<DB: Dialect, E, Form>: Send + Sync + 'static {
    /// Calls the function.
    async fn run(&self, tx: &mut Tx<DB>, event: E, received: &Received) -> Handled;
}

#[async_trait]
impl<DB, E, F> EventFunction<DB, E, Plain> for F
where
    DB: Dialect,
    E: Send + 'static,
    F: for<'t> Call2<'t, DB, E> + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, event: E, _received: &Received) -> Handled {
        // The returned value need not be `Send`: it becomes bytes before the next await.
        Ok(self.call(tx, event).await?.into_result())
    }
}

#[async_trait]
impl<DB, E, F> EventFunction<DB, E, WithFacts> for F
where
    DB: Dialect,
    E: Send + 'static,
    F: for<'t> Call3<'t, DB, E, Received> + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, event: E, received: &Received) -> Handled {
        Ok(self.call(tx, event, received).await?.into_result())
    }
}

/// An `async fn(&mut Tx, &Message)` or `async fn(&mut Tx, &Message, &Received)`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a message",
    note = "write `async fn(&mut Tx<DB>, &Message) -> Result<(), HandlerError>`, optionally with a third \
            argument `&Received`; its future is `Send`"
)]
#[async_trait]
pub trait MessageFunction<DB: Dialect, Form>: Send + Sync + 'static {
    /// Calls the function.
    async fn run(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled;
}

#[async_trait]
impl<DB, F> MessageFunction<DB, Plain> for F
where
    DB: Dialect,
    F: for<'t> Call2<'t, DB, &'t Message> + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, message: &Message, _received: &Received) -> Handled {
        Ok(self.call(tx, message).await?.into_result())
    }
}

#[async_trait]
impl<DB, F> MessageFunction<DB, WithFacts> for F
where
    DB: Dialect,
    F: for<'t> Call3<'t, DB, &'t Message, Received> + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        Ok(self.call(tx, message, received).await?.into_result())
    }
}

/// An `async fn(&mut Tx, Vec<E>)` or `async fn(&mut Tx, Vec<E>, &[Received])`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a batch of events",
    note = "write `async fn(&mut Tx<DB>, Vec<E>) -> Result<(), HandlerError>`, optionally with a third argument \
            `&[Received]`; `E` implements `Event` and `DeserializeOwned`, and the future is `Send`"
)]
#[async_trait]
pub trait BatchFunction<DB: Dialect, E, Form>: Send + Sync + 'static {
    /// Calls the function.
    async fn run(&self, tx: &mut Tx<DB>, events: Vec<E>, received: &[Received]) -> Result<(), HandlerError>;
}

#[async_trait]
impl<DB, E, F> BatchFunction<DB, E, Plain> for F
where
    DB: Dialect,
    E: Send + 'static,
    F: for<'t> Call2<'t, DB, Vec<E>, Done = ()> + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, events: Vec<E>, _received: &[Received]) -> Result<(), HandlerError> {
        self.call(tx, events).await
    }
}

#[async_trait]
impl<DB, E, F> BatchFunction<DB, E, WithFacts> for F
where
    DB: Dialect,
    E: Send + 'static,
    F: for<'t> Call3<'t, DB, Vec<E>, [Received], Done = ()> + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, events: Vec<E>, received: &[Received]) -> Result<(), HandlerError> {
        self.call(tx, events, received).await
    }
}

/// The handler of one kind of message.
#[async_trait]
pub(crate) trait Route<DB: Dialect>: Send + Sync {
    /// Applies the effect.
    async fn apply(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled;

    /// Returns whether [`apply_many`](Self::apply_many) calls the function once for all messages.
    fn takes_many(&self) -> bool {
        false
    }

    /// Applies the effects of many messages in their order. Stores no results.
    async fn apply_many(
        &self,
        tx: &mut Tx<DB>,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        for (message, received) in messages.iter().zip(received) {
            self.apply(tx, message, received).await?;
        }
        Ok(())
    }
}

fn event_of<E: Event + DeserializeOwned>(message: &Message) -> Result<E, HandlerError> {
    serde_json::from_slice(&message.payload).map_err(|error| {
        let (kind, event) = (&message.kind, std::any::type_name::<E>());
        let problem = json_problem(&error);
        HandlerError::reject(format!(
            "the payload of kind {kind} is not valid JSON for {event}: {problem}; correct the producer or \
             the type"
        ))
    })
}

/// A route to a function that takes many events at once.
pub(crate) struct BatchRoute<F, E, Form>(F, PhantomData<fn() -> (E, Form)>);

impl<F, E, Form> BatchRoute<F, E, Form> {
    pub(crate) fn new(function: F) -> Self {
        Self(function, PhantomData)
    }
}

#[async_trait]
impl<DB, F, E, Form> Route<DB> for BatchRoute<F, E, Form>
where
    DB: Dialect,
    F: BatchFunction<DB, E, Form>,
    E: Event + DeserializeOwned + Send + 'static,
    Form: 'static,
{
    async fn apply(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        self.0.run(tx, vec![event_of(message)?], std::slice::from_ref(received)).await?;
        Ok(None)
    }

    fn takes_many(&self) -> bool {
        true
    }

    async fn apply_many(
        &self,
        tx: &mut Tx<DB>,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        let events = messages.iter().map(|message| event_of(message)).collect::<Result<Vec<E>, _>>()?;
        self.0.run(tx, events, received).await
    }
}

/// A route to a function that takes the event.
pub(crate) struct EventRoute<F, E, Form>(F, PhantomData<fn() -> (E, Form)>);

impl<F, E, Form> EventRoute<F, E, Form> {
    pub(crate) fn new(function: F) -> Self {
        Self(function, PhantomData)
    }
}

#[async_trait]
impl<DB, F, E, Form> Route<DB> for EventRoute<F, E, Form>
where
    DB: Dialect,
    F: EventFunction<DB, E, Form>,
    E: Event + DeserializeOwned + Send + 'static,
    Form: 'static,
{
    async fn apply(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        self.0.run(tx, event_of(message)?, received).await
    }
}

/// A route to a function that takes the message as it is.
pub(crate) struct MessageRoute<F, Form>(F, PhantomData<fn() -> Form>);

impl<F, Form> MessageRoute<F, Form> {
    pub(crate) fn new(function: F) -> Self {
        Self(function, PhantomData)
    }
}

#[async_trait]
impl<DB, F, Form> Route<DB> for MessageRoute<F, Form>
where
    DB: Dialect,
    F: MessageFunction<DB, Form>,
    Form: 'static,
{
    async fn apply(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        self.0.run(tx, message, received).await
    }
}
