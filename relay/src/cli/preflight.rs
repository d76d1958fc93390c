//! Opens every database once before anything starts. Separates problems that waiting cannot fix
//! from those that a running relay waits for.

use std::sync::Arc;
use std::time::Duration;

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
    /// A run with an end (`--once`) waits for an unreachable database, but not for an operator.
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

/// Maximum time that a daemon spends on this before its pipelines start. Hundreds of pipelines on a
/// host that does not answer must not keep the others from starting: the service manager would end
/// the relay.
const LOOKING_MAX: Duration = Duration::from_secs(20);

/// Opens each log once. Returns for each log the error that makes the relay refuse its pipeline, or
/// `None` if the log fits or the pipeline waits for it: then the pipeline itself reports the
/// problem and keeps trying. A daemon also waits for the logs that have not answered within
/// [`LOOKING_MAX`].
pub(crate) async fn look(candidates: &[Candidate], patience: Patience) -> Vec<Option<LogError>> {
    let mut refused: Vec<Option<LogError>> = candidates.iter().map(|_| None).collect();
    let looks = candidates.iter().enumerate().map(|(number, candidate)| async move {
        let error = candidate.store.reader(&candidate.name).await.err();
        (number, error.filter(|error| patience.ends_with(error)))
    });
    let mut answers = stream::iter(looks).buffer_unordered(LOOKS_MAX);
    let looking = async {
        while let Some((number, error)) = answers.next().await {
            refused[number] = error;
        }
    };
    match patience {
        // A log that has not answered has refused nothing.
        Patience::Daemon => _ = tokio::time::timeout(LOOKING_MAX, looking).await,
        Patience::Once => looking.await,
    }
    refused
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

    use async_trait::async_trait;
    use outbox_log::testing::{LogScript, ScriptedLog};

    use super::*;

    /// A database that does not answer. Counts the callers that wait for it, and their maximum
    /// number.
    #[derive(Default)]
    struct Silent {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    #[async_trait]
    impl LogScript for Silent {
        async fn reader(&self) -> Result<(), LogError> {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(10)).await;
            self.now.fetch_sub(1, Ordering::Relaxed);
            Err(LogError::Timeout { waited: Duration::from_secs(10) })
        }
    }

    /// A hundred pipelines on a server that does not answer.
    fn candidates(silent: &Arc<Silent>) -> Vec<Candidate> {
        let candidate = |number: usize| Candidate {
            name: RelayName::new(format!("orders-{number}")).unwrap(),
            store: Arc::new(ScriptedLog(Arc::clone(silent))),
        };
        (0..100).map(candidate).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn many_pipelines_are_no_flood_of_sessions() {
        let silent = Arc::new(Silent::default());
        let refused = look(&candidates(&silent), Patience::Daemon).await;
        assert!(refused.len() == 100 && refused.iter().all(Option::is_none), "a daemon waits for it");
        assert_eq!(silent.most.load(Ordering::Relaxed), LOOKS_MAX);
    }

    /// Goal: a silent server does not keep the pipelines of others from starting. Oracle: the time
    /// until the check ends, by the clock of the runtime.
    #[tokio::test(start_paused = true)]
    async fn a_daemon_does_not_wait_for_each_of_many_silent_logs() {
        let silent = Arc::new(Silent::default());
        let begun = tokio::time::Instant::now();
        look(&candidates(&silent), Patience::Daemon).await;
        let moment = Duration::from_secs(1);
        assert!(begun.elapsed() < LOOKING_MAX + moment, "{:?}", begun.elapsed());
        let begun = tokio::time::Instant::now();
        look(&candidates(&silent), Patience::Once).await;
        assert!(begun.elapsed() > LOOKING_MAX + moment, "a run that ends by itself asks every log");
    }
}
