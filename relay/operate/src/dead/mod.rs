//! Messages that wait for an operator: parked entries of outboxes and dead letters of inboxes, in
//! one form.
//!
//! | module | what it holds |
//! |---|---|
//! | [`message`](mod@message) | [`DeadMessage`]: one message, without its payload |
//! | [`filter`] | [`Filter`]: conditions for messages |
//! | [`list`](mod@list) | [`list()`](list::list), [`page()`](list::page), [`show()`](list::show) |
//! | [`plan`](mod@plan) | [`Plan`]: the messages of a decision, before it is taken |
//! | [`decide`] | [`Change`], [`Report`]: a decision carried out |
//! | `outcome` | the state of an entry after a decision |
//! | [`audit`](mod@audit) | [`audit`](audit::audit): the decisions |
//! | `sample` (tests) | a message to show |

pub mod audit;
pub mod decide;
pub mod filter;
pub mod list;
pub mod message;
mod outcome;
pub mod plan;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod sample;

pub use audit::{AuditLine, Audited, audit, audit_of_messages};
pub use decide::{Change, Decided, Report};
pub use filter::{Filter, MessageRef};
pub use list::{Bookmark, Listed, States, list, page, show};
pub use message::{DeadMessage, DeadSource};
pub use plan::{Plan, plan, plan_at_most};
