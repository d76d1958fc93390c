//! Checks whether the catalogs permit an adoption, and determines how to do it. Pure.

use migrations::{ForeignIdentifier, Identifier};
use operate::{OperateError, OperateErrorKind};

use super::facts::{ColumnFacts, Facts, Home, PublicationFacts, TableFacts, function_name};
use super::roles::grant;
use super::sql::{Mark, PayloadType, Place, TRIGGERS};
use crate::adoption::{Adoption, Field, Pending, WhenSent};

const INTEGERS: [&str; 3] = ["smallint", "integer", "bigint"];

/// Returns how to adopt the table, or the first reason why that is impossible.
pub(super) fn place(adoption: &Adoption, facts: &Facts) -> Result<Place, OperateError> {
    let table = found(adoption, facts)?;
    let place = shape(adoption, facts)?;
    rights(adoption, facts, table)?;
    triggers(adoption, facts)?;
    if let Some(name) = &adoption.publication {
        publication(adoption, facts, name.as_str())?;
    }
    if let Some(function) = &facts.taken_function {
        let text = format!("the function {}.{function}() exists, but is not from this toolkit", table.schema);
        return Err(OperateError::refused(text, "rename it: the trigger's function needs this name"));
    }
    Ok(place)
}

/// Returns the names for the way back, which stays possible whatever has happened to the columns.
pub(super) fn place_back(adoption: &Adoption, facts: &Facts) -> Result<Place, OperateError> {
    let table = found(adoption, facts)?;
    let home = home(facts)?;
    rights(adoption, facts, table)?;
    let function = facts.any_trigger().map(|trigger| trigger.function.clone());
    let function = function.unwrap_or_else(|| function_name(adoption, table.oid));
    names(&home.schema, &table.schema, &function)
}

fn home(facts: &Facts) -> Result<&Home, OperateError> {
    facts.home.as_ref().ok_or_else(|| {
        let help = "create them first: relay migrate up --line outbox, in the database of the old table";
        OperateError::refused("the tables of the outbox do not exist", help)
    })
}

/// Creates the names for rows that are neither marked nor deleted.
fn names(home: &str, schema: &str, function: &str) -> Result<Place, OperateError> {
    let home = Identifier::new(home).map_err(|error| OperateError::refused(error, "rename it"))?;
    let (schema, function) = (foreign(schema)?, foreign(function)?);
    Ok(Place {
        home,
        schema,
        function,
        payload: PayloadType::Bytes,
        mark: None,
        primary_key: Vec::new(),
        is_id_integer: false,
    })
}

fn foreign(name: &str) -> Result<ForeignIdentifier, OperateError> {
    ForeignIdentifier::new(name).map_err(|error| OperateError::refused(error, "rename it"))
}

/// Checks that the table has the form that the configuration describes.
pub(super) fn shape(adoption: &Adoption, facts: &Facts) -> Result<Place, OperateError> {
    let table = found(adoption, facts)?;
    let home = home(facts)?;
    if table.schema == home.schema && adoption.table.as_str() == "outbox_message" {
        let help = "`table` names the outbox table that producers write to today";
        return Err(OperateError::refused("outbox_message is this toolkit's own outbox", help));
    }
    kind(adoption, table)?;
    children(adoption, facts)?;
    let payload = payload(adoption, facts)?;
    let mark = adoption.pending.as_ref().map(|pending| mark(adoption, facts, pending)).transpose()?;
    columns(adoption, facts)?;
    let primary_key = match adoption.when_sent {
        WhenSent::Mark => Vec::new(),
        WhenSent::Delete => primary_key(adoption, facts)?,
    };
    let names = names(&home.schema, &table.schema, &function_name(adoption, table.oid))?;
    let id = column(adoption, facts, &adoption.id.column, "columns.id")?;
    let is_id_integer = INTEGERS.contains(&id.type_name.as_str());
    Ok(Place { payload, mark, primary_key, is_id_integer, ..names })
}

