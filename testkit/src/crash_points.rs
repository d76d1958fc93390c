//! Places in producers, relay, consumers and saga workers at which a test ends a whole process, as
//! a power cut would.
//!
//! A world is one process, so it has [`World::crash_at`](crate::World::crash_at) and related
//! methods instead. If a test starts the service as a program, the program needs a feature for
//! crash points:
//!
//! ```toml
//! [features]
//! crash-points = [
//!     "message/crash-points", "outbox/crash-points", "inbox/crash-points", "saga/crash-points",
//! ]
//! ```
//!
//! With that feature only, the program arms itself at its start with
//! `message::crash_points::arm_from_environment()?`. The test names places in the variable
//! [`VARIABLE`], starts the program, waits for it to die, restarts it without the variable and
//! checks the effects. Each place documents the contents of each store when the process ends there.

pub use engine::crash_points as relay;
pub use inbox::crash_points as inbox;
pub use message::crash_points::VARIABLE;
pub use outbox::crash_points as outbox;
pub use saga::crash_points as saga;

/// Returns all places.
pub fn all() -> impl Iterator<Item = &'static str> {
    [outbox::ALL.as_slice(), &relay::ALL, &inbox::ALL, &saga::ALL].into_iter().flatten().copied()
}
