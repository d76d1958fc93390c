//! Functions and closures as handlers.
//!
//! The arguments of a function determine which handler it is. The marker types at the end of the
//! traits let the compiler distinguish the forms. Users neither implement nor name these traits.
//!
//! Each call consumes a clone, as in `outbox.transaction(..)` and in sagas: an async closure that
//! captures something is not an `Fn`, because its future would borrow from the closure.

use std::future::Future;
use std::marker::PhantomData;

use async_trait::async_trait;
use message::{Event, Message};
use outbox::OutboxTransaction;
use serde::de::DeserializeOwned;

use super::error::{HandlerError, json_problem};
use super::received::Received;
use crate::dialect::Dialect;

/// The transaction of a handler; it also holds the message's inbox row. Run statements on `&mut
/// **tx`, and enqueue with [`tx.enqueue(..)`](OutboxTransaction::enqueue). `Tx` is PostgreSQL's,
/// `Tx<Sqlite>` is SQLite's.
#[cfg(feature = "postgres")]
pub type Tx<DB = sqlx::Postgres> = OutboxTransaction<DB>;

/// The transaction of a handler; it also holds the message's inbox row. Run statements on `&mut
/// **tx`, and enqueue with [`tx.enqueue(..)`](OutboxTransaction::enqueue). `Tx<Sqlite>` is SQLite's.
#[cfg(not(feature = "postgres"))]
pub type Tx<DB> = OutboxTransaction<DB>;

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

/// A call with two arguments, whose future may borrow the transaction for `'t`.
#[doc(hidden)]
pub trait Call2<'t, DB: Dialect, T> {
    /// The future of the call.
    type Calling: Future<Output = Result<Self::Done, HandlerError>> + Send + 't;
    /// The value that the function returns.
    type Done: IntoResult;
    /// Calls the function.
    fn call(self, tx: &'t mut Tx<DB>, input: T) -> Self::Calling;
}

impl<'t, DB, T, F, Fut, R> Call2<'t, DB, T> for F
where
    DB: Dialect,
    F: FnOnce(&'t mut Tx<DB>, T) -> Fut,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 't,
    R: IntoResult,
{
    type Calling = Fut;
    type Done = R;

    fn call(self, tx: &'t mut Tx<DB>, input: T) -> Fut {
        self(tx, input)
    }
}

/// A [`Call2`] with a third argument: the facts of the delivery, or of each delivery of a batch.
#[doc(hidden)]
pub trait Call3<'t, DB: Dialect, T, R: ?Sized> {
    /// The future of the call.
    type Calling: Future<Output = Result<Self::Done, HandlerError>> + Send + 't;
    /// The value that the function returns.
    type Done: IntoResult;
    /// Calls the function.
    fn call(self, tx: &'t mut Tx<DB>, input: T, received: &'t R) -> Self::Calling;
}

impl<'t, DB, T, R, F, Fut, D> Call3<'t, DB, T, R> for F
where
    DB: Dialect,
    R: ?Sized + 't,
    F: FnOnce(&'t mut Tx<DB>, T, &'t R) -> Fut,
    Fut: Future<Output = Result<D, HandlerError>> + Send + 't,
    D: IntoResult,
{
    type Calling = Fut;
    type Done = D;

    fn call(self, tx: &'t mut Tx<DB>, input: T, received: &'t R) -> Fut {
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
    note = "write `async fn(tx: &mut Tx<DB>, event: E) -> Result<(), HandlerError>`, optionally with a third \
            argument `received: &Received`, or `async move |tx: &mut Tx<DB>, event: E| ..` with these types written out",
    note = "`E` implements `Event` and `DeserializeOwned`",
    note = "the error is `HandlerError`: `?` converts those of sqlx, serde_json and the outbox",
    note = "the future is `Send`: it holds no `Rc` or lock guard over an `.await`",
    note = "what a closure captures is `Clone + Send + Sync`, such as an `Arc`"
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
    F: for<'t> Call2<'t, DB, E> + Clone + Send + Sync + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, event: E, _received: &Received) -> Handled {
        // The returned value does not have to be `Send`: it becomes bytes before the next await.
        Ok(self.clone().call(tx, event).await?.into_result())
    }
}

#[async_trait]
impl<DB, E, F> EventFunction<DB, E, WithFacts> for F
where
    DB: Dialect,
    E: Send + 'static,
    F: for<'t> Call3<'t, DB, E, Received> + Clone + Send + Sync + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, event: E, received: &Received) -> Handled {
        Ok(self.clone().call(tx, event, received).await?.into_result())
    }
}

