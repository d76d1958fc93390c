//! Queries how far back an inbox remembers, and how it numbers its dead letters.

use std::time::Duration;

use migrations::Dialect;
use outbox::connect::dialect_of;
use outbox_log::LogError;
use secrecy::ExposeSecret as _;

use super::Unreachable;
use crate::InboxConfig;
use crate::doctor::facts::{InboxFacts, LetterNumbers, UnreadInbox};

#[cfg(feature = "postgres")]
const REMEMBERS: &str = include_str!("../sql/inbox.sql");
#[cfg(feature = "postgres")]
const LOST_DAYS: &str = include_str!("../sql/lost_days.sql");
#[cfg(feature = "postgres")]
const LETTER_NUMBERS: &str = include_str!("../sql/dead_letter_seq.sql");
/// Times in this table are microseconds since 1970.
const REMEMBERS_SQLITE: &str =
    "SELECT unixepoch('subsec') - retained_from / 1000000.0 FROM inbox_retention LIMIT 1";

/// The answers of one inbox.
#[derive(Default)]
struct Asked {
    remembers: Option<Duration>,
    begins_in: Option<Duration>,
    lost_days: Vec<String>,
    letter_numbers: Option<LetterNumbers>,
}

/// Queries one inbox.
pub(in crate::doctor) async fn gather(inbox: &InboxConfig) -> InboxFacts {
    let asked = ask(inbox).await;
    let lost_days = asked.as_ref().map_or_else(|_| Vec::new(), |asked| asked.lost_days.clone());
    let letter_numbers = asked.as_ref().ok().and_then(|asked| asked.letter_numbers);
    let begins_in = asked.as_ref().ok().and_then(|asked| asked.begins_in);
    let remembers = asked
        .map(|asked| asked.remembers)
        .map_err(|Unreachable { reason, unavailable, .. }| UnreadInbox { reason, unavailable });
    InboxFacts {
        consumer: inbox.consumer.to_string(),
        topics: inbox.topics.clone(),
        remembers,
        begins_in,
        lost_days,
        letter_numbers,
    }
}

async fn ask(inbox: &InboxConfig) -> Result<Asked, Unreachable> {
    let url = inbox.url.load("verify.inbox.url").map_err(|error| Unreachable::operator(error.to_string()))?;
    match dialect_of(url.expose_secret()).map_err(LogError::from)? {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => {
            use sqlx::Row as _;
            let hosts = outbox::connect::Hosts::of(url.expose_secret(), inbox.allow_plaintext);
            let hosts = hosts.map_err(LogError::from)?.application_name("relay doctor");
            let mut connection = super::postgres::connect(&hosts).await?;
            super::postgres::settled(&mut connection).await?;
            let schema = inbox.schema.as_ref();
            let rows = super::asked::rows(&mut connection, schema, LOST_DAYS).await?;
            let days = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>();
            let lost_days = days.map_err(Unreachable::asking)?;
            let rows = super::asked::rows(&mut connection, schema, REMEMBERS).await?;
            let seconds = rows.first().map(|row| row.try_get(0)).transpose().map_err(Unreachable::asking)?;
            let rows = super::asked::rows(&mut connection, schema, LETTER_NUMBERS).await?;
            let numbers = |row: &sqlx::postgres::PgRow| {
                Ok(LetterNumbers { last: row.try_get("last")?, largest: row.try_get("largest")? })
            };
            let letter_numbers = rows.first().map(numbers).transpose().map_err(Unreachable::asking)?;
            Ok(Asked { lost_days, letter_numbers, ..memory(seconds) })
        }
        #[cfg(not(feature = "postgres"))]
        Dialect::Postgres => Err(Unreachable::operator(crate::tables::without_postgres().to_string())),
        Dialect::Sqlite => {
            let mut connection = super::sqlite::open(url.expose_secret()).await?;
            let asked = sqlx::query_scalar(REMEMBERS_SQLITE).fetch_optional(&mut connection).await;
            let seconds = asked.map_err(Unreachable::asking)?;
            Ok(memory(seconds))
        }
    }
}

/// Evaluates how many seconds ago a memory began.
fn memory(seconds: Option<f64>) -> Asked {
    let duration = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    Asked {
        remembers: seconds.map(duration),
        begins_in: seconds.filter(|seconds| *seconds < 0.0).map(|seconds| duration(-seconds)),
        lost_days: Vec::new(),
        letter_numbers: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_can_begin_in_the_future() {
        let begun = memory(Some(60.0));
        assert_eq!((begun.remembers, begun.begins_in), (Some(Duration::from_secs(60)), None));
        let ahead = memory(Some(-60.0));
        assert_eq!((ahead.remembers, ahead.begins_in), (Some(Duration::ZERO), Some(Duration::from_secs(60))));
        assert_eq!(memory(None).remembers, None);
    }
}
