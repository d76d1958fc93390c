//! Whether the catalogs let an adoption begin, and how it would be done. Pure.

use migrations::Identifier;

use super::facts::{ColumnFacts, Facts, Home, INSERTED, PublicationFacts, TableFacts, function_name};
use super::sql::{MARK_TRIGGER, Mark, PayloadType, Place, TRIGGER};
use crate::config::{AdoptedTopic, Adoption, Pending};
use crate::operate::{OperateError, OperateErrorKind};

const INTEGERS: [&str; 3] = ["smallint", "integer", "bigint"];

/// How it would be done, or the first reason why it cannot be.
pub(super) fn place(adoption: &Adoption, facts: &Facts) -> Result<Place, OperateError> {
    let table = found(adoption, facts)?;
    let place = shape(adoption, facts)?;
    rights(adoption, facts, table)?;
    triggers(adoption, facts)?;
    if let Some(name) = &adoption.publication {
        publication(adoption, facts, name.as_str())?;
    }
    if let Some(function) = &facts.taken_function {
        let text = format!("the function {}.{function}() is there and none of this toolkit", table.schema);
        return Err(OperateError::refused(text, "rename it: the trigger's function takes this name"));
    }
    Ok(place)
}

/// The place for the way back: whatever became of the columns, it is open.
pub(super) fn place_back(adoption: &Adoption, facts: &Facts) -> Result<Place, OperateError> {
    let table = found(adoption, facts)?;
    let home = home(facts)?;
    rights(adoption, facts, table)?;
    let function = facts.trigger().or(facts.mark_trigger()).map(|trigger| trigger.function.clone());
    let function = function.unwrap_or_else(|| function_name(adoption, table.oid));
    names(&home.schema, &table.schema, &function, PayloadType::Bytes, None)
}

fn home(facts: &Facts) -> Result<&Home, OperateError> {
    facts.home.as_ref().ok_or_else(|| {
        let help = "create them first: relay migrate up --line outbox, in the database of the old table";
        OperateError::refused("the tables of the outbox are not there", help)
    })
}

fn names(
    home: &str,
    schema: &str,
    function: &str,
    payload: PayloadType,
    mark: Option<Mark>,
) -> Result<Place, OperateError> {
    let name = |name| Identifier::new(name).map_err(|error| OperateError::refused(error, "rename it"));
    Ok(Place { home: name(home)?, schema: name(schema)?, function: name(function)?, payload, mark })
}

/// Whether the table has the form that the configuration describes.
pub(super) fn shape(adoption: &Adoption, facts: &Facts) -> Result<Place, OperateError> {
    let table = found(adoption, facts)?;
    let home = home(facts)?;
    if table.schema == home.schema && adoption.table.as_str() == "outbox_message" {
        let help = "`table` names the outbox table that producers write to today";
        return Err(OperateError::refused("outbox_message is the outbox of this toolkit itself", help));
    }
    kind(adoption, table)?;
    let payload = payload(adoption, facts)?;
    let mark = adoption.pending.as_ref().map(|pending| mark(adoption, facts, pending)).transpose()?;
    columns(adoption, facts)?;
    names(&home.schema, &table.schema, &function_name(adoption, table.oid), payload, mark)
}

/// The table, if it is there.
pub(super) fn found<'a>(adoption: &Adoption, facts: &'a Facts) -> Result<&'a TableFacts, OperateError> {
    facts.table.as_ref().ok_or_else(|| {
        let text = format!("there is no table {}", adoption.table_name());
        let help = match facts.elsewhere.first() {
            Some(schema) => {
                format!("there is one in another schema: table = \"{schema}.{}\"", adoption.table)
            }
            None => String::from("look at `table` and at the database: it is the one of the outbox"),
        };
        OperateError::refused(text, help)
    })
}

fn kind(adoption: &Adoption, table: &TableFacts) -> Result<(), OperateError> {
    let (what, help) = match table.kind.as_str() {
        _ if table.is_partition => {
            ("a partition", "rows come in through its parent, which cannot be adopted either")
        }
        "p" => ("a partitioned table", "give producers a plain table, or change their INSERT"),
        "v" | "m" => ("a view", "name the table below it"),
        "f" => ("a foreign table", "adopt it in the database where its rows are stored"),
        _ if table.is_temporary => ("a temporary table", "name the table that producers share"),
        _ => return Ok(()),
    };
    let text = format!("{} is {what}; only a plain table can be adopted", adoption.table_name());
    Err(OperateError::refused(text, help))
}

