//! One pass over the audits, from the latest decision of each backwards.

use std::num::NonZeroU32;

use outbox_log::admin::{AuditQuery, AuditRecord, Operation};
use time::OffsetDateTime;

use super::filter::AuditFilter;
use super::grouping::{Grouping, Slices};
use super::line::AuditLine;
use super::topics::{OfTopic, is_named};
use crate::error::{OperateError, OperateErrorKind};
use crate::keys;
use crate::named_tables::NamedTables;
use crate::operator::Operator;
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::sagas::SagaDatabase;

/// The audits to read, and the conditions.
pub(crate) struct Audits<'a> {
    pub(crate) places: &'a Places,
    /// The databases of keys and sagas.
    pub(crate) tables: &'a [NamedTables],
    pub(crate) operator: &'a Operator,
    pub(crate) filter: &'a AuditFilter,
}

/// One audit, by the index of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Decisions about messages of an outbox.
    Messages(usize),
    /// Other operations on a pipeline.
    Operations(usize),
    /// Decisions about dead letters of an inbox.
    Letters(usize),
    /// Decisions about idempotency keys.
    Keys(usize),
    /// Decisions about sagas.
    Sagas(usize),
}

impl Audits<'_> {
    /// Returns the audits, in the order in which they are read.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let outboxes = 0..self.places.outboxes.len();
        let mut parts: Vec<Part> =
            outboxes.flat_map(|place| [Part::Messages(place), Part::Operations(place)]).collect();
        let inboxes = self.places.inboxes.iter().enumerate();
        parts.extend(
            inboxes
                .filter(|(place, it)| !self.is_repeated(*place, it))
                .map(|(place, _)| Part::Letters(place)),
        );
        for place in 0..self.tables.len() {
            parts.extend(self.filter.takes_keys().then_some(Part::Keys(place)));
            parts.extend(self.filter.takes_sagas().then_some(Part::Sagas(place)));
        }
        parts
    }

    /// Returns the pipeline, the consumer or the database of an audit.
    pub(crate) fn owner(&self, part: Part) -> String {
        match part {
            Part::Messages(place) | Part::Operations(place) => {
                self.places.outboxes[place].pipeline.to_string()
            }
            Part::Letters(place) => self.places.inboxes[place].name(),
            Part::Keys(place) | Part::Sagas(place) => self.tables[place].name.clone(),
        }
    }

    /// Returns whether another inbox has the same audit. Its rows have no scope.
    fn is_repeated(&self, place: usize, inbox: &InboxPlace) -> bool {
        self.places.inboxes.iter().enumerate().any(|(number, other)| {
            let is_of_all = other.consumer.is_none() && inbox.consumer.is_some();
            other.location == inbox.location
                && (is_of_all || (other.consumer == inbox.consumer && number < place))
        })
    }
}

/// The reading of one audit.
pub(crate) struct Walk {
    part: Part,
    slices: Slices,
    grouping: Grouping,
    /// Number of rows of an outbox that may still be looked through; `None` for all.
    to_look_through: Option<u32>,
    /// Number of rows that the next statement looks through.
    at_once: u32,
    /// The time of the last row that was read.
    last_at: Option<OffsetDateTime>,
    /// Whether no row of an outbox is left.
    is_at_end: bool,
    is_ended: bool,
    is_cut: bool,
}

/// Maximum number of rows of an outbox's audit that one reading looks through.
const LOOKED_THROUGH_MAX: u32 = if cfg!(test) { 20 } else { 1_000_000 };
/// The number for the first statement, and the maximum for each. More rows are looked through where
/// they belong to few decisions.
const LOOKED_THROUGH_FIRST: u32 = 1_000;
const LOOKED_THROUGH_AT_ONCE: u32 = 100_000;
/// Maximum number of decisions that one statement returns. Each has texts of some KiB.
const DECISIONS_AT_ONCE: u32 = 500;

/// Maximum number of decisions that a query reads of the keys or the sagas of a database: each read
/// connects anew.
const TABLE_ROWS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999);