/// Returns the columns of the primary key, for the deletion of rows.
fn primary_key(adoption: &Adoption, facts: &Facts) -> Result<Vec<ForeignIdentifier>, OperateError> {
    let table = adoption.table_name();
    if facts.deletion.primary_key.is_empty() {
        let text = format!("{table} has no primary key, which is needed to delete a row");
        return Err(OperateError::refused(
            text,
            "add a primary key, or set `pending` to a column that shows which rows are waiting",
        ));
    }
    if !facts.deletion.referring.is_empty() {
        let text = format!("rows of {} reference rows of {table}", facts.deletion.referring.join(", "));
        let help = "rows that are deleted immediately cannot be referenced: drop these foreign keys, or set when_sent = \"mark\"";
        return Err(OperateError::refused(text, help));
    }
    keeping(adoption, facts)?;
    facts.deletion.primary_key.iter().map(|name| foreign(name)).collect()
}

/// Returns an error for a trigger or a rule that may prevent the deletion of a row: the row would
/// be sent twice.
fn keeping(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    let Some(first) = facts.deletion.keeping.first() else { return Ok(()) };
    let text = format!("{first} on {} may prevent the deletion of rows", adoption.table_name());
    let help = "make it an AFTER DELETE trigger, drop it, or mark rows with `pending`";
    Err(OperateError::refused(text, help))
}

/// Returns an error for a table with child tables: a trigger on the table does not see their rows.
fn children(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    let Some(first) = facts.children.first() else { return Ok(()) };
    let table = adoption.table_name();
    let text =
        format!("{} inherit from {table}; only a plain table can be adopted", facts.children.join(", "));
    Err(OperateError::refused(
        text,
        format!("move their rows, then run ALTER TABLE {first} NO INHERIT {table}"),
    ))
}

/// Returns the table, if it exists.
pub(super) fn found<'a>(adoption: &Adoption, facts: &'a Facts) -> Result<&'a TableFacts, OperateError> {
    facts.table.as_ref().ok_or_else(|| {
        let text = format!("there is no table {}", adoption.table_name());
        let help = match facts.elsewhere.first() {
            Some(table) => {
                format!(
                    "write names exactly as in the catalog, including upper case; a table that exists: \
                         table = {table:?}"
                )
            }
            None => String::from(
                "check `table` and the database: the table must be in the database of the outbox",
            ),
        };
        OperateError::refused(text, help)
    })
}

fn kind(adoption: &Adoption, table: &TableFacts) -> Result<(), OperateError> {
    let (what, help) = match table.kind.as_str() {
        _ if table.is_partition => {
            ("a partition", "its rows are inserted through the parent table, which cannot be adopted either")
        }
        "p" => ("a partitioned table", "let the producers use a plain table, or change their INSERT"),
        "v" | "m" => ("a view", "use the table that it reads"),
        "f" => ("a foreign table", "adopt it in the database that stores its rows"),
        _ if table.is_temporary => ("a temporary table", "use a table that all producers share"),
        _ => return Ok(()),
    };
    let text = format!("{} is {what}; only a plain table can be adopted", adoption.table_name());
    Err(OperateError::refused(text, help))
}

fn rights(adoption: &Adoption, facts: &Facts, table: &TableFacts) -> Result<(), OperateError> {
    let (name, user) = (adoption.table_name(), &facts.user);
    let refused = |text: String, help: String| Err(OperateError::refused(text, help));
    if !table.is_owner {
        let text = format!("{user} does not own {name}, so it cannot add or remove a trigger");
        let help = format!("run it as {}: --database postgres://{}@…", table.owner, table.owner);
        return refused(text, help);
    }
    if !table.may_create {
        let text = format!("{user} may not create a function in the schema {}", table.schema);
        return refused(text, format!("GRANT CREATE ON SCHEMA {} TO {user}", table.schema));
    }
    if table.hides_rows {
        let text = format!("row-level security hides rows of {name} from {user}");
        return refused(text, String::from("run it as a role that can see all rows"));
    }
    if let Some(home) = &facts.home {
        let schema = &home.schema;
        if !home.may_insert {
            let text = format!("{user} may not insert into {schema}.outbox_message");
            return refused(text, grant(home.has_producer_role, schema, user));
        }
        if !home.may_audit {
            let text = format!("{user} may not write to the audit table {schema}.outbox_operation");
            return refused(text, format!("GRANT INSERT ON {schema}.outbox_operation TO {user}"));
        }
    }
    Ok(())
}

/// Quotes a name for a statement where that is necessary.
pub(super) fn quoted(name: &str) -> String {
    match Identifier::new(name) {
        Ok(name) => name.to_string(),
        Err(_) => format!("\"{name}\""),
    }
}

