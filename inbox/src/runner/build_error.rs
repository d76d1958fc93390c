//! Why a consumer cannot be built.

use std::time::Duration;

use message::InvalidText;

/// The shortest interval of a consumer. Intervals of seconds are usual; tests may use shorter ones.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Why a consumer cannot be built. The program's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No subscription was given.
    #[error("the consumer has no subscription; call .subscribe(..)")]
    NoSubscription,
    /// No handler was given.
    #[error("the consumer has no handler; call .on(..), .on_message(..) or .handler(..)")]
    NoHandler,
    /// The name of the consumer is invalid.
    #[error("the consumer cannot have this name")]
    Name(#[from] InvalidText),
    /// Two handlers for one kind: one of them would never be called.
    #[error("the kind {kind:?} has two handlers; register one")]
    DuplicateKind {
        /// The kind.
        kind: String,
    },
    /// A function for many events is registered, but the consumer has no batches.
    #[error(
        "the function for kind {kind:?} takes many events, but the consumer does not use batches; call .batch(n)"
    )]
    NoBatches {
        /// The kind.
        kind: String,
    },
    /// A kind that no message can have.
    #[error("no message can have the kind {kind:?}: {problem}")]
    InvalidKind {
        /// The kind.
        kind: String,
        /// The rule that it breaks.
        problem: String,
    },
    /// A handler for all messages is registered beside handlers for kinds: it is unclear which one
    /// to call.
    #[error("the consumer has a .handler(..) for all messages and handlers for kinds; use one of the two")]
    HandlerAndKinds,
    /// The limit of attempts is zero.
    #[error("the maximum number of attempts is 0; choose at least 1")]
    NoAttempts,
    /// An interval is so short that the consumer would work without a pause.
    #[error("{setting} is {interval:?}; choose at least {:?}", INTERVAL_MIN)]
    NoInterval {
        /// The setting of the builder.
        setting: &'static str,
        /// Its value.
        interval: Duration,
    },
    /// The handler timeout is zero, so every call would fail.
    #[error("handler_timeout is 0; set it to more than the slowest handler takes")]
    NoHandlerTimeout,
}
