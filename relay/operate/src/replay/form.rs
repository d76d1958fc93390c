//! A form that is sent twice is one replay: its id is noted in the audit.

use std::time::Duration;

use outbox_log::admin::Operation;
use uuid::Uuid;

use crate::error::{OperateError, OperateErrorKind};
use crate::places::{OutboxPlace, Places};

/// Operations of one read of the audit.
const OPERATIONS: u32 = 200;

/// Maximum time by which the clock of the process that made a form may be ahead of the database's.
/// Operations that are older than the form by more than this do not come from it.
const CLOCKS_APART: Duration = Duration::from_secs(3_600);

/// Returns whether a replay has begun by this form, in any process, as the audit says. `form` is a
/// UUID of version 7, made when the form was shown. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the places are not one outbox, or when it does not answer.
pub async fn has_begun(places: &Places, form: Uuid) -> Result<bool, OperateError> {
    Ok(begun(places.only_outbox()?, form).await? > 0)
}

/// Returns how many replays have begun by a form.
pub(super) async fn begun(place: &OutboxPlace, form: Uuid) -> Result<usize, OperateError> {
    let mark = mark(form);
    let made_at = form.get_timestamp().map_or(0, |made_at| made_at.to_unix().0);
    let since = i64::try_from(made_at.saturating_sub(CLOCKS_APART.as_secs())).unwrap_or(i64::MAX);
    let mut before = i64::MAX;
    let mut found = 0;
    loop {
        let read = place.log.operations_before(&place.pipeline, before, OPERATIONS).await;
        let operations = read.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
        let is_of_form = |it: &&Operation| {
            it.action == "replay" && it.signature.selection.as_ref().is_some_and(|it| it.ends_with(&mark))
        };
        found += operations.iter().filter(is_of_form).count();
        match operations.last() {
            Some(last) if operations.len() == OPERATIONS as usize && last.at.unix_timestamp() >= since => {
                before = last.number;
            }
            _ => return Ok(found),
        }
    }
}

/// Returns the end of the audit's text about a replay that begins by a form.
pub(super) fn mark(form: Uuid) -> String {
    format!(", form {form}")
}

/// Returns the error of a form that several requests bring at the same moment. Another one may have
/// begun its replay before this one noted its own.
pub(super) fn sent_together() -> OperateError {
    let text = "this form was sent more than once at the same moment: another request may be replaying";
    let error = OperateError::new(OperateErrorKind::Conflict, text);
    error.with_help(
        "this request sent nothing; before you replay again, find out whether the other one runs or has \
         ended: `relay audit --action replayed` lists replays that have ended",
    )
}

/// Returns the error of a form that was sent before.
pub(super) fn sent_before() -> OperateError {
    let text = "this form was sent before, and its replay has begun";
    let error = OperateError::new(OperateErrorKind::Conflict, text);
    error.with_help("nothing was sent again: the audit says who replayed what")
}
