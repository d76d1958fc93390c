//! The producer's part of the outbox in PostgreSQL.
//!
//! | module | contents |
//! |---|---|
//! | `enqueue` | the statements of producers |
//! | `nodes` | numbers of nodes that make ids |
//! | [`transaction_ids`] | ids that name the transaction in which they are taken |
//! | `options`, `url`, `session` | connections: from a URL to options, session defaults |
//! | `hosts`, `answering` | several hosts of a database, several addresses of a host |
//! | `pools`, `following` | pools, and those that follow the primary among several hosts |
//! | `inventory` | all statements, for the test that counts what each of them reads |

pub(crate) mod answering;
mod enqueue;
mod following;
pub(crate) mod hosts;
/// Public for the test that counts the reads of each statement.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod inventory;
mod nodes;
pub(crate) mod options;
mod pools;
pub(crate) mod session;
pub mod transaction_ids;
mod url;
mod url_parameters;
