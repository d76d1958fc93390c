//! The takeover of a foreign outbox table on PostgreSQL, and the way back. A trigger hands each new
//! row over to the outbox in the producer's own transaction.
//!
//! | module | what it holds |
//! |---|---|
//! | `facts` | the table according to the catalogs |
//! | `call` | calls to the database, and their time limits |
//! | `check` | whether the catalogs permit an adoption; pure |
//! | `roles` | the roles that insert rows, and the rights that they lack |
//! | `rows` | whether the rows can be handed over |
//! | `sql` | the statements, for running and for printing |
//! | `values` | the parts of a message, as SQL on a row |
//! | `leader` | the relays that publish while a table is handed over |
//! | `lock` | the lock that both directions take |
//! | `slots` | whether Debezium has received everything from before |
//! | `finding` | the check of `relay doctor` |
//! | `staying` | rows that stay in the table after their handover |
//! | `status` | whether the adoption exists, is complete, and matches this mapping |
//!
//! Nothing changes before everything is checked, once without the lock and once under it. Each
//! direction is one transaction.

mod call;
mod check;
mod facts;
mod finding;
mod leader;
mod lock;
mod roles;
mod rows;
mod slots;
mod sql;
mod status;
mod staying;
mod values;

use std::time::{Duration, Instant};

use migrations::{ForeignIdentifier, Line, Migrator};
use operate::tables::{On, Tables};
use operate::{OperateError, Operator, Role, Signed};
use outbox_log::{LogError, RelayName, in_time};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection, Postgres, Transaction};

use crate::adoption::Adoption;

use call::{Limit, begin, failed, run};
use facts::Facts;
pub use finding::finding;
use leader::{Leader, Leaders};
pub use slots::Slot;
use sql::{Place, Remembered, Sql};
pub use status::{AdoptState, AdoptStatus, LackingRole};

/// Timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The old table of a pipeline.
pub struct OldTable {
    /// The pipeline, for the audit.
    pub pipeline: RelayName,
    /// The table, and the meaning of its columns.
    pub adoption: Adoption,
    /// The database, with a user who owns the table.
    pub tables: Tables,
}

/// The outcome of a direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Adopted {
    /// The pipeline.
    pub pipeline: String,
    /// The old table.
    pub table: String,
    /// `adopted`, `replaced` or `given back`. `imported` when the adoption existed and rows waited
    /// that no trigger had seen. `unchanged` when there was nothing to do.
    pub outcome: &'static str,
    /// Waiting rows that were imported into the outbox.
    pub imported: u64,
    /// The time for which writers of the old table were held back.
    pub held_seconds: f64,
    /// The publication that the table left or joined again.
    pub publication: Option<String>,
    /// A position that the old relay's slot must reach.
    pub lsn: Option<String>,
    /// Publications that still publish the table's rows.
    pub also_published_by: Vec<String>,
}

/// The SQL that a direction would run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdoptPlan {
    /// The script, in one transaction.
    pub sql: String,
    /// Number of rows that would be imported.
    pub waiting: Option<i64>,
    /// The rights that must be granted first.
    pub grants: Vec<String>,
}

/// Checks the table, and returns the SQL that [`over`] or [`back`] would run. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view tables, or when the table cannot be adopted; the
/// error has the reason and a remedy.
pub async fn plan(old: &OldTable, operator: &Operator, is_back: bool) -> Result<AdoptPlan, OperateError> {
    operator.permit(Role::Viewer, "view tables")?;
    let signed = Signed { operator: Operator::new("administrator", Role::Operator), note: "by hand".into() };
    let mut connection = old.connect().await?;
    let (facts, place) = if is_back {
        old.prepared_back(&mut connection).await?
    } else {
        old.prepared(&mut connection).await?
    };
    let sql = Sql { adoption: &old.adoption, place: &place };
    let mut steps = sql.lock(lock::TIMEOUT);
    let action = if is_back {
        let remembered = old.remembered(&facts)?;
        steps.extend(sql.back(returns_to(&facts, &remembered)));
        BACK
    } else {
        steps.extend(sql.over(facts.trigger().is_some(), old.leaves(&facts), &old.remembers(&facts, None)));
        OVER
    };
    steps.push(sql.audit(old.pipeline.as_str(), action, &old.selection(0), &signed));
    let waiting = old.limit().long(rows::waiting(&mut connection, sql)).await?;
    old.close(connection).await;
    let grants = roles::lacking(&old.adoption, &facts).into_iter().map(|it| it.remedy).collect();
    Ok(AdoptPlan { sql: sql::script(&steps), waiting, grants })
}

