//! The SQL of an adoption. Every name is an [`Identifier`] and every text a literal: nothing else
//! of the configuration gets into a statement.

use std::time::Duration;

use migrations::{Identifier, Statement, Template};

use crate::config::{AdoptedTopic, Adoption, NullPayload};
use crate::operate::Signed;

/// The trigger that hands each new row over.
pub(super) const TRIGGER: &str = "outbox_adopt";
/// The trigger that marks each new row as sent.
pub(super) const MARK_TRIGGER: &str = "outbox_adopt_mark";
/// A later version writes another function: `over` puts it in the place of this one.
pub(super) const VERSION: u32 = 1;
/// How comments and functions of an adoption begin.
pub(super) const SIGN: &str = "outbox toolkit, adoption ";

/// The facts of the database that a statement needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The schema of the outbox.
    pub(super) home: Identifier,
    /// The schema of the old table.
    pub(super) schema: Identifier,
    /// The trigger function, in the schema of the old table.
    pub(super) function: Identifier,
    pub(super) payload: PayloadType,
    /// How a row is marked; none where rows do not tell whether they wait.
    pub(super) mark: Option<Mark>,
}

/// How a payload becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PayloadType {
    Json,
    Text,
    Bytes,
}

/// How a column tells that its row was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A time; null while the row waits.
    Time,
    /// A boolean.
    Flag,
    /// A word of the configuration.
    Value,
}

/// One statement, and what it does, for the error of a failure.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) what: &'static str,
    pub(super) sql: Statement,
    /// Whether its rows are those that were handed over.
    pub(super) imports: bool,
}

/// The statements of one adoption.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sql<'a> {
    pub(super) adoption: &'a Adoption,
    pub(super) place: &'a Place,
}

fn step(what: &'static str, sql: Template) -> Step {
    Step { what, sql: sql.render(), imports: false }
}

