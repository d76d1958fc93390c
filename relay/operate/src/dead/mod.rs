//! Messages that wait for an operator: parked entries of outboxes and dead letters of inboxes, in
//! one form.
//!
//! | module | what it holds |
//! |---|---|
//! | `message` | [`DeadMessage`]: one message, without its payload |
//! | `filter` | [`Filter`]: conditions for messages |
//! | `list` | [`list()`], [`page()`], [`show()`] |
//! | `reading` | one pass over all places |
//! | `plan` | [`Plan`]: the messages of a decision, before it is taken |
//! | `decide` | [`Change`], [`Report`]: a decision carried out |
//! | `survey` | [`survey()`]: the number of messages that match, and their causes |
//! | `select` | [`select()`]: everything that matches, for a decision |
//! | `moment` | [`AsOf`]: the confirmation of a decision |
//! | `choosing` | one pass over the places of a decision |
//! | `bulk` | [`Bulk`]: a decision about everything, in parts, that can be stopped |
//! | `result` | [`decision()`]: the result of such a decision |
//! | `edit` | [`editable()`], [`edit()`]: one message, corrected after it was shown |
//! | `edited` | [`edits()`], [`edited()`]: the content before and after |
//! | `outcome` | the state of an entry after a decision |
//! | `sample` (tests) | a message and a report to show |

mod bulk;
mod choosing;
pub(crate) mod decide;
mod edit;
mod edited;
mod filter;
pub(crate) mod list;
mod message;
mod moment;
mod outcome;
mod plan;
pub(crate) mod reading;
mod result;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod sample;
mod select;
mod survey;

pub use bulk::{Bulk, BulkReport, Progress, REFUSALS_MAX, Refusal};
pub use decide::{Change, Decided, Report};
pub use edit::{Corrected, EditSent, Editable, SeenContent, edit, editable, not_json};
pub use edited::{KeptContent, PastEdit, edited, edits};
pub use filter::{Filter, MessageRef};
pub use list::{Bookmark, Listed, States, list, page, show};
pub use message::{DeadMessage, DeadSource};
pub use moment::{AsOf, Moment};
pub use plan::{Plan, plan};
pub use result::{Decision, DecisionFound, REMOVE_THE_CAUSE, Standing, Tone, decision};
pub use select::{CHOSEN_MAX, Selected, SelectedPart, select};
pub use survey::{CauseGroup, Surveyed, Total, survey};
