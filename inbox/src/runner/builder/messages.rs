//! How a consumer reads its messages: those of foreign producers, and the tenant of each.

use std::convert::Infallible;
use std::sync::Arc;

use message::{ForeignMessage, Malformed, Message};

use super::ConsumerBuilder;
use crate::dialect::Dialect;
use crate::ids::Tenant;

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Reads messages of foreign producers. The function is called for a delivery without a usable
    /// envelope or id, before it is dead-lettered. What it returns is consumed as that message. Its
    /// error becomes the dead letter's error; a panic leaves the delivery malformed. It is not
    /// called for a delivery with too many or too large headers
    /// ([`Malformed::is_cut`](message::Malformed::is_cut)), whose handler would not get all of it.
    ///
    /// A redelivery must yield the same id. Derive it with
    /// [`MessageId::derived`](message::MessageId::derived) from the event's own time and id, never
    /// from the clock. That time decides whether the inbox still accepts the message: it refuses
    /// one that is older than its retention or from the future. For an event without its own time
    /// use [`Malformed::timestamp`], which a redelivery repeats.
    ///
    /// ```
    /// use message::{ForeignMessage, Malformed, MessageId};
    /// use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    ///
    /// /// A CloudEvent with an id in another format.
    /// fn webhook(malformed: &Malformed) -> Result<ForeignMessage, Box<dyn std::error::Error>> {
    ///     let source = malformed.header("ce_source").ok_or("no ce_source")?;
    ///     let id = malformed.header("ce_id").ok_or("no ce_id")?;
    ///     let at = OffsetDateTime::parse(malformed.header("ce_time").ok_or("no ce_time")?, &Rfc3339)?;
    ///     let id = MessageId::derived(at, [source, id])?;
    ///     Ok(malformed.to_message(id, malformed.header("ce_type").ok_or("no ce_type")?)?)
    /// }
    /// # let _ = webhook;
    /// ```
    #[must_use]
    pub fn on_foreign<E: std::fmt::Display>(
        mut self,
        read: impl Fn(&Malformed) -> Result<ForeignMessage, E> + Send + Sync + 'static,
    ) -> Self {
        self.reader.foreign =
            Some(Arc::new(move |malformed: &Malformed| read(malformed).map_err(|error| error.to_string())));
        self
    }

    /// Sets the function that returns the tenant or account of a message; by default there is none.
    /// When the function panics, the message is dead-lettered with the reason
    /// [`Reason::NoTenant`](crate::Reason::NoTenant).
    ///
    /// The tenant is part of a message's identity: a copy for which the function returns another
    /// tenant takes effect again. Drain the consumer before a release that changes the function.
    ///
    /// A large message can come in chunks. The function is called with each chunk: its envelope and
    /// headers are those of the whole message, its payload is a part of the whole. So take the
    /// tenant from the envelope or a header, not from the payload.
    #[must_use]
    pub fn tenant(self, tenant_of: impl Fn(&Message) -> Tenant + Send + Sync + 'static) -> Self {
        self.try_tenant(move |message| Ok::<_, Infallible>(tenant_of(message)))
    }

    /// Does the same as [`tenant`](Self::tenant), for a function that can refuse a message without
    /// a tenant or with an invalid name. A refused message is dead-lettered with the reason
    /// [`Reason::NoTenant`](crate::Reason::NoTenant) and the error. As with
    /// [`tenant`](Self::tenant), every copy and every chunk of a message needs the same answer.
    #[must_use]
    pub fn try_tenant<E: std::fmt::Display>(
        mut self,
        tenant_of: impl Fn(&Message) -> Result<Tenant, E> + Send + Sync + 'static,
    ) -> Self {
        self.reader.tenant_of =
            Arc::new(move |message| tenant_of(message).map_err(|error| error.to_string()));
        self
    }
}
