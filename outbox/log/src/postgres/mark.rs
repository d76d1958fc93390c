//! A mark: a snapshot, a position of the sequence that was read before it, and the history in which
//! both are valid. Pure arithmetic on transaction ids.

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::cursor::Mark;
use crate::error::{LogError, quoted};

/// The suffix of a mark that a rebase made.
const REBASED: &str = "rebased";

/// An unknown timeline; real ones are counted from 1.
const UNKNOWN_TIMELINE: i64 = 0;

/// The history in which a mark was taken, written `system identifier/timeline/run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    /// The identifier of the cluster.
    pub(super) system_identifier: String,
    /// The timeline of the write-ahead log; each promotion begins a new one. [`UNKNOWN_TIMELINE`]
    /// where the server does not report it.
    pub(super) timeline: i64,
    /// The run, from a start of the server or the recovery from a crash to its end:
    /// `outbox_server_run`.
    pub(super) run: String,
}

impl History {
    /// Returns whether both belong to one server, as far as it reports, without a known promotion
    /// between them. An unknown timeline proves nothing.
    pub(super) fn is_of(&self, system_identifier: &str, timeline: i64) -> bool {
        self.system_identifier == system_identifier && !self.was_promoted(timeline)
    }

    /// Returns whether this timeline is certainly another one.
    pub(super) fn was_promoted(&self, timeline: i64) -> bool {
        self.timeline != timeline && self.timeline != UNKNOWN_TIMELINE && timeline != UNKNOWN_TIMELINE
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.system_identifier, self.timeline, self.run)
    }
}

impl FromStr for History {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('/');
        let (Some(system), Some(timeline), Some(run), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let is_number =
            |text: &str| !text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit());
        let is_uuid = run.len() == 36 && run.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        match timeline.parse() {
            Ok(timeline) if is_number(system) && is_uuid && timeline >= 0 => {
                Ok(Self { system_identifier: system.to_owned(), timeline, run: run.to_owned() })
            }
            _ => Err(()),
        }
    }
}

/// A mark of this dialect, written `floor@xmin:xmax:xid,xid,…@history@rebased`. The last two parts
/// are optional.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PgMark {
    /// Every row with an id up to this one is visible in the snapshot, or its transaction is in
    /// `in_flight`.
    pub(super) floor: i64,
    /// `pg_current_snapshot()` as text.
    pub(super) snapshot: String,
    /// The transactions that were in flight, ascending.
    pub(super) in_flight: Vec<u64>,
    /// The snapshot's upper bound: no larger transaction id was known.
    pub(super) xmax: u64,
    /// The history in which it was taken, or last found valid. A mark means nothing in another one.
    pub(super) history: Option<History>,
    /// Whether a rebase made it: some of the following entries were already parked.
    pub(super) is_rebased: bool,
}

impl PgMark {
    /// Makes the mark before the first entry: a snapshot that sees nothing.
    pub(super) fn origin() -> Self {
        Self::before_all(0)
    }

    /// Makes a mark behind the ids up to `floor`, with a snapshot that sees nothing. Every row
    /// above the floor is still to be read.
    pub(super) fn before_all(floor: i64) -> Self {
        Self {
            floor,
            snapshot: String::from("1:1:"),
            in_flight: Vec::new(),
            xmax: 1,
            history: None,
            is_rebased: false,
        }
    }

    /// Returns whether no row is visible in the snapshot.
    pub(super) fn sees_nothing(&self) -> bool {
        self.xmax <= 1
    }

    /// Returns the same mark as one of a history in which it was found valid.
    #[must_use]
    pub(super) fn in_history(self, history: &History) -> Self {
        Self { history: Some(history.clone()), ..self }
    }