impl Walk {
    /// Creates a walk that reads at most `rows_max` rows, or all rows if it is `None`. With
    /// `is_each`, every row is a line.
    pub(crate) fn new(part: Part, rows_max: Option<NonZeroU32>, is_each: bool) -> Self {
        let is_of_table = matches!(part, Part::Keys(_) | Part::Sagas(_));
        let rows_max = rows_max.map(|max| if is_of_table { max.min(TABLE_ROWS_MAX) } else { max });
        Self {
            part,
            slices: Slices::new(rows_max),
            grouping: Grouping::new(is_each),
            to_look_through: rows_max.map(|_| LOOKED_THROUGH_MAX),
            at_once: LOOKED_THROUGH_FIRST,
            last_at: None,
            is_at_end: false,
            is_ended: false,
            is_cut: false,
        }
    }

    /// Returns the time of the oldest row that was read, if older ones were left out.
    pub(crate) fn cut_at(&self) -> Option<OffsetDateTime> {
        self.last_at.filter(|_| self.is_cut)
    }

    /// Reads some rows. Returns the matching decisions that are complete with them, latest first;
    /// `None` after the last one. A table that does not exist has no decisions. Cancel-safe.
    pub(crate) async fn next(&mut self, audits: &Audits<'_>) -> Result<Option<Vec<AuditLine>>, OperateError> {
        if self.is_ended {
            return Ok(None);
        }
        let mut lines = match self.part {
            // A topic is that of single messages, so its filter needs their rows.
            Part::Messages(place) if !self.grouping.is_each && audits.filter.topic.is_none() => {
                self.decisions(&audits.places.outboxes[place], audits.filter).await?
            }
            _ => self.single(audits).await?,
        };
        lines.retain(|line| audits.filter.takes(line));
        Ok(Some(lines))
    }

    /// Reads decisions row by row.
    async fn single(&mut self, audits: &Audits<'_>) -> Result<Vec<AuditLine>, OperateError> {
        let Some(rows) = self.rows(audits.filter) else { return Ok(self.end()) };
        let found = self.read(audits, rows).await?;
        self.slices.read(found.len(), found.last().map(|found| found.number));
        let here = found.into_iter().filter(|found| found.is_here);
        Ok(here.filter_map(|found| self.add(found.line, found.is_met)).collect())
    }

    /// Reads decisions about messages, each by one row with its number of messages.
    async fn decisions(
        &mut self,
        place: &OutboxPlace,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditLine>, OperateError> {
        let is_cut = self.to_look_through == Some(0);
        if is_cut || self.is_at_end || self.grouping.last_at().is_some_and(|at| filter.is_past(at)) {
            self.is_ended = true;
            self.is_cut = is_cut && !self.is_at_end;
            return Ok(self.grouping.end(self.is_cut).into_iter().collect());
        }
        let rows_max = self.to_look_through.map_or(self.at_once, |left| left.min(self.at_once));
        let asked = AuditQuery {
            before: self.slices.before,
            rows_max,
            decisions_max: DECISIONS_AT_ONCE,
            actor: filter.actor.clone(),
            action: filter.action.clone(),
        };
        let read = place.log.audited(&place.pipeline, &asked).await;
        let slice = read.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
        self.to_look_through = self.to_look_through.map(|left| left - rows_max);
        let are_few = slice.decisions.len() < DECISIONS_AT_ONCE as usize;
        let more = (8 * self.at_once).min(LOOKED_THROUGH_AT_ONCE);
        self.at_once = if are_few { more } else { LOOKED_THROUGH_FIRST };
        self.is_at_end = slice.next.is_none();
        self.slices.before = slice.next.unwrap_or(self.slices.before);
        let lines = slice.decisions.into_iter().map(|audited| AuditLine::of_audited(place, audited));
        let lines = lines.filter_map(|line| self.add(line, true)).collect();
        // Where few decisions match, or none does, many others were looked through.
        self.last_at = slice.seen_back_to.or(self.last_at);
        Ok(lines)
    }

    async fn read(&self, audits: &Audits<'_>, rows: NonZeroU32) -> Result<Vec<Found>, OperateError> {
        let asked = Asked { topic: audits.filter.topic.as_deref(), before: self.slices.before, rows };
        match self.part {
            Part::Messages(place) => messages(&audits.places.outboxes[place], asked).await,
            Part::Operations(place) => operations(&audits.places.outboxes[place], asked).await,
            Part::Letters(place) => letters(&audits.places.inboxes[place], asked).await,
            Part::Keys(place) => keys(&audits.tables[place], audits.operator, asked).await,
            Part::Sagas(place) => sagas(&audits.tables[place], audits.operator, asked).await,
        }
    }

    /// Returns the number of rows to read next; `None` if nothing that matches is left.
    fn rows(&mut self, filter: &AuditFilter) -> Option<NonZeroU32> {
        if self.grouping.last_at().is_some_and(|at| filter.is_past(at)) {
            self.slices.stop();
        }
        self.slices.next()
    }

    /// Ends the reading. Returns the last decision.
    fn end(&mut self) -> Vec<AuditLine> {
        self.is_ended = true;
        self.is_cut = self.slices.is_cut();
        self.grouping.end(self.is_cut).into_iter().collect()
    }

    fn add(&mut self, line: AuditLine, is_met: bool) -> Option<AuditLine> {
        self.last_at = Some(line.at);
        self.grouping.add(line, is_met)
    }
}

/// A row of an audit.
struct Found {
    number: i64,
    line: AuditLine,
    /// Whether it belongs to the place: the rows of an inbox are those of all its consumers.
    is_here: bool,
    /// Whether it is about the topic that is asked for.
    is_met: bool,
}

/// The rows to read next.
#[derive(Clone, Copy)]
struct Asked<'a> {
    topic: Option<&'a str>,
    before: i64,
    rows: NonZeroU32,
}

