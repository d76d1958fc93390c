//! The handlers of a consumer, and the outbox with which they enqueue.

use std::sync::Arc;

use message::{Event, Sealing};
use outbox::Outbox;
use serde::de::DeserializeOwned;

use super::ConsumerBuilder;
use crate::dialect::Dialect;
use crate::handler::{
    BatchFunction, BatchRoute, EventFunction, EventRoute, Handler, MessageFunction, MessageRoute,
};
use crate::runner::kinds::UnknownKinds;

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Handles the events of one type, by their [`KIND`](Event::KIND), with a function `async
    /// fn(&mut Tx, E) -> Result<R, HandlerError>`. The function can take the facts of the delivery
    /// as a third argument: [`&Received`](crate::Received). `R` is `()` or the bytes of a result
    /// ([`IntoResult`](crate::IntoResult)). The payload is parsed as JSON; a payload that does not
    /// match the type is dead-lettered at once.
    ///
    /// A closure brings state. Each call gets its own clone of what the closure captured by move,
    /// so its changes are lost after the call: a `HashSet` of orders that were seen stays empty.
    /// Capture an `Arc` or another handle that is cheap to clone, and keep in the database what
    /// must be remembered. The type of `tx` must be written out.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use inbox::{ConsumerBuilder, HandlerError, Tx};
    /// # #[derive(serde::Deserialize)]
    /// # struct OrderPlaced { order: i64 }
    /// # impl message::Event for OrderPlaced {
    /// #     const TOPIC: &'static str = "orders";
    /// #     const KIND: &'static str = "order.placed";
    /// # }
    /// # struct Billing;
    /// # impl Billing { async fn bill(&self, _: &mut Tx, _: OrderPlaced) -> Result<(), HandlerError> { Ok(()) } }
    /// # fn example(builder: ConsumerBuilder<sqlx::Postgres>, billing: Billing) {
    /// let billing = Arc::new(billing);
    /// builder.on(async move |tx: &mut Tx, placed: OrderPlaced| billing.bill(tx, placed).await)
    /// # ; }
    /// ```
    #[must_use]
    pub fn on<E, Form>(mut self, function: impl EventFunction<DB, E, Form>) -> Self
    where
        E: Event + DeserializeOwned + Send + 'static,
        Form: 'static,
    {
        self.kinds.0.push((E::KIND.to_owned(), Box::new(EventRoute::<_, E, Form>::new(function))));
        self
    }

    /// Handles the events of one type, by their [`KIND`](Event::KIND), many in one call, with a
    /// function `async fn(&mut Tx, Vec<E>) -> Result<(), HandlerError>`. The function can take the
    /// facts of each delivery as a third argument: `&[Received]`. It gets consecutive events of one
    /// [batch](Self::batch), in their order, all of them fresh. It stores no results. When it
    /// fails, the whole batch is rolled back and tried again in halves, until the failing event is
    /// alone; that event is retried and dead-lettered like any other. A closure brings state, as
    /// for [`on`](Self::on).
    #[must_use]
    pub fn on_batch<E, Form>(mut self, function: impl BatchFunction<DB, E, Form>) -> Self
    where
        E: Event + DeserializeOwned + Send + 'static,
        Form: 'static,
    {
        self.kinds.0.push((E::KIND.to_owned(), Box::new(BatchRoute::<_, E, Form>::new(function))));
        self
    }

    /// Handles the messages of one kind unchanged, with a function `async fn(&mut Tx, &Message) ->
    /// Result<R, HandlerError>`, optionally with [`&Received`](crate::Received) as a third
    /// argument. A closure brings state, as for [`on`](Self::on).
    #[must_use]
    pub fn on_message<Form: 'static>(
        mut self,
        kind: impl Into<String>,
        function: impl MessageFunction<DB, Form>,
    ) -> Self {
        self.kinds.0.push((kind.into(), Box::new(MessageRoute::<_, Form>::new(function))));
        self
    }

    /// Sets the outbox with which handlers enqueue: `tx.enqueue(&event).await?`. Its tables are in
    /// the inbox's database. Without one, an enqueue fails with
    /// [`EnqueueError::NoOutbox`](outbox::EnqueueError::NoOutbox); the message waits, uncounted,
    /// until a version of the service has one.
    ///
    /// ```no_run
    /// use inbox::{Consumer, HandlerError, Inbox, Tx};
    /// use message::{Event, Subscriber};
    /// use outbox::Outbox;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct OrderPlaced { order: i64, cents: i64 }
    /// # impl Event for OrderPlaced {
    /// #     const TOPIC: &'static str = "orders";
    /// #     const KIND: &'static str = "order.placed";
    /// # }
    ///
    /// #[derive(serde::Serialize)]
    /// struct InvoiceIssued { order: i64, cents: i64 }
    /// # impl Event for InvoiceIssued {
    /// #     const TOPIC: &'static str = "invoices";
    /// #     const KIND: &'static str = "invoice.issued";
    /// # }
    ///
    /// async fn bill(tx: &mut Tx, placed: OrderPlaced) -> Result<(), HandlerError> {
    ///     let OrderPlaced { order, cents } = placed;
    ///     sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
    ///         .bind(order).bind(cents).execute(&mut **tx).await?;
    ///     tx.enqueue(&InvoiceIssued { order, cents }).await?;
    ///     Ok(())
    /// }
    ///
    /// # fn example(inbox: Inbox<sqlx::Postgres>, subscriber: impl Subscriber) -> Result<(), inbox::BuildError> {
    /// let billing = Consumer::builder(inbox, "billing").outbox(Outbox::new()).on(bill).subscribe(subscriber).build()?;
    /// # drop(billing); Ok(()) }
    /// ```
    #[must_use]
    pub fn outbox(mut self, outbox: Outbox<DB>) -> Self {
        self.inbox = self.inbox.with_outbox(outbox);
        self
    }

    /// Sets what happens to kinds without a handler; they are refused by default. It has no effect
    /// together with [`handler`](Self::handler).
    #[must_use]
    pub fn unknown_kinds(mut self, decision: UnknownKinds) -> Self {
        self.unknown = decision;
        self
    }

    /// Decrypts messages whose payloads a producer has encrypted for a subject, before their
    /// handler gets them. A message whose key was deleted is admitted and acknowledged without an
    /// effect, and counted in `inbox_erased_total`. While the key store is unavailable, messages
    /// are retried without counting an attempt. A payload that does not open is dead-lettered, as
    /// it arrived. Messages that are not encrypted are handled as they are.
    #[must_use]
    pub fn sealing(mut self, sealing: impl Sealing) -> Self {
        self.sealing = Some(Arc::new(sealing));
        self
    }

    /// Handles all messages, whatever their kind.
    #[must_use]
    pub fn handler(mut self, handler: impl Handler<DB> + 'static) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }
}
