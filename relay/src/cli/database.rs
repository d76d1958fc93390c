//! What commands need of a pipeline's database.

use std::sync::Arc;

use outbox::admin::{self, LogAdmin};
use outbox::log::{self, LogStore};
use secrecy::ExposeSecret;

use super::failure::Failure;
use crate::config::PipelineConfig;

/// The pipeline's log. Connects to nothing yet.
pub(crate) fn store(pipeline: &PipelineConfig) -> Result<Arc<dyn LogStore>, Failure> {
    let url = pipeline.database.url()?;
    let options = pipeline.database.options().clone();
    Ok(log::open(url.expose_secret(), pipeline.source.clone(), options)?)
}

/// The administration of the pipeline's log. Connects to nothing yet.
pub(crate) fn administration(pipeline: &PipelineConfig) -> Result<Arc<dyn LogAdmin>, Failure> {
    let url = pipeline.database.url()?;
    let options = pipeline.database.options().clone();
    Ok(admin::open(url.expose_secret(), pipeline.source.clone(), options)?)
}
