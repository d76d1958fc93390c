//! Maintenance: the days that rows of the inbox lie in, and what is no longer needed.

use time::{Date, OffsetDateTime};

use crate::error::Refused;
use crate::operation::{Alone, Next, Operation, then};
use crate::statement::{Row, Statement, Value};

/// The smallest retention of ids, in days.
pub const RETENTION_DAYS_MIN: u16 = 1;
/// The largest retention of ids, in days.
pub const RETENTION_DAYS_MAX: u16 = 366;
/// The default retention of ids, in days.
pub const RETENTION_DAYS_DEFAULT: u16 = 14;

const MAINTAIN: &str = "SELECT coalesce(jsonb_agg(problem), '[]')::text AS answer, NULL::bytea AS payload
    FROM inbox_maintain($1::text::date, $2::text::integer) AS problem";

/// Maintains an inbox ([`Inbox::maintain`](crate::Inbox::maintain)). Returns a text for each part
/// that failed and waits for the next call.
#[derive(Debug)]
#[must_use = "nothing is maintained until a driver runs the operation"]
pub struct Maintain {
    /// The date (UTC) of this process's clock. The earlier one of both clocks counts.
    today: Date,
    retention_days: u16,
}

impl Maintain {
    pub(crate) fn new(retention_days: u16) -> Self {
        Self { today: OffsetDateTime::now_utc().date(), retention_days }
    }
}

impl Operation for Maintain {
    type Output = Vec<String>;

    fn begin(&mut self) -> Next<Vec<String>> {
        let days = self.retention_days;
        if (RETENTION_DAYS_MIN..=RETENTION_DAYS_MAX).contains(&days) {
            let values = [self.today.to_string(), days.to_string()].map(Value::text);
            return Next::Send(Statement::new(MAINTAIN, values));
        }
        Next::Done(Err(Refused::Retention { days, min: RETENTION_DAYS_MIN, max: RETENTION_DAYS_MAX }))
    }

    fn read(&mut self, row: Option<Row>) -> Next<Vec<String>> {
        then(row.unwrap_or_default().read(), |problems| Next::Done(Ok(problems)))
    }
}

impl Alone for Maintain {}
