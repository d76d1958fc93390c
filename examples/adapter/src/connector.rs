//! Opening of publishing sessions.

use std::path::PathBuf;

use async_trait::async_trait;
use message::{Connector, PublishError, Publisher, Receipts};

use crate::publisher::DirectoryPublisher;

/// Opens publishing sessions on one directory.
#[derive(Debug, Clone)]
pub struct DirectoryConnector {
    directory: PathBuf,
    destination: String,
}

impl DirectoryConnector {
    /// Makes a connector for a directory. The directory is checked when a session is opened.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        Self { destination: format!("directory {}", directory.display()), directory }
    }
}

#[async_trait]
impl Connector for DirectoryConnector {
    fn destination(&self) -> &str {
        &self.destination
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        if !self.directory.is_dir() {
            let reason = format!("there is no directory {}: mount or create it", self.directory.display());
            return Err(PublishError::session_lost(reason));
        }
        Ok(Box::new(DirectoryPublisher::start(self.directory.clone(), receipts)?))
    }
}
