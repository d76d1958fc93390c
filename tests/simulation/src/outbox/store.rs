//! The store of one process.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_log::{CheckpointStore, LogError, LogReader, LogStore, RelayName};

use super::checkpoint_store::SimulatedCheckpointStore;
use super::connection::Connection;
use super::reader::Reader;
use crate::process::ProcessId;
use crate::world::World;

/// The relays' database, as one process reaches it.
#[derive(Debug)]
pub(crate) struct SimulatedLog {
    pub(crate) world: Arc<World>,
    pub(crate) process: ProcessId,
}

#[async_trait]
impl LogStore for SimulatedLog {
    fn origin(&self) -> &str {
        "simulation"
    }

    async fn reader(&self, _relay: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        Ok(Box::new(Reader(Connection::open(&self.world, self.process).await?)))
    }

    async fn checkpoint_store(
        &self,
        _relay: &RelayName,
        _holder: &str,
    ) -> Result<Box<dyn CheckpointStore>, LogError> {
        let connection = Connection::open(&self.world, self.process).await?;
        Ok(Box::new(SimulatedCheckpointStore { connection, history: 0 }))
    }
}
