//! One pass over the audits, from the latest decision of each backwards.

use std::fmt;
use std::num::NonZeroU32;

use outbox_log::admin::AuditQuery as Asked;
use time::OffsetDateTime;

use super::filter::{AuditFilter, names_topic};
use super::grouping::{Grouping, Slices};
use super::line::AuditLine;
use super::topics::OfTopic;
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

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Messages(_) => "messages",
            Self::Operations(_) => "operations",
            Self::Letters(_) => "dead letters",
            Self::Keys(_) => "keys",
            Self::Sagas(_) => "sagas",
        })
    }
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
    is_each: bool,
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
const LOOKED_THROUGH_MAX: u32 = 1_000_000;
/// The number for the first statement, and the maximum for each. More rows are looked through where
/// they belong to few decisions.
const LOOKED_THROUGH_FIRST: u32 = 1_000;
const LOOKED_THROUGH_AT_ONCE: u32 = 100_000;
/// Maximum number of decisions that one statement returns. Each has texts of some KiB.
const DECISIONS_AT_ONCE: u32 = 500;

/// Maximum number of decisions read of the keys or the sagas of a database.
const TABLE_ROWS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999);

impl Walk {
    /// Creates the reading of at most `rows_max` rows; of all rows without it. With `is_each`,
    /// every row is a line.
    pub(crate) fn new(part: Part, rows_max: Option<NonZeroU32>, is_each: bool) -> Self {
        Self {
            part,
            slices: Slices::new(rows_max),
            grouping: Grouping::new(is_each),
            is_each,
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
            Part::Messages(place) => self.messages(&audits.places.outboxes[place], audits.filter).await,
            Part::Operations(place) => self.operations(&audits.places.outboxes[place], audits.filter).await,
            Part::Letters(place) => self.letters(&audits.places.inboxes[place], audits.filter).await,
            Part::Keys(place) => self.keys(&audits.tables[place], audits).await,
            Part::Sagas(place) => self.sagas(&audits.tables[place], audits).await,
        }?;
        lines.retain(|line| audits.filter.takes(line));
        Ok(Some(lines))
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

    /// Reads decisions about messages, each by one row. A topic is that of single messages, so its
    /// filter needs their rows.
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
        let asked = Asked {
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
        let mut lines = Vec::new();
        for audited in slice.decisions {
            lines.extend(self.add(AuditLine::of_audited(place, audited), true));
        }
        Ok(lines)
    }

    async fn messages(
        &mut self,
        place: &OutboxPlace,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditLine>, OperateError> {
        if filter.topic.is_none() && !self.is_each {
            return self.decisions(place, filter).await;
        }
        let Some(rows) = self.rows(filter) else { return Ok(self.end()) };
        let about = |error| OperateError::from(error).about(&place.pipeline);
        let records =
            place.log.audit_before(&place.pipeline, self.slices.before, rows.get()).await.map_err(about)?;
        let topic = filter.topic.as_deref();
        let of_topic = match topic {
            Some(topic) => OfTopic::records(place, &records, topic).await.map_err(about)?,
            None => OfTopic::default(),
        };
        self.slices.read(records.len(), records.last().map(|record| record.number));
        let mut lines = Vec::new();
        for record in records {
            let is_met = topic.is_none_or(|topic| of_topic.has_record(&record, topic));
            lines.extend(self.add(AuditLine::of_record(place, record), is_met));
        }
        Ok(lines)
    }

    async fn operations(
        &mut self,
        place: &OutboxPlace,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditLine>, OperateError> {
        let Some(rows) = self.rows(filter) else { return Ok(self.end()) };
        let read = place.log.operations_before(&place.pipeline, self.slices.before, rows.get()).await;
        let operations = read.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
        self.slices.read(operations.len(), operations.last().map(|operation| operation.number));
        let mut lines = Vec::new();
        for operation in operations {
            let is_met = filter.topic.as_deref().is_none_or(|topic| names_topic(&operation.selection, topic));
            lines.extend(self.add(AuditLine::of_operation(place, operation), is_met));
        }
        Ok(lines)
    }

    async fn letters(
        &mut self,
        place: &InboxPlace,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditLine>, OperateError> {
        let Some(rows) = self.rows(filter) else { return Ok(self.end()) };
        let decisions = place.database.decisions_before(self.slices.before, rows).await?;
        let topic = filter.topic.as_deref();
        let of_topic = match topic {
            Some(topic) => OfTopic::letters(place, &decisions, topic).await?,
            None => OfTopic::default(),
        };
        self.slices.read(decisions.len(), decisions.last().map(|decision| decision.number));
        let mut lines = Vec::new();
        for decision in decisions {
            if place.consumer.as_ref().is_some_and(|name| name.as_str() != decision.consumer) {
                continue;
            }
            let is_met = topic.is_none_or(|topic| of_topic.has_letter(&decision, topic));
            lines.extend(self.add(AuditLine::of_decision(decision), is_met));
        }
        Ok(lines)
    }

    async fn keys(
        &mut self,
        named: &NamedTables,
        audits: &Audits<'_>,
    ) -> Result<Vec<AuditLine>, OperateError> {
        let tables = named.tables.as_ref().map_err(|error| unknown(named, error))?;
        let decided = keys::decisions(tables, audits.operator, TABLE_ROWS_MAX).await;
        self.all(decided.map(|lines| lines.into_iter().map(AuditLine::of_key).collect()))
    }

    async fn sagas(
        &mut self,
        named: &NamedTables,
        audits: &Audits<'_>,
    ) -> Result<Vec<AuditLine>, OperateError> {
        let tables = named.tables.as_ref().map_err(|error| unknown(named, error))?;
        let decided = async {
            let database = SagaDatabase::open(tables).await?;
            let decisions = database.decisions(audits.operator, TABLE_ROWS_MAX).await;
            database.close().await;
            Ok(decisions?.into_iter().map(AuditLine::of_saga).collect())
        };
        self.all(decided.await)
    }

    /// Ends the reading with all lines of a table.
    fn all(&mut self, decided: Result<Vec<AuditLine>, OperateError>) -> Result<Vec<AuditLine>, OperateError> {
        let lines = match decided {
            Err(error) if error.kind() == OperateErrorKind::NoTables => Vec::new(),
            decided => decided?,
        };
        self.is_ended = true;
        self.is_cut = lines.len() >= TABLE_ROWS_MAX.get() as usize;
        self.last_at = lines.last().map(|line| line.at);
        Ok(lines)
    }
}

fn unknown(named: &NamedTables, error: &str) -> OperateError {
    OperateError::new(OperateErrorKind::Unavailable, error).about(&named.name)
}
