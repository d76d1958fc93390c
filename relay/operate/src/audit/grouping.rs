//! Combines the rows of an audit into lines while they are read.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;

use time::OffsetDateTime;
use uuid::Uuid;

use super::line::AuditLine;
use crate::cause::signature;

/// Maximum time between two rows of a decision without an id: a decision is written in parts, one
/// immediately after the other. The same one, made again later, is another one.
const PAUSE_MAX: time::Duration = time::Duration::seconds(30);

/// Rows per read. A row has texts of some KiB.
const SLICE_ROWS: u32 = 500;

/// The reads of one database, from the latest row backwards.
#[derive(Debug)]
pub(super) struct Slices {
    /// Only rows with smaller numbers are left.
    pub(super) before: i64,
    /// Number of rows that may still be read; `None` for all.
    rows_left: Option<u32>,
    asked: u32,
    is_at_end: bool,
}

impl Slices {
    /// Creates the reads of at most `rows_max` rows; of all rows without it.
    pub(super) fn new(rows_max: Option<NonZeroU32>) -> Self {
        Self { before: i64::MAX, rows_left: rows_max.map(NonZeroU32::get), asked: 0, is_at_end: false }
    }

    /// Returns the number of rows to read next; `None` at the end.
    pub(super) fn next(&mut self) -> Option<NonZeroU32> {
        if self.is_at_end {
            return None;
        }
        self.asked = self.rows_left.map_or(SLICE_ROWS, |left| left.min(SLICE_ROWS));
        NonZeroU32::new(self.asked)
    }

    /// Records how many rows were read, and the number of the last one.
    pub(super) fn read(&mut self, rows: usize, last: Option<i64>) {
        self.is_at_end = rows < self.asked as usize;
        self.rows_left = self.rows_left.map(|left| left - self.asked);
        self.before = last.unwrap_or(self.before);
    }

    /// Ends the reading: no wanted row is left.
    pub(super) fn stop(&mut self) {
        self.is_at_end = true;
    }

    /// Returns whether rows may be left that were not read because of the bound.
    pub(super) fn is_cut(&self) -> bool {
        !self.is_at_end && self.rows_left == Some(0)
    }
}

/// Combines rows into lines, latest first.
#[derive(Debug)]
pub(super) struct Grouping {
    /// Whether every row is a line.
    pub(super) is_each: bool,
    last: Option<Group>,
    /// The decisions with an id that were added. A decision about many messages is found in every
    /// slice that has one of its rows, each time with the number of all its messages.
    added: HashSet<Uuid>,
}

impl Grouping {
    /// Creates it; with `is_each`, every row is a line.
    pub(super) fn new(is_each: bool) -> Self {
        Self { is_each, last: None, added: HashSet::new() }
    }

    /// Adds a row, and whether it meets the condition that one message of a decision must meet.
    /// Consecutive rows about messages with the same operator, filter and reason are one decision;
    /// an operation is always one by itself. A decision with an id is added once. Returns the
    /// previous decision, if this row ends it and it meets the condition.
    pub(super) fn add(&mut self, line: AuditLine, is_met: bool) -> Option<AuditLine> {
        if line.decision.is_some_and(|decision| !self.added.insert(decision)) {
            return None;
        }
        if let Some(last) = self.last.as_mut().filter(|last| !self.is_each && last.takes(&line)) {
            last.add(&line, is_met);
            return None;
        }
        self.last.replace(Group::new(line, is_met)).and_then(Group::line)
    }

    /// Returns the time of the last decision.
    pub(super) fn last_at(&self) -> Option<OffsetDateTime> {
        self.last.as_ref().map(|last| last.first.at)
    }

    /// Returns the last decision. It has more rows if the reading `is_cut`.
    pub(super) fn end(&mut self, is_cut: bool) -> Option<AuditLine> {
        let is_each = self.is_each;
        let is_open = |line: &AuditLine| is_cut && !is_each && can_have_more(line);
        let line = self.last.take().and_then(Group::line)?;
        Some(AuditLine { messages_is_at_least: is_open(&line), ..line })
    }
}

/// Returns whether a decision can have several rows. Without a filter, each message was decided
/// about individually. With an id, its rows were counted. An operation is not about messages: the
/// same one again is another one.
fn can_have_more(line: &AuditLine) -> bool {
    line.selection.is_some() && line.messages > 0 && line.decision.is_none()
}

/// Returns whether two rows belong to one decision.
fn is_of_one(one: &AuditLine, other: &AuditLine) -> bool {
    can_have_more(one)
        && can_have_more(other)
        && (one.source, one.accept_late) == (other.source, other.accept_late)
        && (&one.owner, &one.actor, &one.action) == (&other.owner, &other.actor, &other.action)
        && (&one.selection, &one.note) == (&other.selection, &other.note)
}

