//! The parts of a message, as SQL on a row of the old table.

use migrations::{Statement, Template};

use super::sql::{PayloadType, Sql, literals};
use crate::adoption::{AdoptedTopic, Field, NullPayload};

/// Finds escapes that JSON allows and that PostgreSQL refuses to read, wherever they stand in a
/// document: NUL, and halves of surrogate pairs. A producer whose text contains one must not fail
/// because of the adoption. A whole pair is found as one, and is no half. Without lookbehind, whose
/// cost grows with the square of the number of escapes.
const ESCAPES: &str = r"(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u(0000|[dD][89a-fA-F]..)";

/// Finds every document with such an escape, and only a few others, in much less time.
const SUSPECT: &str = r"\\u(0000|[dD][89a-fA-F])";

/// Stand around the digits of an escape that cannot be read, instead of its `\u`. Readable ones
/// stay: the names of members may have them.
const BEGIN: &str = "Yq7cVw2Lk9Rb1Xe4";
const END: &str = "Tz3mHs8Gd5Pf0Ja7";
/// The replacement of an escape: a whole pair is followed by both of them, which are then removed.
const MARKED: &str = r"\1Yq7cVw2Lk9Rb1Xe4\2Tz3mHs8Gd5Pf0Ja7";
const EMPTY: &str = "Yq7cVw2Lk9Rb1Xe4Tz3mHs8Gd5Pf0Ja7";
const UNREADABLE: &str = "Yq7cVw2Lk9Rb1Xe4....Tz3mHs8Gd5Pf0Ja7";
/// Stands for two backslashes meanwhile: the second one begins no escape.
const BACKSLASH: &str = "Wn6xKb4Rv8Jc1Ue2";

impl Sql<'_> {
    /// Inserts the parts of a message into a template.
    pub(super) fn values(&self, template: Template, row: &'static str) -> Template {
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
            AdoptedTopic::Field { prefix, field } if prefix.is_empty() => self.text(Some(field), row),
            AdoptedTopic::Field { prefix, field } => Template::new("{prefix} || {value}")
                .literal("prefix", prefix)
                .statement("value", &self.text(Some(field), row))
                .render(),
            AdoptedTopic::Named { field, topics } => {
                let mut cases =
                    Template::new("CASE {value}").statement("value", &self.text(Some(field), row)).render();
                for (value, topic) in topics {
                    let longer =
                        Template::new("{cases} WHEN {value} THEN {topic}").statement("cases", &cases);
                    cases = longer.literal("value", value).literal("topic", topic.as_str()).render();
                }
                Template::new("{cases} END").statement("cases", &cases).render()
            }
        }
    }

    /// Returns a value as text; null if there is none.
    pub(super) fn text(&self, field: Option<&Field>, row: &'static str) -> Statement {
        match field {
            Some(field) if field.path.is_empty() => of_column("{row}.{column}::text", field, row).render(),
            Some(field) => of_path(
                "(CASE WHEN {row}.{column}::text ~ {suspect} \
                 THEN replace(regexp_replace({marked}, {unreadable}, {unknown}, 'g'), {backslash}, {pair}) \
                 ELSE {row}.{column}::text END::json #>> {path})",
                field,
                row,
            ),
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
        let pair = |name: &str, field| {
            let pair = Template::new("{name}, {value}").literal("name", name);
            pair.statement("value", &self.text(Some(field), row)).render()
        };
        let mut pairs = pair(self.adoption.id_header.as_str(), &self.adoption.id);
        for (name, field) in &self.adoption.headers {
            let longer = Template::new("{pairs}, {pair}").statement("pairs", &pairs);
            pairs = longer.statement("pair", &pair(name.as_str(), field)).render();
        }
        // Headers without a value are left out.
        let build = if self.adoption.headers.is_empty() {
            "jsonb_build_object({pairs})"
        } else {
            "jsonb_strip_nulls(jsonb_build_object({pairs}))"
        };
        Template::new(build).statement("pairs", &pairs).render()
    }

    /// Returns the payload as in the row; null if the row has none, or a JSON null at the path.
    pub(super) fn raw_payload(&self, row: &'static str) -> Statement {
        let field = &self.adoption.payload;
        if field.path.is_empty() {
            of_column("{row}.{column}", field, row).render()
        } else {
            // The type json keeps a member's text as written.
            of_path(
                "nullif(CASE WHEN {row}.{column}::text ~ {suspect} \
                 THEN replace(replace((replace({marked}, {backslash}, {pair})::json #> {path})::text, \
                 {begin}, {escape}), {end}, '') \
                 ELSE ({row}.{column}::json #> {path})::text END, 'null')",
                field,
                row,
            )
        }
    }

    fn payload(&self, row: &'static str) -> Statement {
        let is_text = !self.adoption.payload.path.is_empty();
        let bytes = match (self.place.payload, self.adoption.null_payload) {
            (PayloadType::Bytes, NullPayload::Refuse) => "{raw}",
            (PayloadType::Bytes, NullPayload::Empty) => "coalesce({raw}, '')",
            (_, NullPayload::Refuse) if is_text => "convert_to({raw}, 'UTF8')",
            (_, NullPayload::Empty) if is_text => "coalesce(convert_to({raw}, 'UTF8'), '')",
            (_, NullPayload::Refuse) => "convert_to({raw}::text, 'UTF8')",
            (_, NullPayload::Empty) => "coalesce(convert_to({raw}::text, 'UTF8'), '')",
        };
        Template::new(bytes).statement("raw", &self.raw_payload(row)).render()
    }
}

