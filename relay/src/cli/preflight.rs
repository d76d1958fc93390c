//! Opens every database once before anything starts. Separates what no wait can heal from what a
//! running relay waits for.

use std::sync::Arc;

use futures_util::future::join_all;
use message::Fault;
use migrations::{MigrateError, SchemaError};
use outbox_log::{LogError, LogStore, RelayName};

use super::exit::Exit;
use super::failure::Failure;
use super::hint;

/// A pipeline's log to open.
pub(crate) struct Candidate {
    pub(crate) name: RelayName,
    pub(crate) store: Arc<dyn LogStore>,
}

/// Conditions that a run waits for when a database has a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A daemon waits for everything that can recover, even if an operator must act.
    Daemon,
    /// A run that ends by itself waits for an unreachable database, but not for an operator.
    Once,
}

impl Patience {
    fn ends_with(self, error: &LogError) -> bool {
        match self {
            Self::Daemon => error.is_final(),
            Self::Once => error.fault() == Fault::Operator,
        }
    }
}

/// Opens each log once. Returns for each the error that refuses its pipeline. Returns `None` where
/// the log fits or is waited for: the pipeline itself reports that, and keeps trying.
pub(crate) async fn look(candidates: &[Candidate], patience: Patience) -> Vec<Option<LogError>> {
    let looks = candidates.iter().map(|candidate| async {
        let error = candidate.store.reader(&candidate.name).await.err()?;
        patience.ends_with(&error).then_some(error)
    });
    join_all(looks).await
}

/// Returns the failure of a start at which every pipeline was refused. It names each refusal.
pub(crate) fn nothing_left(refused: &[(&Candidate, &LogError)], config: &str) -> Failure {
    let text: Vec<String> = refused.iter().map(|(candidate, error)| told(candidate, error)).collect();
    if refused.iter().any(|(_, error)| lacks_migrations(error)) {
        let help = format!("relay migrate up --config {}", hint::quoted(config));
        return Failure::with_help(Exit::Usage, text.join("\n"), help);
    }
    Failure::new(Exit::Usage, text.join("\n"))
}

/// Describes a refusal in one line.
pub(crate) fn told(Candidate { name, store }: &Candidate, error: &LogError) -> String {
    format!("pipeline {name} ({}): {error}", store.origin())
}

/// Returns whether a migration repairs the error.
fn lacks_migrations(error: &LogError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<MigrateError>());
    let Some(MigrateError::Schema(error)) = source else { return false };
    matches!(
        error,
        SchemaError::Missing { .. } | SchemaError::TooOld { .. } | SchemaError::OtherSchema { .. }
    )
}