/// One decision, of which some rows were read.
#[derive(Debug)]
struct Group {
    first: AuditLine,
    /// The time of its last row.
    until: OffsetDateTime,
    messages: u64,
    /// Whether one of its messages meets the condition.
    is_met: bool,
    /// How often each outcome occurred; errors by their [`signature`].
    outcomes: BTreeMap<String, u64>,
    done_at: Option<OffsetDateTime>,
}

/// Maximum number of kinds of outcomes of one decision; those after them are counted together.
const OUTCOMES_MAX: usize = 20;
/// The outcomes beyond [`OUTCOMES_MAX`] kinds.
const OTHERS: &str = "with other outcomes";

impl Group {
    fn new(first: AuditLine, is_met: bool) -> Self {
        let mut group = Self {
            until: first.at,
            messages: first.messages,
            is_met,
            outcomes: BTreeMap::new(),
            done_at: first.done_at,
            first,
        };
        if let Some(outcome) = group.first.outcome.clone() {
            group.count(&outcome);
        }
        group
    }

    /// Returns whether a row belongs to the decision.
    fn takes(&self, line: &AuditLine) -> bool {
        is_of_one(&self.first, line) && (self.until - line.at).abs() <= PAUSE_MAX
    }

    /// Counts an outcome. A thousand requeues may fail with a thousand ids in their errors.
    fn count(&mut self, outcome: &str) {
        let kind = signature(outcome);
        let is_known = self.outcomes.len() < OUTCOMES_MAX || self.outcomes.contains_key(&kind);
        let kind = if is_known { kind } else { OTHERS.to_owned() };
        *self.outcomes.entry(kind).or_default() += 1;
    }

    fn add(&mut self, line: &AuditLine, is_met: bool) {
        self.messages += line.messages;
        self.until = line.at;
        self.is_met |= is_met;
        self.done_at = self.done_at.max(line.done_at);
        if let Some(outcome) = &line.outcome {
            self.count(outcome);
        }
    }

