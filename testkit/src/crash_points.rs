//! Places in producers, relay, consumers and workers of sagas at which a test ends a whole
//! process, as a power cut would.
//!
//! A world is one process, so it has [`World::crash_at`](crate::World::crash_at) and its siblings
//! instead. Where a test starts the service as a program, the program gives itself a feature for
//! it:
//!
//! ```toml
//! [features]
//! crash-points = [
//!     "message/crash-points", "outbox/crash-points", "inbox/crash-points", "saga/crash-points",
//! ]
//! ```
//!
//! It arms itself at its start, under that feature only, with
//! `message::crash_points::arm_from_environment()?`; the test names places in the variable
//! [`VARIABLE`], starts the program, sees it die, starts it again without the variable and looks at
//! the effects. Each place says what is in which store when the process ends there.

pub use engine::crash_points as relay;
pub use inbox::crash_points as inbox;
pub use message::crash_points::VARIABLE;
pub use outbox::crash_points as outbox;
pub use saga::crash_points as saga;

/// Every place that there is.
pub fn all() -> impl Iterator<Item = &'static str> {
    [outbox::ALL.as_slice(), &relay::ALL, &inbox::ALL, &saga::ALL].into_iter().flatten().copied()
}
