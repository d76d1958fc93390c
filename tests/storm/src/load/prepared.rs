//! An operation whose transaction is prepared: written, safe from crashes, and undecided.

use std::path::Path as File;

use outbox::Outbox;
use rand::rngs::StdRng;
use sqlx::{AssertSqlSafe, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use super::client::Topics;
use super::shape::{Ending, Mode, PRODUCER_BYTES_MAX, Path, Shape, Topic};
use super::work::{Given, Tx, work};
use crate::Failure;
use crate::journal::Sent;

/// An operation that is to be prepared.
pub(crate) struct Preparation {
    shape: Shape,
}

impl Preparation {
    /// Returns a random operation whose messages can all be published.
    pub(crate) fn random(rng: &mut StdRng, accounts: u32) -> Self {
        loop {
            let mut shape = Shape::random(rng, accounts);
            shape.items.retain(|item| item.topic == Topic::Main && item.pad <= PRODUCER_BYTES_MAX);
            if !shape.items.is_empty() {
                (shape.path, shape.ending) = (Path::Raw, Ending::Commit);
                if shape.mode == Mode::Staged {
                    shape.mode = Mode::Batch;
                }
                return Self { shape };
            }
        }
    }

    /// Returns the name of the operation in the journal.
    pub(crate) fn operation(&self) -> Uuid {
        self.shape.operation
    }

    /// Returns the number of messages that the operation sends.
    pub(crate) fn messages(&self) -> usize {
        self.shape.items.len()
    }

    /// Runs the statements of the operation, passes the written rows and messages to `note`, and
    /// prepares the transaction under this name.
    pub(crate) async fn prepare(
        &self,
        pool: &PgPool,
        name: &str,
        topic: &str,
        folder: &File,
        note: impl FnOnce(Sent) -> std::io::Result<()> + Send,
    ) -> Result<(), Failure> {
        let given = Given {
            // All messages go to `topic`.
            topics: Topics { main: topic.to_owned(), nowhere: topic.to_owned() },
            folder: folder.to_owned(),
            began: OffsetDateTime::now_utc(),
            numbers: None,
        };
        let outbox = Outbox::builder().build();
        let mut tx = pool.begin().await?;
        note(work(Tx::Raw(&mut tx, &outbox), &self.shape, &given).await?)?;
        let prepare = AssertSqlSafe(format!("PREPARE TRANSACTION '{name}'"));
        sqlx::query(prepare).execute(&mut *tx).await?;
        // The session no longer has a transaction; this only informs the client library.
        tx.rollback().await?;
        Ok(())
    }
}
