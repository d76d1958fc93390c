//! A consumer that ends with its channel, and never before.
//!
//! When the active consumer of a queue with `x-single-active-consumer` is cancelled, RabbitMQ
//! activates the next one at once. The next one gets later messages while earlier ones, which were
//! delivered to the cancelled consumer, are still unsettled. When a channel ends, RabbitMQ puts its
//! unsettled messages back in their positions, and only then activates the next consumer.
//!
//! So this consumer is silenced instead of cancelled: RabbitMQ continues to deliver up to the
//! prefetch, and the client discards these deliveries.

use lapin::message::DeliveryResult;

/// A consumer of a queue.
pub(super) struct Consumer(lapin::Consumer);

impl Consumer {
    pub(super) fn new(client: lapin::Consumer) -> Self {
        Self(client)
    }

    /// Discards all deliveries that wait in the client, and all later ones. They stay unsettled.
    pub(super) fn silence(&self) {
        self.0.set_delegate(|_: DeliveryResult| std::future::ready(()));
    }
}

impl Drop for Consumer {
    /// The client cancels a consumer when its last handle is dropped, unless deliveries go to a
    /// delegate (lapin 4.12.3).
    fn drop(&mut self) {
        self.silence();
    }
}
