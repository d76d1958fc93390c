//! Combines the rows of an audit into lines while they are read.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use time::OffsetDateTime;

use super::audit::AuditLine;
use crate::cause::signature;

/// Rows per read. A row has texts of some KiB.
const SLICE_ROWS: u32 = 500;

/// The reads of one place, from the latest row backwards.
#[derive(Debug)]
pub(super) struct Slices {
    /// Only rows with smaller numbers are left.
    pub(super) before: i64,
    rows_left: u32,
    asked: u32,
}

impl Slices {
    pub(super) fn new(rows_max: NonZeroU32) -> Self {
        Self { before: i64::MAX, rows_left: rows_max.get(), asked: 0 }
    }

    /// Returns the number of rows to read next; `None` at the end.
    pub(super) fn next(&mut self) -> Option<NonZeroU32> {
        self.asked = self.rows_left.min(SLICE_ROWS);
        NonZeroU32::new(self.asked)
    }

    /// Notes how many rows were read, and the number of the last one.
    pub(super) fn read(&mut self, rows: usize, last: Option<i64>) {
        let is_last = rows < self.asked as usize;
        self.rows_left = if is_last { 0 } else { self.rows_left - self.asked };
        self.before = last.unwrap_or(self.before);
    }
}

/// The lines of one place, latest first.
#[derive(Debug)]
pub(super) struct Lines {
    /// Maximum number of lines.
    pub(super) limit: NonZeroU32,
    is_grouped: bool,
    lines: Vec<AuditLine>,
    last: Option<Group>,
}

impl Lines {
    pub(super) fn new(limit: NonZeroU32, is_grouped: bool) -> Self {
        Self { limit, is_grouped, lines: Vec::new(), last: None }
    }

    /// Returns whether there are as many lines as are wanted. The last one may be incomplete until
    /// a row of another decision was read.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= self.limit.get() as usize
    }

    /// Adds a row. Consecutive rows with the same operator, filter and reason are one decision.
    pub(super) fn add(&mut self, line: AuditLine) {
        if let Some(last) = self.last.as_mut().filter(|last| self.is_grouped && is_of_one(&last.first, &line))
        {
            last.add(&line);
            return;
        }
        let finished = self.last.replace(Group::new(line));
        if !self.is_full() {
            self.lines.extend(finished.map(Group::line));
        }
    }

    /// Returns the lines.
    pub(super) fn end(mut self) -> Vec<AuditLine> {
        if !self.is_full() {
            self.lines.extend(self.last.take().map(Group::line));
        }
        self.lines
    }
}

/// Returns whether two rows belong to one decision. Without a filter, each message was decided
/// about individually.
fn is_of_one(one: &AuditLine, other: &AuditLine) -> bool {
    one.selection.is_some()
        && (one.source, one.accept_late) == (other.source, other.accept_late)
        && (&one.owner, &one.actor, &one.action) == (&other.owner, &other.actor, &other.action)
        && (&one.selection, &one.note) == (&other.selection, &other.note)
}

/// One decision, of which some rows were read.
#[derive(Debug)]
struct Group {
    first: AuditLine,
    messages: u64,
    /// How often each outcome occurred; errors by their [`signature`].
    outcomes: BTreeMap<String, u64>,
    done_at: Option<OffsetDateTime>,
}

/// Maximum number of kinds of outcomes of one decision; those after them are counted together.
const OUTCOMES_MAX: usize = 20;
/// The outcomes beyond [`OUTCOMES_MAX`] kinds.
const OTHERS: &str = "with other outcomes";

impl Group {
    fn new(first: AuditLine) -> Self {
        let mut group = Self { messages: 1, outcomes: BTreeMap::new(), done_at: first.done_at, first };
        if let Some(outcome) = group.first.outcome.clone() {
            group.count(&outcome);
        }
        group
    }

    /// Counts an outcome. A thousand redrives may fail with a thousand ids in their errors.
    fn count(&mut self, outcome: &str) {
        let kind = signature(outcome);
        let is_known = self.outcomes.len() < OUTCOMES_MAX || self.outcomes.contains_key(&kind);
        let kind = if is_known { kind } else { OTHERS.to_owned() };
        *self.outcomes.entry(kind).or_default() += 1;
    }

    fn add(&mut self, line: &AuditLine) {
        self.messages += 1;
        self.done_at = self.done_at.max(line.done_at);
        if let Some(outcome) = &line.outcome {
            self.count(outcome);
        }
    }

