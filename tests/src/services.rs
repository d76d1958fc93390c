//! Restarts of services in the middle of a test, through the task runner that started them.

use tokio::process::Command;

use crate::backends::Backend;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Crashes a service and starts it again. Returns when it answers.
///
/// # Errors
/// The task runner failed; the error holds its output.
pub async fn crash(backend: Backend) -> Outcome {
    services(&["restart", service(backend)?, "--immediate"]).await
}

/// Stops a service in an orderly way and starts it again. Returns when it answers.
///
/// # Errors
/// The task runner failed; the error holds its output.
pub async fn restart(backend: Backend) -> Outcome {
    services(&["restart", service(backend)?]).await
}

/// Stops a service as a crash does. It is started again at the latest when the test ends, whatever
/// its outcome.
///
/// # Errors
/// The task runner failed; the error holds its output.
pub async fn stop(stage: &Stage, backend: Backend) -> Outcome {
    stage.afterwards(format!("the stop of {backend}"), start(backend));
    services(&["stop", service(backend)?, "--immediate"]).await
}

/// Starts a stopped service. Returns when it answers.
///
/// # Errors
/// The task runner failed; the error holds its output.
pub async fn start(backend: Backend) -> Outcome {
    services(&["start", service(backend)?]).await
}

fn service(backend: Backend) -> Result<&'static str, Failure> {
    match backend {
        Backend::Postgres | Backend::Kafka | Backend::Rabbitmq | Backend::Sqs => Ok(backend.as_str()),
        Backend::SqsFifo => Ok("sqs"),
        _ => Err(format!("{backend} is not a service").into()),
    }
}

async fn services(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(Backend::Xtask.address()?);
    command.arg("services").args(arguments);
    // With the address of a running service, the task runner would mistake it for an external one
    // and leave it alone.
    for backend in [Backend::Postgres, Backend::Kafka, Backend::Rabbitmq, Backend::Sqs] {
        if let Some(variable) = backend.variable() {
            command.env_remove(variable);
        }
    }
    let output = command.output().await?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("services {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
