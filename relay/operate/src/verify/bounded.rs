//! Time limits of the reads of a comparison. A host that has disappeared ends no connection:
//! without a limit, the comparison would wait for its answer forever.
//!
//! The limit is one of a call, not of the comparison, which may take hours.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use inbox::reconcile::{AppliedIds, Remembered, Unfinished};
use outbox_log::reconcile::{Row, Rows};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::{OperateError, OperateErrorKind};
use crate::tables::Tables;

/// Time for the answer beyond the limit of the statement, which the server observes: the
/// transaction around it, and the way there and back.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A place that is read, and the maximum duration of one call.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    /// The place, without secrets, for errors.
    place: String,
    /// `None` for a file, which is read in this process.
    limit: Option<Duration>,
}

impl Bound {
    /// Bounds the calls to tables in PostgreSQL, or names those in a file. The server ends a
    /// statement after `statement_timeout`.
    pub(super) fn of(what: impl fmt::Display, tables: &Tables, statement_timeout: Duration) -> Self {
        let is_file = matches!(tables.dialect(), Ok(migrations::Dialect::Sqlite));
        let limit = (!is_file).then(|| statement_timeout.saturating_add(ANSWER_MAX));
        Self { place: format!("{what} at {}", tables.location()), limit }
    }

    /// Waits for a call up to the limit, then drops it.
    ///
    /// # Errors
    /// Those of the call, or the missing answer. Both name the place.
    pub(super) async fn call<T, E>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, OperateError>
    where
        OperateError: From<E>,
    {
        let Some(limit) = self.limit else { return call.await.map_err(|error| self.failed(error)) };
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(|error| self.failed(error)),
            Err(_) => Err(self.lost(outbox::no_answer(limit))),
        }
    }

    /// Returns the error of a place that does not answer.
    pub(super) fn lost(&self, why: impl fmt::Display) -> OperateError {
        let help = "nothing was changed: compare again once this database answers; if it is slow, raise \
                    --statement-timeout";
        OperateError::new(OperateErrorKind::Unavailable, why).about(&self.place).with_help(help)
    }

    /// Returns the maximum duration of one call; `None` for a file.
    #[cfg(feature = "postgres")]
    pub(super) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Returns the error of a call, with the place.
    pub(super) fn failed<E>(&self, error: E) -> OperateError
    where
        OperateError: From<E>,
    {
        OperateError::from(error).about(&self.place)
    }
}

/// The outbox of a pipeline.
pub(super) struct OutboxRows {
    pub(super) rows: Box<dyn Rows>,
    pub(super) bound: Bound,
}

impl OutboxRows {
    pub(super) async fn page(
        &mut self,
        after: Uuid,
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Row>, OperateError> {
        self.bound.call(self.rows.page(after, until, rows_max)).await
    }

    pub(super) async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Row>, OperateError> {
        self.bound.call(self.rows.find(ids)).await
    }

    pub(super) async fn first(&mut self) -> Result<Option<Uuid>, OperateError> {
        self.bound.call(self.rows.first()).await
    }
}

/// The inbox of a consumer.
pub(super) struct InboxIds {
    pub(super) ids: Box<dyn AppliedIds>,
    pub(super) bound: Bound,
}

impl InboxIds {
    pub(super) async fn page(
        &mut self,
        after: Uuid,
        after_tenant: &str,
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, OperateError> {
        self.bound.call(self.ids.page(after, after_tenant, until, rows_max)).await
    }

    pub(super) async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, OperateError> {
        self.bound.call(self.ids.find(ids)).await
    }

    pub(super) async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, OperateError> {
        self.bound.call(self.ids.unfinished(ids)).await
    }

    pub(super) async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, OperateError> {
        self.bound.call(self.ids.retained_from()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_log::{LogError, LogOptions};

    fn bound(url: &str) -> Bound {
        let tables = Tables::new(url.into(), LogOptions::default());
        Bound::of("the inbox of billing", &tables, Duration::from_secs(10))
    }

    async fn silence() -> Result<(), LogError> {
        std::future::pending().await
    }

    /// Goal: a database that does not answer ends the comparison. Oracle: the time in a stopped
    /// clock, and the error: which database, how long, and what to do.
    #[cfg(feature = "postgres")]
    #[tokio::test(start_paused = true)]
    async fn a_silent_database_is_named_with_the_time_that_it_was_given() {
        let begun_at = tokio::time::Instant::now();
        let error = bound("postgres://ann:secret@db:7/app").call(silence()).await.unwrap_err();
        assert_eq!(begun_at.elapsed().as_secs(), 30);
        assert_eq!(error.kind(), OperateErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.starts_with("the inbox of billing at db:7/app: no answer within 30s"), "{text}");
        assert!(error.help().unwrap().contains("again"), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_given_any_time() {
        let slow = async {
            tokio::time::sleep(Duration::from_secs(9_999)).await;
            Ok::<_, LogError>(())
        };
        bound("sqlite:billing.db").call(slow).await.unwrap();
    }
}
