//! The relay: publishes every committed outbox row, and the command line around it.
//!
//! To embed the engine, switch the default feature `program` off: it brings what only the command
//! line needs.
//!
//! | module | what it holds |
//! |---|---|
//! | `cli` (feature `program`) | the command line |
//! | `config` (feature `program`) | `relay.toml`: several pipelines, checked before anything starts |
//! | `doctor` (feature `program`) | checks of a pipeline's database, broker and inboxes |
//! | `crash_points` (feature `testing`) | places at which a test ends the process |
//! | [`engine`] | one pipeline: an outbox read in order, published, settled, checkpointed |
//! | `http` (feature `metrics-endpoint`) | `/metrics`, `/livez`, `/readyz` |
//! | `listener` (features `metrics-endpoint`, `page`) | connections accepted within bounds |
//! | [`maintenance`] | history that every relay has passed goes |
//! | [`monitor`] | looks at the database for metrics |
//! | `operate` (feature `program`) | everything that operators ask and decide, for the command line and other skins |
//! | `page` (feature `page`) | the page for operators, another skin over it |
//! | [`telemetry`] | the one table of log events and metrics |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature opens more to tests"))]

#[cfg(all(feature = "program", not(any(feature = "kafka", feature = "rabbitmq", feature = "sqs"))))]
compile_error!(
    "the program publishes to nothing: switch on a broker with the feature kafka, rabbitmq or sqs"
);

#[cfg(feature = "program")]
pub mod cli;
#[cfg(feature = "program")]
pub mod config;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
#[cfg(feature = "program")]
pub mod doctor;
pub mod engine;
/// Open to the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "metrics-endpoint")]
pub mod http;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
mod listener;
pub mod maintenance;
pub mod monitor;
#[cfg(feature = "program")]
pub mod operate;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "page")]
pub mod page;
pub mod telemetry;