impl Sql<'_> {
    /// The beginning of both directions: the lock waits for open writers, and holds new ones back.
    pub(super) fn lock(&self, timeout: Duration) -> Vec<Step> {
        let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        vec![
            step(
                "set the lock timeout",
                Template::new("SET LOCAL lock_timeout = {millis}").integer("millis", millis),
            ),
            // An import of many rows is no statement that hangs.
            step("set the statement timeout", Template::new("SET LOCAL statement_timeout = 0")),
            step("lock the old table", self.of_table("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")),
        ]
    }

    /// Everything after the lock, but the audit. `replaces`: an adoption is there. `leaves`: the
    /// table is in its publication.
    pub(super) fn over(&self, replaces: bool, leaves: bool, remembered: &Remembered) -> Vec<Step> {
        let mut steps = Vec::new();
        if let (Some(waits), Some(mark)) = (self.waits("r"), self.mark()) {
            steps.push(Step { imports: true, ..step("import the rows that wait", self.import(&waits)) });
            let pending = self.adoption.pending.as_ref().map_or(&self.adoption.id, |it| &it.column);
            let update = self
                .of_table("UPDATE {table} AS r SET {pending} = {mark}\nWHERE {waits}")
                .statement("waits", &waits)
                .identifier("pending", pending)
                .statement("mark", &mark);
            steps.push(step("mark the imported rows", update));
        }
        if let (true, Some(publication)) = (leaves, &self.adoption.publication) {
            let alter = self.of_table("ALTER PUBLICATION {publication} DROP TABLE {table}");
            steps.push(step(
                "take the table out of its publication",
                alter.identifier("publication", publication),
            ));
        }
        steps.push(step("create the trigger's function", self.function()));
        if replaces {
            steps.extend(self.drop_triggers());
        }
        if let Some(waits) = self.waits("NEW") {
            let create = "CREATE TRIGGER {trigger} BEFORE INSERT ON {table} FOR EACH ROW\n    \
                          WHEN ({waits}) EXECUTE FUNCTION {function}()";
            steps.push(step(
                "create the trigger",
                self.of_trigger(create, MARK_TRIGGER).statement("waits", &waits),
            ));
        }
        let create = "CREATE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH ROW\n    EXECUTE FUNCTION {function}()";
        steps.push(step("create the trigger", self.of_trigger(create, TRIGGER)));
        let comment = self.of_trigger("COMMENT ON TRIGGER {trigger} ON {table} IS {text}", TRIGGER);
        steps.push(step("remember the adoption", comment.literal("text", &remembered.comment())));
        steps
    }

    /// Everything of the way back after the lock, but the audit.
    pub(super) fn back(&self, publication: Option<&Identifier>) -> Vec<Step> {
        let mut steps = self.drop_triggers();
        steps.push(step(
            "drop the trigger's function",
            self.of_trigger("DROP FUNCTION {function}()", TRIGGER),
        ));
        if let Some(publication) = publication {
            let alter = self.of_table("ALTER PUBLICATION {publication} ADD TABLE {table}");
            steps.push(step(
                "give the table back to its publication",
                alter.identifier("publication", publication),
            ));
        }
        steps
    }

    /// The line in the audit of operators.
    pub(super) fn audit(&self, relay: &str, action: &str, selection: &str, signed: &Signed) -> Step {
        let insert = "INSERT INTO {home}.outbox_operation (actor, relay, action, selection, note)\n\
                      VALUES ({actor}, {relay}, {action}, {selection}, {note})";
        let insert = Template::new(insert)
            .identifier("home", &self.place.home)
            .literal("actor", signed.operator.name())
            .literal("relay", relay)
            .literal("action", action)
            .literal("selection", selection)
            .literal("note", &signed.reason);
        step("write the audit", insert)
    }

    /// Rows that wait: a condition on `row`; none where rows do not tell.
    pub(super) fn waits(&self, row: &'static str) -> Option<Statement> {
        let (pending, mark) = (self.adoption.pending.as_ref()?, self.place.mark?);
        let condition = match mark {
            Mark::Time => "{row}.{column} IS NULL",
            Mark::Flag => "{row}.{column} IS NOT TRUE",
            Mark::Value => "{row}.{column} = {value}",
        };
        let value = pending.values.as_ref().map_or("", |(before, _)| before);
        let condition = Template::new(condition).part("row", row).identifier("column", &pending.column);
        Some(condition.literal("value", value).render())
    }

    /// The value of a row that was sent.
    fn mark(&self) -> Option<Statement> {
        let value = self.adoption.pending.as_ref()?.values.as_ref().map_or("", |(_, after)| after);
        let mark = match self.place.mark? {
            Mark::Time => "clock_timestamp()",
            Mark::Flag => "true",
            Mark::Value => "{value}",
        };
        Some(Template::new(mark).literal("value", value).render())
    }

    /// `"schema"."table"`.
    pub(super) fn table(&self) -> Statement {
        let (schema, table) = (&self.place.schema, &self.adoption.table);
        Template::new("{old}.{table}").identifier("old", schema).identifier("table", table).render()
    }

    /// A template with the old table put in.
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
        vec![step("drop the trigger", drop(TRIGGER)), step("drop the trigger", drop(MARK_TRIGGER))]
    }

    /// Rows get their places in the order in which they waited.
    fn import(&self, waits: &Statement) -> Template {
        let insert = "INSERT INTO {home}.outbox_message (topic, key, kind, content_type, headers, payload)\n\
                      SELECT {topic},\n    {key},\n    {kind},\n    {content},\n    {headers},\n    {payload}\n\
                      FROM {table} AS r WHERE {waits} ORDER BY r.{order}";
        let insert = self.of_table(insert).statement("waits", waits);
        self.values(insert, "r").identifier("order", self.order_by())
    }

    pub(super) fn order_by(&self) -> &Identifier {
        self.adoption.order_by.as_ref().unwrap_or(&self.adoption.id)
    }

    fn function(&self) -> Template {
        let create = "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $adopt${body}$adopt$";
        self.of_trigger(create, TRIGGER).statement("body", &self.body())
    }

    /// The function's text. `status` compares it, so it holds all that the mapping means.
    ///
    /// Marking comes before the row is stored, handing over after it: a row that `ON CONFLICT DO
    /// NOTHING` leaves out is never stored, and only triggers of the second kind know.
    pub(super) fn body(&self) -> Statement {
        let marking = match (self.mark(), &self.adoption.pending) {
            (Some(mark), Some(pending)) => Template::new(
                "\n    IF TG_WHEN = 'BEFORE' THEN -- {waits}\n        NEW.{pending} := {mark};\n        \
                 RETURN NEW;\n    END IF;",
            )
            .statement("waits", &self.waits("NEW").unwrap_or_else(|| Template::new("true").render()))
            .identifier("pending", &pending.column)
            .statement("mark", &mark)
            .render(),
            _ => Template::new("").render(),
        };
        let body = "\n-- {sign}{version}; `relay adopt status` compares this text\nBEGIN{marking}\n    \
                    PERFORM {home}.outbox_enqueue(\n        topic => {topic},\n        \
                    payload => {payload},\n        key => {key},\n        kind => {kind},\n        \
                    content_type => {content},\n        headers => {headers});\n    RETURN NULL;\nEND\n";
        let body = Template::new(body).part("sign", SIGN).integer("version", i64::from(VERSION));
        self.values(body.statement("marking", &marking), "NEW").render()
    }

    /// Puts what a message is made of in its places.
    fn values(&self, template: Template, row: &'static str) -> Template {
        template
            .identifier("home", &self.place.home)
            .statement("topic", &self.topic(row))
            .statement("key", &self.text(self.adoption.key.as_ref(), row))
            .statement("kind", &self.text(self.adoption.kind.as_ref(), row))
            .statement("content", &self.content_type())
            .statement("headers", &self.headers(row))
            .statement("payload", &self.payload(row))
    }

    pub(super) fn topic(&self, row: &'static str) -> Statement {
        match &self.adoption.topic {
            AdoptedTopic::Fixed(topic) => Template::new("{topic}").literal("topic", topic.as_str()).render(),
            AdoptedTopic::Column { prefix, column } if prefix.is_empty() => self.text(Some(column), row),
            AdoptedTopic::Column { prefix, column } => Template::new("{prefix} || {column}")
                .literal("prefix", prefix)
                .statement("column", &self.text(Some(column), row))
                .render(),
        }
    }

    /// A column as text; null where there is no column.
    pub(super) fn text(&self, column: Option<&Identifier>, row: &'static str) -> Statement {
        match column {
            Some(column) => {
                Template::new("{row}.{column}::text").part("row", row).identifier("column", column).render()
            }
            None => Template::new("NULL").render(),
        }
    }

    fn content_type(&self) -> Statement {
        let content_type = match (&self.adoption.content_type, self.place.payload) {
            (Some(content_type), _) => content_type.as_str(),
            (None, PayloadType::Json) => "application/json",
            (None, PayloadType::Text) => "text/plain; charset=utf-8",
            (None, PayloadType::Bytes) => "application/octet-stream",
        };
        Template::new("{value}").literal("value", content_type).render()
    }

    fn headers(&self, row: &'static str) -> Statement {
        let pair = |name: &str, column| {
            let pair = Template::new("{name}, {column}").literal("name", name);
            pair.statement("column", &self.text(Some(column), row)).render()
        };
        let mut pairs = pair(self.adoption.id_header.as_str(), &self.adoption.id);
        for (name, column) in &self.adoption.headers {
            let longer = Template::new("{pairs}, {pair}").statement("pairs", &pairs);
            pairs = longer.statement("pair", &pair(name.as_str(), column)).render();
        }
        // A header without a value is left out.
        let build = match self.adoption.headers.is_empty() {
            true => "jsonb_build_object({pairs})",
            false => "jsonb_strip_nulls(jsonb_build_object({pairs}))",
        };
        Template::new(build).statement("pairs", &pairs).render()
    }

    fn payload(&self, row: &'static str) -> Statement {
        let bytes = match (self.place.payload, self.adoption.null_payload) {
            (PayloadType::Bytes, NullPayload::Refuse) => "{row}.{column}",
            (PayloadType::Bytes, NullPayload::Empty) => "coalesce({row}.{column}, '')",
            (_, NullPayload::Refuse) => "convert_to({row}.{column}::text, 'UTF8')",
            (_, NullPayload::Empty) => "coalesce(convert_to({row}.{column}::text, 'UTF8'), '')",
        };
        Template::new(bytes).part("row", row).identifier("column", &self.adoption.payload).render()
    }
}

