//! A consumer that is ready to run.

use message::InvalidText;

use super::builder::ConsumerBuilder;
use super::inbox_store::InboxStore;
use super::parts::Runner;
use super::run_error::RunError;
use super::shutdown::StopSignal;
use super::status::ConsumerStatus;
use crate::dialect::Dialect;
use crate::ids::ConsumerName;
use crate::inbox::Inbox;

/// A consumer that is ready to run.
#[derive(Debug)]
pub struct Consumer<DB: Dialect>(pub(super) Runner<InboxStore<DB>>);

impl<DB: Dialect> Consumer<DB> {
    /// Returns a builder of a consumer. Its name is a [`ConsumerName`] or a text, which is checked
    /// when the consumer is built.
    ///
    /// ```no_run
    /// use inbox::{Consumer, HandlerError, Inbox, InboxOptions, Received, Tx};
    /// use message::{Event, Subscriber};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct OrderPlaced { order: i64, cents: i64 }
    /// # #[derive(serde::Deserialize)]
    /// # struct OrderCancelled { order: i64 }
    ///
    /// impl Event for OrderPlaced {
    ///     const TOPIC: &'static str = "orders";
    ///     const KIND: &'static str = "order.placed";
    /// }
    /// # impl Event for OrderCancelled {
    /// #     const TOPIC: &'static str = "orders";
    /// #     const KIND: &'static str = "order.cancelled";
    /// # }
    ///
    /// async fn bill(tx: &mut Tx, order: OrderPlaced) -> Result<(), HandlerError> {
    ///     let statement = sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)");
    ///     statement.bind(order.order).bind(order.cents).execute(&mut **tx).await?;
    ///     Ok(())
    /// }
    ///
    /// async fn refund(tx: &mut Tx, order: OrderCancelled, received: &Received) -> Result<(), HandlerError> {
    ///     let statement = sqlx::query("UPDATE invoice SET refunded_at = $2 WHERE order_id = $1");
    ///     statement.bind(order.order).bind(received.enqueued_at).execute(&mut **tx).await?;
    ///     Ok(())
    /// }
    ///
    /// # async fn example(pool: sqlx::PgPool, subscriber: impl Subscriber) -> Result<(), Box<dyn std::error::Error>> {
    /// # let shutdown_signal = || async {};
    /// Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
    ///     .on(bill)
    ///     .on(refund)
    ///     .subscribe(subscriber)
    ///     .run(shutdown_signal())
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn builder<N>(inbox: Inbox<DB>, consumer: N) -> ConsumerBuilder<DB>
    where
        N: TryInto<ConsumerName, Error: Into<InvalidText>>,
    {
        ConsumerBuilder::new(inbox, consumer.try_into().map_err(Into::into))
    }

    /// Returns the consumer's status, for health probes: ask it while the consumer runs.
    #[must_use]
    pub fn status(&self) -> ConsumerStatus {
        self.0.status()
    }

    /// Runs until it is stopped: gracefully when any future completes, or by a
    /// [`Shutdown`](super::Shutdown). It waits out outages of the database and the broker
    /// indefinitely.
    ///
    /// # Errors
    /// [`RunError`] when it was aborted. Dropping the future is an abort.
    pub async fn run(self, shutdown: impl StopSignal) -> Result<(), RunError> {
        let (shutdown, signal) = shutdown.split();
        let graceful = shutdown.graceful.clone();
        self.0.watch();
        let running = self.0.run(shutdown);
        tokio::pin!(running);
        tokio::select! {
            biased;
            result = &mut running => return result,
            () = signal => graceful.cancel(),
        }
        running.await
    }
}
