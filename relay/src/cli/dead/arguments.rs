//! The conditions of `relay dead`.

use std::time::Duration;

use clap::Args;
use inbox::{ConsumerName, Tenant};
use operate::dead::{Filter, MessageRef};
use operate::units::Time;

use super::super::places::Where;

/// The conditions that messages must meet.
#[derive(Debug, Clone, Args)]
pub(crate) struct Conditions {
    /// Only messages of this topic or queue.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only messages of this event type.
    #[arg(long, value_name = "TYPE")]
    kind: Option<String>,

    /// Only messages with this cause: message, broker or setup in an outbox; poison, rejected,
    /// too_old, … in an inbox.
    #[arg(long, value_name = "CAUSE")]
    cause: Option<String>,

    /// Only messages whose error contains this text. It may have # in place of numbers.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Only messages whose error differs from this one only in numbers and ids.
    #[arg(long, value_name = "TEXT")]
    error_like: Option<String>,

    /// Only dead letters of this consumer.
    #[arg(long, value_name = "NAME")]
    consumer: Option<ConsumerName>,

    /// Only dead letters of this scope: tenant or account. Tenants may use the same keys.
    #[arg(long, value_name = "TENANT")]
    scope: Option<Tenant>,

    /// Only messages that have waited for longer than this, for example 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older_than: Option<Duration>,

    /// Only messages that have waited for at most this time.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    newer_than: Option<Duration>,
}

/// The names of the conditions, for groups of arguments.
pub(crate) const CONDITIONS: [&str; 10] =
    ["topic", "key", "kind", "cause", "error", "error_like", "consumer", "scope", "older_than", "newer_than"];

impl Conditions {
    /// Returns the filter of these conditions and ids at these places.
    pub(crate) fn filter(&self, ids: &[MessageRef], place: &Where) -> Filter {
        Filter {
            source: place.source(),
            ids: ids.to_vec(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            kind: self.kind.clone(),
            cause: self.cause.clone(),
            error: self.error.clone(),
            error_like: self.error_like.clone(),
            consumer: self.consumer.clone(),
            scope: self.scope.clone(),
            older_than: self.older_than,
            newer_than: self.newer_than,
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Time>().map(|time| time.0).map_err(|error| error.to_string())
}
