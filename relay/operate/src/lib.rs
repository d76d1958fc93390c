//! Everything that operators query and decide. The command line is one interface to it: it parses,
//! calls and prints. The page is another.
//!
//! Each function takes the calling [`Operator`] and refuses what its role does not permit, before
//! it connects to anything. Each decision is written to the audit of the database that it changes,
//! in the same transaction: author, time, action, the filter with the number of chosen messages,
//! and the reason. Work of several transactions (a replay, an erasure, a forgotten relay, deleted
//! old messages) has one line before it and one after it.
//!
//! | module | what it holds |
//! |---|---|
//! | `settings` | [`PipelineConfig`], [`InboxConfig`]: the checked settings of pipelines and inboxes |
//! | `operator` | [`Operator`], [`Role`], [`Signed`]: the caller, its rights, and the reason |
//! | `places` | [`Places`]: the outboxes and inboxes to query |
//! | `inbox_database` | an inbox in either database |
//! | [`dead`] | parked messages of outboxes and dead letters of inboxes, in one shape |
//! | [`audit`](mod@audit) | decisions and other operations, from every audit |
//! | [`export`] | the audit and lists of messages as CSV or JSON |
//! | [`pause`] | pausing and resuming a pipeline, a topic or a key |
//! | [`held`](mod@held) | keys that wait, and the message that stops each |
//! | [`payload`](mod@payload) | the payload of one message, with a line in the audit |
//! | [`consumers`](mod@consumers) | the state of consumers, as inboxes show it, and of those of this process |
//! | [`cause`] | errors that differ only in their numbers, as one |
//! | [`status`](mod@status) | the leader, waiting messages, and the reason |
//! | [`lag`] | the lag of topics |
//! | [`tables`] | the database of inboxes, keys and sagas, and how something is opened over it |
//! | `named_tables` | [`named_tables()`]: the databases that may have them |
//! | [`keys`] | idempotency keys whose holder has disappeared |
//! | [`sagas`] | sagas of a database |
//! | [`search`](mod@search) | messages by topic, key or header, newest first |
//! | [`story`] | the whole story of a message |
//! | [`failures`] | the failed attempts of a parked message |
//! | [`doctor`] | checks of a pipeline's database, broker and inboxes |
//! | [`verify`] | compares outbox, broker and inboxes |
//! | [`retention`] | history, its age, and what holds it back |
//! | [`erase`](mod@erase) | removes what is stored of a subject |
//! | [`forget`](mod@forget) | removes a relay that will not return |
//! | [`replay`] | publishing messages again |
//! | [`tail`] | messages that are being published now |
//! | `message_state` | [`MessageState`]: the state of a message in an outbox or an inbox |
//! | `note` | the lines of the audit about work of several transactions |
//! | `pace` | the pace of reads and of messages published again |
//! | `turns` | [`in_turns`]: looks at many databases, a few at a time |
//! | [`units`] | durations and sizes as people write them |
//! | [`seconds`], [`text`], [`redact`] | times, text from outside and URLs, as they are shown |
//! | [`outage`] | the words about a database that does not answer |
//! | `error` | [`OperateError`]: the reason of a failure, and what to do next |

#![cfg_attr(
    not(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs")),
    allow(unused, reason = "a service may give its relay a connector of its own, which nothing here checks")
)]

pub mod audit;
pub mod cause;
pub mod consumers;
pub mod dead;
pub mod doctor;
pub mod erase;
mod error;
pub mod export;
pub mod failures;
pub mod forget;
pub mod held;
mod inbox_database;
pub mod keys;
pub mod lag;
mod message_state;
mod named_tables;
mod note;
mod operator;
pub mod outage;
pub(crate) mod pace;
pub mod pause;
pub mod payload;
mod places;
pub mod redact;
pub mod replay;
pub mod retention;
pub mod sagas;
#[cfg(test)]
mod sample;
pub mod search;
pub mod seconds;
pub mod sessions;
mod settings;
pub mod status;
pub mod story;
pub mod tables;
pub mod tail;
pub mod text;
mod turns;
pub mod units;
pub mod verify;

pub use error::{Candidate, OperateError, OperateErrorKind};
pub use message_state::MessageState;
pub use named_tables::{NamedTables, named_tables};
pub use operator::{Operator, Role, Signed};
pub use places::{OutboxPlace, Places};
pub use settings::{Broker, Database, InboxConfig, PipelineConfig, Retention};
pub use turns::in_turns;