    /// Returns the line, if the decision meets the condition.
    fn line(self) -> Option<AuditLine> {
        let Self { first, messages, is_met, outcomes, done_at, .. } = self;
        if messages <= 1 || !is_met {
            return is_met.then_some(first);
        }
        let told: Vec<String> =
            outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        Some(AuditLine {
            messages,
            outcome: (!told.is_empty()).then(|| told.join(", ")),
            done_at,
            id: None,
            message_id: None,
            digest_before: None,
            digest_after: None,
            error: None,
            ..first
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::sample as line;
    use super::*;

    fn grouped(rows: Vec<AuditLine>) -> Vec<AuditLine> {
        let mut grouping = Grouping::new(false);
        let mut lines: Vec<AuditLine> = rows.into_iter().filter_map(|row| grouping.add(row, true)).collect();
        lines.extend(grouping.end(false));
        lines
    }

    #[test]
    fn a_decision_is_one_line_however_many_messages_it_is_about() {
        let chosen = Some("topic=orders: 3 chosen");
        let applied = |line: AuditLine| AuditLine { outcome: Some(String::from("applied")), ..line };
        let lines = grouped(vec![
            applied(line("ann", 3, chosen)),
            line("ann", 2, chosen),
            applied(line("ann", 1, chosen)),
            line("bob", 1, chosen),
            line("bob", 7, None),
            line("bob", 6, None),
        ]);
        let counts: Vec<_> = lines.iter().map(|line| (line.messages, line.id.as_deref())).collect();
        assert_eq!(counts, [(3, None), (1, Some("1")), (1, Some("7")), (1, Some("6"))]);
        assert_eq!(lines[0].outcome.as_deref(), Some("2 applied"));
    }

    /// Goal: an operation that was requested twice is two lines, even where the reading was cut.
    /// Oracle: the lines of two equal ones: a `forget` that was refused, and its repetition.
    #[test]
    fn an_operation_is_a_line_by_itself() {
        let forget = |id: i64| AuditLine {
            action: String::from("forget"),
            messages: 0,
            id: None,
            message_id: None,
            at: OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(id),
            ..line("ann", id, Some("relay orders"))
        };
        assert_eq!(grouped(vec![forget(2), forget(1)]), [forget(2), forget(1)]);
        let mut grouping = Grouping::new(false);
        assert!(grouping.add(forget(1), true).is_none());
        assert_eq!(grouping.end(true), Some(forget(1)), "it has no messages that were not read");
    }

    /// Goal: a decision that is made again with the same words is a line of its own; one that takes
    /// minutes is one. Oracle: the lines of rows at these seconds.
    #[test]
    fn the_same_decision_made_again_is_another_line() {
        let at = |seconds: i64| AuditLine {
            at: OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds),
            ..line("ann", seconds, Some("consumer=billing: 4 chosen"))
        };
        let counts = |times: &[i64]| {
            let lines = grouped(times.iter().map(|seconds| at(*seconds)).collect());
            lines.iter().map(|line| line.messages).collect::<Vec<_>>()
        };
        assert_eq!(counts(&[163, 162, 162, 162, 100, 100, 100, 100]), [4, 4]);
        assert_eq!(counts(&[120, 95, 70, 45, 20]), [5]);
    }

    #[test]
    fn a_decision_that_is_found_in_two_slices_is_one_line() {
        let decided = |id: i64, decision: u128| AuditLine {
            messages: 5,
            decision: Some(Uuid::from_u128(decision)),
            ..line("ann", id, Some("all: 5 chosen"))
        };
        let lines = grouped(vec![decided(9, 1), decided(8, 2), decided(4, 1), decided(3, 2), decided(2, 3)]);
        let found: Vec<_> = lines.iter().map(|line| line.decision.unwrap().as_u128()).collect();
        assert_eq!(found, [1, 2, 3]);
    }

    /// Goal: a line does not collect the error of every message. Oracle: the kinds that it counts.
    #[test]
    fn a_line_counts_kinds_of_outcomes() {
        let failed = |text: &str, id: i64| AuditLine {
            outcome: Some(text.to_owned()),
            ..line("ann", id, Some("all: 1000 chosen"))
        };
        let lines = grouped((1..=1_000).map(|id| failed(&format!("row {id} is missing"), id)).collect());
        assert_eq!(lines[0].outcome.as_deref(), Some("1000 row # is missing"));
        let kind = |id: i64| "x".repeat(usize::try_from(id).unwrap());
        let lines = grouped((1..=100).map(|id| failed(&kind(id), id)).collect());
        let told = lines[0].outcome.as_deref().unwrap();
        assert_eq!(told.split(", ").count(), OUTCOMES_MAX + 1);
        assert!(told.contains(&format!("80 {OTHERS}")), "{told}");
    }

    /// Goal: a decision of which only some rows were read is not shown as complete. Oracle: its
    /// line, and those of decisions that are complete or have one message each.
    #[test]
    fn a_decision_that_was_cut_has_at_least_its_rows() {
        let chosen = Some("all: 9 chosen");
        let mut grouping = Grouping::new(false);
        assert!(grouping.add(line("ann", 9, chosen), true).is_none());
        assert!(grouping.add(line("ann", 8, chosen), true).is_none());
        let cut = grouping.end(true).unwrap();
        assert_eq!((cut.messages, cut.messages_is_at_least), (2, true));
        assert!(grouping.end(true).is_none());
        grouping.add(line("ann", 7, None), true);
        assert!(!grouping.end(true).unwrap().messages_is_at_least, "it was decided about by itself");
        let mut each = Grouping::new(true);
        each.add(line("ann", 9, chosen), true);
        assert!(!each.add(line("ann", 8, chosen), true).unwrap().messages_is_at_least);
        assert!(!each.end(true).unwrap().messages_is_at_least);
    }

    #[test]
    fn a_decision_matches_if_one_of_its_messages_does() {
        let chosen = Some("all: 2 chosen");
        let mut grouping = Grouping::new(false);
        grouping.add(line("ann", 4, chosen), false);
        grouping.add(line("ann", 3, chosen), true);
        let found = grouping.add(line("bob", 2, None), false).unwrap();
        assert_eq!((found.messages, found.actor.as_str()), (2, "ann"));
        assert!(grouping.add(line("bob", 1, None), false).is_none());
        assert!(grouping.end(false).is_none());
    }

    /// Goal: reading takes the memory of one slice. Oracle: the rows that are asked for.
    #[test]
    fn an_audit_is_read_in_slices_and_up_to_a_bound() {
        let mut slices = Slices::new(Some(NonZeroU32::new(1_200).unwrap()));
        let mut asked = Vec::new();
        while let Some(rows) = slices.next() {
            asked.push(rows.get());
            slices.read(rows.get() as usize, Some(7));
        }
        assert_eq!(asked, [500, 500, 200]);
        assert!(slices.is_cut());
        let mut short = Slices::new(Some(NonZeroU32::new(1_200).unwrap()));
        assert!(short.next().is_some());
        short.read(499, Some(7));
        assert_eq!((short.next(), short.before, short.is_cut()), (None, 7, false));
        let mut unbounded = Slices::new(None);
        for _ in 0..10_000 {
            assert_eq!(unbounded.next().map(NonZeroU32::get), Some(500));
            unbounded.read(500, Some(7));
        }
        unbounded.stop();
        assert_eq!((unbounded.next(), unbounded.is_cut()), (None, false));
    }
}
