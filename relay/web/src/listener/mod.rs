//! Accepting connections within bounds, for the listeners of the program.
//!
//! A client that reaches a port can open connections and stay silent. A new connection therefore
//! never waits for silent ones. It takes the place of the oldest connection that has not sent what
//! keeps its place: any request, or on the page a request of an authenticated user. So a probe is
//! answered in any case.
//!
//! | module | what it holds |
//! |---|---|
//! | `accept` | the accept loop; ends evicted connections |
//! | `guests` | connections with a place, and which one loses it |

mod accept;
mod guests;

pub use accept::serve;
pub use guests::{Admitted, Bounds};
