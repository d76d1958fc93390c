//! The broker: one log that everybody reads.
//!
//! | file | what it holds |
//! |---|---|
//! | `log.rs` | what is stored, topics, the sessions of publishers, and what is on its way |
//! | `publisher.rs` | the seam of publishers |
//! | `silence.rs` | topics about which nothing is said for a while |
//! | `group.rs` | who has which message, and what must be delivered again |
//! | `subscription.rs` | the seam of consumers |

mod group;
mod log;
mod publisher;
mod silence;
mod subscription;

pub(crate) use log::{Broker, serve};
pub(crate) use publisher::SimulatedBroker;
pub(crate) use subscription::subscribe;