/// An `async fn(&mut Tx, &Message)` or `async fn(&mut Tx, &Message, &Received)`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a message",
    note = "write `async fn(tx: &mut Tx<DB>, message: &Message) -> Result<(), HandlerError>`, optionally with a third \
            argument `received: &Received`, or a closure with these types written out",
    note = "the error is `HandlerError`: `?` converts those of sqlx, serde_json and the outbox",
    note = "the future is `Send`: it holds no `Rc` or lock guard over an `.await`",
    note = "what a closure captures is `Clone + Send + Sync`, such as an `Arc`"
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
    F: for<'t> Call2<'t, DB, &'t Message> + Clone + Send + Sync + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, message: &Message, _received: &Received) -> Handled {
        Ok(self.clone().call(tx, message).await?.into_result())
    }
}

#[async_trait]
impl<DB, F> MessageFunction<DB, WithFacts> for F
where
    DB: Dialect,
    F: for<'t> Call3<'t, DB, &'t Message, Received> + Clone + Send + Sync + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        Ok(self.clone().call(tx, message, received).await?.into_result())
    }
}

/// An `async fn(&mut Tx, Vec<E>)` or `async fn(&mut Tx, Vec<E>, &[Received])`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a batch of events",
    note = "write `async fn(tx: &mut Tx<DB>, events: Vec<E>) -> Result<(), HandlerError>`, optionally with a third \
            argument `received: &[Received]`, or a closure with these types written out",
    note = "`E` implements `Event` and `DeserializeOwned`",
    note = "the error is `HandlerError`: `?` converts those of sqlx, serde_json and the outbox",
    note = "the future is `Send`: it holds no `Rc` or lock guard over an `.await`",
    note = "what a closure captures is `Clone + Send + Sync`, such as an `Arc`"
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
    F: for<'t> Call2<'t, DB, Vec<E>, Done = ()> + Clone + Send + Sync + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, events: Vec<E>, _received: &[Received]) -> Result<(), HandlerError> {
        self.clone().call(tx, events).await
    }
}

#[async_trait]
impl<DB, E, F> BatchFunction<DB, E, WithFacts> for F
where
    DB: Dialect,
    E: Send + 'static,
    F: for<'t> Call3<'t, DB, Vec<E>, [Received], Done = ()> + Clone + Send + Sync + 'static,
{
    async fn run(&self, tx: &mut Tx<DB>, events: Vec<E>, received: &[Received]) -> Result<(), HandlerError> {
        self.clone().call(tx, events, received).await
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
        let kind = &message.kind;
        let event = std::any::type_name::<E>();
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

/// A route to a function that takes the unchanged message.
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

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(serde::Deserialize)]
    struct Placed;

    struct Billing;

    impl Billing {
        async fn bill(&self, tx: &mut Tx, _: Placed) -> Result<(), HandlerError> {
            sqlx::query("SELECT 1").execute(&mut **tx).await?;
            Ok(())
        }
    }

    async fn plain(_: &mut Tx, _: Placed) -> Result<(), HandlerError> {
        Ok(())
    }

    async fn with_facts(_: &mut Tx, _: Placed, received: &Received) -> Result<Vec<u8>, HandlerError> {
        Ok(received.headers.get("saga-key").unwrap_or_default().into())
    }

    fn event<E, Form>(_: impl EventFunction<sqlx::Postgres, E, Form>) {}
    fn message<Form>(_: impl MessageFunction<sqlx::Postgres, Form>) {}
    fn batch<E, Form>(_: impl BatchFunction<sqlx::Postgres, E, Form>) {}

    /// It compiles.
    #[test]
    fn functions_and_closures_with_state_are_handlers() {
        event(plain);
        event(with_facts);
        let billing = Arc::new(Billing);
        let state = Arc::clone(&billing);
        event(async move |tx: &mut Tx, placed: Placed| state.bill(tx, placed).await);
        let state = Arc::clone(&billing);
        event(async move |tx: &mut Tx, placed: Placed, received: &Received| {
            state.bill(tx, placed).await?;
            tx.enqueue(outbox::NewMessage::new(received.topic.as_str())).await?;
            Ok(())
        });
        let state = Arc::clone(&billing);
        message(async move |tx: &mut Tx, _: &Message| state.bill(tx, Placed).await);
        let state = Arc::clone(&billing);
        message(async move |tx: &mut Tx, _: &Message, _: &Received| state.bill(tx, Placed).await);
        let state = Arc::clone(&billing);
        batch(async move |tx: &mut Tx, placed: Vec<Placed>| {
            for one in placed {
                state.bill(tx, one).await?;
            }
            Ok(())
        });
        batch(async move |tx: &mut Tx, _: Vec<Placed>, received: &[Received]| {
            billing.bill(tx, Placed).await?;
            assert!(received.len() < 2);
            Ok(())
        });
    }
}