fn rights(adoption: &Adoption, facts: &Facts, table: &TableFacts) -> Result<(), OperateError> {
    let (name, user) = (adoption.table_name(), &facts.user);
    let refused = |text: String, help: String| Err(OperateError::refused(text, help));
    if !table.is_owner {
        let text = format!("{user} does not own {name}: it may neither add a trigger nor remove one");
        let help = format!("run it as {}: --database postgres://{}@…", table.owner, table.owner);
        return refused(text, help);
    }
    if !table.may_create {
        let text = format!("{user} may not create a function in the schema {}", table.schema);
        return refused(text, format!("GRANT CREATE ON SCHEMA {} TO {user}", table.schema));
    }
    if table.hides_rows {
        let text = format!("row level security hides rows of {name} from {user}");
        return refused(text, String::from("run it as a role that sees all rows"));
    }
    if let Some(home) = &facts.home {
        let schema = &home.schema;
        if !home.may_insert {
            let text = format!("{user} may not append to {schema}.outbox_message");
            return refused(text, grant(home.has_producer_role, schema, user));
        }
        if !home.may_audit {
            let text = format!("{user} may not write the audit, {schema}.outbox_operation");
            return refused(text, format!("GRANT INSERT ON {schema}.outbox_operation TO {user}"));
        }
    }
    Ok(())
}

/// The statement that makes a role a producer.
fn grant(has_producer_role: bool, schema: &str, role: &str) -> String {
    match has_producer_role {
        true => format!("GRANT outbox_producer TO {role}"),
        false => format!(
            "GRANT USAGE ON SCHEMA {schema} TO {role}; \
             GRANT INSERT ({INSERTED}) ON {schema}.outbox_message TO {role}"
        ),
    }
}

/// The remedy for a role that inserts into the old table.
pub(super) fn remedy(facts: &Facts, role: &str) -> String {
    let schema = facts.home.as_ref().map_or("public", |home| home.schema.as_str());
    grant(facts.home.as_ref().is_some_and(|home| home.has_producer_role), schema, role)
}

/// Refuses while producers would fail as soon as the trigger is there.
pub(super) fn producers(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    if facts.roles.is_empty() {
        return Ok(());
    }
    let text = format!(
        "roles that may insert into {} may not append messages: {}; their inserts would fail",
        adoption.table_name(),
        facts.roles.join(", ")
    );
    let grants: Vec<String> = facts.roles.iter().map(|role| remedy(facts, role)).collect();
    let help = format!("{}; or take the right to insert into the old table from them", grants.join("; "));
    Err(OperateError::refused(text, help))
}

fn column<'a>(
    adoption: &Adoption,
    facts: &'a Facts,
    name: &Identifier,
    setting: &str,
) -> Result<&'a ColumnFacts, OperateError> {
    facts.column(name.as_str()).ok_or_else(|| {
        let text = format!("{} has no column {name}, which is {setting}", adoption.table_name());
        let names: Vec<&str> = facts.columns.iter().map(|column| column.name.as_str()).collect();
        OperateError::refused(text, format!("set {setting}; its columns are {}", names.join(", ")))
    })
}

fn columns(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    let mut texts = vec![(&adoption.id, "columns.id")];
    if let AdoptedTopic::Column { column, .. } = &adoption.topic {
        texts.push((column, "columns.topic"));
    }
    texts.extend(adoption.key.as_ref().map(|column| (column, "columns.key")));
    texts.extend(adoption.kind.as_ref().map(|column| (column, "columns.kind")));
    texts.extend(adoption.headers.iter().map(|(_, column)| (column, "one of headers")));
    for (name, setting) in texts {
        let found = column(adoption, facts, name, setting)?;
        if matches!(found.type_name.as_str(), "bytea" | "json" | "jsonb")
            || matches!(found.category.as_str(), "A" | "C")
        {
            let text = format!("{setting} = {name} is of type {}, which is no text", found.type_name);
            return Err(OperateError::refused(text, "name a column of texts, numbers or UUIDs"));
        }
    }
    let order = column(adoption, facts, adoption.order_by.as_ref().unwrap_or(&adoption.id), "order_by")?;
    let is_ordered = adoption.order_by.is_some() || INTEGERS.contains(&order.type_name.as_str());
    if adoption.pending.is_some() && !is_ordered {
        let text = format!("order_by is missing, and {} is of type {}", order.name, order.type_name);
        let help = "order_by is the column by which the old relay sends: a number, or the time of the insert";
        return Err(OperateError::refused(text, help));
    }
    Ok(())
}

