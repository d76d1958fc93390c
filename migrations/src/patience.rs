//! How long a migrator waits for another one, and how it reports that it waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a migrator waits for another one by default. A migration of a large table may take
/// longer; then the migrator behind it has to be started again.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// A wait for another migrator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The session that holds the lock of the migrations, as far as this role may see it.
    pub holder: String,
    /// How long this migrator has waited.
    pub waited: Duration,
}

/// The limit of a wait, and its report.
#[doc(hidden)]
#[derive(Clone)]
pub struct Patience {
    /// Maximum wait.
    pub(crate) max: Duration,
    /// Reports a wait.
    pub(crate) report: Arc<dyn Fn(&Waiting) + Send + Sync>,
}

impl Default for Patience {
    fn default() -> Self {
        let report = |waiting: &Waiting| {
            let Waiting { holder, waited } = waiting;
            tracing::warn!(holder, ?waited, "waiting for another migration");
        };
        Self { max: WAIT_MAX, report: Arc::new(report) }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("max", &self.max).finish_non_exhaustive()
    }
}
