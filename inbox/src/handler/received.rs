//! Facts about the delivery that a handler works on.

use message::{Headers, Message, MessageId, OrderingKey, Topic};
use time::OffsetDateTime;

use crate::ids::{ConsumerName, Tenant};

/// Facts about the delivery that a handler works on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The message's id: the same at every attempt, so external calls can use it as an idempotency
    /// key.
    pub message_id: MessageId,
    /// The number of this attempt: 1 plus the failures that the database has counted, including
    /// those of other processes and those before a restart. After a redrive the number continues
    /// from the dead letter.
    pub attempt: u32,
    /// When the message's id was made, to the millisecond. The inbox's window validates this time.
    pub generated_at: OffsetDateTime,
    /// When the producer enqueued the message: the CloudEvents `time`.
    pub enqueued_at: OffsetDateTime,
    /// The tenant that [`ConsumerBuilder::try_tenant`](crate::ConsumerBuilder::try_tenant)
    /// returned; [`Tenant::none`] without such a function.
    pub tenant: Tenant,
    /// The consumer that handles it.
    pub consumer: ConsumerName,
    /// The topic to which it was published.
    pub topic: Topic,
    /// The message's ordering key.
    pub key: Option<OrderingKey>,
    /// The message's free headers, such as the key of a saga's request or a correlation id.
    pub headers: Headers,
}

impl Received {
    /// Returns the facts of the first attempt at a message, for tests that call a handler.
    #[must_use]
    pub fn first(consumer: ConsumerName, tenant: Tenant, message: &Message) -> Self {
        Self::after(0, consumer, tenant, message)
    }

    /// Returns the facts of the attempt after this number of counted failures.
    pub(crate) fn after(failures: u32, consumer: ConsumerName, tenant: Tenant, message: &Message) -> Self {
        Self {
            message_id: message.id,
            attempt: failures.saturating_add(1),
            generated_at: message.id.generated_at(),
            enqueued_at: message.time,
            tenant,
            consumer,
            topic: message.topic.clone(),
            key: message.key.clone(),
            headers: message.headers.clone(),
        }
    }
}
