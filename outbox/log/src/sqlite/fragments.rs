//! Parts of statements: conditions that several statements have.

use crate::decided::{ends_with_a_discard, has_an_edit, was_edited};

/// The earlier errors of the exception, with its present error as the last of them. The same text
/// with a higher count replaces itself, and the oldest of nine is dropped.
///
/// An error that is in the list already, because the entry was requeued and has not been tried
/// since, is not added again. Nothing is added without an error, or where the condition in the
/// argument holds. A macro, because `concat!` takes only literals.
macro_rules! with_last_error {
    ($unless:literal) => {
        concat!(
            "CASE WHEN error IS NULL OR ",
            $unless,
            " OR attempts = 0 AND json_extract(earlier_errors, '$[#-1].error') = substr(error, 1, 500) THEN earlier_errors
            ELSE json_insert(
                CASE WHEN json_extract(earlier_errors, '$[#-1].error') = substr(error, 1, 500)
                    AND json_extract(earlier_errors, '$[#-1].attempts') <= attempts
                    THEN json_remove(earlier_errors, '$[#-1]')
                WHEN json_array_length(earlier_errors) >= 9 THEN json_remove(earlier_errors, '$[0]')
                ELSE coalesce(earlier_errors, '[]') END,
                '$[#]', json_object('attempts', attempts, 'at', updated_at, 'error', substr(error, 1, 500))) END"
        )
    };
}
pub(super) use with_last_error;

/// True where the last decision of relay ?1 about the message of row `of` was to discard it.
pub(super) const DISCARDED: &str = concat!(
    "coalesce((SELECT ",
    ends_with_a_discard!(),
    " FROM outbox_audit AS a WHERE a.relay = ?1 AND a.message_id = {of}.message_id), 0)"
);

/// True where an operator of relay ?1 has edited the message of row `of`.
pub(super) const EDITED: &str = concat!(
    "coalesce((SELECT ",
    has_an_edit!(),
    " FROM outbox_audit AS a WHERE a.relay = ?1 AND a.message_id = {of}.message_id), 0)"
);

/// True where an operator of relay ?1 has ever edited the message of row `of`.
pub(super) const WAS_EDITED: &str = concat!(
    "(SELECT ",
    was_edited!(),
    " FROM outbox_audit AS a WHERE a.relay = ?1 AND a.message_id = {of}.message_id)"
);
