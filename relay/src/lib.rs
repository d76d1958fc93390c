//! The program `relay`: it publishes every committed outbox row, and serves operators' queries and
//! decisions, which the crate `operate` answers and takes. It is a library only for its own tests: services embed `outbox-toolkit-engine`.
//!
//! | module | what it holds |
//! |---|---|
//! | `cli` | the command line |
//! | `config` | `relay.toml`: several pipelines, checked before anything starts |
//! | `http` (feature `metrics-endpoint`) | `/metrics`, `/livez`, `/readyz` |
//! | `listener` (features `metrics-endpoint`, `page`) | accepting connections within bounds |
//! | `page` (feature `page`) | the page for operators, another interface |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature opens more to tests"))]

#[cfg(not(any(feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
compile_error!(
    "the program publishes to nothing: switch on a broker with the feature kafka, rabbitmq or sqs"
);

pub mod cli;
pub mod config;
/// Public for the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "metrics-endpoint")]
pub mod http;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
mod listener;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "page")]
pub mod page;
