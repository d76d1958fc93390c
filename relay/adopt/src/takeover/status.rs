//! Checks whether an adoption exists, is complete, and matches this mapping.

use operate::{OperateError, OperateErrorKind};
use serde::Serialize;
use sqlx::PgConnection;

use super::facts::Facts;
use super::slots::{self, Left, Slot};
use super::sql::{Remembered, Sql, UPDATE_TRIGGER};
use super::{OldTable, check, roles, rows, staying};

message::words! {
    /// The state of an adoption.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum AdoptState {
        /// Each new row is handed over.
        Adopted = "adopted",
        /// There is no trigger.
        NotAdopted = "not adopted",
        /// A trigger exists but is disabled: neither relay publishes new rows.
        Disabled = "disabled",
        /// The trigger has another mapping or version than this program would create.
        Differs = "differs",
        /// The table has changed: a new row would fail or cannot be handed over.
        Broken = "broken",
    }
}

/// A role that may insert into the old table but whose inserts fail: it may not append messages, or
/// not delete the row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LackingRole {
    /// The role.
    pub role: String,
    /// The SQL that grants the right.
    pub remedy: String,
}

/// The result of `relay adopt status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdoptStatus {
    /// The pipeline.
    pub pipeline: String,
    /// The old table.
    pub table: String,
    /// Whether it is adopted.
    pub state: AdoptState,
    /// The reason why it is not, and what to do.
    pub problem: Option<String>,
    /// Number of rows that wait for the old relay, if the table shows it.
    pub waiting: Option<i64>,
    /// Roles whose inserts fail.
    pub lacking: Vec<LackingRole>,
    /// The publication that the table has left.
    pub publication: Option<String>,
    /// Slots of this database, if the table has left a publication.
    pub slots: Vec<Slot>,
    /// Publications that still publish the table's rows.
    pub also_published_by: Vec<String>,
}

/// Returns whether the triggers exist, are enabled, and match this mapping.
pub(super) fn is_whole(sql: Sql<'_>, facts: &Facts) -> bool {
    state(sql, facts).0 == AdoptState::Adopted
}

fn state(sql: Sql<'_>, facts: &Facts) -> (AdoptState, Option<String>) {
    let (mark, update) = (facts.mark_trigger(), facts.update_trigger());
    let Some(trigger) = facts.trigger() else {
        let problem = "new rows wait for the old relay: run relay adopt over";
        return (AdoptState::NotAdopted, Some(problem.to_owned()));
    };
    let is_on = |enabled: &str| matches!(enabled, "O" | "A");
    if let Some(off) = [Some(trigger), mark, update].into_iter().flatten().find(|it| !is_on(&it.enabled)) {
        let (table, name) = (sql.table(), &off.name);
        let problem = if off.name == UPDATE_TRIGGER {
            format!("updates of rows are lost: ALTER TABLE {table} ENABLE TRIGGER {name}")
        } else {
            format!("new rows are not published at all: ALTER TABLE {table} ENABLE TRIGGER {name}")
        };
        return (AdoptState::Disabled, Some(problem));
    }
    let is_same = trigger.body == sql.body().as_str()
        && [mark, update].iter().all(|it| it.is_some() == sql.marks())
        && trigger.comment.as_deref().is_some_and(|comment| Remembered::read(comment).is_some());
    if is_same {
        return (AdoptState::Adopted, None);
    }
    let problem = "the trigger was created by another version or configuration: relay adopt over replaces it";
    (AdoptState::Differs, Some(problem.to_owned()))
}

/// Returns the problem if rows are waiting although a trigger exists.
async fn of_waiting(
    connection: &mut PgConnection,
    old: &OldTable,
    facts: &Facts,
    sql: Sql<'_>,
) -> Result<Option<String>, OperateError> {
    if facts.trigger().is_none() {
        return Ok(None);
    }
    match staying::handed_over(connection, sql).await {
        Ok(Some(found)) if found.rows > 0 => Ok(Some(found.problem(&old.adoption))),
        Ok(_) if is_whole(sql, facts) => {
            Ok(Some(String::from("no trigger has seen the waiting rows: relay adopt over imports them")))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == OperateErrorKind::Refused => {
            let remedy = staying::unseen(facts);
            Ok(Some(format!(
                "rows are waiting, but {} cannot see whether they were handed over: {remedy}",
                facts.user
            )))
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn look(
    connection: &mut PgConnection,
    old: &OldTable,
    facts: &Facts,
) -> Result<AdoptStatus, OperateError> {
    check::found(&old.adoption, facts)?;
    let lacking = roles::lacking(&old.adoption, facts).into_iter();
    let lacking = lacking.map(|it| LackingRole { role: it.role, remedy: it.remedy });
    let others = check::other_publications(&old.adoption, facts);
    let mut status = AdoptStatus {
        pipeline: old.pipeline.to_string(),
        table: old.adoption.table_name(),
        state: AdoptState::Broken,
        problem: None,
        waiting: None,
        lacking: lacking.collect(),
        publication: None,
        slots: Vec::new(),
        also_published_by: others.iter().map(|it| it.name.clone()).collect(),
    };
    match check::shape(&old.adoption, facts) {
        Ok(place) => {
            let sql = Sql { adoption: &old.adoption, place: &place };
            (status.state, status.problem) = state(sql, facts);
            // A user who may not read the old table, or not all of its rows, still sees the rest.
            let hides_rows = facts.table.as_ref().is_some_and(|table| table.hides_rows);
            status.waiting = match rows::waiting(&mut *connection, sql).await {
                Ok(_) if hides_rows => None,
                Err(error) if error.kind() == OperateErrorKind::Refused => None,
                waiting => waiting?,
            };
            if status.waiting.is_some_and(|rows| rows > 0) {
                let of_waiting = of_waiting(&mut *connection, old, facts, sql).await?;
                let problems: Vec<String> = status.problem.into_iter().chain(of_waiting).collect();
                status.problem = (!problems.is_empty()).then(|| problems.join("; "));
            }
        }
        Err(error) => {
            let help = error.help().map(|help| format!(": {help}")).unwrap_or_default();
            status.problem = Some(format!("{error}{help}"));
            if facts.trigger().is_none() {
                status.state = AdoptState::NotAdopted;
            }
        }
    }
    if let Ok(Remembered { publication: Some(publication), lsn }) = old.remembered(facts) {
        if old.leaves(facts) {
            status.state = AdoptState::Differs;
            status.problem =
                Some(format!("the table is in {publication} again: relay adopt over removes it"));
        }
        status.publication = Some(publication.to_string());
        let oid = facts.table.as_ref().map_or(0, |table| table.oid);
        let left = Left { oid, publication: publication.as_str(), lsn: lsn.as_deref(), user: &facts.user };
        status.slots = slots::look(connection, left).await?;
    }
    Ok(status)
}
