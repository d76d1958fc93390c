//! A ready consumer loop: receive, admit, handle, commit, settle.
//!
//! One task drives the subscription. Each ordering key that has work is a lane with one worker at a
//! time. So a failing message holds its own key while it waits for its next attempt, and the others
//! continue. A delivery is settled only with the proof that its effect, or its dead letter, is
//! committed.
//!
//! | failure | what happens |
//! |---|---|
//! | the handler fails, panics or times out | rolled back, counted in the database, retried after a backoff, dead-lettered at the limit |
//! | a fresh message has a key with an open dead letter, and the consumer holds keys | kept as a dead letter and settled; redriven in order |
//! | the message is refused or malformed, or its tenant is unknown | dead-lettered at once, then settled |
//! | the database is unavailable, or a commit's outcome is unknown | nothing settled; retried after a backoff; counted only while other messages succeed |
//! | the broker's session is lost | subscribed again; running work is finished, its tokens are forgotten |
//! | shutdown | nothing more received; running work finished and settled, the rest released |

mod apply;
mod batch;
mod batch_attempt;
mod bounded;
mod bounded_handler;
mod broker_session;
mod build_error;
mod builder;
mod consumer;
mod course;
mod crash;
mod dead_lettering;
mod drive;
mod ended_owners;
mod failure;
mod gather;
mod handling;
mod held;
mod in_hand;
mod inbox_store;
mod join_traces;
mod key_queues;
mod kinds;
mod lag;
mod options;
mod overdue;
mod parts;
mod reader;
mod requests;
mod run_error;
mod shutdown;
mod single;
mod status;
mod step;
mod store;
#[cfg(feature = "testing")]
mod testing;
mod tracing_spans;
mod waits;
mod worker;

pub use broker_session::SubscriptionFactory;
pub use build_error::BuildError;
pub use builder::ConsumerBuilder;
pub use consumer::Consumer;
#[cfg(feature = "testing")]
pub use crash::CrashPoint;
pub use join_traces::JoinTraces;
pub use kinds::UnknownKinds;
#[cfg(feature = "testing")]
pub use options::RunnerOptions;
#[cfg(feature = "testing")]
pub use parts::{Parts, Runner};
pub use run_error::RunError;
pub use shutdown::{Shutdown, StopSignal};
pub use status::ConsumerStatus;
#[cfg(feature = "testing")]
pub use store::{Admitted, AdmittedBatch, HeldMessages, Store};
pub use waits::{Wait, WaitReason};
