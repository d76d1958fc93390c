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

mod bounded;
mod broker_session;
mod builder;
mod crash;
mod drive;
mod ended_owners;
mod failure;
mod held_keys;
mod key_queues;
mod kinds;
mod lag;
mod many;
mod options;
mod overdue;
mod parts;
mod redrive;
mod shutdown;
mod single;
mod status;
mod store;
#[cfg(feature = "testing")]
mod testing;
mod tracing_spans;
mod worker;

pub use broker_session::SubscriptionFactory;
pub use builder::{BuildError, Consumer, ConsumerBuilder};
#[cfg(feature = "testing")]
pub use crash::CrashPoint;
pub use drive::RunError;
#[cfg(feature = "testing")]
pub use held_keys::HeldMessages;
pub use kinds::UnknownKinds;
#[cfg(feature = "testing")]
pub use options::RunnerOptions;
#[cfg(feature = "testing")]
pub use parts::{Parts, Runner};
pub use shutdown::{Shutdown, StopSignal};
pub use status::ConsumerStatus;
#[cfg(feature = "testing")]
pub use store::{Admitted, AdmittedBatch, Store};
pub use tracing_spans::JoinTraces;
