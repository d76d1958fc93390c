//! Consumers, stuck keys and stuck sagas, which the page shows beside pipelines.

use std::num::NonZeroU32;
use std::time::Duration;

use operate::consumers::{ConsumerLine, Searches, consumers};
use operate::keys;
use operate::sagas::SagaDatabase;
use operate::tables::Tables;
use operate::{
    InboxConfig, NamedTables, OperateError, OperateErrorKind, Operator, PipelineConfig, Places, Role,
    in_turns, named_tables,
};
use saga::SagaQuery;
use tokio::time::Instant;

use super::context::NavCount;

/// Maximum number of stuck keys or sagas that are counted in one database.
const COUNTED_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(100);
/// Interval of the queries for stuck keys and sagas.
const TABLES_INTERVAL: Duration = Duration::from_secs(60);

/// Consumers, keys and sagas at a point in time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    /// `None` before the first look.
    pub(crate) read_at: Option<Instant>,
    tables_at: Option<Instant>,
    pub(crate) consumers: Vec<ConsumerLine>,
    /// The errors of inboxes that do not answer.
    pub(crate) away: Vec<OperateError>,
    pub(crate) keys: NavCount,
    pub(crate) sagas: NavCount,
}

impl Beside {
    /// Queries the inboxes, and the outboxes for messages that a consumer should know.
    pub(crate) async fn with_consumers(
        &self,
        pipelines: &[PipelineConfig],
        inboxes: &[InboxConfig],
        searches: &Searches,
    ) -> Self {
        let places = pipelines.iter().fold(Places::new(), Places::outbox);
        let places = places.inboxes(inboxes.iter().collect()).await;
        let found = consumers(&places, &viewer(), searches).await;
        places.close().await;
        let (consumers, away) = found.unwrap_or_default();
        Self { read_at: Some(Instant::now()), consumers, away, ..self.clone() }
    }

    /// Returns whether the tables of keys and sagas were not read recently.
    pub(crate) fn is_due(&self) -> bool {
        self.tables_at.is_none_or(|at| at.elapsed() >= TABLES_INTERVAL)
    }

    /// Queries the tables of keys and sagas.
    pub(crate) async fn with_tables(&self, pipelines: &[PipelineConfig], inboxes: &[InboxConfig]) -> Self {
        let mut keys = NavCount::default();
        let mut sagas = NavCount::default();
        let databases = named_tables(pipelines, inboxes).into_iter();
        let looks = databases.filter_map(|NamedTables { tables, .. }| tables.ok().map(Stuck::of));
        for Stuck { keys: stuck_keys, sagas: stuck_sagas } in in_turns(looks.collect()).await {
            add(&mut keys, stuck_keys);
            add(&mut sagas, stuck_sagas);
        }
        Self { tables_at: Some(Instant::now()), keys, sagas, ..self.clone() }
    }

    /// Returns whether a reader sees a difference. Ages always change, so they do not count.
    pub(crate) fn tells_more_than(&self, before: &Self) -> bool {
        let seen = |beside: &Self| {
            let of = |line: &ConsumerLine| {
                let activity = line.activity.clone().unwrap_or_default();
                (
                    line.consumer.clone(),
                    line.location.clone(),
                    [activity.dead, activity.held, activity.retrying],
                    line.untaken.is_some(),
                )
            };
            let lines: Vec<_> = beside.consumers.iter().map(of).collect();
            (lines, beside.away.len(), beside.keys, beside.sagas)
        };
        seen(self) != seen(before)
    }
}

fn viewer() -> Operator {
    Operator::new("the page", Role::Viewer)
}

/// The numbers of stuck keys and sagas in one database.
struct Stuck {
    keys: Result<usize, OperateError>,
    sagas: Result<usize, OperateError>,
}

impl Stuck {
    /// Counts them. A database that does not answer is asked once.
    async fn of(tables: Tables) -> Self {
        let keys = stuck_keys(&tables, &viewer()).await;
        let sagas = match &keys {
            Err(error) if error.kind() == OperateErrorKind::Unavailable => Err(error.clone()),
            _ => stuck_sagas(&tables, &viewer()).await,
        };
        Self { keys, sagas }
    }
}

/// Adds the count of a database. One without such tables has none.
fn add(count: &mut NavCount, stuck: Result<usize, OperateError>) {
    match stuck {
        Ok(number) => count.add(Some(number as u64), number >= COUNTED_MAX.get() as usize),
        Err(error) if error.kind() == OperateErrorKind::NoTables => {}
        Err(error) if error.kind() == OperateErrorKind::NotGranted => count.is_denied = true,
        Err(_) => count.add(None, false),
    }
}

async fn stuck_keys(tables: &Tables, viewer: &Operator) -> Result<usize, OperateError> {
    Ok(keys::stuck(tables, viewer, COUNTED_MAX).await?.len())
}

async fn stuck_sagas(tables: &Tables, viewer: &Operator) -> Result<usize, OperateError> {
    let database = SagaDatabase::open(tables).await?;
    let mut wanted = SagaQuery::open(COUNTED_MAX);
    wanted.is_stuck = true;
    let found = database.list(viewer, &wanted).await;
    database.close().await;
    Ok(found?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a database whose user may not read keys and sagas, as with the standard roles, is not
    /// counted as one that does not answer. Oracle: the counts after each error.
    #[test]
    fn a_missing_right_is_no_outage() {
        let counted = |kind| {
            let mut count = NavCount::default();
            add(&mut count, Err(OperateError::new(kind, "permission denied for table saga")));
            count
        };
        let denied = counted(OperateErrorKind::NotGranted);
        assert_eq!((denied.is_denied, denied.is_partial), (true, false));
        assert_eq!(counted(OperateErrorKind::NoTables), NavCount::default());
        for kind in [OperateErrorKind::Unavailable, OperateErrorKind::Refused] {
            assert!(counted(kind).is_partial, "{kind:?}");
        }
    }
}
