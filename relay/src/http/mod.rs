//! `/metrics`, `/livez` and `/readyz` of the program.
//!
//! | module | what it holds |
//! |---|---|
//! | `exporter` | the recorder of metrics, and the text of a scrape |
//! | `health` | whether the process is ready |
//! | `serve` | the listener with its bounds, the routes |
//!
//! Every client that reaches the address may read. Responses need no credentials and contain topic
//! names, but no payload, key or secret.

mod exporter;
mod health;
mod serve;

pub(crate) use exporter::Exporter;
pub(crate) use health::Health;
pub(crate) use serve::Endpoint;
