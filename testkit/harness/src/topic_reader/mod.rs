//! Reads the broker's content with [plain clients](crate::plain).
//!
//! | module | contents |
//! |---|---|
//! | [`kafka`] | a log, read from its beginning |
//! | `rabbitmq` (feature `rabbitmq`) | an additional queue, emptied at the end |
//! | [`whole`] | messages that arrived in chunks |

pub mod kafka;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod whole;
