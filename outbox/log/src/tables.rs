//! The tables of an outbox that operators read and write: parked entries, pauses, operations, and
//! decisions about entries. All databases share this code; each adds the texts of its statements.

mod parked;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use migrations::Statement;
use migrations::query::Query;
use outbox::Signature;
use sqlx::{Connection as _, SqlSafeStr as _, SqlStr};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::status::ParkedSummary;
use crate::admin::{
    AuditQuery, AuditRecord, AuditSlice, COUNTED_MAX, ChosenEntry, CountedError, ERRORS_LOOKED_AT,
    EditRecord, ListedEntry, Operation, ParkedContent,
};
use crate::dialect::Dialect;
use crate::entries::StoredPayload;
use crate::pause::{PAUSES_MAX, check_pauses_len};
use crate::row::wait;
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName, rows};

/// Number of held entries from which reading all of them is too expensive.
const FEW_HELD_MAX: u32 = 2_000;
/// Maximum held entries that are read where there are few: more may be held since they were
/// counted.
const HELD_READ_MAX: u32 = 2 * FEW_HELD_MAX;

/// The SQL, rendered for a database and a schema.
#[derive(Debug, Clone)]
pub(crate) struct Texts {
    /// Relay, entries to count.
    pub(crate) counts: Statement,
    /// Relay, id.
    pub(crate) parked_age: Statement,
    /// Relay, retrying or dead, entries from each end.
    pub(crate) errors: Statement,
    /// Relay, state, above this id, rows.
    pub(crate) list: Statement,
    /// The same, for states that a database may have an index for: retrying and dead.
    pub(crate) list_stuck: Statement,
    /// Relay, rows.
    pub(crate) list_held: Statement,
    /// Relay, maximum rows to count.
    pub(crate) held_len: Statement,
    /// Relay, above this id, rows, held entries to read.
    pub(crate) list_few_held: Statement,
    /// Relay, above this id, rows.
    pub(crate) list_discarded: Statement,
    pub(crate) discarded_of: Statement,
    /// Relay, id, message id, maximum bytes of a payload to read.
    pub(crate) payload: Statement,
    /// Relay.
    pub(crate) pauses: Statement,
    /// Relay.
    pub(crate) paused_scopes: Statement,
    /// Relay, maximum rows to count.
    pub(crate) pauses_len: Statement,
    /// Relay, kind, name, actor, reason.
    pub(crate) pause: Statement,
    /// Relay, kind, name; the time at which the pause began, or null for any.
    pub(crate) resume: Statement,
    /// Actor, relay, action, selection, note.
    pub(crate) note: Statement,
    /// Relay, rows.
    pub(crate) operations: Statement,
    /// Relay, rows, below this number, action.
    pub(crate) operations_of: Statement,
    /// Relay, rows.
    pub(crate) decisions: Statement,
    /// Relay, rows to look through, below this number; actor, action, decisions.
    pub(crate) audited: Statement,
    /// Relay, message id, rows.
    pub(crate) decisions_of: Statement,
    /// Relay, id, message id.
    pub(crate) content: Statement,
    /// Relay, number.
    pub(crate) edit: Statement,
    /// Relay, state, above this id, entries to look at; the conditions; rows.
    pub(crate) parked: Statement,
    /// The same, for held ones, with the held entries to read.
    pub(crate) parked_few_held: Statement,
    /// The same, for retrying and dead.
    pub(crate) parked_stuck: Statement,
    /// The same without the rows: relay, retrying or dead, above this id, entries to look at; the
    /// conditions.
    pub(crate) choose: Statement,
    /// As `choose`.
    pub(crate) total: Statement,
    /// As `choose`, with the entries from each end.
    pub(crate) groups: Statement,
    /// Relay, decision, entries to count.
    pub(crate) decision_head: Statement,
    /// Relay, decision, entries to look up.
    pub(crate) decision_now: Statement,
    /// Nothing.
    pub(crate) now: Statement,
}

