//! The verdict about a claim. Pure: no clock, no database.

use std::time::Duration;

use message::Fingerprint;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::options::{LEASE_MAX, OnExpired};
use crate::record::{Ending, Found, Record, State};

/// When to ask again for a key held by a transaction: it is unknown how long it takes.
pub(crate) const BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The caller's side of a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) holder: Uuid,
    pub(crate) on_expired: OnExpired,
    /// Time limit for expiry: a key has expired only if its time is before this and before the
    /// database's clock.
    pub(crate) expires_until: OffsetDateTime,
}

/// The verdict about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is free: the caller may have it, as this attempt.
    Take {
        attempt: u32,
        /// Whether it has a record that has not expired. Without one, it is unknown whether its
        /// request has run.
        is_recorded: bool,
    },
    /// The caller already has it, as this attempt, from its own earlier claim, whose answer was
    /// lost.
    Held { attempt: u32 },
    /// Another transaction holds its lock.
    Busy,
    /// Another caller holds it on lease.
    InFlight { retry_after: Duration },
    /// Its lease has expired, and an operator must decide.
    Stuck { since: OffsetDateTime },
    /// It ended, with this outcome.
    Replay { ending: Ending, outcome: Vec<u8>, processed_at: OffsetDateTime },
    /// An operator has discarded it.
    Discarded { decided_at: OffsetDateTime },
    /// It belongs to another request.
    Conflict { stored: Fingerprint },
}

impl Verdict {
    /// The verdict about a key without a record.
    pub(crate) const FIRST: Self = Self::Take { attempt: 1, is_recorded: false };
}

