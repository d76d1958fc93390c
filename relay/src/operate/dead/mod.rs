//! Messages that wait for an operator: parked entries of outboxes and dead letters of inboxes, in
//! one shape.
//!
//! | module | what it holds |
//! |---|---|
//! | [`message`](mod@message) | [`DeadMessage`]: one of them, without its payload |
//! | [`filter`] | [`Filter`]: which are meant |
//! | [`list`](mod@list) | [`list()`](list::list), [`page()`](list::page), [`show()`](list::show) |
//! | [`plan`](mod@plan) | [`Plan`]: what a decision is about, before it is taken |
//! | [`decide`] | [`Change`], [`Report`]: a decision carried out |
//! | `outcome` | what became of an entry that somebody has decided about |
//! | [`audit`](mod@audit) | [`audit`](audit::audit): the decisions taken so far |

pub mod audit;
pub mod decide;
pub mod filter;
pub mod list;
pub mod message;
mod outcome;
pub mod plan;

pub use audit::{AuditLine, Audited, audit, audit_of_messages};
pub use decide::{Change, Decided, Report};
pub use filter::{Filter, MessageRef};
pub use list::{Bookmark, Listed, States, list, page, show};
pub use message::{DeadMessage, DeadSource};
pub use plan::{Plan, plan, plan_at_most};
