//! Opens every database once before anything starts. Separates what no wait can heal from what a
//! running relay waits for.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
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

/// Maximum number of logs that are opened at a time: a relay with thousands of pipelines would
/// otherwise begin with as many sessions. One host that does not answer must not delay the others
/// for long.
const LOOKS_MAX: usize = 32;

/// Opens each log once. Returns for each log the error because of which its pipeline is refused, or
/// `None` if the log fits or the pipeline waits for it: then the pipeline itself reports the
/// problem and keeps trying.
pub(crate) async fn look(candidates: &[Candidate], patience: Patience) -> Vec<Option<LogError>> {
    let looks = candidates.iter().map(|candidate| async {
        let error = candidate.store.reader(&candidate.name).await.err()?;
        patience.ends_with(&error).then_some(error)
    });
    stream::iter(looks).buffered(LOOKS_MAX).collect().await
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use outbox_log::{CheckpointStore, LogReader};

    use super::*;

    /// A database that does not answer. Counts the callers that wait for it, and their maximum
    /// number.
    #[derive(Default)]
    struct Silent {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    #[async_trait]
    impl LogStore for Silent {
        fn origin(&self) -> &str {
            "nowhere"
        }

        async fn reader(&self, _: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(10)).await;
            self.now.fetch_sub(1, Ordering::Relaxed);
            Err(LogError::Timeout { waited: Duration::from_secs(10) })
        }

        async fn checkpoint_store(
            &self,
            _: &RelayName,
            _: &str,
        ) -> Result<Box<dyn CheckpointStore>, LogError> {
            Err(LogError::Timeout { waited: Duration::ZERO })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_pipelines_are_no_flood_of_sessions() {
        let silent = Arc::new(Silent::default());
        let candidate = |number: usize| Candidate {
            name: RelayName::new(format!("orders-{number}")).unwrap(),
            store: Arc::clone(&silent) as Arc<dyn LogStore>,
        };
        let candidates: Vec<Candidate> = (0..100).map(candidate).collect();
        let refused = look(&candidates, Patience::Daemon).await;
        assert!(refused.len() == 100 && refused.iter().all(Option::is_none), "a daemon waits for it");
        assert_eq!(silent.most.load(Ordering::Relaxed), LOOKS_MAX);
    }
}
