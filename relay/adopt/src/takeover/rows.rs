//! Checks whether the rows of the old table can be handed over. Reads only.

use migrations::{Statement, Template};
use operate::OperateError;
use sqlx::PgConnection;

use super::failed;
use super::sql::Sql;
use crate::adoption::NullPayload;

const READ: &str = "read the waiting rows";

const INVALID_TEXT: &str = "22P02";

/// A condition that no waiting row may meet. `{…}` in it are values of the row.
struct Rule {
    what: &'static str,
    condition: &'static str,
    /// The value of an example to show.
    value: &'static str,
    help: &'static str,
}

/// The same conditions as in `outbox_enqueue`.
static RULES: [Rule; 7] = [
    Rule {
        what: "no topic",
        condition: "{topic} IS NULL",
        value: "NULL",
        help: "give these rows a topic, or set `topic` for all rows",
    },
    Rule {
        what: "an invalid topic",
        condition: "octet_length({topic}) NOT BETWEEN 1 AND 255 OR {topic} !~ '^[A-Za-z0-9._/:#-]+$'",
        value: "{topic}",
        help: "a topic has 1 to 255 of A-Z a-z 0-9 . _ / : # -",
    },
    Rule {
        what: "an invalid key",
        condition: "octet_length({key}) NOT BETWEEN 1 AND 255 OR {key} !~ '^[^[:cntrl:]]+$'",
        value: "{key}",
        help: "a key has 1 to 255 bytes without control characters; null means no key",
    },
    Rule {
        what: "an invalid kind",
        condition: "octet_length({kind}) NOT BETWEEN 1 AND 255 OR {kind} !~ '^[^[:cntrl:]]+$'",
        value: "{kind}",
        help: "a kind has 1 to 255 bytes without control characters; null means the topic",
    },
    Rule {
        what: "an id that does not fit into a header",
        condition: "{id} IS NULL OR octet_length({id}) > 8192 OR translate({id}, E'\\t', '') ~ '[[:cntrl:]]'",
        value: "{id}",
        help: "set columns.id to another column",
    },
    Rule {
        what: "a value that does not fit into a header",
        condition: "{header} IS NOT NULL",
        value: "{header}",
        help: "a header has at most 8,192 bytes without control characters, except tabs: correct these rows, or leave the \
               column out of [pipeline.adopt.headers]",
    },
    Rule {
        what: NO_PAYLOAD,
        condition: "{payload} IS NULL",
        value: "NULL",
        help: "give these rows a payload, or set null_payload = \"empty\"",
    },
];

const NO_PAYLOAD: &str = "no payload";

impl Sql<'_> {
    /// Puts the values of a row into a template.
    fn of_row(&self, text: &'static str) -> Template {
        self.of_table(text)
            .statement("topic", &self.topic("r"))
            .statement("key", &self.text(self.adoption.key.as_ref(), "r"))
            .statement("kind", &self.text(self.adoption.kind.as_ref(), "r"))
            .statement("id", &self.text(Some(&self.adoption.id), "r"))
            .statement("header", &self.unfit_header("r"))
            .statement("payload", &self.raw_payload("r"))
            .identifier("order", self.order_by())
    }

    /// Returns the first value of the additional headers that no message can have; null if there
    /// is none.
    fn unfit_header(&self, row: &'static str) -> Statement {
        let mut unfit = Template::new("NULL").render();
        for (_, field) in self.adoption.headers.iter().rev() {
            let value = self.text(Some(field), row);
            let longer = Template::new(
                "CASE WHEN octet_length({value}) > 8192 OR translate({value}, E'\\t', '') ~ '[[:cntrl:]]' \
                 THEN {value} ELSE {unfit} END",
            );
            unfit = longer.statement("value", &value).statement("unfit", &unfit).render();
        }
        unfit
    }

    fn rules(&self) -> impl Iterator<Item = &'static Rule> {
        let takes_null = self.adoption.null_payload == NullPayload::Empty;
        RULES.iter().filter(move |rule| !(takes_null && rule.what == NO_PAYLOAD))
    }
}

/// Counts the waiting rows; `None` where rows do not show whether they wait.
pub(super) async fn waiting(
    connection: &mut PgConnection,
    sql: Sql<'_>,
) -> Result<Option<i64>, OperateError> {
    let Some(waits) = sql.waits("r") else { return Ok(None) };
    let count = sql.of_table("SELECT count(*) FROM {table} AS r WHERE {waits}").statement("waits", &waits);
    let count = sqlx::query_scalar(&count.render()).fetch_one(connection).await;
    count.map(Some).map_err(failed("count the waiting rows"))
}

