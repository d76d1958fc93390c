//! One clock for all processes of a run.

use rustix::time::{ClockId, clock_gettime};

/// Returns microseconds of the machine's monotonic clock. It is the same in every process, and
/// never jumps.
#[must_use]
pub fn now() -> u64 {
    let at = clock_gettime(ClockId::Monotonic);
    at.tv_sec.unsigned_abs() * 1_000_000 + at.tv_nsec.unsigned_abs() / 1_000
}
