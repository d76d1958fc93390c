//! Handlers by the kind of message.

use std::collections::BTreeMap;

use async_trait::async_trait;
use message::{EventType, Message};

use super::build_error::BuildError;
use crate::dialect::Dialect;
use crate::handler::{Handled, Handler, HandlerError, Received, Route, Tx};
use crate::ids::{ConsumerName, Tenant};
use crate::telemetry::Meter;

/// How a consumer treats messages of a kind without a handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownKinds {
    /// Dead-letters them at once, with an error that names the kind and the registered kinds. The
    /// default.
    #[default]
    Refuse,
    /// Admits and acknowledges them without an effect, and counts them in `inbox_skipped_total`. A
    /// later version that knows the kind does not get them again. Dead letters of such a kind wait
    /// for a process that knows it. A message of such a kind behind a dead letter of its key is
    /// skipped at once, and not [held](crate::AfterDeadLetter::HoldKey).
    Skip,
    /// Retries them without counting an attempt, until the process is replaced by one that knows
    /// the kind; after [`failing_max`](crate::ConsumerBuilder::failing_max) they are dead-lettered.
    /// This is for the minutes of a deployment: their keys wait, and once they fill
    /// [`prefetch`](crate::ConsumerBuilder::prefetch) nothing else is received. RabbitMQ ends a
    /// session that leaves a delivery unsettled for 30 minutes (`consumer_timeout`), and a quorum
    /// queue drops or dead-letters messages that it has delivered too often; lower `failing_max`
    /// there.
    Hold,
}

/// The handlers by kind that a builder collects.
pub(super) struct Kinds<DB: Dialect>(pub(super) Vec<(String, Box<dyn Route<DB>>)>);

impl<DB: Dialect> Kinds<DB> {
    /// Returns the handler that dispatches to them.
    pub(super) fn dispatcher(
        self,
        consumer: ConsumerName,
        unknown: UnknownKinds,
        in_batches: bool,
    ) -> Result<Dispatcher<DB>, BuildError> {
        let mut routes = BTreeMap::new();
        for (kind, route) in self.0 {
            if route.takes_many() && !in_batches {
                return Err(BuildError::NoBatches { kind });
            }
            if let Err(error) = EventType::new(kind.as_str()) {
                return Err(BuildError::InvalidKind { kind, problem: error.to_string() });
            }
            if routes.contains_key(&kind) {
                return Err(BuildError::DuplicateKind { kind });
            }
            routes.insert(kind, route);
        }
        let meter = Meter::new(&consumer);
        Ok(Dispatcher { routes, unknown, consumer, meter })
    }
}

/// A handler that dispatches by kind.
pub(super) struct Dispatcher<DB: Dialect> {
    routes: BTreeMap<String, Box<dyn Route<DB>>>,
    unknown: UnknownKinds,
    consumer: ConsumerName,
    meter: Meter,
}

impl<DB: Dialect> Dispatcher<DB> {
    fn unknown_kind(&self, kind: &EventType) -> Handled {
        let known: Vec<_> = self.routes.keys().map(String::as_str).collect();
        let problem = format!("no handler for kind {kind}; registered are: {}", known.join(", "));
        match self.unknown {
            UnknownKinds::Refuse => Err(HandlerError::reject(problem)),
            UnknownKinds::Hold => Err(HandlerError::unavailable(problem)),
            UnknownKinds::Skip => {
                self.meter.skipped();
                Ok(None)
            }
        }
    }
}

#[async_trait]
impl<DB: Dialect> Handler<DB> for Dispatcher<DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Handled {
        let received = Received::first(self.consumer.clone(), Tenant::none(), message);
        self.handle_delivery(tx, message, &received).await
    }

    fn knows(&self, kind: &EventType) -> bool {
        self.routes.contains_key(kind.as_str())
    }

    fn has_effect(&self, kind: &EventType) -> bool {
        self.unknown != UnknownKinds::Skip || self.knows(kind)
    }

    fn takes_many(&self, kind: &EventType) -> bool {
        self.routes.get(kind.as_str()).is_some_and(|route| route.takes_many())
    }

    async fn handle_many(
        &self,
        tx: &mut Tx<DB>,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        let Some(first) = messages.first() else { return Ok(()) };
        match self.routes.get(first.kind.as_str()) {
            Some(route) => route.apply_many(tx, messages, received).await,
            None => self.unknown_kind(&first.kind).map(drop),
        }
    }

    async fn handle_delivery(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        match self.routes.get(message.kind.as_str()) {
            Some(route) => route.apply(tx, message, received).await,
            None => self.unknown_kind(&message.kind),
        }
    }
}