const OVER: &str = "adopt";
const BACK: &str = "give back";

/// Hands each new row of the old table over from now on, and imports waiting rows. Not cancel-safe:
/// check the [`status`].
///
/// # Errors
/// [`OperateError`] when the operator may not adopt tables, when the table cannot be adopted, or
/// when it could not be locked in time. Then nothing has changed.
pub async fn over(old: &OldTable, signed: &Signed, timeout: Duration) -> Result<Adopted, OperateError> {
    signed.check("adopt tables")?;
    let mut connection = old.connect().await?;
    let (facts, place) = old.prepared(&mut connection).await?;
    if old.is_whole(&facts, &place) && !old.waits(&mut connection, &place).await? {
        return Ok(old.outcome("unchanged"));
    }
    roles::producers(&old.adoption, &facts)?;
    let mut leaders = old.leaders();
    if old.leaves(&facts) {
        let leader = leaders.find(&mut connection, old.limit()).await?;
        refuse(leader, "stop the relay")?;
    }

    let limit = old.limit().with_lock(timeout);
    let mut tx = limit.short(begin(&mut connection)).await?;
    let sql = Sql { adoption: &old.adoption, place: &place };
    limit.short(lock::take(&mut tx, sql, &facts, timeout)).await?;
    let since = Instant::now();
    // Everything may have changed since the check without the lock.
    let (facts, place) = old.prepared(&mut tx).await?;
    roles::producers(&old.adoption, &facts)?;
    let is_whole = old.is_whole(&facts, &place);
    if is_whole && !old.waits(&mut tx, &place).await? {
        return Ok(old.outcome("unchanged"));
    }
    if old.leaves(&facts) {
        // A relay may have been started or resumed while the lock was waited for.
        let leader = leaders.find_at_once(&mut tx, limit).await?;
        refuse(leader, "nothing has changed; stop the relay")?;
    }
    let sql = Sql { adoption: &old.adoption, place: &place };
    let replaces = facts.trigger().is_some();
    let outcome = match () {
        () if is_whole => "imported",
        () if replaces => "replaced",
        () => "adopted",
    };
    let mut remembers = old.remembers(&facts, None);
    if remembers.publication.is_some() {
        // Only a slot has to reach a position, and some servers do not report theirs.
        remembers = old.remembers(&facts, Some(limit.short(slots::position(&mut tx)).await?));
    }
    let mut imported = 0;
    for step in sql.over(replaces, old.leaves(&facts), &remembers) {
        let rows = run(&mut tx, &step, limit).await?;
        imported += if step.imports { rows } else { 0 };
    }
    old.finish(tx, sql, OVER, imported, signed).await?;
    let also_published_by = check::other_publications(&old.adoption, &facts);
    Ok(Adopted {
        imported,
        held_seconds: since.elapsed().as_secs_f64(),
        publication: remembers.publication.map(|name| name.to_string()),
        lsn: remembers.lsn,
        also_published_by: also_published_by.iter().map(|it| it.name.clone()).collect(),
        ..old.outcome(outcome)
    })
}

/// Gives the old table back to the old relay. Not cancel-safe: check the [`status`].
///
/// # Errors
/// [`OperateError`] when the operator may not give tables back, or when the table could not be
/// locked in time. Then nothing has changed.
pub async fn back(old: &OldTable, signed: &Signed, timeout: Duration) -> Result<Adopted, OperateError> {
    signed.check("give tables back")?;
    let mut connection = old.connect().await?;
    let (facts, place) = old.prepared_back(&mut connection).await?;
    if facts.any_trigger().is_none() {
        return Ok(old.outcome("unchanged"));
    }
    let limit = old.limit().with_lock(timeout);
    let mut tx = limit.short(begin(&mut connection)).await?;
    let sql = Sql { adoption: &old.adoption, place: &place };
    limit.short(lock::take(&mut tx, sql, &facts, timeout)).await?;
    let since = Instant::now();
    let (facts, place) = old.prepared_back(&mut tx).await?;
    if facts.any_trigger().is_none() {
        return Ok(old.outcome("unchanged"));
    }
    let remembered = old.remembered(&facts)?;
    let sql = Sql { adoption: &old.adoption, place: &place };
    for step in sql.back(returns_to(&facts, &remembered)) {
        run(&mut tx, &step, limit).await?;
    }
    old.finish(tx, sql, BACK, 0, signed).await?;
    Ok(Adopted {
        held_seconds: since.elapsed().as_secs_f64(),
        publication: remembered.publication.map(|name| name.to_string()),
        ..old.outcome("given back")
    })
}

