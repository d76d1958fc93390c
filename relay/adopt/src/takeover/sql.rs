//! The SQL of an adoption. Every name in it is an [`Identifier`] or a [`ForeignIdentifier`], and
//! every text a literal. No other part of the configuration enters a statement.

use std::time::Duration;

use migrations::{ForeignIdentifier, Identifier, Statement, Template};
use operate::Signed;

use crate::adoption::{Adoption, WhenSent};

/// The trigger that hands each new row over.
pub(super) const TRIGGER: &str = "outbox_adopt";
/// The trigger that marks each new row as sent.
pub(super) const MARK_TRIGGER: &str = "outbox_adopt_mark";
/// The trigger that refuses changes of rows that have been handed over.
pub(super) const UPDATE_TRIGGER: &str = "outbox_adopt_update";
/// All three triggers.
pub(super) const TRIGGERS: [&str; 3] = [TRIGGER, MARK_TRIGGER, UPDATE_TRIGGER];
/// The version of the function. `over` replaces the function of another version.
pub(super) const VERSION: u32 = 2;
/// How long the server waits for the next statement under the lock.
const IDLE_MILLIS_MAX: i64 = 10_000;
/// The prefix of comments and functions of an adoption.
pub(super) const SIGN: &str = "outbox toolkit, adoption ";

/// The facts of the database that a statement needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The schema of the outbox.
    pub(super) home: Identifier,
    /// The schema of the old table.
    pub(super) schema: ForeignIdentifier,
    /// The trigger function, in the schema of the old table.
    pub(super) function: ForeignIdentifier,
    pub(super) payload: PayloadType,
    /// How a column marks waiting rows; `None` without such a column.
    pub(super) mark: Option<Mark>,
    /// The primary key for the deletion of rows; empty if rows are not deleted.
    pub(super) primary_key: Vec<ForeignIdentifier>,
    /// Whether the old id is an integer, which orders rows of equal rank.
    pub(super) is_id_integer: bool,
}

/// The conversion of a payload to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PayloadType {
    Json,
    Text,
    Bytes,
}

/// The way in which a column marks a row as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A time; null while the row waits.
    Time,
    /// A boolean.
    Flag,
    /// A configured word.
    Value,
}

/// One statement, and its purpose for an error text.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) what: &'static str,
    pub(super) sql: Statement,
    /// Whether its rows count as imported.
    pub(super) imports: bool,
    /// Whether its duration depends on the number of waiting rows.
    pub(super) is_long: bool,
}

/// The statements of one adoption.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sql<'a> {
    pub(super) adoption: &'a Adoption,
    pub(super) place: &'a Place,
}

/// The part of the function that marks rows and refuses changes that would be lost or sent twice.
const MARKING: &str = "
    IF TG_OP = 'UPDATE' THEN -- {unsent}
        RAISE EXCEPTION 'row % of % was handed over to the outbox: no message tells of this change', NEW.{id},
            TG_RELID::regclass USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Insert a row for each message, without ON CONFLICT DO UPDATE. `relay replay` sends one again.';
    END IF;
    IF TG_WHEN = 'BEFORE' THEN -- {waits}
        NEW.{pending} := {mark};
        RETURN NEW;
    END IF;
    IF {waits} THEN
        RAISE EXCEPTION 'row % of % would be sent twice: a trigger has taken the mark of outbox_adopt_mark away',
            NEW.{id}, TG_RELID::regclass USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Let no BEFORE INSERT trigger whose name sorts behind outbox_adopt_mark set the column.';
    END IF;";

fn step(what: &'static str, sql: Template) -> Step {
    Step { what, sql: sql.render(), imports: false, is_long: false }
}

/// Returns a step whose duration depends on the number of waiting rows.
fn long(what: &'static str, sql: Template) -> Step {
    Step { is_long: true, ..step(what, sql) }
}

