//! What consumers do.
//!
//! | module | what it holds |
//! |---|---|
//! | `handler` | applies messages, and fails where it is told to |
//! | `journaled` | a subscription that writes down what it hands out |
//! | `process` | the process around them |

mod handler;
mod journaled;
mod process;

pub use process::{BrokerAddress, ConsumerTask, run};
pub(crate) use process::{KAFKA_PROPERTIES, sqs_config};
