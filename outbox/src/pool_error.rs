//! The error of a pool that could not be opened.

use std::error::Error;

use crate::connect::InvalidUrl;

/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// The first connection failed.
    #[error("the database is not available")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
}
