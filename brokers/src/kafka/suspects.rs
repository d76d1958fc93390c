//! Finds the culprit of a refused batch.
//!
//! Kafka refuses a batch as a whole, and one bad message is enough. Blaming all of them would park
//! innocent messages. So the session ends without blaming anyone, and the next one sends as many
//! messages as were unconfirmed one by one: each batch has one message, and its refusal is exact. A
//! message that was alone unconfirmed is its own suspect, and is blamed at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of suspect messages, shared by the sessions of a connector.
#[derive(Debug, Default)]
pub(super) struct Suspects(AtomicUsize);

/// The suspects that one session has taken over. Those that it has not sent when dropped stay
/// suspect.
#[derive(Debug)]
pub(super) struct Singles {
    suspects: Arc<Suspects>,
    left: AtomicUsize,
}

impl Suspects {
    /// Records that `count` messages were unconfirmed when a batch was refused.
    pub(super) fn raise(&self, count: usize) {
        self.0.fetch_max(count, Ordering::AcqRel);
    }

    /// Takes over the suspects, if there are any.
    pub(super) fn take(self: &Arc<Self>) -> Option<Singles> {
        let left = self.0.swap(0, Ordering::AcqRel);
        (left > 0).then(|| Singles { suspects: Arc::clone(self), left: AtomicUsize::new(left) })
    }
}

impl Singles {
    /// Counts one message that is sent alone. Returns `false` when no suspect is left.
    pub(super) fn spend(&self) -> bool {
        self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
    }
}

impl Drop for Singles {
    fn drop(&mut self) {
        self.suspects.raise(*self.left.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_that_were_not_sent_stay_suspect() {
        let suspects = Arc::new(Suspects::default());
        assert!(suspects.take().is_none());
        suspects.raise(2);
        let singles = suspects.take().unwrap();
        assert!(suspects.take().is_none());
        assert!(singles.spend());
        drop(singles);
        let singles = suspects.take().unwrap();
        assert!(singles.spend());
        assert!(!singles.spend());
        drop(singles);
        assert!(suspects.take().is_none());
    }
}