fn of_column(text: &'static str, field: &Field, row: &'static str) -> Template {
    Template::new(text).part("row", row).identifier("column", &field.column)
}

fn of_path(text: &'static str, field: &Field, row: &'static str) -> Statement {
    let path = Template::new("ARRAY[{steps}]").statement("steps", &literals(&field.path)).render();
    let marked = of_column(
        "replace(regexp_replace(replace({row}.{column}::text, {pair}, {backslash}), {escapes}, {marked}, 'g'), \
         {empty}, '')",
        field,
        row,
    );
    let marked = marked.literal("pair", r"\\").literal("backslash", BACKSLASH);
    let marked =
        marked.literal("escapes", ESCAPES).literal("marked", MARKED).literal("empty", EMPTY).render();
    of_column(text, field, row)
        .literal("suspect", SUSPECT)
        .statement("marked", &marked)
        .literal("pair", r"\\")
        .literal("backslash", BACKSLASH)
        .literal("unreadable", UNREADABLE)
        // U+FFFD, with the backslash escaped for regexp_replace.
        .literal("unknown", r"\\ufffd")
        .literal("begin", BEGIN)
        .literal("end", END)
        .literal("escape", r"\u")
        .statement("path", &path)
        .render()
}

#[cfg(test)]
mod tests {
    use message::{HeaderName, Topic};
    use migrations::{ForeignIdentifier, Identifier};

    use super::super::sql::{Mark, Place, Remembered, script};
    use super::*;
    use crate::adoption::{Adoption, Only, Pending, WhenSent};

    fn name(name: &str) -> ForeignIdentifier {
        ForeignIdentifier::new(name).unwrap()
    }

    fn field(column: &str, path: &[&str]) -> Field {
        Field { column: name(column), path: path.iter().map(|step| String::from(*step)).collect() }
    }

    fn topic(topic: &str) -> Topic {
        Topic::new(topic).unwrap()
    }

    /// Returns a table with the columns of Debezium.
    fn adoption(table: &str) -> Adoption {
        Adoption {
            schema: None,
            table: name(table),
            id: field("id", &[]),
            topic: AdoptedTopic::Field { prefix: String::new(), field: field("aggregatetype", &[]) },
            key: Some(field("aggregateid", &[])),
            kind: Some(field("type", &[])),
            payload: field("payload", &[]),
            only: None,
            pending: None,
            when_sent: WhenSent::Mark,
            order_by: None,
            publication: None,
            id_header: HeaderName::new("legacy-id").unwrap(),
            headers: Vec::new(),
            content_type: None,
            null_payload: NullPayload::Refuse,
        }
    }

