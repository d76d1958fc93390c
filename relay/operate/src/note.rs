//! Records operations of operators on a pipeline's outbox.

use outbox_log::entries;

use crate::error::OperateError;
use crate::operator::Signed;
use crate::settings::PipelineConfig;

/// Records an operation in the audit of a pipeline.
pub(crate) async fn note(
    pipeline: &PipelineConfig,
    signed: &Signed,
    action: &str,
    selection: &str,
) -> Result<(), OperateError> {
    let options = pipeline.database.options().clone();
    let opened = entries::open(pipeline.database.address(), pipeline.source.clone(), options);
    let (_, entries) = opened.map_err(|error| OperateError::from(error).about(&pipeline.name))?;
    let by = signed.signature(Some(selection.to_owned()));
    let noted = entries.note_operation(&pipeline.name, action, &by).await;
    noted.map_err(|error| OperateError::from(error).about(&pipeline.name))
}
