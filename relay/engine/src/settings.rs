//! Every setting of a pipeline, once: its text, name, kind, default and bounds.
//!
//! `options` writes [`EngineOptions`](crate::EngineOptions) from this list, and `bounds` its
//! checks. The program `relay` writes its section `[pipeline.engine]` from the part `file`.

use std::fmt;
use std::time::Duration;

use message::units::{ShownSize, ShownTime};

/// Passes the list to a macro. A row is `name "key": Kind = default, in bounds;`. The key is that
/// in `relay.toml`, if it differs: there a value has its unit, so the name needs none. Instead of
/// bounds, `not 0: "…"` names the harm of a zero. The kinds are the variants of
/// [`SettingValue`](crate::SettingValue). The constants of the bounds are in `bounds.rs`, and so
/// are bounds between settings.
#[doc(hidden)]
#[macro_export]
macro_rules! pipeline_settings {
    ($write:ident) => {
        $write! {
            file {
                /// Maximum bytes of messages in memory, read but not confirmed. One message larger
                /// than this still passes. The broker's client library holds the same amount again,
                /// and up to twice that while destinations are silent; the reader holds up to three
                /// pages. 12 MiB last 40 ms at 300 MB/s, longer than any nearby broker takes to
                /// confirm; a larger window only uses memory.
                window_bytes "window": Size = 12 << 20;
                /// Maximum bytes per read.
                page_bytes "page": Size = 2 << 20;
                /// Maximum entries per read.
                page_entries: Count = 1_000;
                /// How long a lease lasts without renewal; it is renewed at a third of this. A
                /// standby takes over from a killed relay within this time.
                // The takeover after a killed relay waits for the lease to expire.
                lease_ttl: Time = Duration::from_secs(15), in LEASE_TTL_MIN..=HOUR;
                /// Pause after an empty poll while messages keep coming. It at most doubles until a
                /// second after the last message.
                // Shorter polls would only waste processor time: an empty poll takes about 20 µs.
                poll_min: Time = Duration::from_millis(1), in Duration::from_micros(100)..=MINUTE;
                /// Longest pause between the polls of an idle relay.
                poll_max: Time = Duration::from_millis(50), in Duration::from_micros(100)..=MINUTE;
                /// Shortest time between two checkpoints of the cursor. Messages published since
                /// the last one are published again after a crash.
                checkpoint_interval: Time = Duration::from_millis(200);
                /// How long a shutdown waits for outstanding confirmations.
                shutdown_grace: Time = Duration::from_secs(20), in Duration::ZERO..=HOUR;
                /// How long the broker may leave a message unanswered while it answers for others,
                /// before the destination counts as silent. Its messages are then parked, and
                /// others flow. A fifth of this is enough where others wait for room in the window.
                /// A value shorter than an ordinary failover only costs rows, never copies.
                // A slow disk or a new leader may silence a broker for less than this.
                silent_after: Time = Duration::from_secs(5), in Duration::from_millis(100)..=HOUR;
                /// Number of failed attempts after which a message is dead. Only failures by the
                /// message's own fault count.
                attempts_max: Number = 10, not 0: "would park every message immediately";
                /// Upper bound of the first delay of a retry; it doubles with each failure.
                retry_initial: Time = Backoff::MESSAGES.first, in RETRY_MIN..=DAY;
                /// Upper bound of every delay of a retry.
                retry_max: Time = Backoff::MESSAGES.max, in RETRY_MIN..=DAY;
                /// Whether later messages with the key of a dead one wait.
                on_dead: DeadPolicy = DeadPolicy::Hold;
            }
            code {
                /// Maximum entries in memory.
                window_entries: Count = 65_536;
                /// Maximum changes of exceptions that are not stored. At this number nothing new is
                /// read; entries already in the window may still add changes.
                unstored_max: Count = 8_000, not 0: "would read nothing";
                /// Maximum first changes in one checkpoint, those of entries that the cursor passes
                /// with it; the same maximum applies to other changes. Storing this many costs the
                /// database about 20 ms. When this many changes wait, they are stored at once.
                checkpoint_changes: Count = 1_000, not 0: "would read nothing";
                /// Longest pause after a failure that is not the message's fault: outages end
                /// without notice.
                outage_delay_max: Time = Duration::from_secs(15), in RETRY_MIN..=DAY;
                /// The largest entry that the destination accepts. Larger entries are split, or
                /// parked at once.
                size_limit: SizeLimit =
                    SizeLimit { destination: "the destination", message_bytes_max: 16 << 20 };
                /// The way in which larger entries are split. With `None`, they are parked.
                chunking: Option<Splitter> = None;
                /// Maximum topics with their own metrics; the others share the label `other`.
                topics_labelled_max: Count = TOPICS_MAX_DEFAULT;
                /// Selects the entries that this relay publishes; the others count as passed.
                /// Passed entries are not read again when the filter changes.
                filter: Filter = Filter::default();
            }
        }
    };
}

/// The treatment of a key whose entry is dead.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadPolicy {
    /// The key waits for an operator: order is kept whatever happens.
    #[default]
    Hold,
    /// The key continues without the entry: its order has a gap that a later requeue fills out of
    /// order.
    Pass,
}

/// The value of a setting. Displayed as people write it: `200ms`, `16MiB`, `hold`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingValue {
    /// A number of bytes.
    Size(usize),
    /// A duration.
    Time(Duration),
    /// A number of things in memory.
    Count(usize),
    /// A small number.
    Number(u32),
    /// The treatment of a key whose entry is dead.
    DeadPolicy(DeadPolicy),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => ShownSize(*bytes).fmt(f),
            Self::Time(time) => ShownTime(*time).fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::DeadPolicy(DeadPolicy::Hold) => f.write_str("hold"),
            Self::DeadPolicy(DeadPolicy::Pass) => f.write_str("pass"),
        }
    }
}
