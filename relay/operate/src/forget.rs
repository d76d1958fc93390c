//! Removes a relay that is gone for good.

use outbox_log::RelayName;
use outbox_log::retention::ForgetError;

use crate::error::{OperateError, OperateErrorKind};
use crate::operator::{Operator, Role};
use crate::retention;
use crate::settings::PipelineConfig;

/// Removes a relay from the outbox of a pipeline, so that it no longer holds back retention.
/// `discard_parked` also discards its parked messages: they are never published. Not cancel-safe:
/// call it again.
///
/// # Errors
/// [`OperateError`] when the operator may not decide, when the relay is unknown or leading, when it
/// has parked messages that are not to be discarded, or when the database does not answer.
pub async fn forget(
    pipeline: &PipelineConfig,
    operator: &Operator,
    relay: &RelayName,
    discard_parked: bool,
) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "forget a relay")?;
    match retention::log(pipeline)?.forget(relay, discard_parked).await {
        Ok(()) => Ok(()),
        Err(error @ ForgetError::Parked { .. }) => {
            let help = "look at them with `relay dead list`, or add --discard-parked to give them up";
            Err(OperateError::refused(error, help))
        }
        Err(ForgetError::Log(error)) => Err(OperateError::from(error).about(&pipeline.name)),
        Err(error) => Err(OperateError::new(OperateErrorKind::Refused, error)),
    }
}
