//! Events: payloads of a type that knows its topic and kind.

/// A payload with its own type, so that producers and consumers share one definition.
///
/// A producer enqueues a value that also implements `serde::Serialize`, as JSON; a consumer
/// registers a handler for a type that also implements `serde::de::DeserializeOwned`. Topic and
/// kind are checked when they are used: see [`Topic`](crate::Topic) and
/// [`EventType`](crate::EventType) for the rules.
///
/// ```
/// use message::Event;
///
/// struct OrderPlaced {
///     order: i64,
/// }
///
/// impl Event for OrderPlaced {
///     const TOPIC: &'static str = "orders";
///     const KIND: &'static str = "order.placed";
///
///     fn key(&self) -> Option<String> {
///         Some(format!("order-{}", self.order))
///     }
/// }
/// ```
pub trait Event {
    /// The topic that it is published to.
    const TOPIC: &'static str;

    /// The kind of event, the CloudEvents `type`. A consumer selects the handler by it.
    const KIND: &'static str;

    /// Returns the ordering key: events of one key are published, and take effect, in causal order.
    /// `None`, the default, means no order.
    fn key(&self) -> Option<String> {
        None
    }
}
