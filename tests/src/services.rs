//! Restarting a service in the middle of a test, through the task runner that started it.

use tokio::process::Command;

use crate::backends::Backend;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Crashes a service and starts it again; returns when it answers.
///
/// # Errors
/// The task runner's own words.
pub async fn crash(backend: Backend) -> Outcome {
    services(&["restart", service(backend)?, "--immediate"]).await
}

/// Stops a service in order and starts it again; returns when it answers.
///
/// # Errors
/// The task runner's own words.
pub async fn restart(backend: Backend) -> Outcome {
    services(&["restart", service(backend)?]).await
}

/// Stops a service as a crash does. It is started again at the end of the test at the latest,
/// whatever its outcome.
///
/// # Errors
/// The task runner's own words.
pub async fn stop(stage: &Stage, backend: Backend) -> Outcome {
    stage.afterwards(format!("the stop of {backend}"), start(backend));
    services(&["stop", service(backend)?, "--immediate"]).await
}

/// Starts a stopped service; returns when it answers.
///
/// # Errors
/// The task runner's own words.
pub async fn start(backend: Backend) -> Outcome {
    services(&["start", service(backend)?]).await
}

fn service(backend: Backend) -> Result<&'static str, Failure> {
    match backend {
        Backend::Postgres | Backend::Kafka | Backend::Rabbitmq | Backend::Sqs => Ok(backend.as_str()),
        Backend::SqsFifo => Ok("sqs"),
        _ => Err(format!("{backend} is no service").into()),
    }
}

async fn services(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(Backend::Xtask.address()?);
    command.arg("services").args(arguments);
    // The address of a service that runs would make it an external one, which is left alone.
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
