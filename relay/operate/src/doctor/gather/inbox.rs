//! Queries how far back an inbox remembers.

use std::time::Duration;

use migrations::Dialect;
use outbox::connect::dialect_of;
use outbox_log::LogError;
use secrecy::ExposeSecret as _;

use super::Unreachable;
use crate::InboxConfig;
use crate::doctor::facts::{InboxFacts, UnreadInbox};

#[cfg(feature = "postgres")]
const REMEMBERS: &str = include_str!("../sql/inbox.sql");
/// Times in this table are microseconds since 1970.
const REMEMBERS_SQLITE: &str =
    "SELECT unixepoch('subsec') - retained_from / 1000000.0 FROM inbox_retention LIMIT 1";

/// Queries one inbox.
pub(in crate::doctor) async fn gather(inbox: &InboxConfig) -> InboxFacts {
    let remembers = ask(inbox)
        .await
        .map_err(|Unreachable { reason, unavailable, .. }| UnreadInbox { reason, unavailable });
    InboxFacts { consumer: inbox.consumer.to_string(), topics: inbox.topics.clone(), remembers }
}

async fn ask(inbox: &InboxConfig) -> Result<Option<Duration>, Unreachable> {
    let url = inbox.url.load("verify.inbox.url").map_err(|error| Unreachable::operator(error.to_string()))?;
    let seconds: Option<f64> = match dialect_of(url.expose_secret()).map_err(LogError::from)? {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => {
            use sqlx::Row as _;
            let options = outbox::connect::postgres_options(url.expose_secret(), inbox.allow_plaintext);
            let options = options.map_err(LogError::from)?.application_name("relay doctor");
            let mut connection = super::postgres::connect(&options).await?;
            super::postgres::settled(&mut connection).await?;
            let rows = super::asked::rows(&mut connection, inbox.schema.as_ref(), REMEMBERS).await?;
            rows.first().map(|row| row.try_get(0)).transpose().map_err(Unreachable::asking)?
        }
        #[cfg(not(feature = "postgres"))]
        Dialect::Postgres => return Err(Unreachable::operator("this relay was built without PostgreSQL")),
        Dialect::Sqlite => {
            let mut connection = super::sqlite::open(url.expose_secret()).await?;
            let asked = sqlx::query_scalar(REMEMBERS_SQLITE).fetch_optional(&mut connection).await;
            asked.map_err(Unreachable::asking)?
        }
    };
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)))
}
