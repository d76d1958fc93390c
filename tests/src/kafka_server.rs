//! A Kafka server of a test's own, whose clients connect through a port that the test holds. The
//! task runner starts it as it starts the shared one, with its own folder and ports.

use std::path::PathBuf;

use tokio::process::Command;

use crate::backends::Backend;
use crate::cluster::{downloads, free_port, run};
use crate::stage::Stage;
use crate::trial::Failure;

/// A Kafka server of one node. It is stopped and removed with the stage.
#[derive(Debug, Clone)]
pub struct KafkaServer {
    folder: PathBuf,
    port: u16,
    controller: u16,
    /// The listener behind the test's port, and that port.
    proxied: (u16, u16),
}

impl KafkaServer {
    /// Starts a server. `proxied` holds a port to listen on, and the port that the server
    /// advertises to clients which connect there.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn start(stage: &Stage, proxied: (u16, u16)) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let server =
            Self { folder: folder.path().to_owned(), port: free_port()?, controller: free_port()?, proxied };
        stage.show_on_failure(server.folder.join("kafka/logs/server.log"));
        let gone = server.clone();
        stage.afterwards("a Kafka server", async move {
            run(gone.services()?.args(["stop", "kafka", "--immediate"])).await?;
            Ok(folder.close()?)
        });
        run(server.services()?.args(["start", "kafka"])).await?;
        Ok(server)
    }

    /// Returns its address without the test's port, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn services(&self) -> Result<Command, Failure> {
        let mut command = Command::new(Backend::Xtask.address()?);
        let (listening, announced) = self.proxied;
        command
            .arg("services")
            .env("OUTBOX_SERVICES_DIR", &self.folder)
            .env("OUTBOX_KAFKA_PORT", self.port.to_string())
            .env("OUTBOX_KAFKA_CONTROLLER_PORT", self.controller.to_string())
            .env("OUTBOX_KAFKA_PROXIED", format!("{listening}:{announced}"));
        // With the address of a running service, the task runner would mistake it for an external
        // one and leave it alone. The other listeners belong to the shared server.
        for variable in ["OUTBOX_KAFKA_BROKERS", "OUTBOX_KAFKA_TLS_PORT", "OUTBOX_KAFKA_SASL_PORT"] {
            command.env_remove(variable);
        }
        command.env("OUTBOX_DOWNLOADS_DIR", downloads()?);
        Ok(command)
    }
}