fn column<'a>(
    adoption: &Adoption,
    facts: &'a Facts,
    name: &ForeignIdentifier,
    setting: &str,
) -> Result<&'a ColumnFacts, OperateError> {
    facts.column(name.as_str()).ok_or_else(|| {
        let text = format!("{} has no column {name}, which {setting} names", adoption.table_name());
        let names: Vec<&str> = facts.columns.iter().map(|column| column.name.as_str()).collect();
        OperateError::refused(text, format!("correct {setting}; the columns are {}", names.join(", ")))
    })
}

fn columns(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    let mut texts = vec![(&adoption.id, "columns.id")];
    texts.extend(adoption.topic.field().map(|field| (field, "columns.topic")));
    texts.extend(adoption.key.as_ref().map(|field| (field, "columns.key")));
    texts.extend(adoption.kind.as_ref().map(|field| (field, "columns.kind")));
    texts.extend(adoption.headers.iter().map(|(_, field)| (field, "one of headers")));
    texts.extend(adoption.only.as_ref().map(|only| (&only.field, "only")));
    for (field, setting) in texts {
        let found = column(adoption, facts, &field.column, setting)?;
        if !field.path.is_empty() {
            holds_json(found, setting)?;
        } else if matches!(found.type_name.as_str(), "bytea" | "json" | "jsonb")
            || matches!(found.category.as_str(), "A" | "C")
        {
            let text = format!(
                "{setting} = {} has the type {}, which is not a text type",
                found.name, found.type_name
            );
            let help = "use a column of texts, numbers or UUIDs, or a path to such a value in JSON";
            return Err(OperateError::refused(text, help));
        } else if NAMES.contains(&setting) && depends_on_session(found) {
            let text = format!(
                "{setting} = {} has the type {}, whose text depends on settings of the producer's session",
                found.name, found.type_name
            );
            let help =
                "two producers would make two names of one value: use a column of texts, numbers or UUIDs";
            return Err(OperateError::refused(text, help));
        }
    }
    let order =
        column(adoption, facts, adoption.order_by.as_ref().unwrap_or(&adoption.id.column), "order_by")?;
    let is_ordered = adoption.order_by.is_some() || INTEGERS.contains(&order.type_name.as_str());
    let imports = adoption.pending.is_some() || adoption.when_sent == WhenSent::Delete;
    if imports && !is_ordered {
        let text = format!("order_by is missing, and {} has the type {}", order.name, order.type_name);
        let help = "set order_by to the column by which the old relay orders rows: a number, or the time of the insert";
        return Err(OperateError::refused(text, help));
    }
    Ok(())
}

/// The settings of columns whose texts name a message: equal values must be equal texts.
const NAMES: [&str; 4] = ["columns.id", "columns.topic", "columns.key", "columns.kind"];

/// Returns whether the text of a value depends on `DateStyle`, `TimeZone`, `IntervalStyle` or
/// `lc_monetary`.
fn depends_on_session(found: &ColumnFacts) -> bool {
    matches!(found.category.as_str(), "D" | "T") || found.type_name == "money"
}

/// Returns an error for a path into a column that cannot hold JSON.
fn holds_json(found: &ColumnFacts, setting: &str) -> Result<(), OperateError> {
    if matches!(found.type_name.as_str(), "json" | "jsonb" | "text" | "character varying") {
        return Ok(());
    }
    let text = format!("{setting} has a path into {}, which has the type {}", found.name, found.type_name);
    Err(OperateError::refused(text, "a path needs JSON in a column of type jsonb, json, text or varchar"))
}

fn payload(adoption: &Adoption, facts: &Facts) -> Result<PayloadType, OperateError> {
    let Field { column: name, path } = &adoption.payload;
    let found = column(adoption, facts, name, "columns.payload")?;
    if !path.is_empty() {
        holds_json(found, "columns.payload")?;
        return Ok(PayloadType::Json);
    }
    match found.type_name.as_str() {
        "json" | "jsonb" => Ok(PayloadType::Json),
        "text" | "character varying" => Ok(PayloadType::Text),
        "bytea" => Ok(PayloadType::Bytes),
        other => {
            let text = format!("columns.payload = {} has the type {other}", found.name);
            Err(OperateError::refused(text, "a payload must be jsonb, json, text, varchar or bytea"))
        }
    }
}

