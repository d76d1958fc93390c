//! Accepting connections within bounds, for the listeners of the program.
//!
//! A client that reaches a port can open connections and say nothing. A new connection therefore
//! never waits for one of those: it takes the place of the oldest that has not sent what keeps its
//! place (any request; for the page one of somebody who is known), so a probe is answered whatever
//! else is there.
//!
//! | module | what it holds |
//! |---|---|
//! | `accept` | the loop that accepts, and ends what is evicted |
//! | `guests` | who is connected, who has a place, who gives one up |

mod accept;
mod guests;

pub(crate) use accept::serve;
pub(crate) use guests::{Admitted, Bounds};
