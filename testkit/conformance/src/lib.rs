//! Checks an adapter for a broker against the contract of [`message::Publisher`] and
//! [`message::Subscription`].
//!
//! The author of an adapter implements [`Broker`] for it and declares its [`Capabilities`]. Then
//! [`main()`] runs every case as a separate test; for another test harness, [`cases()`] returns the
//! cases. The adapters of the toolkit pass the same cases.
//!
//! ```no_run
//! # use conformance::{Broker, Capabilities, Failure};
//! # use std::sync::Arc;
//! # async fn open() -> Result<Arc<dyn Broker>, Failure> { Err("an example".into()) }
//! fn main() -> std::process::ExitCode {
//!     let capabilities = Capabilities { shares_work: false, ..Capabilities::ALL };
//!     conformance::main("directory", capabilities, open)
//! }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `broker` | [`Broker`], [`Capabilities`]: the interface that the author of an adapter implements |
//! | `case` | [`Case`], [`cases()`]: the cases as data |
//! | `harness` | [`main()`]: every case as a test of a program |
//! | [`publisher`], `subscription` | the cases |
//!
//! For additional cases:
//!
//! | module | contents |
//! |---|---|
//! | [`session`], [`relaying`] | a publishing session that counts receipts; submitting like the relay |
//! | [`consuming`] | receiving and settling like a consumer |
//! | [`sample`] | messages |
//! | [`facts`] | the verdict of the independent checker on sent and stored facts |
//! | [`hostile`] | names that no setting may accept |
//! | `eventually` | [`eventually()`]: waits for a condition instead of a fixed time |

mod broker;
mod case;
pub mod consuming;
mod eventually;
pub mod facts;
mod harness;
pub mod hostile;
pub mod publisher;
pub mod relaying;
pub mod sample;
pub mod session;
mod subscription;

pub use broker::{Broker, Capabilities, Foreign, Redelivery};
pub use case::{Case, cases};
pub use eventually::{eventually, when};
pub use harness::main;

/// The reason why a case failed.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The outcome of a case.
pub type Outcome = Result<(), Failure>;
