//! Segments of the log in PostgreSQL. The database's own functions decide about them, under the
//! lock that keeps the decision valid: `migrations/sql/postgres/outbox/0001_outbox.sql`.

use std::time::Duration;

use async_trait::async_trait;
use message::units::ShownTime;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::admin::entry::due;
use crate::operators::Operators as _;
use crate::postgres::brief::Brief;
use crate::postgres::fragments::HOLDER;
use crate::postgres::in_use::is_in_use;
use crate::postgres::store::PostgresLog;
use crate::retention::{Expired, ForgetError, HeldBack, KEEP_MESSAGES, LogRetention, Segment};
use crate::watch::{Held, Life, Vigil};
use crate::{EntryId, LogError, RelayName};

/// A lock that is not granted within 25 ms is requested again later, so that no other session waits
/// behind the request for longer.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);
/// A smaller difference of the clocks is not reported: it delays a removal by no more than itself.
const CLOCKS_DIFFER_MIN: Duration = Duration::from_secs(60);
/// Maximum decisions, and operations, that one call looks at: the oldest.
const DECISIONS_AT_ONCE: i32 = 1_000;

pub(super) const LIST: &str = "
SELECT n::smallint AS number, s.newest_id, s.bytes, s.reason, s.culprit,
    extract(epoch FROM clock_timestamp() - s.newest_at)::float8 AS newest_age,
    extract(epoch FROM clock_timestamp() - s.oldest_at)::float8 AS oldest_age
FROM generate_series(0, 7) AS n CROSS JOIN LATERAL {schema}outbox_segment(n, make_interval(secs => $1)) AS s ORDER BY n";

pub(super) const EXPIRE: &str = "SELECT {schema}outbox_expire_segment($1, make_interval(secs => $2))";

pub(super) const FORGET_DECISIONS: &str =
    "SELECT {schema}outbox_forget_decisions(make_interval(secs => $1), $2)";

/// $3 epoch and $4 end of a lease that is over although its end lies in the future, or null.
pub(super) const FORGET: &str =
    "SELECT outcome, holder, parked FROM {schema}outbox_forget_relay($1, $2, $3, $4::text::timestamptz)";

impl PostgresLog {
    async fn retention(&self) -> Result<Brief, LogError> {
        self.connect("relay retention").await.map(Brief::new)
    }

    async fn list(&self, connection: &mut PgConnection, keep: Duration) -> Result<Vec<Segment>, LogError> {
        let statement = self.render(LIST);
        let query = sqlx::query(&statement).bind(keep.as_secs_f64()).fetch_all(connection);
        let rows =
            self.limited(async { query.await.map_err(LogError::during("describe the segments")) }).await?;
        rows.iter().map(|row| segment(row).map_err(LogError::during("read a segment"))).collect()
    }

    /// Returns how far the server's clock is ahead of this machine's. Retention by the server's
    /// clock is extended by this amount, so that messages are also old enough by this machine's
    /// clock: rows that a fast clock has removed do not come back once the clock is right.
    async fn ahead(&self, connection: &mut PgConnection) -> Result<Duration, LogError> {
        let query = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(connection);
        let read = async { query.await.map_err(LogError::during("read the server's clock")) };
        let server: OffsetDateTime = self.limited(read).await?;
        Ok(ahead(server, OffsetDateTime::now_utc()))
    }

    /// Waits until the lease of a relay is free, or proves to be over. Returns it in the latter
    /// case.
    async fn over(
        &self,
        connection: &mut PgConnection,
        relay: &RelayName,
    ) -> Result<Option<Held<String>>, ForgetError> {
        let (statement, mut vigil) = (self.render(HOLDER), Vigil::default());
        loop {
            let query = sqlx::query_as(&statement).bind(relay.as_str()).fetch_optional(&mut *connection);
            let read = async { query.await.map_err(LogError::during("find out who holds the lease")) };
            match vigil.decide(self.limited(read).await?, Instant::now()) {
                Life::Over(held) => return Ok(held),
                Life::Alive { holder } => {
                    return Err(ForgetError::Leading { relay: relay.to_string(), holder, discarded: 0 });
                }
                Life::Unknown(left) => tokio::time::sleep(left).await,
            }
        }
    }

    /// Empties a segment, or returns why not.
    async fn empty(
        &self,
        connection: &mut PgConnection,
        number: i32,
        keep: Duration,
    ) -> Result<Option<HeldBack>, LogError> {
        let statement = self.render(EXPIRE);
        for attempt in 1..=TRIES {
            let query = sqlx::query_scalar(&statement)
                .bind(number)
                .bind(keep.as_secs_f64())
                .fetch_one(&mut *connection);
            let answer: Result<Option<String>, sqlx::Error> = self.limited(async { Ok(query.await) }).await?;
            match answer {
                Ok(reason) => return Ok(reason.map(|reason| held_back(&reason, None))),
                Err(error) if !is_in_use(&error) => return Err(LogError::during("empty a segment")(error)),
                Err(_) if attempt < TRIES => tokio::time::sleep(PAUSE * attempt).await,
                Err(_) => {}
            }
        }
        Ok(Some(HeldBack::Busy))
    }
}

/// The ring of segments would come round before a segment is that old: none would ever be emptied.
fn too_long(keep: Duration) -> LogError {
    LogError::operator(format!(
        "messages cannot be kept for {}, because a segment must be emptied before that: keep them for at \
         most {}, or forever",
        ShownTime(keep),
        ShownTime(KEEP_MESSAGES.max)
    ))
}

/// Returns how far the server's clock is ahead of this machine's clock.
fn ahead(server: OffsetDateTime, own: OffsetDateTime) -> Duration {
    Duration::try_from(server - own).unwrap_or_default()
}

