//! Consumers.
//!
//! | module | contents |
//! |---|---|
//! | `handler` | applies messages, and fails where a message requests it |
//! | `process` | the process of a consumer |
//! | `receiver` | a receiver of HTTP requests |

mod handler;
mod process;
mod receiver;

pub(crate) use handler::HANG;
pub(crate) use process::{ACQUIRE, ATTEMPTS_MAX, KAFKA_PROPERTIES, SESSION, VISIBILITY_TIMEOUT, sqs_config};
pub use process::{BrokerAddress, ConsumerTask, run};
