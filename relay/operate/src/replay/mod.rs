//! Replay: publishes messages again, with the same message ids.
//!
//! A replay has its own session with the broker, beside the relay. It sends only messages that were
//! published and that the stored cursor has passed. So every first occurrence is already in the
//! broker, and the order of keys holds regardless of the relay. Inboxes recognise the ids. See
//! `docs/adr/0027-a-replay-is-a-session-of-its-own.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | `filter` | [`ReplayFilter`], [`Moment`]: conditions for messages |
//! | `plan` | [`ReplayPlan`]: the number of messages, before anything is sent |
//! | `fifo` | [`deduplicated()`]: queues that drop copies |
//! | `form` | [`has_begun`]: a form that is sent twice is one replay |
//! | `session` | hands messages to the broker until each is confirmed |
//! | `run` | [`ReplayReport`]: carries out a plan |

mod fifo;
mod filter;
mod form;
mod plan;
mod run;
mod session;

pub use fifo::deduplicated;
pub use filter::{Moment, ReplayFilter};
pub use form::has_begun;
pub use plan::{Edge, ReplayPlan, plan};
pub use run::{ReplayOptions, ReplayReport};