    fn pending(column: &str) -> Option<Pending> {
        Some(Pending { column: name(column), before: Vec::new(), after: None })
    }

    fn place(payload: PayloadType, mark: Option<Mark>, primary_key: &[&str]) -> Place {
        Place {
            home: Identifier::new("public").unwrap(),
            schema: name("shop"),
            function: name("outbox_adopt_Old Table"),
            payload,
            mark,
            primary_key: primary_key.iter().map(|column| name(column)).collect(),
            is_id_integer: false,
        }
    }

    /// `status` compares this text: a change for the same configuration would make every existing
    /// adoption differ.
    #[test]
    fn the_function_of_a_plain_table_stays_what_it_was() {
        let adoption = Adoption {
            topic: AdoptedTopic::Field { prefix: String::new(), field: field("topic", &[]) },
            key: Some(field("aggregate_id", &[])),
            pending: pending("sent_at"),
            ..adoption("event_outbox")
        };
        let place = place(PayloadType::Json, Some(Mark::Time), &[]);
        let body = Sql { adoption: &adoption, place: &place }.body();
        assert_eq!(
            body.as_str(),
            r#"
-- outbox toolkit, adoption 2; `relay adopt status` compares this text
BEGIN
    IF TG_OP = 'UPDATE' THEN -- (OLD."sent_at" IS NULL) IS NOT TRUE AND ((NEW."sent_at" IS NULL) IS TRUE OR ((OLD."payload")::text IS DISTINCT FROM (NEW."payload")::text OR OLD."id"::text IS DISTINCT FROM NEW."id"::text OR OLD."topic"::text IS DISTINCT FROM NEW."topic"::text OR OLD."aggregate_id"::text IS DISTINCT FROM NEW."aggregate_id"::text OR OLD."type"::text IS DISTINCT FROM NEW."type"::text))
        RAISE EXCEPTION 'row % of % was handed over to the outbox: no message tells of this change', NEW."id",
            TG_RELID::regclass USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Insert a row for each message, without ON CONFLICT DO UPDATE. `relay replay` sends one again.';
    END IF;
    IF TG_WHEN = 'BEFORE' THEN -- NEW."sent_at" IS NULL
        NEW."sent_at" := clock_timestamp();
        RETURN NEW;
    END IF;
    IF NEW."sent_at" IS NULL THEN
        RAISE EXCEPTION 'row % of % would be sent twice: a trigger has taken the mark of outbox_adopt_mark away',
            NEW."id", TG_RELID::regclass USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Let no BEFORE INSERT trigger whose name sorts behind outbox_adopt_mark set the column.';
    END IF;
    PERFORM "public".outbox_enqueue(
        topic => NEW."topic"::text,
        payload => convert_to(NEW."payload"::text, 'UTF8'),
        key => NEW."aggregate_id"::text,
        kind => NEW."type"::text,
        content_type => 'application/json',
        headers => jsonb_build_object('legacy-id', NEW."id"::text));
    RETURN NULL;
END
"#
        );
    }

