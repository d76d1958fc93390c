//! Pipelines and inboxes as operators' requests need them: checked settings, wherever they come
//! from.

mod broker;
mod database;
mod inbox;
mod pipeline;
mod retention;

pub use broker::Broker;
pub use database::Database;
pub use inbox::InboxConfig;
pub use pipeline::PipelineConfig;
pub use retention::Retention;
