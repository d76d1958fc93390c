//! An in-process broker for tests of relays and consumers, and for users' own test kits.
//!
//! It keeps every message in an ordered log per topic ([`Broker::log`]), redelivers within groups,
//! and fails on request ([`Broker::faults`]): refusals, unknown outcomes, broken sessions, an
//! unreachable broker, late confirmations, duplicate deliveries. It never sleeps and never reads
//! the clock, so tests that use it are repeatable.
//!
//! | guarantee | how |
//! |---|---|
//! | a receipt for every submission | [`Broker`] answers at once, at the release of held confirmations, or with an unknown outcome when the session ends |
//! | [`MaxInFlightPerKey::Pipelined`](message::MaxInFlightPerKey::Pipelined) | after one failure the session accepts nothing more |
//! | [`MaxInFlightPerKey::One`](message::MaxInFlightPerKey::One) | a caller that breaks it is recorded in [`Broker::violations`] |
//! | order per key in a group | a message waits while an earlier one of its key is with another member |
//!
//! It has no settings file: a test configures it in code. Nothing survives the process.

mod broker;
mod connector;
mod faults;
mod group;
mod publisher;
mod subscriber;
mod subscription;
#[cfg(test)]
mod tests;

pub use broker::Broker;
pub use connector::Connector;
pub use faults::{Faults, Loss};
pub use subscriber::Subscriber;
pub use subscription::Subscription;