    /// Makes a mark from the database's answer.
    pub(super) fn new(floor: i64, snapshot: String) -> Result<Self, LogError> {
        let corrupt = || LogError::Corrupt {
            what: "mark",
            problem: format!("{floor}@{} is not of the form floor@xmin:xmax:xid,xid", quoted(&snapshot)),
        };
        let mut parts = snapshot.splitn(3, ':');
        let mut bound = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let (Some(xmin), Some(xmax)) = (bound(), bound()) else { return Err(corrupt()) };
        let list = parts.next().unwrap_or_default();
        let in_flight: Result<Vec<u64>, _> =
            list.split(',').filter(|xid| !xid.is_empty()).map(str::parse).collect();
        match in_flight {
            Ok(in_flight) if floor >= 0 && xmin <= xmax && is_in_flight(&in_flight, xmin, xmax) => {
                Ok(Self { floor, snapshot, in_flight, xmax, history: None, is_rebased: false })
            }
            _ => Err(corrupt()),
        }
    }

    /// Reads the notation.
    pub(super) fn read(mark: &Mark) -> Result<Self, LogError> {
        let corrupt = || LogError::Corrupt {
            what: "mark",
            problem: format!("{} is not of the form floor@xmin:xmax:xid,xid", quoted(mark.as_str())),
        };
        let mut parts = mark.as_str().split('@');
        let (Some(Ok(floor)), Some(snapshot)) = (parts.next().map(str::parse), parts.next()) else {
            return Err(corrupt());
        };
        let history = match parts.next().unwrap_or_default() {
            "" => None,
            text => Some(text.parse().map_err(|()| corrupt())?),
        };
        let is_rebased = match (parts.next(), parts.next()) {
            (None, None) => false,
            (Some(REBASED), None) => true,
            _ => return Err(corrupt()),
        };
        Ok(Self { history, is_rebased, ..Self::new(floor, snapshot.to_owned())? })
    }

    /// Writes the notation.
    pub(super) fn write(&self) -> Mark {
        let mut text = format!("{}@{}", self.floor, self.snapshot);
        // Writing to a String cannot fail.
        let _ = match (&self.history, self.is_rebased) {
            (None, false) => Ok(()),
            (Some(history), false) => write!(text, "@{history}"),
            (None, true) => write!(text, "@@{REBASED}"),
            (Some(history), true) => write!(text, "@{history}@{REBASED}"),
        };
        Mark::new(text)
    }

    /// Returns the transactions that were in flight here and are not at `head`.
    pub(super) fn settled_by(&self, head: &Self) -> Vec<u64> {
        let still = |xid: &u64| head.in_flight.binary_search(xid).is_ok();
        self.in_flight.iter().copied().filter(|xid| !still(xid)).collect()
    }
}

/// Returns whether these can be the transactions in flight of a snapshot: within its bounds, and
/// ascending, because they are searched by bisection.
fn is_in_flight(xids: &[u64], xmin: u64, xmax: u64) -> bool {
    xids.is_sorted_by(|one, next| one < next) && xids.iter().all(|xid| (xmin..xmax).contains(xid))
}