/// Takes the texts from the statements of a database. A statement that is in one of them alone does
/// not compile.
macro_rules! texts_of {
    ($statements:expr) => {
        texts_of! { $statements;
            counts parked_age errors list list_stuck list_held held_len list_few_held list_discarded
            discarded_of payload pauses paused_scopes pauses_len pause resume note operations
            operations_of decisions audited decisions_of content edit parked parked_few_held parked_stuck
            choose total groups decision_head decision_now now
        }
    };
    ($statements:expr; $($name:ident)*) => {{
        let Statements { $($name),* } = $statements;
        Texts { $($name),* }
    }};
}
pub(crate) use texts_of;

/// The tables of an outbox, in a schema.
#[derive(Debug, Clone)]
pub(crate) struct Tables<DB> {
    texts: Texts,
    database: PhantomData<fn() -> DB>,
}

impl<DB: Dialect> Tables<DB> {
    pub(crate) fn new(texts: Texts) -> Self {
        Self { texts, database: PhantomData }
    }

    /// Returns the parked entries, and the age of the oldest one that is held or retrying.
    pub(crate) async fn parked(
        &self,
        connection: &mut DB::Connection,
        relay: &str,
    ) -> Result<(ParkedSummary, Option<Duration>), LogError> {
        let failed = || LogError::during("count the parked entries");
        let query = Query::<DB>::new(&self.texts.counts).bind(relay).bind(COUNTED_MAX);
        let groups = query.rows(&mut *connection).await.map_err(failed())?;
        let groups: Result<Vec<_>, sqlx::Error> = groups.iter().map(rows::counted).collect();
        let summary = ParkedSummary::of(groups.map_err(failed())?);
        let Some(EntryId(id)) = summary.oldest else { return Ok((summary, None)) };
        let query = Query::<DB>::new(&self.texts.parked_age).bind(relay).bind(id);
        // The entry may have been published in the meantime.
        let Some(row) = query.first(connection).await.map_err(failed())? else { return Ok((summary, None)) };
        let age: f64 = row.get("age").map_err(failed())?;
        Ok((summary, wait(age)))
    }

    /// Counts the errors of retrying and dead entries, in the states that have entries.
    pub(crate) async fn errors(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        exceptions: &BTreeMap<ExceptionState, u64>,
    ) -> Result<Vec<CountedError>, LogError> {
        let failed = || LogError::during("count the errors");
        let mut counted = Vec::new();
        for state in [ExceptionState::Dead, ExceptionState::Retrying] {
            if exceptions.get(&state).is_none_or(|count| *count == 0) {
                continue;
            }
            let query = Query::<DB>::new(&self.texts.errors).bind(relay.as_str()).bind(state.as_str());
            let found = query.bind(ERRORS_LOOKED_AT).rows(&mut *connection).await.map_err(failed())?;
            for row in &found {
                counted.push(rows::counted_error(row, state).map_err(failed())?);
            }
        }
        Ok(counted)
    }

    /// Lists parked entries in one state, in the order of ids.
    pub(crate) async fn list(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let of_relay = |statement| Query::<DB>::new(statement).bind(relay.as_str());
        let query = match state {
            ExceptionState::Retrying | ExceptionState::Dead => {
                of_relay(&self.texts.list_stuck).bind(state.as_str())
            }
            ExceptionState::Discarded => of_relay(&self.texts.list_discarded),
            ExceptionState::Held if self.has_few_held(&mut *connection, relay).await? => {
                return self.few_held(connection, relay, after, entries_max).await;
            }
            _ => of_relay(&self.texts.list).bind(state.as_str()),
        };
        let query = query.bind(after.0).bind(entries_max);
        let found = query.rows(connection).await.map_err(LogError::during("list entries"))?;
        found.iter().map(|row| rows::listed(row).map_err(LogError::during("read an entry"))).collect()
    }

    /// Returns whether there are so few held entries that reading all of them costs less than a
    /// walk through everything that is parked. Their index is in the order of queues.
    async fn has_few_held(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
    ) -> Result<bool, LogError> {
        let failed = || LogError::during("count the held entries");
        let query = Query::<DB>::new(&self.texts.held_len).bind(relay.as_str()).bind(FEW_HELD_MAX);
        let counted: i64 = query.one(connection).await.and_then(|row| row.get("entries")).map_err(failed())?;
        Ok(counted < i64::from(FEW_HELD_MAX))
    }

