//! Counts of connections and bytes so far.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::conditions::Way;

/// Counts of a proxy since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that reached the server.
    pub connected: u64,
    /// Connections that were reset immediately, because they were refused or the server was
    /// unreachable.
    pub refused: u64,
    /// Open connections that the network reset, on either end.
    pub reset: u64,
    /// Bytes of requests that arrived.
    pub request_bytes: u64,
    /// Bytes of answers that arrived.
    pub answer_bytes: u64,
    /// Bytes that were lost, in either direction.
    pub lost_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connected: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) reset: AtomicU64,
    pub(crate) lost_bytes: AtomicU64,
    request_bytes: AtomicU64,
    answer_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn arrived(&self, way: Way, count: usize) {
        let counter = match way {
            Way::Requests => &self.request_bytes,
            Way::Answers => &self.answer_bytes,
        };
        counter.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn lost(&self, count: usize) {
        self.lost_bytes.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn read(&self) -> Counts {
        Counts {
            connected: self.connected.load(Relaxed),
            refused: self.refused.load(Relaxed),
            reset: self.reset.load(Relaxed),
            request_bytes: self.request_bytes.load(Relaxed),
            answer_bytes: self.answer_bytes.load(Relaxed),
            lost_bytes: self.lost_bytes.load(Relaxed),
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
