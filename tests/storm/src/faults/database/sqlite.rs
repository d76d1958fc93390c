//! A busy SQLite file: another connection writes for a long time.

use std::str::FromStr as _;
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// A fault with a connection that holds `BEGIN IMMEDIATE` on the producers' or the consumers' file.
#[derive(Debug, Default)]
pub struct Busy {
    writer: Option<SqliteConnection>,
}

/// Maximum time for which the rival itself waits for the file.
const WAIT: Duration = Duration::from_secs(3);

#[async_trait]
impl Fault<Stage> for Busy {
    fn kind(&self) -> FaultKind {
        FaultKind::new("sqlite-busy").lasts(seconds(1)..=seconds(8))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (url, file) = if rng.random() {
            (&stage.database.producers, "producers' file")
        } else {
            (&stage.database.consumers, "consumers' file")
        };
        let options = SqliteConnectOptions::from_str(url)?.create_if_missing(false).busy_timeout(WAIT);
        let writer = self.writer.insert(options.connect().await?);
        sqlx::query("BEGIN IMMEDIATE").execute(writer).await?;
        Ok(Injected::new(file, ""))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        if let Some(writer) = self.writer.take() {
            writer.close().await?;
        }
        Ok(())
    }
}
