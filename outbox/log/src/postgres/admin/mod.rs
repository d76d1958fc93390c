//! Operators' queries and decisions, in PostgreSQL.

mod decisions;
pub(super) mod statements;
mod status;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::{Executor as _, Postgres};

use crate::admin::decision::{Batch, DecideError};
use crate::admin::status::{Blocker, Picture, RelayStatus};
use crate::operators::{Operators, Verdicts};
use crate::postgres::brief::Brief;
use crate::postgres::store::{ONE_PLAN_HERE, PostgresLog};
use crate::tables::Tables;
use crate::{LogError, RelayName};

impl Operators for PostgresLog {
    type Database = Postgres;
    type Session = Brief;

    const IDLE_MAX: Duration = Duration::from_secs(30);

    fn tables(&self) -> &Tables<Postgres> {
        &self.tables
    }

    fn call_max(&self) -> Option<Duration> {
        Some(self.options.call_timeout)
    }

    async fn session(&self) -> Result<Brief, LogError> {
        // Boxed: the future that opens a connection is large, and every query begins with it.
        Box::pin(self.connect("relay admin")).await.map(Brief::new)
    }

    async fn begin_query(session: &mut Brief) -> Result<(), LogError> {
        let begin = async {
            session.execute("BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY").await?;
            session.execute(ONE_PLAN_HERE).await
        };
        begin.await.map(drop).map_err(LogError::during("begin reading"))
    }

    async fn end_query(session: &mut Brief) -> Result<(), LogError> {
        session.execute("ROLLBACK").await.map(drop).map_err(LogError::during("end a query"))
    }

    async fn find_relays(&self, only: Option<&RelayName>) -> Result<Vec<RelayStatus>, LogError> {
        let ask = async { self.status(&mut *self.look().await?, only).await };
        self.within(self.options.call_timeout, ask).await
    }

    async fn find_picture(&self, relay: &RelayName) -> Result<Picture, LogError> {
        self.within(self.options.call_timeout, self.read_picture(relay)).await
    }

    async fn find_blocker(&self) -> Result<Option<Blocker>, LogError> {
        let ask = async { self.read_blocker(&mut *self.look().await?).await };
        self.within(self.options.call_timeout, ask).await
    }

    async fn find_lock_holder(&self) -> Result<Option<String>, LogError> {
        self.asked_for_lock().await
    }

    async fn decide_in(
        &self,
        session: &mut Brief,
        batch: Batch<'_>,
        is_committing: &AtomicBool,
    ) -> Result<Verdicts, DecideError> {
        self.carry_out(session, batch, is_committing).await
    }
}
