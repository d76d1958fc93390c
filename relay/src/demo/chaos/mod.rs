//! Faults that the demo causes on purpose, at the points of progress that the plan names.
//!
//! | file | what it does |
//! |---|---|
//! | `relays.rs` | keeps a relay running, and kills it |
//! | `consumers.rs` | keeps a consumer running, which crashes, and starts it from older offsets |
//! | `outages.rs` | takes the broker away for a moment |
//! | `again.rs` | delivers messages once more |

mod again;
mod consumers;
mod outages;
mod relays;

pub(crate) use again::deliver_again;
pub(crate) use consumers::Consumers;
pub(crate) use outages::run_outages;
pub(crate) use relays::Relays;

/// A process that fails so often in a row without having been killed does not come up any more.
const FAILURES_MAX: u32 = 5;
