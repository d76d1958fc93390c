//! The polling peers: each has a table with only the columns and the index that it needs, and a
//! loop over pages.

use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

use super::Peer;
use crate::Failure;
use crate::rig::{Database, Shape};
use crate::target::{Kafka, Sender};

const PAGE: i64 = 1_000;

/// Recreates the peer's table.
pub(super) async fn prepare(peer: Peer, database: &Database) -> Result<(), Failure> {
    database
        .run(
            "DROP TABLE IF EXISTS peer, peer_cursor; \
             CREATE TABLE peer (xid xid8 NOT NULL DEFAULT pg_current_xact_id(), \
             id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status smallint NOT NULL DEFAULT 0, \
             message_id uuid NOT NULL DEFAULT outbox_new_message_id(), key text NOT NULL, payload bytea NOT NULL); \
             CREATE TABLE peer_cursor (xid xid8 NOT NULL, id bigint NOT NULL); \
             INSERT INTO peer_cursor VALUES ('0', 0)",
        )
        .await?;
    match peer {
        Peer::Status => database.run("CREATE INDEX ON peer (id) WHERE status = 0").await,
        Peer::XminHorizon => database.run("CREATE INDEX ON peer (xid, id)").await,
        Peer::IdCursor | Peer::Debezium(_) | Peer::Toolkit => Ok(()),
    }
}

/// Inserts a backlog and vacuums it, as on a server that has been running for a while.
async fn fill(database: &Database, shape: Shape) -> Result<(), Failure> {
    insert(database, shape).await?;
    database.run("VACUUM ANALYZE peer").await
}

/// Inserts a backlog in one transaction.
pub(super) async fn insert(database: &Database, shape: Shape) -> Result<(), Failure> {
    let mut connection = database.connect().await?;
    sqlx::query(
        "INSERT INTO peer (key, payload) SELECT 'key-' || (n * 7919 % $2), convert_to(repeat('x', $1), 'UTF8') \
         FROM generate_series(1, $3) AS n",
    )
    .bind(i32::try_from(shape.payload_bytes)?)
    .bind(i64::from(shape.keys))
    .bind(i64::from(shape.messages))
    .execute(&mut connection)
    .await?;
    Ok(())
}

/// Maximum time for which other transactions of the server may hold back rows.
const HELD_BACK_MAX: Duration = Duration::from_secs(30);

/// Returns the time from a cold start to the last confirmation of a backlog.
pub(super) async fn drain(
    peer: Peer,
    database: &Database,
    kafka: &Kafka,
    topic: &str,
    shape: Shape,
) -> Result<Duration, Failure> {
    fill(database, shape).await?;
    let began = Instant::now();
    let mut poller = Poller::connect(peer, database, kafka, topic).await?;
    let mut sent = 0;
    while sent < u64::from(shape.messages) {
        match poller.page().await? {
            // A transaction of another database of the server holds the horizon back.
            0 if began.elapsed() < HELD_BACK_MAX => tokio::time::sleep(Duration::from_millis(10)).await,
            0 => return Err(format!("{}: {sent} of {} published", peer.name(), shape.messages).into()),
            more => sent += more,
        }
    }
    Ok(began.elapsed())
}

type Row = (String, i64, String, Vec<u8>);

pub(super) struct Poller {
    peer: Peer,
    connection: PgConnection,
    sender: Sender,
    topic: String,
}

impl Poller {
    pub(super) async fn connect(
        peer: Peer,
        database: &Database,
        kafka: &Kafka,
        topic: &str,
    ) -> Result<Self, Failure> {
        let (connection, sender) = (database.connect().await?, kafka.sender()?);
        Ok(Self { peer, connection, sender, topic: topic.to_owned() })
    }

    /// Publishes a page and records that. Returns the number of its messages.
    pub(super) async fn page(&mut self) -> Result<u64, Failure> {
        let select = match self.peer {
            Peer::Status => {
                "SELECT xid::text, id, key, payload FROM peer WHERE status = 0 ORDER BY id LIMIT $1 \
                 FOR UPDATE SKIP LOCKED"
            }
            Peer::XminHorizon => {
                "SELECT xid::text, id, key, payload FROM peer \
                 WHERE (xid, id) > (SELECT xid, id FROM peer_cursor) \
                 AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT $1"
            }
            Peer::IdCursor | Peer::Debezium(_) | Peer::Toolkit => {
                "SELECT xid::text, id, key, payload FROM peer WHERE id > (SELECT id FROM peer_cursor) \
                 ORDER BY id LIMIT $1"
            }
        };
        let mut tx = self.connection.begin().await?;
        let rows: Vec<Row> = sqlx::query_as(select).bind(PAGE).fetch_all(&mut *tx).await?;
        let Some((xid, id, ..)) = rows.last() else { return Ok(0) };
        for (_, _, key, payload) in &rows {
            self.sender.send(&self.topic, key, payload).await?;
        }
        self.sender.confirmed().await?;
        if self.peer == Peer::Status {
            let ids: Vec<i64> = rows.iter().map(|(_, id, ..)| *id).collect();
            sqlx::query("UPDATE peer SET status = 1 WHERE id = ANY($1)").bind(ids).execute(&mut *tx).await?;
        } else {
            sqlx::query("UPDATE peer_cursor SET xid = $1::xid8, id = $2")
                .bind(xid)
                .bind(id)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(rows.len() as u64)
    }
}
