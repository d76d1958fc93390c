//! Servers that go away and come back: private instances, on ports of their own.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use libtest_mimic::Trial;
use sqlx::{Connection as _, PgConnection};
use storm::faults::servers::Server;
use storm::pair::{BrokerKind, DatabaseKind, Pair};
use storm::stage::Services;
use tests::{Backend, Failure, Outcome, Stage, trial};

use crate::scene::{empty, heal, strike};

pub(crate) fn trials() -> Vec<Trial> {
    let name = "servers/a_database_crashes_and_recovers";
    vec![trial(name, &[Backend::Xtask], a_database_crashes_and_recovers)]
}

/// The task runner with a folder and ports that nobody else has.
fn private(test: &Stage) -> Result<(Services, String, PathBuf), Failure> {
    let xtask = Backend::Xtask.address()?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (folder, script) = (test.folder().join("services"), test.folder().join("xtask"));
    let text = format!(
        "#!/bin/sh\nunset OUTBOX_POSTGRES_URL\nexport OUTBOX_SERVICES_DIR='{}' OUTBOX_POSTGRES_PORT={port}\nexec '{xtask}' \"$@\"\n",
        folder.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let url = format!("postgres://outbox:outbox@127.0.0.1:{port}/outbox");
    let stopping = script.clone();
    test.afterwards("the server", async move {
        let mut down = tokio::process::Command::new(stopping);
        down.args(["services", "down", "--purge", "--only", "postgres"]);
        let done = down.output().await?;
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into()) }
    });
    Ok((Services::new(script), url, folder.join("postgres/logs/server.log")))
}

async fn a_database_crashes_and_recovers(test: Stage) -> Outcome {
    let (services, url, log) = private(&test)?;
    let mut stage = empty(&test);
    stage.services = services;
    let pair = Pair { database: DatabaseKind::Postgres, broker: BrokerKind::MockKafka };
    let mut faults = Server::all(pair);
    let fault = faults.first_mut().ok_or("nothing can go away")?;
    stage.services.start(storm::stage::Service::Postgres).await?;
    heal(fault, &stage).await?;
    let mut session = PgConnection::connect(&url).await?;
    sqlx::query("CREATE TABLE kept (n int)").execute(&mut session).await?;
    strike(fault, &stage, 1).await?;
    let error = sqlx::query("SELECT 1").execute(&mut session).await.err().ok_or("the session lives")?;
    assert!(PgConnection::connect(&url).await.is_err(), "it is there after {error}");
    heal(fault, &stage).await?;
    let mut session = PgConnection::connect(&url).await?;
    sqlx::query("SELECT FROM kept").execute(&mut session).await?;
    let recovery = std::fs::read_to_string(log)?;
    assert!(recovery.contains("automatic recovery in progress"), "{recovery}");
    Ok(())
}
