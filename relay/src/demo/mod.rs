//! `relay demo`: exactly-once effects through crashes, shown and checked in well under a minute.
//!
//! Producers commit orders with their messages while relays are killed, consumers crash, the broker goes away and
//! messages are delivered again. Then a checker that shares no code with outbox, inbox and brokers reads what
//! happened and decides every promise.
//!
//! | module | what it does |
//! |---|---|
//! | `args` | options |
//! | `plan` | what will happen, from the seed |
//! | `target` | databases and broker: of its own, or by URL |
//! | `shop` | the business: orders and charges |
//! | `producer` | places orders through the outbox |
//! | `children` | relays and consumers, in processes of their own |
//! | `child` | starting, killing and stopping a process |
//! | `chaos` | what goes wrong on purpose |
//! | `plain` | plain broker clients |
//! | `check` | what was observed, and what it means |
//! | `progress`, `report` | what a person sees meanwhile, and at the end |
//! | `run` | one run from its seed to its report |

mod args;
mod chaos;
mod check;
mod child;
mod children;
mod error;
mod plain;
mod plan;
mod producer;
mod progress;
mod report;
mod run;
mod shop;
mod target;

pub use args::Args;
pub use children::{run_consumer, run_relay};
pub use error::DemoError;
pub use report::Report;
pub use run::run;
