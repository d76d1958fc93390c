//! Messages that wait for an operator: parked entries of outboxes and dead letters of inboxes, in
//! one form.
//!
//! | module | what it holds |
//! |---|---|
//! | `message` | [`DeadMessage`]: one message, without its payload |
//! | `filter` | [`Filter`]: conditions for messages |
//! | `list` | [`list()`], [`page()`], [`show()`] |
//! | `plan` | [`Plan`]: the messages of a decision, before it is taken |
//! | `decide` | [`Change`], [`Report`]: a decision carried out |
//! | `outcome` | the state of an entry after a decision |
//! | `audit` | [`audit()`]: the decisions |
//! | `audit_lines` | combines the rows of an audit into lines |
//! | `sample` (tests) | a message to show |

mod audit;
mod audit_lines;
pub(crate) mod decide;
mod filter;
pub(crate) mod list;
mod message;
mod outcome;
mod plan;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod sample;

pub use audit::{AuditLine, Audited, audit, audit_of_messages};
pub use decide::{Change, Decided, Report};
pub use filter::{Filter, MessageRef};
pub use list::{Bookmark, Listed, States, list, page, show};
pub use message::{DeadMessage, DeadSource};
pub use plan::{Plan, plan, plan_at_most};
