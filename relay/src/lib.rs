//! The program `relay`: it publishes every committed outbox row, and gives operators commands for
//! queries and decisions. It is a library only for its own tests: services embed
//! `outbox-toolkit-engine`.
//!
//! Its companions are `operate` with the queries and decisions, `adopt` with the takeover of
//! foreign tables, and `web` with the page.
//!
//! | module | what it holds |
//! |---|---|
//! | `cli` | the command line |
//! | `config` | `relay.toml`: several pipelines, checked before anything starts |
//! | `near` | the known word that a misspelt one may mean |
//! | `http` (feature `metrics-endpoint`) | `/metrics`, `/livez`, `/readyz` |
//! | `otlp` (feature `otlp`) | the export to OpenTelemetry |

#[cfg(not(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs")))]
compile_error!("the relay needs a broker: enable the feature http, kafka, rabbitmq or sqs");

mod cli;
mod config;
/// Public for the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "metrics-endpoint")]
mod http;
mod near;
#[cfg(feature = "otlp")]
mod otlp;

pub use cli::{Cli, Exit, Failure};
