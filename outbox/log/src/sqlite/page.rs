//! Where a page ends.

use futures_util::TryStreamExt as _;
use futures_util::stream::BoxStream;
use sqlx::sqlite::SqliteRow;

use crate::row::Row;
use crate::sqlite::row::columns;
use crate::{LogError, PageLimit};

/// Takes rows until the limit is reached, at least one. Returns whether the stream had no more.
pub(super) async fn take(
    mut rows: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
    limit: PageLimit,
    mut push: impl FnMut(&SqliteRow, Row<'_>) -> Result<(), LogError>,
) -> Result<bool, LogError> {
    let (mut count, mut bytes) = (0, 0);
    while let Some(row) = rows.try_next().await.map_err(LogError::during("read entries"))? {
        let columns = columns(&row)?;
        bytes += columns.bytes_read();
        if count > 0 && (count >= limit.entries_max || bytes > limit.bytes_max) {
            return Ok(false);
        }
        count += 1;
        push(&row, columns)?;
    }
    Ok(true)
}

/// Returns one more than the limit, which shows whether a row follows.
pub(super) fn rows_max(limit: PageLimit) -> i64 {
    i64::try_from(limit.entries_max).unwrap_or(i64::MAX - 1).clamp(1, i64::MAX - 1) + 1
}
