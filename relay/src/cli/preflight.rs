//! Looks at every database before anything starts. One that does not fit needs the operator, and is
//! reported at once instead of in an endless loop. One that is away is waited for.

use std::sync::Arc;

use futures_util::future::join_all;
use message::Fault;
use migrations::{MigrateError, SchemaError};
use outbox::log::{LogError, LogStore, RelayName};

use super::exit::Exit;
use super::failure::Failure;

/// A pipeline's log to look at.
pub(crate) struct Candidate {
    pub(crate) name: RelayName,
    pub(crate) store: Arc<dyn LogStore>,
}

/// Opens each log once.
///
/// # Errors
/// [`Failure`] when an operator has to act on any of them; it names them all.
pub(crate) async fn check(candidates: &[Candidate], config: &str) -> Result<(), Failure> {
    let looked = join_all(candidates.iter().map(|candidate| candidate.store.reader(&candidate.name))).await;
    let mut broken = Vec::new();
    let mut migrations_missing = false;
    for (Candidate { name, store }, opened) in candidates.iter().zip(looked) {
        let Err(error) = opened else { continue };
        match error.fault() {
            Fault::Operator => {
                migrations_missing |= lacks_migrations(&error);
                broken.push(format!("pipeline {name} ({}): {error}", store.origin()));
            }
            // The pipeline says so itself, and keeps trying.
            Fault::Broker | Fault::Message => {}
        }
    }
    match broken.is_empty() {
        true => Ok(()),
        false if migrations_missing => {
            let help = format!("relay migrate up --config {config}");
            Err(Failure::with_help(Exit::Usage, broken.join("\n"), help))
        }
        false => Err(Failure::new(Exit::Usage, broken.join("\n"))),
    }
}

/// Whether migrating repairs it.
fn lacks_migrations(error: &LogError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<MigrateError>());
    matches!(source, Some(MigrateError::Schema(SchemaError::Missing { .. } | SchemaError::TooOld { .. })))
}
