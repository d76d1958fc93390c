//! Consumers.
//!
//! | module | contents |
//! |---|---|
//! | `handler` | applies messages, and fails where a message requests it |
//! | `process` | the process of a consumer |

mod handler;
mod process;

pub(crate) use handler::HANG;
pub(crate) use process::{ACQUIRE, ATTEMPTS_MAX, KAFKA_PROPERTIES, SESSION, VISIBILITY_TIMEOUT, sqs_config};
pub use process::{BrokerAddress, ConsumerTask, run};
