//! Rows that stay in the old table after their handover, which deletes or marks rows. Each would be
//! sent twice.

use migrations::{Statement, Template};
use operate::{OperateError, OperateErrorKind};
use serde::Deserialize;
use sqlx::PgConnection;
use sqlx::types::Json;

use super::facts::Facts;
use super::sql::{Place, Sql};
use super::{check, failed, rows};
use crate::adoption::{Adoption, WhenSent};

/// Deletes the new row after it is stored, so that a producer with `RETURNING` gets it. A `DELETE`
/// that finds no row is not an error in SQL: row level security, a trigger or a rule may keep it.
const DELETING: &str = "
    DELETE FROM {table} AS r WHERE {conditions};
    IF NOT FOUND THEN
        RAISE EXCEPTION 'row % of % would be sent twice: it was handed over, but its deletion found no row',
            {id}, TG_RELID::regclass USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = format('Let %s delete the rows it inserts: check row level security policies, BEFORE '
                'DELETE triggers, rules, and triggers that run before outbox_adopt. `relay adopt back` gives '
                'the table back.', current_user);
    END IF;";

/// Fails if an imported row still waits.
const NONE_STAYS: &str = "DO $adopt$ DECLARE kept text; BEGIN
    SELECT coalesce({id}, '?') INTO kept FROM {table} AS r WHERE {waits} LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'row % of % would be sent twice: it was imported but still waits', kept, {name}
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Drop the triggers and rules of the table that keep deleted rows or reset their mark.';
    END IF;
END $adopt$";

/// Counts waiting rows whose message is in the outbox, and returns the lowest of their ids.
const HANDED_OVER: &str = "
SELECT jsonb_build_object('rows', count(*), 'first_id', min({id})) FROM {table} AS r
WHERE {waits} AND EXISTS (SELECT FROM {home}.outbox_message AS m
    WHERE m.headers ->> {header} = {id} AND m.topic = {topic} AND m.key IS NOT DISTINCT FROM {key}
        AND m.payload = {payload})";

/// Waiting rows that were handed over.
#[derive(Debug, Deserialize)]
pub(super) struct HandedOver {
    pub(super) rows: i64,
    /// The lowest of their ids.
    first_id: Option<String>,
}

impl HandedOver {
    /// Describes these rows of a table, with the remedy.
    pub(super) fn problem(&self, adoption: &Adoption) -> String {
        format!("{}: {}", self.text(adoption), Self::REMEDY)
    }

    fn text(&self, adoption: &Adoption) -> String {
        let table = adoption.table_name();
        let first = self.first_id.as_deref().unwrap_or_default();
        let rows = if self.rows == 1 { "1 row".to_owned() } else { format!("{} rows", self.rows) };
        format!(
            "handed over but not deleted: {rows} of {table}, the first with the id {first:?}; each would be sent twice"
        )
    }

    const REMEDY: &str = "delete them with a role that may do so, and let producers delete the rows they insert; \
                          see docs/migrate-from.md#rows-that-stay";
}

impl Sql<'_> {
    /// Returns the part of the function that deletes the new row; empty if rows are marked.
    pub(super) fn deleting(&self) -> Statement {
        let mut conditions: Option<Statement> = None;
        for column in &self.place.primary_key {
            let one = Template::new("r.{column} = NEW.{column}").identifier("column", column).render();
            conditions = Some(match conditions {
                None => one,
                Some(all) => {
                    Template::new("{all} AND {one}").statement("all", &all).statement("one", &one).render()
                }
            });
        }
        let Some(conditions) = conditions else { return Template::new("").render() };
        let delete = self.of_table(DELETING).statement("conditions", &conditions);
        delete.statement("id", &self.text(Some(&self.adoption.id), "NEW")).render()
    }

    /// Returns the statement that fails if an imported row still waits.
    pub(super) fn none_stays(&self, waits: &Statement) -> Template {
        self.of_table(NONE_STAYS)
            .statement("waits", waits)
            .statement("id", &self.text(Some(&self.adoption.id), "r"))
            .literal("name", &self.adoption.table_name())
    }

    fn handed_over(&self, waits: &Statement) -> Statement {
        let query = self.of_table(HANDED_OVER).statement("waits", waits);
        let query = query.statement("id", &self.text(Some(&self.adoption.id), "r"));
        self.values(query, "r").literal("header", self.adoption.id_header.as_str()).render()
    }
}

/// Counts the waiting rows whose message is in the outbox. Returns `None` if the handover marks
/// rows: marked rows do not wait.
///
/// A row whose message was deleted by retention does not count.
pub(super) async fn handed_over(
    connection: &mut PgConnection,
    sql: Sql<'_>,
) -> Result<Option<HandedOver>, OperateError> {
    if sql.adoption.when_sent != WhenSent::Delete {
        return Ok(None);
    }
    let Some(waits) = sql.waits("r") else { return Ok(None) };
    let found = sqlx::query_scalar(&sql.handed_over(&waits)).fetch_one(connection).await;
    found.map(|Json(found)| Some(found)).map_err(failed("find the messages of the waiting rows"))
}

/// Returns an error if a trigger has already handed over rows that are waiting: the next import, or
/// the old relay after the way back, would send them again.
pub(super) async fn refuse(
    connection: &mut PgConnection,
    adoption: &Adoption,
    facts: &Facts,
    place: &Place,
) -> Result<(), OperateError> {
    let sql = Sql { adoption, place };
    if facts.trigger().is_none() || adoption.when_sent != WhenSent::Delete {
        return Ok(());
    }
    if rows::waiting(&mut *connection, sql).await?.is_none_or(|rows| rows == 0) {
        return Ok(());
    }
    match handed_over(connection, sql).await {
        Ok(Some(found)) if found.rows > 0 => Err(check::conflict(found.text(adoption), HandedOver::REMEDY)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == OperateErrorKind::Refused => Err(error.with_help(unseen(facts))),
        Err(error) => Err(error),
    }
}

/// Returns the grant that is needed to see whether waiting rows were handed over.
pub(super) fn unseen(facts: &Facts) -> String {
    let schema = facts.home.as_ref().map_or("public", |home| home.schema.as_str());
    format!("GRANT SELECT ON {schema}.outbox_message TO {}", facts.user)
}