impl Sql<'_> {
    /// Returns the first steps of both directions. The lock waits for open writers and holds new
    /// ones back.
    pub(super) fn lock(&self, timeout: Duration) -> Vec<Step> {
        let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        vec![
            step(
                "set the lock timeout",
                Template::new("SET LOCAL lock_timeout = {millis}").integer("millis", millis),
            ),
            // An import of many rows must not time out.
            step("set the statement timeout", Template::new("SET LOCAL statement_timeout = 0")),
            // A client whose host or network has disappeared must not hold producers back.
            step(
                "set the idle timeout",
                Template::new("SET LOCAL idle_in_transaction_session_timeout = {idle}")
                    .integer("idle", IDLE_MILLIS_MAX),
            ),
            step("lock the old table", self.of_table("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")),
        ]
    }

    /// Returns the steps after the lock, without the audit. `replaces`: an adoption exists.
    /// `leaves`: the table is in its publication.
    pub(super) fn over(&self, replaces: bool, leaves: bool, remembered: &Remembered) -> Vec<Step> {
        let mut steps = Vec::new();
        if replaces {
            // Triggers of another mapping could refuse the marks of the import.
            steps.extend(self.drop_triggers());
        }
        if let Some(waits) = self.waits("r") {
            steps.push(Step { imports: true, ..long("import the waiting rows", self.import(&waits)) });
            steps.push(match (self.mark(), &self.adoption.pending) {
                (Some(mark), Some(pending)) => {
                    let update = self.of_table("UPDATE {table} AS r SET {pending} = {mark}\nWHERE {waits}");
                    let update = update.statement("waits", &waits).identifier("pending", &pending.column);
                    long("mark the imported rows", update.statement("mark", &mark))
                }
                _ => {
                    let delete = self.of_table("DELETE FROM {table} AS r\nWHERE {waits}");
                    long("delete the imported rows", delete.statement("waits", &waits))
                }
            });
            steps.push(long("mark imported rows as not waiting", self.none_stays(&waits)));
        }
        if let (true, Some(publication)) = (leaves, &self.adoption.publication) {
            let alter = self.of_table("ALTER PUBLICATION {publication} DROP TABLE {table}");
            steps.push(step(
                "remove the table from its publication",
                alter.identifier("publication", publication),
            ));
        }
        steps.push(step("create the trigger's function", self.function()));
        if let Some(waits) = self.waits("NEW").filter(|_| self.marks()) {
            let create = "CREATE TRIGGER {trigger} BEFORE INSERT ON {table} FOR EACH ROW\n    \
                          WHEN ({waits}) EXECUTE FUNCTION {function}()";
            steps.push(step(
                "create the trigger",
                self.of_trigger(create, MARK_TRIGGER).statement("waits", &waits),
            ));
        }
        if let Some(unsent) = self.unsent() {
            let create = "CREATE TRIGGER {trigger} AFTER UPDATE ON {table} FOR EACH ROW\n    \
                          WHEN ({unsent}) EXECUTE FUNCTION {function}()";
            let create = self.of_trigger(create, UPDATE_TRIGGER).statement("unsent", &unsent);
            steps.push(step("create the trigger", create));
        }
        let create = "CREATE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH ROW\n    \
                      {when}EXECUTE FUNCTION {function}()";
        let when = match self.only("NEW") {
            Some(only) => Template::new("WHEN ({only}) ").statement("only", &only),
            None => Template::new(""),
        };
        let create = self.of_trigger(create, TRIGGER).statement("when", &when.render());
        steps.push(step("create the trigger", create));
        let comment = self.of_trigger("COMMENT ON TRIGGER {trigger} ON {table} IS {text}", TRIGGER);
        steps.push(step("record the adoption", comment.literal("text", &remembered.comment())));
        steps
    }

    /// Returns the steps of the way back after the lock, without the audit.
    pub(super) fn back(&self, publication: Option<&ForeignIdentifier>) -> Vec<Step> {
        let mut steps = self.drop_triggers();
        steps.push(step(
            "drop the trigger's function",
            self.of_trigger("DROP FUNCTION {function}()", TRIGGER),
        ));
        if let Some(publication) = publication {
            let alter = self.of_table("ALTER PUBLICATION {publication} ADD TABLE {table}");
            steps.push(step(
                "add the table to its publication again",
                alter.identifier("publication", publication),
            ));
        }
        steps
    }

    /// Returns the step that writes the operators' audit.
    pub(super) fn audit(&self, relay: &str, action: &str, selection: &str, signed: &Signed) -> Step {
        let insert = "INSERT INTO {home}.outbox_operation (actor, relay, action, selection, note)\n\
                      VALUES ({actor}, {relay}, {action}, {selection}, {note})";
        let insert = Template::new(insert)
            .identifier("home", &self.place.home)
            .literal("actor", signed.operator.name())
            .literal("relay", relay)
            .literal("action", action)
            .literal("selection", selection)
            .literal("note", &signed.note);
        step("write the audit", insert)
    }

    /// Returns whether a separate trigger marks new rows as sent.
    pub(super) fn marks(&self) -> bool {
        self.mark().is_some()
    }

    /// Returns the condition on `row` for waiting rows; `None` where rows do not show whether they
    /// wait.
    pub(super) fn waits(&self, row: &'static str) -> Option<Statement> {
        let pending = self.pending(row);
        if pending.is_none() && self.adoption.when_sent == WhenSent::Mark {
            return None;
        }
        Some(match (self.only(row), pending) {
            (Some(only), Some(pending)) => {
                let both = Template::new("{only} AND {pending}").statement("only", &only);
                both.statement("pending", &pending).render()
            }
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => Template::new("true").render(),
        })
    }

    fn pending(&self, row: &'static str) -> Option<Statement> {
        let (pending, mark) = (self.adoption.pending.as_ref()?, self.place.mark?);
        let condition = match (mark, pending.before.len()) {
            (Mark::Time, _) => "{row}.{column} IS NULL",
            (Mark::Flag, _) => "{row}.{column} IS NOT TRUE",
            (Mark::Value, 1) => "{row}.{column} = {values}",
            (Mark::Value, _) => "{row}.{column} IN ({values})",
        };
        let condition = Template::new(condition).part("row", row).identifier("column", &pending.column);
        Some(condition.statement("values", &literals(&pending.before)).render())
    }

    /// Returns the condition on `row` for the selected rows; `None` if all are selected.
    fn only(&self, row: &'static str) -> Option<Statement> {
        let only = self.adoption.only.as_ref()?;
        let condition = Template::new("{value} IN ({values})");
        let condition = condition.statement("value", &self.text(Some(&only.field), row));
        Some(condition.statement("values", &literals(&only.values)).render())
    }

    /// Returns the value of a sent row; `None` if rows are not marked.
    fn mark(&self) -> Option<Statement> {
        let pending = self.adoption.pending.as_ref()?;
        let mark = match self.place.mark.filter(|_| self.adoption.when_sent == WhenSent::Mark)? {
            Mark::Time => "clock_timestamp()",
            Mark::Flag => "true",
            Mark::Value => "{value}",
        };
        Some(Template::new(mark).literal("value", pending.after.as_deref().unwrap_or_default()).render())
    }

    /// Returns a condition on `OLD` and `NEW` for a change that no message reports: the content of
    /// a row that was handed over changes, or a row waits again. The update of an `INSERT … ON
    /// CONFLICT DO UPDATE` is such a change, and the mark in its `EXCLUDED` would hide it. `None`
    /// if rows are not marked.
    fn unsent(&self) -> Option<Statement> {
        self.mark()?;
        let adoption = self.adoption;
        let mut fields = vec![&adoption.id];
        fields.extend(adoption.topic.field());
        fields.extend(adoption.key.iter().chain(&adoption.kind));
        fields.extend(adoption.headers.iter().map(|(_, field)| field));
        // A header may carry the mark itself.
        fields.retain(|field| Some(&field.column) != adoption.pending.as_ref().map(|it| &it.column));
        let mut differs = Template::new("({old})::text IS DISTINCT FROM ({new})::text")
            .statement("old", &self.raw_payload("OLD"))
            .statement("new", &self.raw_payload("NEW"))
            .render();
        for field in fields {
            differs = Template::new("{differs} OR {old} IS DISTINCT FROM {new}")
                .statement("differs", &differs)
                .statement("old", &self.text(Some(field), "OLD"))
                .statement("new", &self.text(Some(field), "NEW"))
                .render();
        }
        let is_meant = match self.only("OLD") {
            Some(only) => Template::new("({only}) AND ").statement("only", &only).render(),
            None => Template::new("").render(),
        };
        let unsent = "({before}) IS NOT TRUE AND (({after}) IS TRUE OR {is_meant}({differs}))";
        let unsent = Template::new(unsent).statement("before", &self.waits("OLD")?);
        let unsent = unsent.statement("after", &self.waits("NEW")?).statement("is_meant", &is_meant);
        Some(unsent.statement("differs", &differs).render())
    }

    /// Returns `"schema"."table"`.
    pub(super) fn table(&self) -> Statement {
        let (schema, table) = (&self.place.schema, &self.adoption.table);
        Template::new("{old}.{table}").identifier("old", schema).identifier("table", table).render()
    }

    /// Inserts the old table into a template.
    pub(super) fn of_table(&self, text: &'static str) -> Template {
        Template::new(text).statement("table", &self.table())
    }

    fn of_trigger(&self, text: &'static str, trigger: &'static str) -> Template {
        let function = Template::new("{old}.{name}").identifier("old", &self.place.schema);
        let function = function.identifier("name", &self.place.function).render();
        self.of_table(text).part("trigger", trigger).statement("function", &function)
    }

    fn drop_triggers(&self) -> Vec<Step> {
        let drop = |trigger| self.of_trigger("DROP TRIGGER IF EXISTS {trigger} ON {table}", trigger);
        TRIGGERS.map(|trigger| step("drop the trigger", drop(trigger))).into()
    }

    /// Imports rows in the order in which they waited.
    fn import(&self, waits: &Statement) -> Template {
        let insert = "INSERT INTO {home}.outbox_message (topic, key, kind, content_type, headers, payload)\n\
                      SELECT {topic},\n    {key},\n    {kind},\n    {content},\n    {headers},\n    {payload}\n\
                      FROM {table} AS r WHERE {waits} ORDER BY r.{order}{tie}";
        let insert = self.of_table(insert).statement("waits", waits).statement("tie", &self.tie());
        self.values(insert, "r").identifier("order", self.order_by())
    }

    pub(super) fn order_by(&self) -> &ForeignIdentifier {
        self.adoption.order_by.as_ref().unwrap_or(&self.adoption.id.column)
    }

    /// Returns the expression that orders rows of equal rank: the old id, or else the place in the
    /// table, so that at least rows that were inserted one after another usually keep their order.
    fn tie(&self) -> Statement {
        let tie = match &self.adoption.order_by {
            None => Template::new(""),
            Some(_) if self.place.is_id_integer => {
                Template::new(", r.{id}").identifier("id", &self.adoption.id.column)
            }
            Some(_) => Template::new(", r.ctid"),
        };
        tie.render()
    }

    fn function(&self) -> Template {
        let create = "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $adopt${body}$adopt$";
        self.of_trigger(create, TRIGGER).statement("body", &self.body())
    }

    /// Returns the function's text. `status` compares it, so it contains the whole mapping.
    ///
    /// Rows are marked before they are stored and handed over afterwards: `ON CONFLICT DO NOTHING`
    /// may skip a row, which only an AFTER trigger knows.
    pub(super) fn body(&self) -> Statement {
        let marking = match (self.mark(), &self.adoption.pending, self.unsent()) {
            (Some(mark), Some(pending), Some(unsent)) => Template::new(MARKING)
                .statement("waits", &self.waits("NEW").unwrap_or_else(|| Template::new("true").render()))
                .statement("unsent", &unsent)
                .identifier("id", &self.adoption.id.column)
                .identifier("pending", &pending.column)
                .statement("mark", &mark)
                .render(),
            _ => Template::new("").render(),
        };
        let only = match self.only("NEW") {
            Some(only) => Template::new("\n-- only where {only}").statement("only", &only),
            None => Template::new(""),
        };
        let body = "\n-- {sign}{version}; `relay adopt status` compares this text{only}\nBEGIN{marking}\n    \
                    PERFORM {home}.outbox_enqueue(\n        topic => {topic},\n        \
                    payload => {payload},\n        key => {key},\n        kind => {kind},\n        \
                    content_type => {content},\n        headers => {headers});{deleting}\n    \
                    RETURN NULL;\nEND\n";
        let body = Template::new(body).part("sign", SIGN).integer("version", i64::from(VERSION));
        let body = body.statement("only", &only.render()).statement("marking", &marking);
        self.values(body.statement("deleting", &self.deleting()), "NEW").render()
    }
}

