//! Recent counts of messages: several readers, and the refreshes of one, share a count.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use operate::OperateError;
use operate::dead::Surveyed;

/// How long a count is shown.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// Maximum counts that are kept.
const KEPT_MAX: usize = 50;

/// A count and its time.
type Counted = (Instant, Surveyed);

/// The latest counts by query.
#[derive(Default)]
pub(crate) struct Surveys(Mutex<HashMap<String, Counted>>);

impl Surveys {
    /// Returns a recent count, or counts anew.
    pub(crate) async fn get(
        &self,
        asked: String,
        count: impl Future<Output = Result<Surveyed, OperateError>>,
    ) -> Result<Surveyed, OperateError> {
        if let Some(known) = self.fresh(&asked) {
            return Ok(known);
        }
        let counted = count.await?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < FRESH_FOR);
        if known.len() < KEPT_MAX {
            known.insert(asked, (Instant::now(), counted.clone()));
        }
        Ok(counted)
    }

    fn fresh(&self, asked: &str) -> Option<Surveyed> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(asked).filter(|(at, _)| at.elapsed() < FRESH_FOR).map(|(_, counted)| counted.clone())
    }

    /// Forgets all counts: a decision has changed them.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
