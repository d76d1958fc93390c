//! Many parked entries at once.

use migrations::query::{Query, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{HELD_READ_MAX, Tables};
use crate::admin::{
    DecisionRecord, FOLLOWED_MAX, FoundParked, GROUPED_MAX, LOOKED_AT_MAX, ListedEntry, ParkedFilter,
    ParkedQuery, ParkedSlice, SURVEYED_MAX, Survey,
};
use crate::dialect::Dialect;
use crate::{EntryId, ExceptionState, LogError, RelayName, rows};

type Found<T> = Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Reads the next entries that match, with everything that is shown of them.
    pub(crate) async fn matching(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        query: &ParkedQuery,
    ) -> Result<ParkedSlice<ListedEntry>, LogError> {
        let texts = &self.texts;
        let (statement, looked_at_max) = match query.state {
            ExceptionState::Retrying | ExceptionState::Dead => (&texts.parked_stuck, LOOKED_AT_MAX),
            ExceptionState::Held if self.has_few_held(&mut *connection, relay).await? => {
                (&texts.parked_few_held, HELD_READ_MAX)
            }
            _ => (&texts.parked, LOOKED_AT_MAX),
        };
        let asked = walk(Query::<DB>::new(statement), relay, query.state, query.after, looked_at_max);
        let asked = conditions(asked, &query.filter).bind(query.entries_max);
        let read = async {
            let found = asked.rows(connection).await?;
            let mut slice = slice(&found, looked_at_max, rows::listed)?;
            // The limit can have cut off entries that match.
            if slice.entries.len() >= query.entries_max as usize {
                slice.next = slice.entries.last().map(|entry| entry.id);
            }
            Ok(slice)
        };
        read.await.map_err(LogError::during("list entries"))
    }

    /// Reads the next entries that match, with the columns that a decision needs.
    pub(crate) async fn choose(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        query: &ParkedQuery,
    ) -> Result<ParkedSlice<FoundParked>, LogError> {
        let asked = Query::<DB>::new(&self.texts.choose);
        let asked = walk(asked, relay, query.state, query.after, LOOKED_AT_MAX);
        let read = async {
            let found = conditions(asked, &query.filter).rows(connection).await?;
            slice(&found, LOOKED_AT_MAX, rows::found_parked)
        };
        read.await.map_err(LogError::during("choose entries"))
    }

    /// Reads the database's time.
    pub(crate) async fn now(&self, connection: &mut DB::Connection) -> Result<OffsetDateTime, LogError> {
        let read = async { rows::time(&Query::<DB>::new(&self.texts.now).one(connection).await?, "at") };
        read.await.map_err(LogError::during("read the clock"))
    }

    /// Counts the entries that match, and groups those from both ends by their errors.
    pub(crate) async fn survey(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        state: ExceptionState,
        filter: &ParkedFilter,
    ) -> Result<Survey, LogError> {
        let all = EntryId::default();
        let total =
            walk(Query::<DB>::new(&self.texts.total), relay, state, all, SURVEYED_MAX.saturating_add(1));
        let groups = walk(Query::<DB>::new(&self.texts.groups), relay, state, all, GROUPED_MAX);
        let read = async {
            let total = conditions(total, filter).one(&mut *connection).await?;
            let looked_at: u64 = total.get("scanned")?;
            let groups = conditions(groups, filter).rows(connection).await?;
            Ok(Survey {
                at: rows::time(&total, "at")?,
                count: total.get("entries")?,
                is_at_least: looked_at > u64::from(SURVEYED_MAX),
                groups: groups.iter().map(rows::parked_group).collect::<Found<_>>()?,
                is_sample: looked_at > 2 * u64::from(GROUPED_MAX),
            })
        };
        read.await.map_err(LogError::during("count the parked entries"))
    }

    /// Reads the changes of a decision.
    pub(crate) async fn decision(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        id: Uuid,
    ) -> Result<Option<DecisionRecord>, LogError> {
        let of_decision = |statement| Query::<DB>::new(statement).bind(relay.as_str()).bind(id);
        let read = async {
            let head = of_decision(&self.texts.decision_head).bind(SURVEYED_MAX);
            let Some(head) = head.first(&mut *connection).await? else { return Ok(None) };
            let now = of_decision(&self.texts.decision_now).bind(FOLLOWED_MAX);
            let now = now.rows(connection).await?;
            let now = now.iter().map(rows::standing_count).collect::<Found<_>>()?;
            rows::decision_record(&head, now).map(Some)
        };
        read.await.map_err(LogError::during("read a decision"))
    }
}

/// Adds the values of the walk: relay, state, above this id, entries.
fn walk<DB: Dialect>(
    query: Query<DB>,
    relay: &RelayName,
    state: ExceptionState,
    after: EntryId,
    entries_max: u32,
) -> Query<DB> {
    query.bind(relay.as_str()).bind(state.as_str()).bind(after.0).bind(entries_max)
}

/// Adds the values of the conditions.
fn conditions<DB: Dialect>(query: Query<DB>, filter: &ParkedFilter) -> Query<DB> {
    let [older_than, newer_than] = filter.ages();
    let pattern = filter.error_pattern();
    query
        .bind(filter.topic.as_deref())
        .bind(filter.key.as_deref())
        .bind(filter.fault.as_deref())
        .bind(pattern.as_deref())
        .bind(filter.kind.as_deref())
        .bind(older_than)
        .bind(newer_than)
        .bind(filter.as_of)
}

/// Reads a slice. Each row has the end of the walk, and one entry or none.
fn slice<DB: Dialect, T>(
    found: &[Row<DB>],
    looked_at_max: u32,
    read: impl Fn(&Row<DB>) -> Found<T>,
) -> Found<ParkedSlice<T>> {
    let Some(first) = found.first() else { return Ok(ParkedSlice { entries: Vec::new(), next: None }) };
    let scanned: u64 = first.get("scanned")?;
    let seen_to: Option<i64> = first.get("seen_to")?;
    let next = seen_to.map(EntryId).filter(|_| scanned >= u64::from(looked_at_max));
    let mut entries = Vec::with_capacity(found.len());
    for row in found {
        if row.get::<Option<i64>>("id")?.is_some() {
            entries.push(read(row)?);
        }
    }
    Ok(ParkedSlice { entries, next })
}
