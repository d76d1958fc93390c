//! The settings of the engine as a struct, written from the list in `settings`.

use std::time::Duration;

use message::{Backoff, Message, Oversize, SizeLimit, Splitter};
use outbox_log::{Entry, RowLimit};

use super::filter::Filter;
use crate::settings::{DeadPolicy, SettingValue};
use crate::telemetry::TOPICS_MAX_DEFAULT;

/// Maximum time by which an unanswered entry is postponed, in multiples of
/// [`EngineOptions::outage_delay_max`]: one minute by default. Each time costs a row.
const POSTPONED_OUTAGES: u32 = 4;

/// The type of a kind of settings.
macro_rules! kind {
    (Size) => { usize };
    (Time) => { Duration };
    (Count) => { usize };
    (Number) => { u32 };
    ($kind:ident $(<$of:ty>)?) => { $kind $(<$of>)? };
}

/// The key of a setting in `relay.toml`.
macro_rules! key {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $key:literal) => {
        $key
    };
}

macro_rules! options {
    ($($part:ident { $(
        $(#[$text:meta])*
        $name:ident $($key:literal)? : $kind:ident $(<$of:ty>)? = $default:expr
        $(, in $bounds:expr)? $(, not 0: $harm:literal)?;
    )* })*) => {
        /// Settings of one pipeline. Start from [`EngineOptions::default`].
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct EngineOptions {
            $($( $(#[$text])* pub $name: kind!($kind $(<$of>)?), )*)*
        }

        impl Default for EngineOptions {
            fn default() -> Self {
                Self { $($( $name: $default, )*)* }
            }
        }

        impl EngineOptions {
            $($(
                #[doc = concat!("Sets `", stringify!($name), "`.")]
                #[must_use]
                pub fn $name(mut self, $name: kind!($kind $(<$of>)?)) -> Self {
                    self.$name = $name;
                    self
                }
            )*)*

            /// Returns the key in `relay.toml` of a field.
            #[must_use]
            pub fn key(field: &'static str) -> &'static str {
                match field {
                    $($( stringify!($name) => key!($name $($key)?), )*)*
                    field => field,
                }
            }
        }

        $( values! { $part { $( $name $($key)? : $kind; )* } } )*
    };
}

macro_rules! values {
    (file { $( $name:ident $($key:literal)? : $kind:ident; )* }) => {
        impl EngineOptions {
            /// Returns every setting that `[pipeline.engine]` sets alone, with its key.
            #[must_use]
            pub fn values(&self) -> Vec<(&'static str, SettingValue)> {
                vec![$( (key!($name $($key)?), SettingValue::$kind(self.$name)), )*]
            }
        }
    };
    (code $rows:tt) => {};
}

crate::pipeline_settings!(options);

impl EngineOptions {
    /// Returns the pause before the next attempt after a failure.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff { first: self.retry_initial, max: self.retry_max }
    }

    /// Checks that a message can be sent, whole or in chunks.
    ///
    /// # Errors
    /// [`Oversize`] with its size and the limit.
    pub fn check_size(&self, message: &Message) -> Result<(), Oversize> {
        match &self.chunking {
            Some(splitter) => splitter.check(message),
            None => self.size_limit.check(message),
        }
    }

    /// Returns the time by which an entry is postponed whose message is with the publisher and not
    /// answered. The answer and the end of the session make it due at once. But after a crash, a
    /// lost lease or an error of the database, the next term knows neither, and waits for this
    /// time. So it is not the largest retry delay, which may be a day.
    pub(crate) fn postponed_max(&self) -> Duration {
        self.retry_max.min(self.outage_delay_max.saturating_mul(POSTPONED_OUTAGES))
    }

    /// Returns an upper estimate of an entry's bytes on the wire; 0 for one that cannot be read.
    pub(crate) fn entry_bytes(&self, entry: &Entry) -> usize {
        entry.message.as_ref().map_or(0, |message| self.wire_bytes(message))
    }

    /// Returns an upper estimate of a message's bytes on the wire, in all of its chunks.
    pub(crate) fn wire_bytes(&self, message: &Message) -> usize {
        self.chunking.map_or_else(|| message.wire_bytes(), |splitter| splitter.wire_bytes(message))
    }

    /// Returns the largest row that is read. A row that [`check_size`](Self::check_size) refuses
    /// for its length alone uses no memory.
    #[must_use]
    pub fn row_limit(&self) -> RowLimit {
        let payload = self.chunking.map_or(self.size_limit, |splitter| SizeLimit {
            message_bytes_max: splitter.chunked_bytes_max,
            ..splitter.limit
        });
        // Each chunk has all headers.
        RowLimit { payload, headers: self.size_limit }
    }

    /// Returns how long the relay may publish after it asked for a lease or its renewal. A tenth is
    /// reserved for messages that are already on their way to the broker.
    #[must_use]
    pub fn lease_trust(&self) -> Duration {
        self.lease_ttl - self.lease_ttl / 10
    }

    /// Returns how often the lease is renewed.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.lease_ttl / 3
    }
}
