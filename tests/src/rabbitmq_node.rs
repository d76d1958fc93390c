//! RabbitMQ nodes of a test's own: two of one cluster, one that accepts tokens, or one with a
//! memory alarm. The task runner starts them as it starts the shared one, with their own folders
//! and ports.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::backends::Backend;
use crate::cluster::{downloads, free_port, run};
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// The secret of the nodes of a cluster.
const COOKIE: &str = "tests";

/// Debian's program that controls a node. The one in `/usr/sbin` would act as another user.
const CONTROL: &str = "/usr/lib/rabbitmq/bin/rabbitmqctl";

/// A RabbitMQ node. It is stopped and removed with the stage.
#[derive(Debug, Clone)]
pub struct RabbitmqNode {
    folder: PathBuf,
    name: &'static str,
    port: u16,
    distribution: u16,
    name_server: u16,
    /// Variables that the task runner reads.
    settings: Vec<(&'static str, String)>,
}

impl RabbitmqNode {
    /// Starts a node.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn start(stage: &Stage) -> Result<Self, Failure> {
        Self::begin(stage, "first", free_port()?, Vec::new()).await
    }

    /// Starts a node that accepts tokens of OAuth 2 signed with this key (HS256), given in
    /// base64url.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn start_with_tokens(stage: &Stage, key: String) -> Result<Self, Failure> {
        let settings = vec![("OUTBOX_RABBITMQ_OAUTH_KEY", key)];
        Self::begin(stage, "tokens", free_port()?, settings).await
    }

    /// Starts a second node, which joins the cluster of this one.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn joined(&self, stage: &Stage) -> Result<Self, Failure> {
        let settings = vec![("OUTBOX_RABBITMQ_JOINS", String::from(self.name))];
        Self::begin(stage, "second", self.name_server, settings).await
    }

    async fn begin(
        stage: &Stage,
        name: &'static str,
        name_server: u16,
        settings: Vec<(&'static str, String)>,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let (port, distribution) = (free_port()?, free_port()?);
        let node = Self { folder: folder.path().to_owned(), name, port, distribution, name_server, settings };
        stage.show_on_failure(node.folder.join("rabbitmq/logs/server.log"));
        let gone = node.clone();
        stage.afterwards(format!("the RabbitMQ node {name}"), async move {
            gone.crash().await?;
            Ok(folder.close()?)
        });
        node.resume().await?;
        Ok(node)
    }

    /// Returns where it listens, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the administrator's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    /// Starts the node. Returns when it answers.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn resume(&self) -> Outcome {
        run(self.services()?.args(["start", "rabbitmq"])).await
    }

    /// Stops the node as a crash does.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn crash(&self) -> Outcome {
        run(self.services()?.args(["stop", "rabbitmq", "--immediate"])).await
    }

    /// Sets the part of the machine's memory above which the node accepts no messages, `0` to `1`.
    /// With `0` its memory alarm begins at once.
    ///
    /// # Errors
    /// `rabbitmqctl` is missing or failed; the error holds its output.
    pub async fn set_memory_limit(&self, part: &str) -> Outcome {
        let program = if Path::new(CONTROL).is_file() { CONTROL } else { "rabbitmqctl" };
        let home = self.folder.join("rabbitmq");
        let mut command = Command::new(program);
        command
            .args(["--node", &format!("{}@localhost", self.name), "--erlang-cookie", COOKIE])
            .args(["set_vm_memory_high_watermark", part])
            .env("RABBITMQ_CONF_ENV_FILE", home.join("rabbitmq-env.conf"))
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.name_server.to_string())
            .env("HOME", home);
        run(&mut command).await
    }

    fn services(&self) -> Result<Command, Failure> {
        let mut command = Command::new(Backend::Xtask.address()?);
        command
            .arg("services")
            .env("OUTBOX_SERVICES_DIR", &self.folder)
            .env("OUTBOX_RABBITMQ_PORT", self.port.to_string())
            .env("OUTBOX_RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("OUTBOX_RABBITMQ_EPMD_PORT", self.name_server.to_string())
            .env("OUTBOX_RABBITMQ_NODE", self.name)
            .env("OUTBOX_RABBITMQ_COOKIE", COOKIE)
            .envs(self.settings.iter().map(|(name, value)| (*name, value)))
            .env("OUTBOX_DOWNLOADS_DIR", downloads()?);
        // With the address of a running service, the task runner would take it for an external one
        // and leave it alone. The other listeners belong to the shared server.
        for variable in ["OUTBOX_RABBITMQ_URL", "OUTBOX_RABBITMQ_TLS_PORT", "OUTBOX_RABBITMQ_MANAGEMENT_PORT"]
        {
            command.env_remove(variable);
        }
        Ok(command)
    }
}
