//! A Kafka server of a test's own, whose clients come through a port that the test holds. The task
//! runner starts it, as it starts the shared one, with a folder and ports of its own.

use std::path::PathBuf;

use tokio::process::Command;

use crate::backends::Backend;
use crate::cluster::{downloads, free_port, run};
use crate::stage::Stage;
use crate::trial::Failure;

/// One node. Stopped and removed with the stage.
#[derive(Debug, Clone)]
pub struct KafkaServer {
    folder: PathBuf,
    port: u16,
    controller: u16,
    /// The listener behind the test's port, and that port.
    proxied: (u16, u16),
}

impl KafkaServer {
    /// A running server. `proxied` are a port to listen at, and the port that it announces to the
    /// clients which come there.
    ///
    /// # Errors
    /// The task runner's own words.
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

    /// Its address without the test's port, as `host:port`.
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
        // The address of a service that runs would make it an external one, which is left alone;
        // the other listeners are the shared server's.
        for variable in ["OUTBOX_KAFKA_BROKERS", "OUTBOX_KAFKA_TLS_PORT", "OUTBOX_KAFKA_SASL_PORT"] {
            command.env_remove(variable);
        }
        command.env("OUTBOX_DOWNLOADS_DIR", downloads()?);
        Ok(command)
    }
}