fn payload(adoption: &Adoption, facts: &Facts) -> Result<PayloadType, OperateError> {
    let found = column(adoption, facts, &adoption.payload, "columns.payload")?;
    match found.type_name.as_str() {
        "json" | "jsonb" => Ok(PayloadType::Json),
        "text" | "character varying" => Ok(PayloadType::Text),
        "bytea" => Ok(PayloadType::Bytes),
        other => {
            let text = format!("columns.payload = {} is of type {other}", found.name);
            Err(OperateError::refused(text, "payloads are jsonb, json, text, varchar or bytea"))
        }
    }
}

fn mark(adoption: &Adoption, facts: &Facts, pending: &Pending) -> Result<Mark, OperateError> {
    let found = column(adoption, facts, &pending.column, "pending")?;
    let (name, type_name) = (&found.name, found.type_name.as_str());
    if found.is_generated {
        let text = format!("pending = {name} is a generated column, which cannot be set");
        return Err(OperateError::refused(text, "name the column that it is made of"));
    }
    if pending.values.is_some() {
        return Ok(Mark::Value);
    }
    match type_name {
        "boolean" => Ok(Mark::Flag),
        "timestamp with time zone" | "timestamp without time zone" | "date" if found.is_not_null => {
            let text = format!("pending = {name} is never null, so no row would wait");
            Err(OperateError::refused(text, "name the column that is null until a row was sent"))
        }
        "timestamp with time zone" | "timestamp without time zone" | "date" => Ok(Mark::Time),
        other => {
            let text = format!("pending = {name} is of type {other}: it does not tell by itself what waits");
            let help = "for example pending_value = \"NEW\" and sent_value = \"SENT\"";
            Err(OperateError::refused(text, help))
        }
    }
}

/// A row that two triggers hand over leaves twice.
fn triggers(adoption: &Adoption, facts: &Facts) -> Result<(), OperateError> {
    for trigger in &facts.triggers {
        let is_ours = trigger.name == TRIGGER || trigger.name == MARK_TRIGGER;
        if is_ours && trigger.body.contains(super::sql::SIGN) {
            continue;
        }
        let table = adoption.table_name();
        let text =
            format!("the trigger {} of {table} hands rows over already, or has our name", trigger.name);
        let help =
            format!("look at {}.{}(), and drop the trigger first", trigger.function_schema, trigger.function);
        return Err(OperateError::refused(text, help));
    }
    Ok(())
}

/// The publication, if one table can leave it.
fn publication(adoption: &Adoption, facts: &Facts, name: &str) -> Result<(), OperateError> {
    let table = adoption.table_name();
    let refused = |text: String, help: String| Err(OperateError::refused(text, help));
    let Some(found) = facts.publications.iter().find(|publication| publication.name == name) else {
        let known: Vec<&str> = facts.publications.iter().map(|it| it.name.as_str()).collect();
        let known = if known.is_empty() { String::from("none") } else { known.join(", ") };
        return refused(format!("there is no publication {name}"), format!("publications here: {known}"));
    };
    if found.is_for_all_tables {
        let text = format!("the publication {name} is FOR ALL TABLES: a single table cannot leave it");
        let help = "make one FOR TABLE for the connector, or leave `publication` out and stop the connector \
                    once it is through: it publishes new rows until then, and they leave twice";
        return refused(text, String::from(help));
    }
    if found.has_table && !found.names_table {
        let text = format!("the publication {name} has all tables of the schema: one cannot leave it");
        return refused(text, String::from("make one FOR TABLE for the connector"));
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
        let text = format!("the publication {name} has some rows or columns of {table} only");
        return refused(text, String::from("the way back would lose that: give it the whole table first"));
    }
    if !found.is_owner {
        let text = format!("{} does not own the publication {name}", facts.user);
        return refused(text, format!("ALTER PUBLICATION {name} OWNER TO {}", facts.user));
    }
    Ok(())
}

/// Publications that go on with the table's rows.
pub(super) fn other_publications<'a>(adoption: &Adoption, facts: &'a Facts) -> Vec<&'a PublicationFacts> {
    let left = adoption.publication.as_ref().map(Identifier::as_str);
    facts.publications.iter().filter(|it| it.has_table && Some(it.name.as_str()) != left).collect()
}

/// A state that somebody else has made.
pub(super) fn conflict(text: String, help: &str) -> OperateError {
    OperateError::new(OperateErrorKind::Conflict, text).with_help(help)
}
