//! The bare reader: one plain SELECT for each page.

use std::fmt::Write as _;

use sqlx::{Connection, PgConnection, Row};

use crate::Failure;

/// Rows in one SELECT; the relay's default page.
const PAGE: i64 = 1_000;

/// A row of the bare reader.
pub(super) struct BareRow {
    pub(super) message_id: String,
    pub(super) topic: String,
    pub(super) key: String,
    pub(super) payload: Vec<u8>,
}

impl BareRow {
    /// Returns attributes of the same number and length as those of a CloudEvent, so that both
    /// sides send equally many bytes. Only id and key vary, so making them costs nothing.
    pub(super) fn attributes(&self) -> [(&'static str, &str); 7] {
        [
            ("ce_specversion", "1.0"),
            ("ce_id", &self.message_id),
            ("ce_source", "/bench"),
            ("ce_type", "bench.filled"),
            ("ce_time", "2026-03-01T12:00:00.123456Z"),
            ("ce_subject", &self.key),
            ("content-type", "application/octet-stream"),
        ]
    }

    /// Returns the same as one JSON text.
    pub(super) fn envelope(&self) -> String {
        let mut text = String::with_capacity(1_024);
        text.push('{');
        for (name, value) in self.attributes() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\"{name}\":\"{value}\",");
        }
        let _ = write!(text, "\"data\":\"{}\"}}", String::from_utf8_lossy(&self.payload));
        text
    }
}

/// A reader of the rows of one topic, in pages by id.
pub(crate) struct Rows {
    connection: PgConnection,
    pub(super) topic: String,
    after: i64,
}

impl Rows {
    pub(crate) async fn open(url: &str, topic: &str) -> Result<Self, Failure> {
        let mut connection = PgConnection::connect(url).await?;
        // Ids continue after earlier rounds: start at the first one of this topic.
        let first: i64 = sqlx::query_scalar("SELECT min(id) FROM outbox_message WHERE topic = $1")
            .bind(topic)
            .fetch_one(&mut connection)
            .await?;
        Ok(Self { connection, topic: topic.to_owned(), after: first - 1 })
    }

    pub(super) async fn next(&mut self) -> Result<Vec<BareRow>, Failure> {
        let rows = sqlx::query(
            "SELECT id, message_id::text, topic, key, payload FROM outbox_message WHERE id > $1 ORDER BY id LIMIT $2",
        )
        .bind(self.after)
        .bind(PAGE)
        .fetch_all(&mut self.connection)
        .await?;
        if let Some(last) = rows.last() {
            self.after = last.try_get(0)?;
        }
        let bare = |row: sqlx::postgres::PgRow| -> Result<BareRow, Failure> {
            Ok(BareRow {
                message_id: row.try_get(1)?,
                topic: row.try_get(2)?,
                key: row.try_get(3)?,
                payload: row.try_get(4)?,
            })
        };
        let page: Vec<BareRow> = rows.into_iter().map(bare).collect::<Result<_, _>>()?;
        Ok(page.into_iter().filter(|row| row.topic == self.topic).collect())
    }
}
