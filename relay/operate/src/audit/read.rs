//! The latest decisions of all audits.

use std::num::NonZeroU32;

use futures_util::StreamExt as _;
use inbox::DeadLetterId;
use time::OffsetDateTime;
use uuid::Uuid;

use super::filter::AuditFilter;
use super::joining::joined;
use super::left_out::LeftOut;
use super::line::AuditLine;
use super::walk::{Audits, Part, Walk};
use crate::error::{OperateError, OperateErrorKind};
use crate::named_tables::NamedTables;
use crate::operator::{Operator, Role};
use crate::places::Places;
use crate::turns::{ahead, in_turns};

/// Maximum number of rows read from each audit to group decisions: a decision about several
/// messages has a row for each.
const ROWS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999);
/// Maximum number of rows read from each audit to find those that match a filter.
const SEARCHED_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(99_999);

/// A query for the latest decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only decisions that match.
    pub filter: AuditFilter,
    /// Whether each message of a decision is a line.
    pub is_each: bool,
    /// Maximum number of lines.
    pub limit: NonZeroU32,
}

impl AuditQuery {
    /// Creates a query for the latest decisions, one line for each.
    #[must_use]
    pub fn latest(limit: NonZeroU32) -> Self {
        Self { filter: AuditFilter::default(), is_each: false, limit }
    }

    fn rows_max(&self) -> NonZeroU32 {
        if !self.filter.is_empty() {
            return SEARCHED_MAX.max(self.limit);
        }
        if self.is_each { self.limit } else { ROWS_MAX.max(self.limit) }
    }
}

/// Decisions, and what is missing of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Audited {
    /// The decisions, latest first.
    pub lines: Vec<AuditLine>,
    /// The errors of places that do not answer; their decisions are missing.
    pub away: Vec<OperateError>,
    /// The audits that the database user may not read; their decisions are missing.
    pub left_out: LeftOut,
    /// Decisions before this time were not all searched: an audit has more rows than one query
    /// reads. `None` if older decisions are missing only because of the limit, or none are.
    pub searched_back_to: Option<OffsetDateTime>,
}

/// Returns the latest decisions that match, from all places and from the keys and sagas of
/// `tables`. Looks through at most a million rows of an outbox's audit, where a decision is one
/// line however many messages it was about. Of other audits, of single messages and for a topic, it
/// reads at most 10,000 rows, with a filter 100,000. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not read the audit, or when the filter is contradictory.
/// [`Audited::away`] has the errors of unreachable databases, [`Audited::left_out`] the audits that
/// the database user may not read.
pub async fn read(
    places: &Places,
    tables: &[NamedTables],
    operator: &Operator,
    query: &AuditQuery,
) -> Result<Audited, OperateError> {
    operator.permit(Role::Viewer, "read the audit")?;
    query.filter.check()?;
    let audits = Audits { places, tables, operator, filter: &query.filter };
    let mut audited = Audited {
        lines: Vec::new(),
        away: places.away.clone(),
        left_out: LeftOut::default(),
        searched_back_to: None,
    };
    let parts = audits.parts();
    // Waits for all databases that do not answer at the same time.
    let databases = parts.chunk_by(|one, other| is_with(Some(*one), *other));
    let mut answers = ahead(databases.map(|parts| of_database(&audits, parts, query)).collect());
    while let Some(answer) = answers.next().await {
        for Found { part, lines, cut_at, error } in answer {
            if let Some(error) = error {
                audited.away.extend(audited.left_out.take(part, || audits.owner(part), error).err());
            }
            audited.searched_back_to = audited.searched_back_to.max(cut_at);
            keep_latest(&mut audited.lines, lines, query.limit);
        }
    }
    // A full list ends before the rows that were not read.
    let oldest = audited.lines.last().filter(|_| audited.lines.len() >= query.limit.get() as usize);
    if let Some(oldest) = oldest.map(|line| line.at) {
        audited.searched_back_to = audited.searched_back_to.filter(|at| *at > oldest);
    }
    Ok(audited)
}

