//! Limits on the time of ids that producers supply.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use message::token::{Drift, DriftWindow};
use message::{MessageId, Prepared};
use time::OffsetDateTime;

use crate::dialect::Dialect;
use crate::enqueue_error::EnqueueError;
use crate::telemetry;

/// Maximum age of a reading of the database's clock. A refusal always uses a new reading.
const READING_AGE_MAX: Duration = Duration::from_secs(60);

/// Checks supplied ids against the database's clock. Costs one round trip per minute, and one per
/// refusal.
#[derive(Debug)]
pub(crate) struct DriftGuard {
    window: DriftWindow,
    /// When the clock was read, and its answer.
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
        tracing::warn!(%drift, "a message id was refused because of its time");
        Err(EnqueueError::Drift(Box::new(drift)))
    }

    /// Refuses a message whose id will be too old when it is delivered. The id is generated when
    /// the message is enqueued, and consumers check its age.
    pub(crate) fn at_delivery(&self, prepared: &Prepared) -> Result<(), EnqueueError> {
        let Some(deliver_at) = prepared.deliver_at else { return Ok(()) };
        Ok(self.window.check_delivery(prepared.message.id, deliver_at)?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use message::{EventType, Message, Topic};

    #[test]
    fn a_message_is_scheduled_as_far_ahead_as_its_id_is_accepted() {
        let message =
            Message::new(Topic::new("orders").unwrap(), EventType::new("order.placed").unwrap(), "{}");
        let made_at = message.id.generated_at();
        let days = time::Duration::days;
        let latest_at = made_at + days(14);
        for (window, ahead, is_accepted) in [
            (DriftWindow::DEFAULT, days(14), true),
            (DriftWindow::DEFAULT, days(15), false),
            (DriftWindow::WIDEST, days(366), true),
            (DriftWindow::DEFAULT, days(-1), true),
        ] {
            let deliver_at = Some(made_at + ahead);
            let prepared = Prepared { message: message.clone(), deliver_at, is_supplied: false };
            let answer = DriftGuard::new(window).at_delivery(&prepared);
            assert_eq!(answer.is_ok(), is_accepted, "{window:?}, {ahead}");
            if let Err(error) = answer {
                assert!(error.to_string().contains(&latest_at.to_string()), "{error}");
            }
        }
    }
}
