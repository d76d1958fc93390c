//! Errors of locks that another session holds.

/// Returns whether the error is `lock_not_available` or `deadlock_detected`.
pub(super) fn is_in_use(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}