    #[test]
    fn a_row_that_is_deleted_is_handed_over_first_and_found_by_its_key() {
        let adoption = Adoption {
            id: field("Id", &[]),
            topic: AdoptedTopic::Named {
                field: field("Type", &[]),
                topics: vec![("urn:a".into(), topic("orders"))],
            },
            key: None,
            kind: None,
            payload: field("Body", &["m"]),
            only: Some(Only { field: field("Listener", &[]), values: vec!["a".into(), "b".into()] }),
            pending: pending("Done"),
            when_sent: WhenSent::Delete,
            order_by: Some(name("No")),
            ..adoption("Old Table")
        };
        let place = place(PayloadType::Json, Some(Mark::Time), &["No", "Part"]);
        let sql = Sql { adoption: &adoption, place: &place };
        let script = script(&sql.over(false, false, &Remembered::default()));
        let only = r#"NEW."Listener"::text IN ('a', 'b')"#;
        for part in [
            r#"FROM "shop"."Old Table" AS r WHERE r."Listener"::text IN ('a', 'b') AND r."Done" IS NULL ORDER BY r."No", r.ctid"#,
            "DELETE FROM \"shop\".\"Old Table\" AS r\nWHERE r.\"Listener\"::text IN ('a', 'b') AND r.\"Done\" IS NULL;",
            &format!("-- only where {only}\nBEGIN\n    PERFORM"),
            r#"topic => CASE NEW."Type"::text WHEN 'urn:a' THEN 'orders' END,"#,
            r#"payload => convert_to(nullif(CASE WHEN NEW."Body"::text ~ E'"#,
            r#"ELSE (NEW."Body"::json #> ARRAY['m'])::text END, 'null'), 'UTF8'),"#,
            "NEW.\"Id\"::text));\n    DELETE FROM \"shop\".\"Old Table\" AS r WHERE r.\"No\" = NEW.\"No\" AND \
             r.\"Part\" = NEW.\"Part\";\n    IF NOT FOUND THEN\n        RAISE EXCEPTION",
            &format!(
                "FOR EACH ROW\n    WHEN ({only}) EXECUTE FUNCTION \"shop\".\"outbox_adopt_Old Table\"();"
            ),
        ] {
            assert!(script.contains(part), "{part}\nin\n{script}");
        }
        assert!(!script.contains("BEFORE INSERT") && !script.contains("UPDATE"), "{script}");
        assert_eq!(script.matches("CREATE TRIGGER").count(), 1);
        let place = Place { is_id_integer: true, ..place };
        let sql = Sql { adoption: &adoption, place: &place };
        let steps = sql.over(false, false, &Remembered::default());
        assert!(self::script(&steps).contains(r#"ORDER BY r."No", r."Id""#));
    }

    #[test]
    fn every_row_waits_where_rows_are_deleted_and_no_column_tells() {
        let adoption =
            Adoption { topic: AdoptedTopic::Fixed(topic("t")), when_sent: WhenSent::Delete, ..adoption("o") };
        let place = place(PayloadType::Bytes, None, &["id"]);
        let waits = Sql { adoption: &adoption, place: &place }.waits("r");
        assert_eq!(waits.map(|it| it.to_string()).as_deref(), Some("true"));
    }

    /// A path becomes a list of literals whatever it contains. It never becomes SQL, ends the
    /// function's body, or names a placeholder.
    #[test]
    fn nothing_of_the_configuration_becomes_sql() {
        let hostile = r#"a'] || pg_sleep(9) || ARRAY['$adopt$; {home} {row} \\ --"#;
        let adoption = Adoption {
            topic: AdoptedTopic::Named {
                field: field("aggregatetype", &[]),
                topics: vec![("x".into(), topic("t"))],
            },
            key: Some(field("b", &[hostile, "0"])),
            payload: field("b", &[hostile]),
            only: Some(Only { field: field("l", &[hostile]), values: vec![hostile.into()] }),
            pending: Some(Pending {
                column: name("s"),
                before: vec![hostile.into(), "NEW".into()],
                after: Some("SENT".into()),
            }),
            headers: vec![(HeaderName::new("h").unwrap(), field("b", &[hostile]))],
            ..adoption("o")
        };
        let place = place(PayloadType::Json, Some(Mark::Value), &[]);
        let sql = Sql { adoption: &adoption, place: &place };
        let literal = r"E'a\u0027] || pg_sleep(9) || ARRAY[\u0027\u0024adopt\u0024; \u007bhome\u007d \u007brow\u007d \u005c\u005c --'";
        let key = sql.text(adoption.key.as_ref(), "r");
        let end = format!(" ELSE r.\"b\"::text END::json #>> ARRAY[{literal}, '0'])");
        assert!(key.as_str().ends_with(&end), "{}", key.as_str());
        let script = script(&sql.over(false, false, &Remembered::default()));
        // Each occurrence is the whole literal; without them, nothing of the text remains.
        let rest = script.replace(literal, "");
        assert!(script.matches(literal).count() >= 10, "{script}");
        assert!(!rest.contains("pg_sleep") && rest.matches("$adopt$").count() == 4, "{rest}");
    }
}
