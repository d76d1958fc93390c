//! What commands need of a pipeline's database.

use std::sync::Arc;

use outbox::admin::{self, LogAdmin};
use outbox::log::{self, LogStore};
use outbox::retention::{self, LogRetention};

use super::failure::Failure;
use crate::config::PipelineConfig;

/// The pipeline's log. Connects to nothing yet.
pub(crate) fn store(pipeline: &PipelineConfig) -> Result<Arc<dyn LogStore>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(log::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// The administration of the pipeline's log. Connects to nothing yet.
pub(crate) fn administration(pipeline: &PipelineConfig) -> Result<Arc<dyn LogAdmin>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(admin::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// The retention of the pipeline's log. Connects to nothing yet.
pub(crate) fn retention(pipeline: &PipelineConfig) -> Result<Arc<dyn LogRetention>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(retention::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}