/// Returns an error for rows that cannot be handed over, and for ids that are not unique.
pub(super) async fn check(
    connection: &mut PgConnection,
    sql: Sql<'_>,
    id_is_unique: bool,
) -> Result<(), OperateError> {
    let waits = sql.waits("r");
    if let Some(waits) = &waits {
        let counts = counts(&mut *connection, sql, waits).await?;
        for (rule, count) in sql.rules().zip(counts) {
            if count > 0 {
                return Err(refusal(connection, sql, waits, rule, count).await?);
            }
        }
    }
    if id_is_unique {
        return Ok(());
    }
    let all = Template::new("true").render();
    let repeated = "SELECT {id} FROM {table} AS r WHERE {waits} GROUP BY 1 HAVING count(*) > 1 LIMIT 1";
    let repeated = sql.of_row(repeated).statement("waits", waits.as_ref().unwrap_or(&all)).render();
    let found: Option<String> =
        sqlx::query_scalar(&repeated).fetch_optional(connection).await.map_err(failed(READ))?;
    let Some(id) = found else { return Ok(()) };
    let text = format!("{} is not unique: {id:?} is in several rows", sql.adoption.id);
    let help = "consumers that recognise messages by their old id would drop one of them: set columns.id to another column, or delete the copies";
    Err(OperateError::refused(text, help))
}

/// Counts the rows that break each rule, in one pass over the table.
async fn counts(
    connection: &mut PgConnection,
    sql: Sql<'_>,
    waits: &Statement,
) -> Result<Vec<i64>, OperateError> {
    let mut counts: Option<Statement> = None;
    for rule in sql.rules() {
        let one = Template::new("count(*) FILTER (WHERE {condition})");
        let one = one.statement("condition", &sql.of_row(rule.condition).render()).render();
        counts = Some(match counts {
            None => one,
            Some(counts) => {
                Template::new("{counts}, {one}").statement("counts", &counts).statement("one", &one).render()
            }
        });
    }
    let Some(counts) = counts else { return Ok(Vec::new()) };
    let query = sql.of_table("SELECT ARRAY[{counts}] FROM {table} AS r WHERE {waits}");
    let query = query.statement("counts", &counts).statement("waits", waits).render();
    sqlx::query_scalar(&query).fetch_one(connection).await.map_err(|error| unreadable(sql, error))
}

/// Converts an error of that pass: a path into a text that is not JSON ends it.
fn unreadable(sql: Sql<'_>, error: sqlx::Error) -> OperateError {
    let database = error.as_database_error();
    let is_no_json = database.and_then(|error| error.code()).is_some_and(|code| code == INVALID_TEXT);
    let Some(told) = database.filter(|_| is_no_json).map(|error| error.message().to_owned()) else {
        return failed(READ)(error);
    };
    let table = sql.adoption.table_name();
    let text = format!("a waiting row in {table} has invalid JSON in a column with a path: {told}");
    OperateError::refused(text, "correct the row, or use the column without a path")
}

/// Returns the error with the first row that breaks the rule.
async fn refusal(
    connection: &mut PgConnection,
    sql: Sql<'_>,
    waits: &Statement,
    rule: &Rule,
    count: i64,
) -> Result<OperateError, OperateError> {
    let query = sql.of_table(
        "SELECT {id}, left({value}, 64) FROM {table} AS r WHERE {waits} AND ({condition}) ORDER BY r.{order} LIMIT 1",
    );
    let query = query
        .statement("value", &sql.of_row(rule.value).render())
        .statement("condition", &sql.of_row(rule.condition).render())
        .statement("id", &sql.of_row("{id}").render())
        .statement("waits", waits)
        .identifier("order", sql.order_by())
        .render();
    let example: Option<(Option<String>, Option<String>)> =
        sqlx::query_as(&query).fetch_optional(connection).await.map_err(failed(READ))?;
    let example = match example {
        Some((Some(id), Some(value))) => format!("; the first has the id {id:?}: {value:?}"),
        Some((Some(id), None)) => format!("; the first has the id {id:?}"),
        _ => String::new(),
    };
    let (what, table) = (rule.what, sql.adoption.table_name());
    let column = match sql.adoption.topic.field() {
        Some(field) if rule.condition.contains("{topic}") => format!(" (column {field})"),
        _ => String::new(),
    };
    let rows = if count == 1 { String::from("1 waiting row") } else { format!("{count} waiting rows") };
    let text = format!("{rows} in {table} with {what}{column}{example}");
    Ok(OperateError::refused(text, rule.help))
}