/// Writes transaction ids as an array literal of PostgreSQL; the client library has no type for
/// `xid8`.
pub(super) fn array(xids: &[u64]) -> String {
    let mut text = String::from("{");
    for (at, xid) in xids.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{xid}", if at == 0 { "" } else { "," });
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_notation_goes_both_ways() {
        let history = "7423/1/0190b5a2-0000-4000-8000-000000000001";
        for text in [
            "0@1:1:",
            "17@700:710:700,705",
            "9@5:9:5",
            "0@1:1:@@rebased",
            &format!("17@700:710:700,705@{history}"),
            &format!("17@700:710:700,705@{history}@rebased"),
        ] {
            assert_eq!(PgMark::read(&Mark::new(text)).unwrap().write().as_str(), text);
        }
        assert_eq!(PgMark::origin().write().as_str(), "0@1:1:");
    }

    #[test]
    fn other_notations_are_refused() {
        for text in [
            "",
            "17",
            "x@1:1:",
            "1@1",
            "1@a:b:",
            "1@9:5:",
            "-1@1:1:",
            "1@1:2:x",
            "1@5:9:7,6",
            "1@5:9:6,6",
            "1@5:9:9",
            "1@5:9:4",
            "1@5:9:5@7423",
            "1@5:9:5@7423/1/run",
            "1@5:9:5@@other",
            "1@5:9:5@@rebased@",
        ] {
            let error = PgMark::read(&Mark::new(text)).unwrap_err();
            assert!(matches!(error, LogError::Corrupt { what: "mark", .. }), "{text}");
        }
    }

    #[test]
    fn finished_transactions_are_those_no_longer_in_flight() {
        let base = PgMark::new(1, String::from("700:710:700,703,705")).unwrap();
        let head = PgMark::new(2, String::from("703:720:703,711")).unwrap();
        assert_eq!(base.settled_by(&head), [700, 705]);
        assert_eq!((array(&[700, 705]), array(&[])), (String::from("{700,705}"), String::from("{}")));
    }

    /// A change or a reading of the sequence and of transaction ids.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// A transaction gets its id.
        Begin,
        /// Some open transaction takes an id of the sequence.
        Take(proptest::sample::Index),
        /// Some open transaction ends.
        End(proptest::sample::Index, bool),
        /// The sequence's position is read: the first half of a mark.
        Position,
        /// The snapshot is taken: the second half.
        Snapshot,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Begin),
            5 => any::<proptest::sample::Index>().prop_map(Step::Take),
            3 => (any::<proptest::sample::Index>(), any::<bool>()).prop_map(|(at, commit)| Step::End(at, commit)),
            2 => Just(Step::Position),
            2 => Just(Step::Snapshot),
        ]
    }

    /// Works like `pg_visible_in_snapshot`, for transactions that committed.
    fn is_visible(xid: u64, mark: &PgMark) -> bool {
        let mut bounds = mark.snapshot.split(':').map(|part| part.parse::<u64>().unwrap_or_default());
        let (_, xmax) = (bounds.next(), bounds.next().unwrap_or_default());
        xid < xmax && !mark.in_flight.contains(&xid)
    }

    proptest! {
        /// The two queries of a difference (above the base's floor; below it, of the transactions
        /// that have ended since) return exactly what became visible between the marks, each row
        /// once.
        #[test]
        fn floor_and_stragglers_make_up_the_difference(steps in prop::collection::vec(step(), 1..120)) {
            let (mut next_xid, mut sequence, mut position) = (1_u64, 0_i64, 0_i64);
            let (mut open, mut committed): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
            let mut rows: Vec<(u64, i64)> = Vec::new();
            let mut base = PgMark::origin();
            let mut brought: Vec<i64> = Vec::new();
            let ending = [Step::Position, Step::Snapshot];
            for step in steps.into_iter().chain(ending) {
                match step {
                    Step::Begin => {
                        open.push(next_xid);
                        next_xid += 1;
                    }
                    Step::Take(at) if !open.is_empty() => {
                        sequence += 1;
                        rows.push((open[at.index(open.len())], sequence));
                    }
                    Step::End(at, is_commit) if !open.is_empty() => {
                        let xid = open.remove(at.index(open.len()));
                        if is_commit {
                            committed.push(xid);
                        } else {
                            rows.retain(|(of, _)| *of != xid);
                        }
                    }
                    Step::Position => position = sequence,
                    Step::Snapshot => {
                        let xids: Vec<_> = open.iter().map(ToString::to_string).collect();
                        let xmin = open.first().copied().unwrap_or(next_xid);
                        let head = PgMark::new(position, format!("{xmin}:{next_xid}:{}", xids.join(","))).unwrap();
                        let seen = |xid: u64, mark: &PgMark| committed.contains(&xid) && is_visible(xid, mark);
                        let above = rows.iter().filter(|(xid, id)| {
                            *id > base.floor && !is_visible(*xid, &base) && seen(*xid, &head)
                        });
                        let ended = base.settled_by(&head);
                        let below = rows.iter().filter(|(xid, id)| {
                            *id <= base.floor && ended.contains(xid) && committed.contains(xid)
                        });
                        brought.extend(above.chain(below).map(|(_, id)| *id));
                        let mut all: Vec<_> =
                            rows.iter().filter(|(xid, _)| seen(*xid, &head)).map(|(_, id)| *id).collect();
                        brought.sort_unstable();
                        all.sort_unstable();
                        prop_assert_eq!(&brought, &all);
                        base = head;
                    }
                    Step::Take(_) | Step::End(..) => {}
                }
            }
        }
    }
}
