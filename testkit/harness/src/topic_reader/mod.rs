//! Reads the broker's content with plain clients that share nothing with the toolkit's.
//!
//! | module | what it holds |
//! |---|---|
//! | [`kafka`] | a log, read from its beginning |
//! | `rabbitmq` (feature `rabbitmq`) | a queue beside, emptied at the end |
//! | [`whole`] | what came in chunks |

pub mod kafka;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod whole;
