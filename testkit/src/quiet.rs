//! Waiting until nothing is in flight.

use std::collections::HashSet;
use std::time::Duration;

use crate::database::Database;
use crate::failure::Failure;
use crate::observed::column;
use crate::world::World;

/// The interval between queries of the database; the broker reports its changes.
const INTERVAL: Duration = Duration::from_millis(5);

impl<DB: Database> World<DB> {
    /// Waits until every message of the outbox is at the broker or parked, and every delivery is
    /// settled: applied, recognised as a duplicate, or dead-lettered. That includes messages that
    /// handlers enqueue.
    ///
    /// # Errors
    /// The patience is over, and messages are still in flight; the text lists them. Or the database
    /// refuses.
    pub async fn quiet(&self) -> Result<(), Failure> {
        let settled = async {
            loop {
                self.broker.drained().await;
                // The outbox is read after the broker, so that messages that a handler enqueued
                // before its delivery was settled are seen here.
                let waiting = self.unpublished().await?;
                if waiting.is_empty() && self.broker.is_drained() {
                    return Ok(());
                }
                tokio::time::sleep(INTERVAL).await;
            }
        };
        match tokio::time::timeout(self.patience, settled).await {
            Ok(result) => result,
            Err(_) => Err(self.still_moving().await?),
        }
    }

    /// Returns the ids of outbox messages that are neither at the broker nor dead, held or
    /// discarded.
    async fn unpublished(&self) -> Result<Vec<String>, Failure> {
        let sql = "SELECT CAST(m.message_id AS text) AS message_id FROM outbox_message m WHERE NOT EXISTS \
             (SELECT 1 FROM outbox_exception e WHERE e.id = m.id AND e.state IN ('dead', 'held', 'discarded'))";
        let rows = self.read(sql, &[], "read the outbox").await?;
        let topics = self.broker.topics();
        let published: HashSet<String> = topics
            .iter()
            .flat_map(|topic| self.broker.log(topic))
            .map(|message| message.id.to_string())
            .collect();
        let ids: Vec<String> = rows.iter().map(|row| column(row, "message_id")).collect::<Result<_, _>>()?;
        Ok(ids.into_iter().filter(|id| !published.contains(id)).collect())
    }

    async fn still_moving(&self) -> Result<Failure, Failure> {
        let unpublished = self.unpublished().await?;
        let sql = "SELECT consumer, attempts, last_error FROM inbox_attempt LIMIT 5";
        let mut failing = Vec::new();
        for row in self.read(sql, &[], "read the attempts").await? {
            let consumer: String = column(&row, "consumer")?;
            let attempts: u64 = column(&row, "attempts")?;
            let error: String = column(&row, "last_error")?;
            failing.push(format!("{consumer} failed {attempts} times: {error}"));
        }
        Ok(Failure::new(format!(
            "not quiet after {:?}: {} messages unpublished {:?}; deliveries {}; {}",
            self.patience,
            unpublished.len(),
            unpublished.iter().take(5).collect::<Vec<_>>(),
            if self.broker.is_drained() { "all settled" } else { "not all settled" },
            if failing.is_empty() { String::from("no handler fails") } else { failing.join("; ") },
        )))
    }
}