fn mark(adoption: &Adoption, facts: &Facts, pending: &Pending) -> Result<Mark, OperateError> {
    let found = column(adoption, facts, &pending.column, "pending")?;
    let (name, type_name) = (&found.name, found.type_name.as_str());
    if found.is_generated && adoption.when_sent == WhenSent::Mark {
        let text = format!("pending = {name} is a generated column, which cannot be updated");
        return Err(OperateError::refused(text, "use the column that it is generated from"));
    }
    if !pending.before.is_empty() {
        return Ok(Mark::Value);
    }
    match type_name {
        "boolean" => Ok(Mark::Flag),
        "timestamp with time zone" | "timestamp without time zone" | "date" if found.is_not_null => {
            let text = format!("pending = {name} is never null, so no row would be waiting");
            Err(OperateError::refused(text, "use a column that is null until a row is sent"))
        }
        "timestamp with time zone" | "timestamp without time zone" | "date" => Ok(Mark::Time),
        other => {
            let text = format!(
                "pending = {name} has the type {other}, which alone does not show which rows are waiting"
            );
            let help = "set pending_value and sent_value, for example pending_value = \"NEW\" and sent_value = \"SENT\"";
            Err(OperateError::refused(text, help))
        }
    }
}

/// Refuses a table with another trigger that hands rows over: each row would be published twice.
fn triggers(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    for trigger in &facts.triggers {
        let is_ours = TRIGGERS.contains(&trigger.name.as_str());
        if is_ours && trigger.body.contains(super::sql::SIGN) {
            continue;
        }
        let table = adoption.table_name();
        let text = format!(
            "the trigger {} of {table} already hands rows over, or uses the toolkit's name",
            trigger.name
        );
        let help =
            format!("check {}.{}(), and drop the trigger first", trigger.function_schema, trigger.function);
        return Err(OperateError::refused(text, help));
    }
    Ok(())
}

/// Checks the publication: one table must be able to leave it.
fn publication(adoption: &Adoption, facts: &Facts, name: &str) -> Result<(), OperateError> {
    let table = adoption.table_name();
    let refused = |text: String, help: String| Err(OperateError::refused(text, help));
    let Some(found) = facts.publications.iter().find(|publication| publication.name == name) else {
        let known: Vec<&str> = facts.publications.iter().map(|it| it.name.as_str()).collect();
        let known = if known.is_empty() { String::from("none") } else { known.join(", ") };
        return refused(format!("there is no publication {name}"), format!("publications here: {known}"));
    };
    if found.is_for_all_tables {
        let text =
            format!("the publication {name} is FOR ALL TABLES, so a single table cannot be removed from it");
        let help = "create a publication FOR TABLE for the connector. Or remove `publication` from the configuration, and stop the connector once it has published all old rows; until then new rows are published twice";
        return refused(text, String::from(help));
    }
    if found.has_table && !found.names_table {
        let text = format!(
            "the publication {name} has all tables of the schema, so a single table cannot be removed from it"
        );
        return refused(text, String::from("create a publication FOR TABLE for the connector"));
    }
    if !found.has_table && facts.trigger().is_none() {
        let others = facts.publications.iter().filter(|it| it.has_table).map(|it| it.name.as_str());
        let others = others.collect::<Vec<_>>().join(", ");
        let others = if others.is_empty() { String::from("none") } else { others };
        return refused(
            format!("the publication {name} does not have {table}"),
            format!("publications that have it: {others}"),
        );
    }
    if found.has_parts {
        let text = format!("the publication {name} has only some rows or columns of {table}");
        return refused(
            text,
            String::from(
                "`relay adopt back` could not restore this: add the whole table to the publication first",
            ),
        );
    }
    if !found.is_owner {
        let text = format!("{} does not own the publication {name}", facts.user);
        return refused(text, format!("ALTER PUBLICATION {} OWNER TO {}", quoted(name), facts.user));
    }
    Ok(())
}

/// Returns the publications that still publish the table's rows.
pub(super) fn other_publications<'a>(adoption: &Adoption, facts: &'a Facts) -> Vec<&'a PublicationFacts> {
    let left = adoption.publication.as_ref().map(ForeignIdentifier::as_str);
    facts.publications.iter().filter(|it| it.has_table && Some(it.name.as_str()) != left).collect()
}

/// Returns the error for a request that conflicts with the current state.
pub(super) fn conflict(text: String, help: &str) -> OperateError {
    OperateError::new(OperateErrorKind::Conflict, text).with_help(help)
}