/// The comment of the trigger, which remembers the way back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remembered {
    /// The publication that the table has left.
    pub(super) publication: Option<Identifier>,
    /// A position that a slot has to reach before nothing of the old way is outstanding.
    pub(super) lsn: Option<String>,
}

impl Remembered {
    fn comment(&self) -> String {
        let publication = self.publication.as_ref().map(|name| format!("; publication={name}"));
        let lsn = self.lsn.as_ref().map(|lsn| format!("; lsn={lsn}"));
        format!("{SIGN}{VERSION}{}{}", publication.unwrap_or_default(), lsn.unwrap_or_default())
    }

    /// Reads a comment; none when it is not of an adoption.
    pub(super) fn read(comment: &str) -> Option<Self> {
        let mut parts = comment.strip_prefix(SIGN)?.split("; ");
        parts.next()?.parse::<u32>().ok()?;
        let mut remembered = Self::default();
        for part in parts {
            match part.split_once('=')? {
                ("publication", name) => remembered.publication = Some(Identifier::new(name).ok()?),
                ("lsn", lsn) => remembered.lsn = Some(lsn.to_owned()),
                _ => return None,
            }
        }
        Some(remembered)
    }
}

/// The statements as a script for an administrator.
pub(super) fn script<'a>(steps: impl IntoIterator<Item = &'a Step>) -> String {
    let mut script = String::from("BEGIN ISOLATION LEVEL READ COMMITTED;\n");
    for step in steps {
        script.push_str(step.sql.as_str());
        script.push_str(";\n");
    }
    script.push_str("COMMIT;\n");
    script
}
