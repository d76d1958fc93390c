//! Looks at every database once before anything starts: what no wait can heal is told apart from
//! what a running relay waits for.

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

/// Who waits for what is wrong with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A daemon: for everything that can come right while it waits, also by an operator's hand.
    Daemon,
    /// A run that ends by itself: for a database that is away, and not for an operator.
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

/// Opens each log once. Returns for each why its pipeline is refused; nothing where it fits, or
/// where it is waited for: the pipeline itself reports that, and keeps trying.
pub(crate) async fn look(candidates: &[Candidate], patience: Patience) -> Vec<Option<LogError>> {
    let looks = candidates.iter().map(|candidate| async {
        let error = candidate.store.reader(&candidate.name).await.err()?;
        patience.ends_with(&error).then_some(error)
    });
    join_all(looks).await
}

/// The failure of a start of which nothing is left to run: it names every refusal.
pub(crate) fn nothing_left(refused: &[(&Candidate, &LogError)], config: &str) -> Failure {
    let text: Vec<String> = refused.iter().map(|(candidate, error)| told(candidate, error)).collect();
    if refused.iter().any(|(_, error)| lacks_migrations(error)) {
        let help = format!("relay migrate up --config {config}");
        return Failure::with_help(Exit::Usage, text.join("\n"), help);
    }
    Failure::new(Exit::Usage, text.join("\n"))
}

/// A refusal in one line.
pub(crate) fn told(Candidate { name, store }: &Candidate, error: &LogError) -> String {
    format!("pipeline {name} ({}): {error}", store.origin())
}

/// Whether migrating repairs it.
fn lacks_migrations(error: &LogError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<MigrateError>());
    matches!(source, Some(MigrateError::Schema(SchemaError::Missing { .. } | SchemaError::TooOld { .. })))
}