    /// Lists held entries in the order of ids, if there are few.
    async fn few_held(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let query = Query::<DB>::new(&self.texts.list_few_held).bind(relay.as_str()).bind(after.0);
        let query = query.bind(entries_max).bind(HELD_READ_MAX);
        let found = query.rows(connection).await.map_err(LogError::during("list held entries"))?;
        found.iter().map(|row| rows::listed(row).map_err(LogError::during("read an entry"))).collect()
    }

    /// Lists the discarded entries of these messages.
    pub(crate) async fn discarded(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        message_ids: &[Uuid],
    ) -> Result<Vec<ListedEntry>, LogError> {
        let query = Query::<DB>::new(&self.texts.discarded_of).bind(relay.as_str()).bind(message_ids);
        let found = query.rows(connection).await.map_err(LogError::during("list entries"))?;
        found.iter().map(|row| rows::listed(row).map_err(LogError::during("read an entry"))).collect()
    }

    /// Lists held entries, queue after queue, in no particular order within the page.
    pub(crate) async fn held(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError> {
        let query = Query::<DB>::new(&self.texts.list_held).bind(relay.as_str()).bind(entries_max);
        let found = query.rows(connection).await.map_err(LogError::during("list held entries"))?;
        found.iter().map(|row| rows::listed(row).map_err(LogError::during("read an entry"))).collect()
    }

    /// Reads the payload of an entry, if it is not longer than `bytes_max`.
    pub(crate) async fn payload(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        id: EntryId,
        message_id: &str,
        bytes_max: u64,
    ) -> Result<Option<StoredPayload>, LogError> {
        let failed = || LogError::during("read a payload");
        let query = Query::<DB>::new(&self.texts.payload).bind(relay.as_str()).bind(id.0).bind(message_id);
        let query = query.bind(i64::try_from(bytes_max).unwrap_or(i64::MAX));
        let found = query.first(connection).await.map_err(failed())?;
        found.as_ref().map(rows::payload).transpose().map_err(failed())
    }

    /// Reads the pauses of a relay.
    pub(crate) async fn pauses(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
    ) -> Result<Vec<Pause>, LogError> {
        let query = Query::<DB>::new(&self.texts.pauses).bind(relay.as_str());
        let found = query.rows(connection).await.map_err(LogError::during("read the pauses"))?;
        found.iter().map(rows::pause).collect()
    }

    /// Reads the pauses of a relay, without author and reason.
    pub(crate) async fn paused_scopes(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
    ) -> Result<Vec<PauseScope>, LogError> {
        let query = Query::<DB>::new(&self.texts.paused_scopes).bind(relay.as_str());
        let found = query.rows(connection).await.map_err(LogError::during("read the pauses"))?;
        found.iter().map(rows::paused_scope).collect()
    }

    /// Pauses a part of the log and records it, or does neither. Returns whether it did.
    pub(crate) async fn pause(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        scope: &PauseScope,
        by: &Signature,
    ) -> Result<bool, LogError> {
        let failed = || LogError::during("pause");
        let mut tx = connection.begin_with(begin_change::<DB>()).await.map_err(failed())?;
        let change = of_scope::<DB>(&self.texts.pause, relay, scope).bind(&by.actor).bind(&by.note);
        if change.run(&mut tx).await.map_err(failed())? == 0 {
            return Ok(false);
        }
        // The pipeline can always be paused: it is one row, and an emergency.
        if *scope != PauseScope::Pipeline {
            let counted = Query::<DB>::new(&self.texts.pauses_len).bind(relay.as_str()).bind(PAUSES_MAX + 1);
            let row = counted.one(&mut tx).await.map_err(failed())?;
            check_pauses_len(scope, row.get("entries").map_err(failed())?)?;
        }
        self.note(&mut tx, relay, "pause", by).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
    }

    /// Ends a pause and records it, or does neither. Returns whether it did.
    pub(crate) async fn resume(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        by: &Signature,
    ) -> Result<bool, LogError> {
        let failed = || LogError::during("resume");
        let mut tx = connection.begin_with(begin_change::<DB>()).await.map_err(failed())?;
        let change = of_scope::<DB>(&self.texts.resume, relay, scope).bind(since);
        if change.run(&mut tx).await.map_err(failed())? == 0 {
            return Ok(false);
        }
        self.note(&mut tx, relay, "resume", by).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
    }

    /// Records an operation, in the connection's transaction if there is one.
    pub(crate) async fn note(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        action: &str,
        by: &Signature,
    ) -> Result<(), sqlx::Error> {
        let query = by.bind(Query::<DB>::new(&self.texts.note)).bind(action).bind(relay.as_str());
        query.run(connection).await.map(drop)
    }

    /// Reads operations below a number, latest first.
    pub(crate) async fn operations(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let failed = || LogError::during("list operations");
        let query = Query::<DB>::new(&self.texts.operations).bind(relay.as_str());
        let query = query.bind(records_max).bind(before);
        let found = query.rows(connection).await.map_err(failed())?;
        found.iter().map(|row| rows::operation(row).map_err(failed())).collect()
    }

    /// Reads operations of one action below a number, latest first.
    pub(crate) async fn operations_of(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        action: &str,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError> {
        let failed = || LogError::during("list operations");
        let query = Query::<DB>::new(&self.texts.operations_of).bind(relay.as_str());
        let query = query.bind(records_max).bind(before).bind(action);
        let found = query.rows(connection).await.map_err(failed())?;
        found.iter().map(|row| rows::operation(row).map_err(failed())).collect()
    }

    /// Reads decisions about entries below a number, latest first.
    pub(crate) async fn decisions(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let query = Query::<DB>::new(&self.texts.decisions).bind(relay.as_str());
        Self::records(connection, query.bind(records_max).bind(before)).await
    }

    /// Reads decisions below a number, latest first, each once.
    pub(crate) async fn decided(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        asked: &AuditQuery,
    ) -> Result<AuditSlice, LogError> {
        let query = Query::<DB>::new(&self.texts.audited).bind(relay.as_str()).bind(asked.rows_max);
        let query = query.bind(asked.before).bind(asked.actor.as_deref()).bind(asked.action.as_deref());
        let found = query.bind(asked.decisions_max).rows(connection).await;
        let found = found.map_err(LogError::during("list decisions"))?;
        rows::decided(&found, asked).map_err(LogError::during("read a decision"))
    }

    /// Reads decisions about a message, latest first.
    pub(crate) async fn decisions_of(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        message_id: Uuid,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let query = Query::<DB>::new(&self.texts.decisions_of).bind(relay.as_str());
        Self::records(connection, query.bind(message_id).bind(records_max)).await
    }

    /// Reads the content of a parked entry, if it is not larger than the audit keeps.
    pub(crate) async fn content(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        entry: &ChosenEntry,
    ) -> Result<Option<ParkedContent>, LogError> {
        let failed = || LogError::during("read the entry");
        let query = Query::<DB>::new(&self.texts.content).bind(relay.as_str()).bind(entry.id.0);
        let found = query.bind(entry.message_id.as_str()).first(connection).await.map_err(failed())?;
        found.as_ref().map(rows::content).transpose().map_err(failed())
    }

    /// Reads what an edit found and left.
    pub(crate) async fn edit(
        &self,
        connection: &mut DB::Connection,
        relay: &RelayName,
        number: i64,
    ) -> Result<Option<EditRecord>, LogError> {
        let failed = || LogError::during("read a decision");
        let query = Query::<DB>::new(&self.texts.edit).bind(relay.as_str()).bind(number);
        let found = query.first(connection).await.map_err(failed())?;
        found.as_ref().map(rows::edit).transpose().map_err(failed())
    }

    async fn records(
        connection: &mut DB::Connection,
        query: Query<DB>,
    ) -> Result<Vec<AuditRecord>, LogError> {
        let found = query.rows(connection).await.map_err(LogError::during("list decisions"))?;
        found.iter().map(|row| rows::decision(row).map_err(LogError::during("read a decision"))).collect()
    }
}

/// Returns the statement that begins a transaction. It is not a `&'static str`, because other
/// crates could then not prove that the future of `begin` is `Send`.
fn begin_change<DB: Dialect>() -> SqlStr {
    DB::BEGIN_CHANGE.into_sql_str()
}

fn of_scope<DB: Dialect>(statement: &Statement, relay: &RelayName, scope: &PauseScope) -> Query<DB> {
    Query::new(statement).bind(relay.as_str()).bind(scope.kind()).bind(scope.name())
}