    fn line(self) -> AuditLine {
        let Self { first, messages, outcomes, done_at } = self;
        if messages == 1 {
            return first;
        }
        let told: Vec<String> =
            outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        AuditLine {
            messages,
            outcome: (!told.is_empty()).then(|| told.join(", ")),
            done_at,
            id: None,
            message_id: None,
            digest_before: None,
            digest_after: None,
            error: None,
            ..first
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead::DeadSource;

    fn line(actor: &str, id: i64, selection: Option<&str>) -> AuditLine {
        AuditLine {
            at: OffsetDateTime::UNIX_EPOCH,
            actor: actor.to_owned(),
            action: String::from("requeue"),
            source: DeadSource::Outbox,
            owner: String::from("orders"),
            messages: 1,
            id: Some(id.to_string()),
            message_id: Some(String::from("m")),
            selection: selection.map(str::to_owned),
            note: String::from("a test"),
            accept_late: false,
            outcome: None,
            done_at: None,
            digest_before: None,
            digest_after: None,
            error: None,
        }
    }

    fn grouped(limit: u32, rows: Vec<AuditLine>) -> Vec<AuditLine> {
        let mut lines = Lines::new(NonZeroU32::new(limit).unwrap(), true);
        rows.into_iter().for_each(|row| lines.add(row));
        lines.end()
    }

    #[test]
    fn a_decision_is_one_line_however_many_messages_it_is_about() {
        let chosen = Some("topic=orders: 3 chosen");
        let applied = |line: AuditLine| AuditLine { outcome: Some(String::from("applied")), ..line };
        let lines = grouped(
            100,
            vec![
                applied(line("ann", 3, chosen)),
                line("ann", 2, chosen),
                applied(line("ann", 1, chosen)),
                line("bob", 1, chosen),
                line("bob", 7, None),
                line("bob", 6, None),
            ],
        );
        let counts: Vec<_> = lines.iter().map(|line| (line.messages, line.id.as_deref())).collect();
        assert_eq!(counts, [(3, None), (1, Some("1")), (1, Some("7")), (1, Some("6"))]);
        assert_eq!(lines[0].outcome.as_deref(), Some("2 applied"));
    }

    /// Goal: a line does not collect the error of every message. Oracle: the kinds that it counts.
    #[test]
    fn a_line_counts_kinds_of_outcomes() {
        let failed = |text: &str, id: i64| AuditLine {
            outcome: Some(text.to_owned()),
            ..line("ann", id, Some("all: 1000 chosen"))
        };
        let lines = grouped(1, (1..=1_000).map(|id| failed(&format!("row {id} is missing"), id)).collect());
        assert_eq!(lines[0].outcome.as_deref(), Some("1000 row # is missing"));
        let kind = |id: i64| "x".repeat(usize::try_from(id).unwrap());
        let lines = grouped(1, (1..=100).map(|id| failed(&kind(id), id)).collect());
        let told = lines[0].outcome.as_deref().unwrap();
        assert_eq!(told.split(", ").count(), OUTCOMES_MAX + 1);
        assert!(told.contains(&format!("80 {OTHERS}")), "{told}");
    }

    /// Goal: the audit of a million messages takes the memory of the lines that are shown. Oracle:
    /// the lines that are kept, and the rows that are read.
    #[test]
    fn reading_ends_with_the_lines_that_are_wanted() {
        let mut lines = Lines::new(NonZeroU32::new(2).unwrap(), true);
        for (id, note) in [(9, "a"), (8, "a"), (7, "b"), (6, "b")] {
            lines.add(AuditLine { note: String::from(note), ..line("ann", id, Some("all: 2 chosen")) });
            assert!(!lines.is_full(), "the second line may go on");
        }
        lines.add(line("ann", 5, None));
        lines.add(line("ann", 4, None));
        assert!(lines.is_full() && lines.lines.len() == 2);
        assert_eq!(lines.end().iter().map(|line| line.messages).collect::<Vec<_>>(), [2, 2]);

        let mut slices = Slices::new(NonZeroU32::new(1_200).unwrap());
        let mut asked = Vec::new();
        while let Some(rows) = slices.next() {
            asked.push(rows.get());
            slices.read(rows.get() as usize, Some(7));
        }
        assert_eq!(asked, [500, 500, 200]);
        let mut short = Slices::new(NonZeroU32::new(1_200).unwrap());
        assert!(short.next().is_some());
        short.read(499, Some(7));
        assert_eq!((short.next(), short.before), (None, 7));
    }
}