/// Returns whether the table is adopted, completely and with this mapping, how many rows wait, and
/// which roles could not insert. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view tables, or when there is no such table.
pub async fn status(old: &OldTable, operator: &Operator) -> Result<AdoptStatus, OperateError> {
    operator.permit(Role::Viewer, "view tables")?;
    let mut connection = old.connect().await?;
    let facts = old.facts(&mut connection).await?;
    let status = old.limit().long(status::look(&mut connection, old, &facts)).await;
    old.close(connection).await;
    status
}

impl OldTable {
    fn limit(&self) -> Limit {
        Limit::new(self.tables.options.call_timeout)
    }

    /// Closes a connection that is no longer needed, unless that takes too long.
    async fn close(&self, connection: PgConnection) {
        _ = self.limit().short(async { connection.close().await.map_err(failed("close")) }).await;
    }

    async fn connect(&self) -> Result<PgConnection, OperateError> {
        let On::Postgres(hosts) = self.tables.connect_options("relay adopt")? else {
            let text = format!("{} cannot be adopted: the outbox is in SQLite", self.adoption.table_name());
            return Err(OperateError::refused(text, "only tables in PostgreSQL can be adopted"));
        };
        let connected = in_time(CONNECT_TIMEOUT, outbox::connect::connect_own(&hosts)).await?;
        Ok(connected.map_err(outbox_log::postgres::unconnected)?)
    }

    /// Returns the facts of the catalogs, for an outbox whose schema fits this program.
    async fn facts(&self, connection: &mut PgConnection) -> Result<Facts, OperateError> {
        self.limit().short(self.read(connection)).await
    }

    async fn read(&self, connection: &mut PgConnection) -> Result<Facts, OperateError> {
        let schema = self.tables.options.schema.clone();
        let read = Facts::read(&mut *connection, &self.adoption, schema.as_ref().map(|it| it.as_str()));
        let facts = read.await.map_err(failed("read the catalogs"))?;
        if facts.home.is_some() {
            let checked = Migrator::<Postgres>::new(Line::Outbox).schema(schema).check(connection).await;
            checked.map_err(|error| OperateError::from(LogError::from(error)))?;
        }
        Ok(facts)
    }

    /// Checks the catalogs and the rows.
    async fn prepared(&self, connection: &mut PgConnection) -> Result<(Facts, Place), OperateError> {
        let facts = self.facts(&mut *connection).await?;
        let place = check::place(&self.adoption, &facts)?;
        let sql = Sql { adoption: &self.adoption, place: &place };
        self.limit().long(rows::check(&mut *connection, sql, facts.id_is_unique)).await?;
        self.limit().long(staying::refuse(connection, &self.adoption, &facts, &place)).await?;
        Ok((facts, place))
    }

    /// Checks the catalogs for the way back. Only rows that would be sent twice can block it.
    async fn prepared_back(&self, connection: &mut PgConnection) -> Result<(Facts, Place), OperateError> {
        let facts = self.facts(&mut *connection).await?;
        let place = check::place_back(&self.adoption, &facts)?;
        if let Ok(shape) = check::shape(&self.adoption, &facts) {
            self.limit().long(staying::refuse(connection, &self.adoption, &facts, &shape)).await?;
        }
        Ok((facts, place))
    }

    /// Returns whether new rows are handed over as configured, and in no other way.
    fn is_whole(&self, facts: &Facts, place: &Place) -> bool {
        status::is_whole(Sql { adoption: &self.adoption, place }, facts) && !self.leaves(facts)
    }