async fn messages(place: &OutboxPlace, asked: Asked<'_>) -> Result<Vec<Found>, OperateError> {
    let about = |error| OperateError::from(error).about(&place.pipeline);
    let records =
        place.log.audit_before(&place.pipeline, asked.before, asked.rows.get()).await.map_err(about)?;
    let of_topic = match asked.topic {
        Some(topic) => OfTopic::records(place, &records, topic).await.map_err(about)?,
        None => OfTopic::default(),
    };
    let found = |record: AuditRecord| Found {
        number: record.number,
        is_here: true,
        is_met: asked.topic.is_none_or(|topic| of_topic.has_record(&record, topic)),
        line: AuditLine::of_record(place, record),
    };
    Ok(records.into_iter().map(found).collect())
}

async fn operations(place: &OutboxPlace, asked: Asked<'_>) -> Result<Vec<Found>, OperateError> {
    let read = place.log.operations_before(&place.pipeline, asked.before, asked.rows.get()).await;
    let operations = read.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
    let found = |operation: Operation| Found {
        number: operation.number,
        is_here: true,
        is_met: asked.topic.is_none_or(|topic| is_named(&operation.signature, topic)),
        line: AuditLine::of_operation(place, operation),
    };
    Ok(operations.into_iter().map(found).collect())
}

async fn letters(place: &InboxPlace, asked: Asked<'_>) -> Result<Vec<Found>, OperateError> {
    let decisions = place.database.decisions_before(asked.before, asked.rows).await?;
    let of_topic = match asked.topic {
        Some(topic) => OfTopic::letters(place, &decisions, topic).await?,
        None => OfTopic::default(),
    };
    let found = |decision: inbox::Decision| Found {
        number: decision.number,
        is_here: place.consumer.as_ref().is_none_or(|name| name.as_str() == decision.subject.consumer),
        is_met: asked.topic.is_none_or(|topic| of_topic.has_letter(&decision, topic)),
        line: AuditLine::of_decision(decision),
    };
    Ok(decisions.into_iter().map(found).collect())
}

async fn keys(
    named: &NamedTables,
    operator: &Operator,
    asked: Asked<'_>,
) -> Result<Vec<Found>, OperateError> {
    let tables = named.tables.as_ref().map_err(|error| unknown(named, error))?;
    let decisions = if_any(named, keys::decisions(tables, operator, asked.before, asked.rows).await)?;
    Ok(decisions.into_iter().map(|it| Found::of_table(it.number, AuditLine::of_key(it))).collect())
}

