//! Publishing again what was published before, with the same message ids.
//!
//! A replay is a session of its own with the broker, beside the relay. It sends what the stored
//! cursor has passed and what was published, and nothing else: so every first occurrence is in the
//! broker before, and the order of keys holds whatever the relay does meanwhile. Inboxes recognise
//! the ids. See `docs/adr/0027-a-replay-is-a-session-of-its-own.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`filter`] | [`ReplayFilter`], [`Moment`]: which messages are meant |
//! | [`plan`](mod@plan) | [`ReplayPlan`]: how many there are, before anything is sent |
//! | [`session`] | messages handed to the broker until each is confirmed |
//! | [`run`] | [`ReplayReport`]: a plan carried out |

pub mod filter;
pub mod plan;
pub mod run;
pub mod session;

pub use filter::{Moment, ReplayFilter};
pub use plan::{ReplayPlan, plan};
pub use run::{ReplayOptions, ReplayReport};
