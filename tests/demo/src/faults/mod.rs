//! Faults that the demo causes on purpose, at the points of progress that the plan names.
//!
//! | file | what it does |
//! |---|---|
//! | `kills.rs` | kills the relay that leads |
//! | `outages.rs` | takes the broker away for a moment |
//! | `again.rs` | delivers messages once more |

mod again;
mod kills;
mod outages;

pub(crate) use again::deliver_again;
pub(crate) use kills::kill_relays;
pub(crate) use outages::run_outages;