    /// Returns whether rows wait: an adoption can be complete and yet no trigger has seen them.
    async fn waits(&self, connection: &mut PgConnection, place: &Place) -> Result<bool, OperateError> {
        let sql = Sql { adoption: &self.adoption, place };
        let waiting = self.limit().long(rows::waiting(connection, sql)).await?;
        Ok(waiting.is_some_and(|rows| rows > 0))
    }

    /// Returns whether the table is still in its publication.
    fn leaves(&self, facts: &Facts) -> bool {
        let name = self.adoption.publication.as_ref().map(|name| name.as_str());
        facts.publications.iter().any(|it| Some(it.name.as_str()) == name && it.names_table)
    }

    /// Returns the memory of the trigger; empty without a trigger.
    fn remembered(&self, facts: &Facts) -> Result<Remembered, OperateError> {
        let Some(trigger) = facts.trigger() else { return Ok(Remembered::default()) };
        trigger.comment.as_deref().and_then(Remembered::read).ok_or_else(|| {
            let text =
                format!("the comment of the trigger {} does not record how it was created", sql::TRIGGER);
            check::conflict(text, "`relay adopt over` creates it again and records this")
        })
    }

    /// Returns the memory for the next trigger. A table that left its publication earlier keeps the
    /// position of that time. For one that leaves now, the log has rows up to now.
    fn remembers(&self, facts: &Facts, lsn: Option<String>) -> Remembered {
        let before = self.remembered(facts).unwrap_or_default();
        let publication = self.adoption.publication.clone().or(before.publication);
        let lsn = if self.leaves(facts) { lsn.or(before.lsn) } else { before.lsn.or(lsn) };
        Remembered { lsn: lsn.filter(|_| publication.is_some()), publication }
    }

    /// Returns the relays of the outbox, none of which may publish while Debezium still has earlier
    /// rows.
    fn leaders(&self) -> Leaders {
        let schema = self.tables.options.schema.as_ref();
        Leaders::new(migrations::Template::new(leader::LEADERS).schema(schema).render())
    }

    async fn finish(
        &self,
        mut tx: Transaction<'_, Postgres>,
        sql: Sql<'_>,
        action: &str,
        imported: u64,
        signed: &Signed,
    ) -> Result<(), OperateError> {
        let audit = sql.audit(self.pipeline.as_str(), action, &self.selection(imported), signed);
        run(&mut tx, &audit, self.limit()).await?;
        let committed = self.limit().short(async { tx.commit().await.map_err(failed("commit")) }).await;
        committed.map_err(|error| error.with_help("`relay adopt status` shows whether it was done"))
    }

    fn selection(&self, imported: u64) -> String {
        match imported {
            0 => format!("table {}", self.adoption.table_name()),
            rows => format!("table {}, {rows} rows imported", self.adoption.table_name()),
        }
    }

    fn outcome(&self, outcome: &'static str) -> Adopted {
        Adopted {
            pipeline: self.pipeline.to_string(),
            table: self.adoption.table_name(),
            outcome,
            imported: 0,
            held_seconds: 0.0,
            publication: None,
            lsn: None,
            also_published_by: Vec::new(),
        }
    }
}

/// Returns an error if a relay publishes. `remedy` is the beginning of the error's help.
fn refuse(leader: Option<Leader>, remedy: &str) -> Result<(), OperateError> {
    let Some(Leader { relay, holder, is_paused }) = leader else { return Ok(()) };
    let pause = if is_paused { "was paused only just now" } else { "is running" };
    let text = format!("the relay {relay} {pause} ({holder}): new rows would overtake earlier ones");
    let help = format!(
        "{remedy} or run `relay pause --all --pipeline {relay}` until `relay adopt status` shows that the slot is \
         through: Debezium must first publish all old rows"
    );
    Err(check::conflict(text, &help))
}

/// Returns the publication that the table joins again. It may already be there: Debezium adds the
/// table when it starts, unless it is configured not to (`publication.autocreate.mode`).
fn returns_to<'a>(facts: &Facts, remembered: &'a Remembered) -> Option<&'a ForeignIdentifier> {
    let has_table = |name: &ForeignIdentifier| {
        facts.publications.iter().any(|it| it.name == name.as_str() && it.has_table)
    };
    remembered.publication.as_ref().filter(|name| !has_table(name))
}
