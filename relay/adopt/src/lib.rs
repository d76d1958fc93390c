//! Takes over a foreign outbox table without changing its producers, and gives it back.
//!
//! | module | what it holds |
//! |---|---|
//! | `adoption` | [`Adoption`]: the table, and what its columns mean |
//! | `takeover` (feature `postgres`) | both directions, the plan for an administrator, and the state |

mod adoption;
#[cfg(feature = "postgres")]
mod takeover;

pub use adoption::{AdoptedTopic, Adoption, Field, NullPayload, Only, Pending, WhenSent};
#[cfg(feature = "postgres")]
pub use takeover::{
    AdoptPlan, AdoptState, AdoptStatus, Adopted, LackingRole, OldTable, Slot, back, finding, over, plan,
    status,
};