/// Returns texts as a list of literals.
pub(super) fn literals(texts: &[String]) -> Statement {
    let mut list: Option<Statement> = None;
    for text in texts {
        let one = Template::new("{text}").literal("text", text).render();
        list = Some(match list {
            None => one,
            Some(list) => {
                Template::new("{list}, {one}").statement("list", &list).statement("one", &one).render()
            }
        });
    }
    list.unwrap_or_else(|| Template::new("").render())
}

/// The memory of the way back, in the comment of the trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remembered {
    /// The publication that the table has left.
    pub(super) publication: Option<ForeignIdentifier>,
    /// A position that a slot must reach before the old relay has nothing left to publish.
    pub(super) lsn: Option<String>,
}

impl Remembered {
    fn comment(&self) -> String {
        let publication = self.publication.as_ref().map(|name| format!("; publication={name}"));
        let lsn = self.lsn.as_ref().map(|lsn| format!("; lsn={lsn}"));
        format!("{SIGN}{VERSION}{}{}", publication.unwrap_or_default(), lsn.unwrap_or_default())
    }

    /// Parses a comment; `None` if it is not one of an adoption.
    pub(super) fn read(comment: &str) -> Option<Self> {
        let mut parts = comment.strip_prefix(SIGN)?.split("; ");
        parts.next()?.parse::<u32>().ok()?;
        let mut remembered = Self::default();
        for part in parts {
            match part.split_once('=')? {
                ("publication", name) => remembered.publication = Some(ForeignIdentifier::new(name).ok()?),
                ("lsn", lsn) => remembered.lsn = Some(lsn.to_owned()),
                _ => return None,
            }
        }
        Some(remembered)
    }
}

/// Returns the statements as a script for an administrator.
pub(super) fn script<'a>(steps: impl IntoIterator<Item = &'a Step>) -> String {
    let mut script = String::from("BEGIN ISOLATION LEVEL READ COMMITTED;\n");
    for step in steps {
        script.push_str(step.sql.as_str());
        script.push_str(";\n");
    }
    script.push_str("COMMIT;\n");
    script
}
