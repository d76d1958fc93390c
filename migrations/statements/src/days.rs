//! The days that rows of the inbox lie in.

use crate::error::Refused;
use crate::operation::{Alone, Next, Operation, then};
use crate::statement::{Row, Statement, Value};

/// The smallest retention of ids, in days.
pub const RETENTION_DAYS_MIN: u16 = 1;
/// The largest retention of ids, in days.
pub const RETENTION_DAYS_MAX: u16 = 366;
/// The default retention of ids, in days.
pub const RETENTION_DAYS_DEFAULT: u16 = 14;

const CREATE: &str =
    "SELECT to_jsonb(inbox_create_days((clock_timestamp() AT TIME ZONE 'UTC')::date - $1::text::integer,
        (clock_timestamp() AT TIME ZONE 'UTC')::date + 7))::text AS answer, NULL::bytea AS payload";

const EXPIRE: &str = "SELECT (SELECT count(*) FROM inbox_expire_days(
        (clock_timestamp() AT TIME ZONE 'UTC')::date - $1::text::integer))::text AS answer, NULL::bytea AS payload";

/// Creates days ([`Inbox::create_days`](crate::Inbox::create_days)). Returns how many.
#[derive(Debug)]
#[must_use = "days are created when a driver runs the operation"]
pub struct CreateDays(u16);

/// Forgets days ([`Inbox::expire_days`](crate::Inbox::expire_days)). Returns how many.
#[derive(Debug)]
#[must_use = "days are forgotten when a driver runs the operation"]
pub struct ExpireDays(u16);

impl CreateDays {
    pub(crate) fn new(retention_days: u16) -> Self {
        Self(retention_days)
    }
}

impl ExpireDays {
    pub(crate) fn new(retention_days: u16) -> Self {
        Self(retention_days)
    }
}

fn send(text: &'static str, days: u16) -> Next<u64> {
    let bounds = RETENTION_DAYS_MIN..=RETENTION_DAYS_MAX;
    if bounds.contains(&days) {
        return Next::Send(Statement::new(text, [Value::text(days.to_string())]));
    }
    Next::Done(Err(Refused::Retention { days, min: RETENTION_DAYS_MIN, max: RETENTION_DAYS_MAX }))
}

fn count(row: Option<Row>) -> Next<u64> {
    then(row.unwrap_or_default().read(), |count| Next::Done(Ok(count)))
}

impl Operation for CreateDays {
    type Output = u64;

    fn begin(&mut self) -> Next<u64> {
        send(CREATE, self.0)
    }

    fn read(&mut self, row: Option<Row>) -> Next<u64> {
        count(row)
    }
}

impl Operation for ExpireDays {
    type Output = u64;

    fn begin(&mut self) -> Next<u64> {
        send(EXPIRE, self.0)
    }

    fn read(&mut self, row: Option<Row>) -> Next<u64> {
        count(row)
    }
}

impl Alone for CreateDays {}
impl Alone for ExpireDays {}
