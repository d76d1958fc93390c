//! `relay demo`: exactly-once effects through crashes, shown and checked in well under a minute.
//!
//! Producers commit orders with their messages while relays are killed, consumers crash, the broker
//! becomes unreachable and messages are delivered again. Then a checker that shares no code with
//! outbox, inbox and brokers reads the result and decides every promise. Relays are `relay run`,
//! each with a configuration file.
//!
//! | module | contents |
//! |---|---|
//! | `args` | options |
//! | `plan` | the plan of a run, from the seed |
//! | `target` | databases and broker: private ones, or by URL |
//! | `producer` | places orders through the outbox |
//! | `consumer` | the process of a consumer, and its crashes |
//! | `processes` | relays and consumer in separate processes |
//! | `faults` | injects faults on purpose |
//! | `again` | delivers copies of messages |
//! | `plain` | plain broker clients |
//! | `check`, `verdict` | the observations, and their verdict |
//! | `progress`, `report` | output for people during the run, and at its end |
//! | `run` | one run from its seed to its report |

mod again;
mod args;
mod check;
mod consumer;
mod error;
mod faults;
mod plain;
mod plan;
mod processes;
mod producer;
mod progress;
mod report;
mod run;
mod target;
mod verdict;

pub use args::Args;
pub use consumer::run_consumer;
pub use error::DemoError;
pub use report::Report;
pub use run::run;

/// The CloudEvents type of every message.
const KIND: &str = "order.placed";
/// The media type of every payload.
const CONTENT_TYPE: &str = "application/json";
/// The consumer's name in the inbox.
const CONSUMER: &str = "demo-charges";
/// The relay's name, to which its cursor and its lease belong.
const RELAY: &str = "demo";
