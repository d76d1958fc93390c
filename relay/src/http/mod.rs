//! `/metrics`, `/livez` and `/readyz` of the program.
//!
//! | module | what it holds |
//! |---|---|
//! | `exporter` | the recorder of metrics, and the text of a scrape |
//! | `health` | whether the process is ready |
//! | `serve` | the listener with its bounds, the routes |
//!
//! Everybody who reaches the address may read: it needs no credentials and tells no payload, no key
//! and no secret, but names of topics.

mod exporter;
mod health;
mod serve;

pub use exporter::Exporter;
pub use health::Health;
pub use serve::Endpoint;
