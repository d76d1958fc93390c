//! Maximum waits of the parts of a healed system. Pure.

use std::time::Duration;

use harness::faults::Record;

use crate::consume::{ACQUIRE, ATTEMPTS_MAX, HANG, SESSION, VISIBILITY_TIMEOUT};
use crate::faults::clock::{NAME as CLOCK_JUMP, jump_max};
use crate::load::DELAY_MAX;
use crate::setup::{HEARTBEAT, LEASE, RETRY_MAX};

/// Returns the longest time in which relays may publish nothing once everything is healed: the
/// lease of a dead relay, plus its successor's last retry.
#[must_use]
pub fn relay_pause() -> Duration {
    LEASE * 2 + RETRY_MAX
}

/// Returns the longest time in which a healed system may stand still: the sum of all deliberate
/// pauses.
#[must_use]
pub fn reaction() -> Duration {
    // A dead reader is detected by its group, or by two missing heartbeats.
    let readers = (SESSION * 2).max(HEARTBEAT * 2);
    // A message's handler hangs and fails, and the message is delivered again, for the maximum
    // number of attempts.
    let handler = (HANG + VISIBILITY_TIMEOUT) * ATTEMPTS_MAX;
    relay_pause() + readers + handler + ACQUIRE
}

/// Returns the time without movement after which messages in flight count as lost. It is twice the
/// [`reaction`], because the machine may have other work.
#[must_use]
pub fn stalled() -> Duration {
    reaction() * 2
}

/// Returns the latest time at which the last scheduled message is due, in microseconds of
/// [`crate::clock`]. A producer whose wall clock was ahead schedules messages later by that
/// difference.
#[must_use]
pub fn due_by(producers_ended_at: u64, length: Duration, records: &[Record]) -> u64 {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let jumps = records.iter().filter(|record| record.happened && record.fault == CLOCK_JUMP);
    let jumped = jumps.map(|record| record.healed_at.saturating_add(micros(jump_max(length))));
    jumped.chain([producers_ended_at]).max().unwrap_or_default().saturating_add(micros(DELAY_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jump(healed_at: u64, happened: bool) -> Record {
        Record { struck_at: 0, healed_at, fault: CLOCK_JUMP, what: String::new(), happened }
    }

    #[test]
    fn messages_scheduled_by_a_clock_ahead_are_waited_for() {
        const SECOND: u64 = 1_000_000;
        const HOUR: Duration = Duration::from_secs(3_600);
        let last = 1_000 * SECOND;
        assert_eq!(due_by(last, HOUR, &[]), 1_003 * SECOND);
        // The message fell due 232 s after the clocks were right again.
        assert!(due_by(last, HOUR, &[jump(990 * SECOND, true)]) >= (990 + 232) * SECOND);
        assert_eq!(due_by(last, HOUR, &[jump(990 * SECOND, false)]), 1_003 * SECOND);
    }

    #[test]
    fn nothing_counts_as_lost_before_every_pause_is_over() {
        for pause in
            [LEASE, RETRY_MAX, SESSION, HEARTBEAT * 2, HANG * ATTEMPTS_MAX, VISIBILITY_TIMEOUT * ATTEMPTS_MAX]
        {
            assert!(reaction() > pause && stalled() > reaction(), "{pause:?}");
        }
    }
}
