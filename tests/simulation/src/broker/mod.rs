//! The broker: one log for all consumers.
//!
//! | file | what it holds |
//! |---|---|
//! | `log.rs` | stored messages, topics, the sessions of publishers, and messages in flight |
//! | `publisher.rs` | the seam of publishers |
//! | `endpoint.rs` | topics that behave as endpoints of HTTP do |
//! | `silence.rs` | topics that get no answers for a while |
//! | `group.rs` | which member has which message, and what must be delivered again |
//! | `subscription.rs` | the seam of consumers |

mod endpoint;
mod group;
mod log;
mod publisher;
mod silence;
mod subscription;

pub(crate) use log::{Broker, serve};
pub(crate) use publisher::SimulatedBroker;
pub(crate) use subscription::subscribe;