async fn sagas(
    named: &NamedTables,
    operator: &Operator,
    asked: Asked<'_>,
) -> Result<Vec<Found>, OperateError> {
    let tables = named.tables.as_ref().map_err(|error| unknown(named, error))?;
    let decisions = async {
        let database = SagaDatabase::open(tables).await?;
        let decisions = database.decisions(operator, asked.before, asked.rows).await;
        database.close().await;
        decisions
    };
    let decisions = if_any(named, decisions.await)?;
    Ok(decisions.into_iter().map(|it| Found::of_table(it.number, AuditLine::of_saga(it))).collect())
}

impl Found {
    /// Creates the row of a decision about a key or a saga. These have no topic, so they are not
    /// read if a topic is requested.
    fn of_table(number: i64, line: AuditLine) -> Self {
        Self { number, line, is_here: true, is_met: true }
    }
}

/// Returns no decisions from a table that does not exist, and names the database in other errors.
fn if_any<T>(named: &NamedTables, decisions: Result<Vec<T>, OperateError>) -> Result<Vec<T>, OperateError> {
    match decisions {
        Err(error) if error.kind() == OperateErrorKind::NoTables => Ok(Vec::new()),
        decisions => decisions.map_err(|error| error.about(&named.name)),
    }
}

fn unknown(named: &NamedTables, error: &str) -> OperateError {
    OperateError::new(OperateErrorKind::Unavailable, error).about(&named.name)
}

#[cfg(test)]
mod tests {
    use outbox_log::LogOptions;

    use super::*;
    use crate::operator::Role;
    use crate::sample::Sample;
    use crate::tables::Tables;

    /// Goal: an error of the audits of keys and sagas names their database, and a database that
    /// cannot be opened is not reported as one without such tables. Oracle: the errors for a file
    /// that does not exist, and the lines of an empty one.
    #[tokio::test]
    async fn a_database_of_keys_and_sagas_that_cannot_be_opened_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str, mode: &str| {
            let url = format!("sqlite:{}?mode={mode}", folder.path().join(name).display());
            NamedTables {
                name: format!("pipeline:{name}"),
                tables: Ok(Tables::new(url.into(), LogOptions::default())),
            }
        };
        let tables = [named("absent", "rw"), named("empty", "rwc")];
        let operator = Operator::new("ann", Role::Viewer);
        let audits = Audits {
            places: &Places::new(),
            tables: &tables,
            operator: &operator,
            filter: &AuditFilter::default(),
        };
        for part in audits.parts() {
            let read = Walk::new(part, None, false).next(&audits).await;
            match (part, read) {
                (Part::Keys(0) | Part::Sagas(0), Err(error)) => {
                    assert!(error.to_string().starts_with("pipeline:absent: "), "{error}");
                }
                (Part::Keys(1) | Part::Sagas(1), Ok(Some(lines))) => assert_eq!(lines, []),
                (part, read) => panic!("{}: {read:?}", audits.owner(part)),
            }
        }
    }

    /// Goal: an operator learns how far back the audit was searched, also where none of what was
    /// searched matches. Oracle: the time of the oldest record among those of the limit.
    #[tokio::test]
    async fn a_search_that_finds_nothing_says_how_far_it_went() {
        let sample = Sample::open().await;
        let rows = 2 * LOOKED_THROUGH_MAX;
        sample
            .run(&format!(
                "INSERT INTO outbox_audit (actor, note, action, relay, id, message_id, at) \
                 WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
                 SELECT iif(i = 1, 'bob', 'ann'), 'a test', 'requeue', 'orders', i, \
                 '019f0000-0000-7000-8000-00000000000a', i * 1000000 FROM n"
            ))
            .await;
        let operator = Operator::new("eve", Role::Viewer);
        let places = Places::new().outbox(&sample.pipeline);
        let filter = AuditFilter { actor: Some(String::from("bob")), ..AuditFilter::default() };
        let audits = Audits { places: &places, tables: &[], operator: &operator, filter: &filter };
        let mut walk = Walk::new(Part::Messages(0), Some(NonZeroU32::MIN), false);
        while let Some(lines) = walk.next(&audits).await.unwrap() {
            assert_eq!(lines, []);
        }
        let seen = OffsetDateTime::from_unix_timestamp(i64::from(rows - LOOKED_THROUGH_MAX) + 1).unwrap();
        assert_eq!(walk.cut_at(), Some(seen));
    }
}