/// Decides about a claim.
pub(crate) fn decide(found: Found, asked: &Asked) -> Verdict {
    let now = found.read_at;
    let has_expired = |record: &Record| record.has_expired(now.min(asked.expires_until));
    let has_outcome = |record: &Record| matches!(record.state, State::Ended(_)) && !has_expired(record);
    if !found.is_held && !found.record.as_ref().is_some_and(has_outcome) {
        return Verdict::Busy;
    }
    let Some(record) = found.record else { return Verdict::FIRST };
    let Record { fingerprint, state, attempt, holder, .. } = record;
    let is_erased = record.is_erased();
    let is_recorded = !has_expired(&record);
    let next = Verdict::Take { attempt: attempt.saturating_add(1), is_recorded };
    if !is_recorded {
        return next;
    }
    // The record no longer shows the request. Whatever it was, it does not run again.
    if fingerprint != asked.fingerprint && !is_erased {
        return Verdict::Conflict { stored: fingerprint };
    }
    match state {
        State::InProgress { .. } if holder == asked.holder => Verdict::Held { attempt },
        State::InProgress { lease_until } if lease_until > now => {
            let left = Duration::try_from(lease_until - now).unwrap_or(BUSY_RETRY_AFTER);
            // A clock that was ahead may have set the end further ahead than that of any lease.
            Verdict::InFlight { retry_after: left.min(LEASE_MAX) }
        }
        // The last holder may require an operator, whatever this caller's policy is.
        State::InProgress { lease_until } if record.refuses || asked.on_expired == OnExpired::Refuse => {
            Verdict::Stuck { since: lease_until }
        }
        State::InProgress { .. } => next,
        State::Released => next,
        State::Ended(ending) => {
            let processed_at = record.processed_at.unwrap_or(record.expires_at);
            match record.outcome {
                Some(outcome) => Verdict::Replay { ending, outcome, processed_at },
                None => Verdict::Discarded { decided_at: processed_at },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-03-15 12:00 UTC);
    const SOON: OffsetDateTime = datetime!(2026-03-15 12:00:20 UTC);
    const BEFORE: OffsetDateTime = datetime!(2026-03-15 11:59:59 UTC);
    const MINE: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);
    /// The verdict about a key whose record has expired.
    const EXPIRED: Verdict = Verdict::Take { attempt: 4, is_recorded: false };

    fn fingerprint(of: u8) -> Fingerprint {
        Fingerprint::from([of; 32])
    }

    fn record(state: State, holder: Uuid) -> Record {
        let ended = matches!(state, State::Ended(_));
        Record {
            fingerprint: fingerprint(7),
            state,
            attempt: 3,
            holder,
            outcome: ended.then(|| b"done".to_vec()),
            processed_at: ended.then_some(BEFORE),
            expires_at: datetime!(2026-03-16 12:00 UTC),
            refuses: false,
        }
    }

    fn asked(on_expired: OnExpired) -> Asked {
        Asked { fingerprint: fingerprint(7), holder: MINE, on_expired, expires_until: NOW }
    }

    fn found(record: Option<Record>) -> Found {
        Found { is_held: true, is_standby: false, read_at: NOW, record }
    }

    fn decided(record: Option<Record>, on_expired: OnExpired) -> Verdict {
        decide(found(record), &asked(on_expired))
    }

    #[test]
    fn every_state_of_a_key_has_its_answer() {
        let running = State::InProgress { lease_until: SOON };
        let lapsed = State::InProgress { lease_until: NOW };
        let replay = |ending| Verdict::Replay { ending, outcome: b"done".to_vec(), processed_at: BEFORE };
        let in_flight = Verdict::InFlight { retry_after: Duration::from_secs(20) };
        let next = Verdict::Take { attempt: 4, is_recorded: true };
        for (state, holder, taken_over, refused) in [
            (running, OTHER, in_flight.clone(), in_flight),
            (running, MINE, Verdict::Held { attempt: 3 }, Verdict::Held { attempt: 3 }),
            (lapsed, MINE, Verdict::Held { attempt: 3 }, Verdict::Held { attempt: 3 }),
            (lapsed, OTHER, next.clone(), Verdict::Stuck { since: NOW }),
            (State::Released, OTHER, next.clone(), next),
            (State::Ended(Ending::Succeeded), OTHER, replay(Ending::Succeeded), replay(Ending::Succeeded)),
            (State::Ended(Ending::Succeeded), MINE, replay(Ending::Succeeded), replay(Ending::Succeeded)),
            (State::Ended(Ending::Failed), OTHER, replay(Ending::Failed), replay(Ending::Failed)),
        ] {
            let record = || Some(record(state, holder));
            assert_eq!(decided(record(), OnExpired::TakeOver), taken_over, "{state:?} {holder}");
            assert_eq!(decided(record(), OnExpired::Refuse), refused, "{state:?} {holder}");
        }
        assert_eq!(decided(None, OnExpired::Refuse), Verdict::FIRST);
    }

    #[test]
    fn another_request_under_the_key_is_a_conflict_whatever_its_state() {
        for state in [
            State::InProgress { lease_until: SOON },
            State::InProgress { lease_until: BEFORE },
            State::Released,
            State::Ended(Ending::Succeeded),
        ] {
            let record = Record { fingerprint: fingerprint(8), ..record(state, OTHER) };
            let verdict = decided(Some(record), OnExpired::TakeOver);
            assert_eq!(verdict, Verdict::Conflict { stored: fingerprint(8) }, "{state:?}");
        }
    }

    #[test]
    fn an_expired_key_is_free_again_except_in_progress() {
        for (state, expected) in [
            (State::Ended(Ending::Succeeded), EXPIRED.clone()),
            (State::Released, EXPIRED.clone()),
            (State::InProgress { lease_until: BEFORE }, Verdict::Stuck { since: BEFORE }),
        ] {
            let record = Record { expires_at: NOW, ..record(state, OTHER) };
            assert_eq!(decided(Some(record), OnExpired::Refuse), expected, "{state:?}");
        }
    }

    #[test]
    fn one_clock_alone_makes_no_key_expire() {
        let expiring = || Some(Record { expires_at: NOW, ..record(State::Ended(Ending::Succeeded), OTHER) });
        let asked = |expires_until| Asked { expires_until, ..asked(OnExpired::TakeOver) };
        assert!(matches!(decide(found(expiring()), &asked(BEFORE)), Verdict::Replay { .. }));
        let behind = Found { read_at: BEFORE, ..found(expiring()) };
        assert!(matches!(decide(behind, &asked(NOW)), Verdict::Replay { .. }));
        assert_eq!(decide(found(expiring()), &asked(NOW)), EXPIRED);
    }

    #[test]
    fn what_an_operator_gave_up_is_never_run() {
        let record = Record { outcome: None, ..record(State::Ended(Ending::Failed), OTHER) };
        assert_eq!(decided(Some(record), OnExpired::TakeOver), Verdict::Discarded { decided_at: BEFORE });
    }

    #[test]
    fn what_was_erased_is_never_run_whatever_is_asked_for() {
        let erased = Record {
            fingerprint: fingerprint(0),
            outcome: None,
            ..record(State::Ended(Ending::Failed), OTHER)
        };
        let discarded = Verdict::Discarded { decided_at: BEFORE };
        assert_eq!(decided(Some(erased.clone()), OnExpired::TakeOver), discarded);
        let other = Record { fingerprint: fingerprint(8), ..erased };
        let conflict = Verdict::Conflict { stored: fingerprint(8) };
        assert_eq!(decided(Some(other), OnExpired::TakeOver), conflict, "a key that was only discarded");
    }

    #[test]
    fn a_lease_that_was_left_to_an_operator_is_taken_over_by_nobody() {
        let lapsed = Record { refuses: true, ..record(State::InProgress { lease_until: BEFORE }, OTHER) };
        assert_eq!(decided(Some(lapsed), OnExpired::TakeOver), Verdict::Stuck { since: BEFORE });
    }

    #[test]
    fn of_a_key_that_a_transaction_holds_only_an_outcome_is_told() {
        let asked = asked(OnExpired::TakeOver);
        let busy = |record| decide(Found { is_held: false, ..found(record) }, &asked);
        let ended = record(State::Ended(Ending::Succeeded), OTHER);
        assert!(matches!(busy(Some(ended.clone())), Verdict::Replay { .. }));
        assert_eq!(busy(Some(Record { expires_at: NOW, ..ended })), Verdict::Busy);
        assert_eq!(busy(Some(record(State::Released, OTHER))), Verdict::Busy);
        assert_eq!(busy(None), Verdict::Busy);
    }
}
