//! The audit: who decided what, when and why. Decisions about messages, idempotency keys and sagas,
//! and all other operations of operators.
//!
//! A decision is one line, however many messages it concerns. Each place is read backwards, some
//! hundred rows at a time, so memory does not depend on the length of an audit. A place that does
//! not answer hides no other.
//!
//! | module | what it holds |
//! |---|---|
//! | `line` | [`AuditLine`], [`AuditSource`]: one decision |
//! | `filter` | [`AuditFilter`], [`ACTIONS`], [`REDRIVE`]: conditions for decisions |
//! | `grouping` | combines the rows of an audit into lines |
//! | `joining` | combines the lines about one session, of several audits |
//! | `walk` | one pass over the places |
//! | `left_out` | [`LeftOut`]: audits that the database user may not read, [`OBSERVER_GRANT`] |
//! | `topics` | the messages of a topic among rows of an audit |
//! | `read` | [`read()`]: the latest decisions |

mod filter;
mod grouping;
mod joining;
mod left_out;
mod line;
mod read;
mod topics;
pub(crate) mod walk;

pub use filter::{ACTIONS, AuditFilter, REDRIVE};
pub use left_out::{LeftOut, OBSERVER_GRANT};
pub use line::{AuditLine, AuditSource};
pub use read::{AuditQuery, Audited, read};
pub(crate) use read::{about, gone, is_with};
