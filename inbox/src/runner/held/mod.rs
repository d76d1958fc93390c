//! Messages that wait behind a dead letter of their key: arrivals that begin to wait, and redrives
//! of those whose turn it is. `dead_letters::held_keys` explains why that keeps the order.

mod arrivals;
mod redrive;
mod store;
mod walk;

pub(super) use walk::HeldLook;
