//! Which ids of their own producers may bring.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use message::MessageId;
use message::token::{Drift, DriftWindow};
use time::OffsetDateTime;

use crate::dialect::Dialect;
use crate::enqueue_error::EnqueueError;
use crate::telemetry;

/// How long a reading of the database's clock is gone on from. A refusal always has one of its own.
const READING_AGE_MAX: Duration = Duration::from_secs(60);

/// Judges supplied ids by the database's clock, which costs a round trip a minute, and one for each
/// refusal.
#[derive(Debug)]
pub(crate) struct DriftGuard {
    window: DriftWindow,
    /// When the clock was read, and what it said.
    reading: Mutex<Option<(Instant, OffsetDateTime)>>,
}

impl DriftGuard {
    pub(crate) fn new(window: DriftWindow) -> Self {
        Self { window, reading: Mutex::new(None) }
    }

    /// Refuses the first id whose time is not accepted.
    pub(crate) async fn validate<DB: Dialect>(
        &self,
        connection: &mut DB::Connection,
        supplied: &[MessageId],
    ) -> Result<(), EnqueueError> {
        if supplied.is_empty() || self.now().is_some_and(|now| self.first_drift(supplied, now).is_none()) {
            return Ok(());
        }
        let now = DB::now(connection).await?;
        *self.lock() = Some((Instant::now(), now));
        let Some(drift) = self.first_drift(supplied, now) else { return Ok(()) };
        telemetry::id_refused(&drift);
        tracing::warn!(%drift, "a message id was refused by its time");
        Err(EnqueueError::Drift(Box::new(drift)))
    }

    fn first_drift(&self, supplied: &[MessageId], now: OffsetDateTime) -> Option<Drift> {
        let accepted = self.window.at(now);
        supplied.iter().find_map(|id| accepted.validate(*id).err())
    }

    fn now(&self) -> Option<OffsetDateTime> {
        let (read_at, said) = (*self.lock())?;
        let age = read_at.elapsed();
        (age <= READING_AGE_MAX).then(|| said + age)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, OffsetDateTime)>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
