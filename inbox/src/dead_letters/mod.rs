//! Dead letters: messages that need an operator.
//!
//! | file | contents |
//! |---|---|
//! | `reason`, `record`, `query`, `decision`, `options` | what is stored and asked; data only |
//! | `store` | a delivery becomes a dead letter |
//! | `read` | lists and surveys |
//! | `request`, `discard`, `decide_many` | operators decide about one dead letter, or about many |
//! | `redrive`, `late` | a dead letter takes effect, or its effect is found |
//! | `carry_out`, `in_hand` | a consumer redrives what an operator requested |
//! | `held_keys`, `held_turn` | messages wait behind a dead letter of their key, and are redriven |

mod carry_out;
mod decide_many;
mod decision;
mod discard;
mod held_keys;
mod held_turn;
mod in_hand;
mod late;
mod options;
mod query;
mod read;
mod reason;
mod record;
mod redrive;
mod request;
mod store;

pub(crate) use carry_out::Taken;
pub use decide_many::{DISCARDED_MAX, REQUESTED_MAX};
pub(crate) use decision::REPLACED;
pub use decision::{
    Action, ClosedCount, DecidedLetter, Decision, LetterDecision, ManyDecided, Redriven, Requested,
    SeenLetter, Signature,
};
pub(crate) use held_keys::held_behind;
pub use held_turn::{FailedTurn, Turn};
pub(crate) use held_turn::{NotedTurn, PAUSE_MAX};
pub use options::{AfterDeadLetter, RedriveOptions};
pub use query::{
    DeadLetterQuery, FoundLetter, KeyedLetter, LETTER_ERRORS_LOOKED_AT, LETTERS_GROUPED_MAX,
    LETTERS_LOOKED_AT_MAX, LETTERS_SURVEYED_MAX, LetterFilter, LetterGroup, LetterSlice, LetterSurvey,
    LettersOfKey,
};
pub use reason::{Cause, Reason, Resolution};
pub use record::{DeadLetter, EVIDENCE_BYTES_MAX, HeldFirst, HeldKey};
