//! Removes a relay that will not return.

use outbox_log::RelayName;
use outbox_log::retention::ForgetError;

use crate::error::{OperateError, OperateErrorKind};
use crate::note::note;
use crate::operator::Signed;
use crate::retention;
use crate::settings::PipelineConfig;

/// Removes a relay from the outbox of a pipeline, so that it no longer holds back retention.
/// `discard_parked` first discards its parked messages, part by part: they are not sent again. The
/// first part takes the relay's lease for a minute, and each part renews it, so that the relay does
/// not begin in between. Not cancel-safe: call it again.
///
/// The audit has the line `forget` for the request, and `forgotten` when it is done.
///
/// # Errors
/// [`OperateError`] when the operator may not decide, when the audit could not be written, when the
/// relay is unknown or leading, when it has parked messages that are not to be discarded, or when
/// the database does not answer.
pub async fn forget(
    pipeline: &PipelineConfig,
    signed: &Signed,
    relay: &RelayName,
    discard_parked: bool,
) -> Result<(), OperateError> {
    signed.check("forget a relay")?;
    let log = retention::log(pipeline)?;
    let selection = if discard_parked {
        format!("relay {relay}, with its parked messages")
    } else {
        format!("relay {relay}")
    };
    note(pipeline, signed, "forget", &selection).await?;
    match log.forget(relay, discard_parked).await {
        Ok(()) => {}
        Err(error @ ForgetError::Parked { .. }) => {
            let help = "list them with `relay dead list`, or add --discard-parked to discard them";
            return Err(OperateError::refused(error, help));
        }
        Err(ForgetError::Leading { relay, holder, discarded: discarded @ 1.. }) => {
            let error = ForgetError::Leading { relay, holder, discarded };
            let help = format_args!(
                "{discarded} of its parked messages are discarded, and it does not publish them any more; \
                 run the command again to discard the rest"
            );
            return Err(OperateError::refused(error, help));
        }
        Err(ForgetError::Log(error)) => {
            let error = OperateError::from(error).about(&pipeline.name);
            return Err(if discard_parked {
                error.with_help("some of its parked messages may have been discarded: run the command again")
            } else {
                error
            });
        }
        Err(error) => return Err(OperateError::new(OperateErrorKind::Refused, error)),
    }
    let noted = note(pipeline, signed, "forgotten", &selection).await;
    noted.map_err(|error| {
        error.with_help(format_args!(
            "relay {relay} is forgotten, but the audit has only the record \
                                      `forget`"
        ))
    })
}