/// Names the clocks as the reason for segments that are old enough by the server's clock alone.
fn blame_clocks(segments: &mut [Segment], by_server: &[Segment], ahead: Duration) {
    for (segment, alone) in segments.iter_mut().zip(by_server) {
        let young = Some(HeldBack::Young);
        if segment.held_back == young && alone.held_back != young {
            segment.held_back = Some(HeldBack::Clocks(ahead));
        }
    }
}

fn held_back(reason: &str, culprit: Option<String>) -> HeldBack {
    let culprit = culprit.unwrap_or_default();
    match reason {
        "empty" => HeldBack::Empty,
        "young" => HeldBack::Young,
        "unread" => HeldBack::Unread,
        "relay" => HeldBack::Relay(culprit),
        "parked" => HeldBack::Parked(culprit),
        "restored" => HeldBack::Restored,
        _ => HeldBack::Busy,
    }
}

fn segment(row: &PgRow) -> Result<Segment, sqlx::Error> {
    let reason: Option<String> = row.try_get("reason")?;
    let culprit: Option<String> = row.try_get("culprit")?;
    Ok(Segment {
        number: u16::try_from(row.try_get::<i16, _>("number")?).unwrap_or_default(),
        newest: row.try_get::<Option<i64>, _>("newest_id")?.map(EntryId),
        newest_age: due(row.try_get("newest_age")?),
        oldest_age: due(row.try_get("oldest_age")?),
        bytes: u64::try_from(row.try_get::<i64, _>("bytes")?).ok(),
        held_back: reason.map(|reason| held_back(&reason, culprit)),
    })
}

#[async_trait]
impl LogRetention for PostgresLog {
    async fn segments(&self, keep: Duration) -> Result<Vec<Segment>, LogError> {
        let mut connection = self.retention().await?;
        let ahead = self.ahead(&mut connection).await?;
        let mut segments = self.list(&mut connection, keep.saturating_add(ahead)).await?;
        if ahead >= CLOCKS_DIFFER_MIN {
            let by_server = self.list(&mut connection, keep).await?;
            blame_clocks(&mut segments, &by_server, ahead);
        }
        Ok(segments)
    }

    async fn expire(&self, keep: Duration) -> Result<Expired, LogError> {
        if keep > KEEP_MESSAGES.max {
            return Err(too_long(keep));
        }
        let mut connection = self.retention().await?;
        let keep = keep.saturating_add(self.ahead(&mut connection).await?);
        let mut expired = Expired { bytes: Some(0), ..Expired::default() };
        let mut segments = self.list(&mut connection, keep).await?;
        // The oldest first: a row that was written later may show the age of one whose time lies in
        // the future.
        segments.sort_by_key(|segment| segment.newest);
        for segment in segments {
            if segment.held_back.is_some() {
                continue;
            }
            if self.empty(&mut connection, segment.number.into(), keep).await?.is_none() {
                expired.segments += 1;
                expired.bytes = expired.bytes.zip(segment.bytes).map(|(sum, bytes)| sum + bytes);
            }
        }
        Ok(expired)
    }

    async fn forget_decisions(&self, keep: Duration) -> Result<u64, LogError> {
        let mut connection = self.retention().await?;
        let keep = keep.saturating_add(self.ahead(&mut connection).await?);
        let statement = self.render(FORGET_DECISIONS);
        let query = sqlx::query_scalar(&statement)
            .bind(keep.as_secs_f64())
            .bind(DECISIONS_AT_ONCE)
            .fetch_one(&mut *connection);
        let gone: Result<i64, sqlx::Error> = self.limited(async { Ok(query.await) }).await?;
        match gone {
            Ok(gone) => Ok(gone.unsigned_abs()),
            // It is retried on the next call.
            Err(error) if is_in_use(&error) => Ok(0),
            Err(error) => Err(LogError::during("delete old decisions")(error)),
        }
    }

    async fn forget(&self, relay: &RelayName, discard_parked: bool) -> Result<(), ForgetError> {
        let mut connection = self.retention().await?;
        let statement = self.render(FORGET);
        let mut discarded = 0;
        let mut is_watched = false;
        let mut over: Option<Held<String>> = None;
        loop {
            let query = sqlx::query_as(&statement)
                .bind(relay.as_str())
                .bind(discard_parked)
                .bind(over.as_ref().map(|held| held.epoch))
                .bind(over.as_ref().map(|held| held.until.as_str()))
                .fetch_one(&mut *connection);
            let answer = self.limited(async { query.await.map_err(LogError::during("forget the relay")) });
            let (outcome, holder, parked): (String, Option<String>, Option<i64>) = answer.await?;
            let parked = parked.unwrap_or_default().unsigned_abs();
            let holder = holder.unwrap_or_default();
            match outcome.as_str() {
                // Some parked entries were removed, in a separate transaction.
                "more" => {
                    discarded += parked;
                    continue;
                }
                "leading" if discarded == 0 && !is_watched => {
                    over = self.over(&mut connection, relay).await?;
                    is_watched = true;
                    continue;
                }
                _ => {}
            }
            let relay = relay.to_string();
            return match outcome.as_str() {
                "unknown" => Err(ForgetError::Unknown { relay }),
                "leading" => Err(ForgetError::Leading { relay, holder, discarded }),
                "parked" => Err(ForgetError::Parked { relay, entries: parked }),
                _ => Ok(()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn a_server_clock_that_is_ahead_shortens_no_retention() {
        let own = datetime!(2026-03-15 12:00 UTC);
        assert_eq!(ahead(own + Duration::from_secs(3 * 86_400), own), Duration::from_secs(3 * 86_400));
        assert_eq!(ahead(own - Duration::from_secs(60), own), Duration::ZERO);
    }
}