/// The latest decisions of one audit.
struct Found {
    part: Part,
    lines: Vec<AuditLine>,
    /// The time of the oldest row that was read, if older ones were left out.
    cut_at: Option<OffsetDateTime>,
    /// The reason why the rest is missing.
    error: Option<OperateError>,
}

/// Reads the audits of one place, one after the other. If it does not answer the first one, the
/// others are not requested.
async fn of_database(audits: &Audits<'_>, parts: &[Part], query: &AuditQuery) -> Vec<Found> {
    let mut all = Vec::with_capacity(parts.len());
    let mut lost = None;
    for part in parts.iter().copied() {
        if is_with(lost, part) {
            continue;
        }
        let mut walk = Walk::new(part, Some(query.rows_max()), query.is_each);
        let mut lines = Vec::new();
        let mut failed = None;
        while lines.len() < query.limit.get() as usize {
            match Box::pin(walk.next(audits)).await {
                Ok(Some(more)) => lines.extend(more),
                Ok(None) => break,
                Err(error) => {
                    lost = gone(part, &error);
                    failed = Some(error);
                    break;
                }
            }
        }
        all.push(Found { part, lines, cut_at: walk.cut_at(), error: failed });
    }
    all
}

/// Returns the audit whose error also covers others in the same database. Another table of a
/// database may be readable.
pub(crate) fn gone(part: Part, error: &OperateError) -> Option<Part> {
    let is_whole = matches!(part, Part::Messages(_)) || error.kind() == OperateErrorKind::Unavailable;
    is_whole.then_some(part)
}

/// Returns whether an audit is in the same database as one that does not answer.
pub(crate) fn is_with(lost: Option<Part>, part: Part) -> bool {
    match (lost, part) {
        (Some(Part::Messages(one)), Part::Operations(other))
        | (Some(Part::Keys(one)), Part::Sagas(other)) => one == other,
        _ => false,
    }
}

/// Adds the lines of a place, and keeps the latest ones.
fn keep_latest(lines: &mut Vec<AuditLine>, found: Vec<AuditLine>, limit: NonZeroU32) {
    lines.extend(found);
    // Each place returns the latest first; the sort is stable.
    lines.sort_by_key(|line| std::cmp::Reverse(line.at));
    lines.dedup();
    joined(lines);
    lines.truncate(limit.get() as usize);
}

/// Maximum number of decisions about a message in one place, and about each of its dead letters.
const OF_MESSAGE_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// Returns the decisions about a message and about its dead letters, latest first. Reads only
/// those.
pub(crate) async fn about(places: &Places, message: Option<Uuid>, letters: &[DeadLetterId]) -> Audited {
    let (mut lines, mut away) = (Vec::new(), Vec::new());
    let outboxes = if message.is_some() { &places.outboxes[..] } else { &[] };
    let looks = outboxes
        .iter()
        .map(|place| place.log.audit_of(&place.pipeline, message.unwrap_or_default(), OF_MESSAGE_MAX.get()));
    let looks = looks.collect();
    for (place, records) in outboxes.iter().zip(in_turns(looks).await) {
        match records {
            Ok(records) => {
                lines.extend(records.into_iter().map(|record| AuditLine::of_record(place, record)));
            }
            Err(error) => away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    let inboxes = if letters.is_empty() { &[] } else { &places.inboxes[..] };
    let looks = inboxes.iter().map(|place| place.database.decisions_of(letters, OF_MESSAGE_MAX)).collect();
    for (place, decisions) in inboxes.iter().zip(in_turns(looks).await) {
        match decisions {
            Ok(decisions) => {
                let is_here = |name: &str| place.consumer.as_ref().is_none_or(|it| it.as_str() == name);
                let here = decisions.into_iter().filter(|decision| is_here(&decision.subject.consumer));
                lines.extend(here.map(AuditLine::of_decision));
            }
            Err(error) => away.push(error),
        }
    }
    keep_latest(&mut lines, Vec::new(), OF_MESSAGE_MAX);
    Audited { lines, away, left_out: LeftOut::default(), searched_back_to: None }
}
