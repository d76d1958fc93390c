//! The verdict of a storm: *holds*, *broken* or *no verdict*. Pure.

use checker::Verdict;

use crate::read::Pending;

/// The end of the wait for everything to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Nothing was in flight.
    Quiet,
    /// Messages were in flight, and nothing moved for longer than every deliberate pause.
    Stalled,
    /// Messages still moved when the time was over.
    Moving,
}

impl Ending {
    /// Returns whether messages in flight no longer move, so that they can be judged.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Moving
    }
}

/// The verdict of a storm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StormVerdict {
    /// Every checked promise held.
    Holds,
    /// Something is wrong, and the report shows it.
    Broken,
    /// Nothing wrong was found, but not everything could be judged.
    NoVerdict,
}

/// The facts on which the verdict is based.
#[derive(Debug, Clone, Copy)]
pub struct Grounds<'a> {
    /// The end of the wait for everything to arrive.
    pub ending: Ending,
    /// The messages still in flight when every process had ended.
    pub pending: Pending,
    /// The checker's verdict.
    pub promises: &'a Verdict,
    /// Whether a process did not end in an orderly way or used too much memory, or the lag was not
    /// gone in time.
    pub misbehaved: bool,
    /// Whether the broker removed messages before a consumer had read them. The mock cluster does
    /// that, because it keeps some 5 MiB of a partition. In that case missing effects are not a
    /// breach.
    pub removed_unread: bool,
}

impl StormVerdict {
    /// Decides the verdict.
    #[must_use]
    pub fn decide(grounds: Grounds<'_>) -> Self {
        let Grounds { ending, pending, promises, misbehaved, removed_unread } = grounds;
        let is_lost = ending == Ending::Stalled && !pending.is_quiet() && !removed_unread;
        if !promises.holds() || misbehaved || is_lost {
            Self::Broken
        } else if ending == Ending::Quiet && pending.is_quiet() && !removed_unread {
            Self::Holds
        } else {
            Self::NoVerdict
        }
    }

    /// Returns the exit code of a program that ends with this verdict.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Holds => 0,
            Self::Broken => 1,
            Self::NoVerdict => 3,
        }
    }

    /// Returns the verdict's word for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Broken => "BROKEN",
            Self::NoVerdict => "NO VERDICT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checker::{Consumer, Effect, History};
    use uuid::Uuid;

    fn promises(is_broken: bool) -> Verdict {
        let effect = Effect { id: Uuid::from_u128(1), ..Effect::default() };
        let effects = vec![effect; if is_broken { 2 } else { 1 }];
        let consumer = Consumer { effects: Some(effects), ..Consumer::default() };
        Verdict::of(&History { consumers: vec![consumer], ..History::default() })
    }

    const NOTHING: Pending =
        Pending { messages: 9, scheduled: 0, retrying: 0, held: 0, undecided: 0, waiting: 0, sagas: 0 };

    fn grounds(ending: Ending, pending: Pending, promises: &Verdict) -> Grounds<'_> {
        Grounds { ending, pending, promises, misbehaved: false, removed_unread: false }
    }

    fn decide(ending: Ending, pending: Pending) -> StormVerdict {
        let promises = promises(false);
        StormVerdict::decide(grounds(ending, pending, &promises))
    }

    #[test]
    fn what_a_broker_removed_unread_is_no_verdict() {
        let fine = promises(false);
        for (ending, pending) in
            [(Ending::Quiet, NOTHING), (Ending::Stalled, Pending { undecided: 1, ..NOTHING })]
        {
            let grounds = Grounds { removed_unread: true, ..grounds(ending, pending, &fine) };
            assert_eq!(StormVerdict::decide(grounds), StormVerdict::NoVerdict);
        }
        let broken = promises(true);
        let grounds = Grounds { removed_unread: true, ..grounds(Ending::Quiet, NOTHING, &broken) };
        assert_eq!(StormVerdict::decide(grounds), StormVerdict::Broken, "everything else is judged");
    }

    #[test]
    fn only_a_quiet_end_holds() {
        assert_eq!(decide(Ending::Quiet, NOTHING), StormVerdict::Holds);
        assert_eq!(decide(Ending::Stalled, NOTHING), StormVerdict::NoVerdict);
        assert_eq!(decide(Ending::Moving, NOTHING), StormVerdict::NoVerdict);
    }

    #[test]
    fn what_is_still_on_its_way_is_never_held_and_never_broken() {
        for pending in [
            Pending { scheduled: 10, ..NOTHING },
            Pending { retrying: 1, ..NOTHING },
            Pending { held: 1, ..NOTHING },
            Pending { undecided: 1, ..NOTHING },
            Pending { waiting: 1, ..NOTHING },
            Pending { sagas: 1, ..NOTHING },
        ] {
            assert_eq!(decide(Ending::Moving, pending), StormVerdict::NoVerdict, "{pending}");
            assert_eq!(decide(Ending::Quiet, pending), StormVerdict::NoVerdict, "{pending}");
            // The wait was longer than every deliberate pause.
            assert_eq!(decide(Ending::Stalled, pending), StormVerdict::Broken, "{pending}");
        }
    }

    #[test]
    fn what_is_wrong_before_the_end_is_wrong() {
        for ending in [Ending::Quiet, Ending::Stalled, Ending::Moving] {
            let (broken, fine) = (promises(true), promises(false));
            let grounds = grounds(ending, NOTHING, &broken);
            assert_eq!(StormVerdict::decide(grounds), StormVerdict::Broken);
            let grounds = Grounds { promises: &fine, misbehaved: true, ..grounds };
            assert_eq!(StormVerdict::decide(grounds), StormVerdict::Broken);
        }
    }

    #[test]
    fn every_verdict_has_an_exit_code_of_its_own() {
        let codes =
            [StormVerdict::Holds, StormVerdict::Broken, StormVerdict::NoVerdict].map(StormVerdict::exit_code);
        // Code 2 means that a storm could not run.
        assert_eq!(codes, [0, 1, 3]);
    }
}
