//! The rights that the role scripts grant and revoke, as rows: `relay doctor` compares them with a
//! database.
//!
//! The scripts (`sql/postgres/roles`) are the only list of rights. This module reads the few forms
//! of statements that they use, and refuses every other form, so that no right is overlooked.

mod words;

use crate::line::Line;
use crate::roles::template;
use words::Words;

/// The kind of an object that has rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// The schema of the tables.
    Schema,
    /// A table.
    Table,
    /// Every partition of a table.
    Partitions,
    /// A sequence.
    Sequence,
    /// A function.
    Function,
}

impl ObjectKind {
    /// Returns the lower-case word: `schema`, `table`, `partitions`, `sequence` or `function`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Schema => "schema",
            Self::Table => "table",
            Self::Partitions => "partitions",
            Self::Sequence => "sequence",
            Self::Function => "function",
        }
    }

    /// Returns the privileges that a script may grant.
    fn privileges(self) -> &'static [&'static str] {
        match self {
            Self::Schema => &["USAGE", "CREATE"],
            Self::Table => &["SELECT", "INSERT", "UPDATE", "DELETE"],
            Self::Partitions => &[],
            Self::Sequence => &["SELECT", "USAGE", "UPDATE"],
            Self::Function => &["EXECUTE"],
        }
    }
}

/// A right that a script grants to one role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granted {
    /// The role as [`Roles`](crate::Roles) calls it: `producer`, `relay`, …
    pub role: &'static str,
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object's name without its schema; for a function, with the types of its arguments:
    /// `outbox_stored(uuid[])`. Empty for the schema.
    pub object: String,
    /// `SELECT`, `EXECUTE`, …
    pub privilege: &'static str,
    /// The column, if the right is for single columns.
    pub column: Option<String>,
}

/// An object on which a script revokes all rights of one role, before it grants some.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revoked {
    /// The role as [`Roles`](crate::Roles) calls it, or `public` for every role.
    pub role: &'static str,
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object's name without its schema, as in [`Granted`].
    pub object: String,
}

/// The rights in the script of one line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// All rights that it grants.
    pub granted: Vec<Granted>,
    /// All objects on which a role has no other right.
    pub revoked: Vec<Revoked>,
}

/// A statement of a role script in a form that [`Rights`] does not know. A fault of the program,
/// which its tests find; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the script of roles has a statement of an unknown form: {statement}")]
pub struct UnknownStatement {
    /// The statement.
    pub statement: String,
}

/// The name of every role in [`Revoked`].
const PUBLIC: &str = "public";
/// The beginnings of lines in a script's block that change no right. The roles that it creates have
/// none.
const WITHOUT_RIGHTS: [&str; 7] = [
    "DECLARE",
    "home text := (SELECT relnamespace::regnamespace FROM pg_class ",
    "part regclass;",
    "BEGIN",
    "IF to_regrole('",
    "PERFORM pg_advisory_xact_lock(",
    "END",
];
const EACH_PARTITION: [&str; 2] =
    ["FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = '", "'::regclass LOOP"];

impl Rights {
    /// Reads the script of a line.
    ///
    /// # Errors
    /// [`UnknownStatement`] for a statement that this module cannot read.
    pub fn of(line: Line) -> Result<Self, UnknownStatement> {
        Self::read(template(line))
    }

    fn read(script: &str) -> Result<Self, UnknownStatement> {
        let mut rights = Self::default();
        let mut parts = script.split("$roles$").map(without_comments);
        let (before, block) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        known(before == "BEGIN READ WRITE;\nDO", &before)?;
        rights.read_block(&block)?;
        let after: String = parts.collect();
        for statement in after.split_terminator(';').map(str::trim) {
            let is_known = matches!(statement, "" | "COMMIT") || rights.read_statement(statement).is_some();
            known(is_known, statement)?;
        }
        known(after.ends_with("COMMIT;"), "the end")?;
        Ok(rights)
    }

    /// Reads the block in which a script finds the schema and the partitions of its tables.
    fn read_block(&mut self, block: &str) -> Result<(), UnknownStatement> {
        let mut partitioned = None;
        for line in block.lines() {
            if let Some(table) = between(line, EACH_PARTITION) {
                partitioned = Some(format!("PARTITIONS {table}"));
                continue;
            }
            let home = between(line, ["EXECUTE format('", "', home);"]).zip(Some("{schema}"));
            let part = between(line, ["EXECUTE format('", "', part);"]).zip(partitioned.as_deref());
            let is_known = match home.or(part) {
                Some((format, object)) => self.read_statement(&format.replace("%s", object)).is_some(),
                None => {
                    let is_harmless = WITHOUT_RIGHTS.iter().any(|beginning| line.starts_with(beginning));
                    is_harmless && !line.contains("GRANT") && !line.contains("REVOKE")
                }
            };
            known(is_known, line)?;
        }
        Ok(())
    }

    /// Adds the rights of one statement. Returns `None` if it has an unknown form.
    fn read_statement(&mut self, text: &str) -> Option<()> {
        let mut words = Words::of(text);
        match words.next()? {
            "GRANT" => self.read_grant(words),
            "REVOKE" => self.read_revoke(words),
            _ => None,
        }
    }

    fn read_grant(&mut self, mut words: Words<'_>) -> Option<()> {
        let privileges = words.list(|words| {
            let privilege = words.next()?;
            let columns = match words.expect("(") {
                Some(()) => Some(words.until_closed()?),
                None => None,
            };
            Some((privilege, columns))
        })?;
        words.expect("ON")?;
        let (kind, objects) = words.objects()?;
        words.expect("TO")?;
        for role in words.roles()? {
            for object in &objects {
                for (privilege, columns) in &privileges {
                    let privilege = *kind.privileges().iter().find(|known| *known == privilege)?;
                    let right = |column| {
                        let object = object.clone();
                        Granted { role, kind, object, privilege, column }
                    };
                    match columns {
                        None => self.granted.push(right(None)),
                        Some(columns) if !columns.is_empty() && has_columns(kind, privilege) => {
                            self.granted.extend(columns.iter().map(|column| right(Some(column.clone()))));
                        }
                        Some(_) => return None,
                    }
                }
            }
        }
        Some(())
    }

    fn read_revoke(&mut self, mut words: Words<'_>) -> Option<()> {
        words.expect("ALL")?;
        words.expect("ON")?;
        let (kind, objects) = words.objects()?;
        words.expect("FROM")?;
        for role in words.roles()? {
            self.revoked.extend(objects.iter().map(|object| Revoked { role, kind, object: object.clone() }));
        }
        Some(())
    }
}

/// Returns whether a privilege may be for single columns.
fn has_columns(kind: ObjectKind, privilege: &str) -> bool {
    kind == ObjectKind::Table && privilege != "DELETE"
}

fn known(is_known: bool, statement: &str) -> Result<(), UnknownStatement> {
    if is_known { Ok(()) } else { Err(UnknownStatement { statement: statement.to_owned() }) }
}

/// Returns the lines that are not comments, without indentation.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

fn between<'t>(line: &'t str, [beginning, end]: [&str; 2]) -> Option<&'t str> {
    line.strip_prefix(beginning)?.strip_suffix(end)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SCRIPT: [&str; 2] = ["BEGIN READ WRITE;\nDO $roles$\nBEGIN\n", "END\n$roles$;\n"];

    fn read(in_block: &str, after: &str) -> Result<Rights, UnknownStatement> {
        let [begin, end] = SCRIPT;
        Rights::read(&format!("{begin}{in_block}\n{end}{after}\nCOMMIT;\n"))
    }

    /// Every word of every statement is a word of SQL or is in a row. Oracle: the text of the
    /// script, cut without this module.
    #[test]
    fn every_statement_of_every_script_is_in_the_list() {
        let sql = ["GRANT", "REVOKE", "ALL", "ON", "TO", "FROM", "FUNCTION", "SEQUENCE", "PUBLIC", "schema"];
        for line in Line::ALL {
            let rights = Rights::of(line).unwrap();
            let granted = rights.granted.iter().flat_map(|right| {
                [right.role, right.privilege, &right.object].into_iter().chain(right.column.as_deref())
            });
            let revoked = rights.revoked.iter().flat_map(|row| [row.role, row.object.as_str()]);
            let words = |text: &str| -> Vec<String> {
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
            };
            let listed: BTreeSet<String> = granted.chain(revoked).flat_map(words).collect();
            let script = template(line);
            let lines: Vec<&str> = script.lines().filter(|line| !line.trim().starts_with("--")).collect();
            let text = lines.join("\n");
            let after = text.rsplit_once("$roles$;").unwrap().1.trim().trim_end_matches("COMMIT;");
            let missing: Vec<String> = words(after)
                .into_iter()
                .filter(|word| !sql.contains(&word.as_str()) && !listed.contains(word))
                .collect();
            assert_eq!(missing, Vec::<String>::new(), "{line}");
            let has = |role, kind, privilege| {
                rights
                    .granted
                    .iter()
                    .any(|right| right.role == role && right.kind == kind && right.privilege == privilege)
            };
            assert!(has("migrator", ObjectKind::Schema, "CREATE"), "{line}");
            let roles: BTreeSet<&str> = rights.granted.iter().map(|right| right.role).collect();
            assert!(roles.iter().all(|role| has(role, ObjectKind::Schema, "USAGE")), "{line}");
        }
    }

    /// Otherwise a right from before would stay, and a right beyond the list would not be noticed.
    #[test]
    fn every_script_first_revokes_all_rights_on_what_it_grants() {
        for line in Line::ALL {
            let rights = Rights::of(line).unwrap();
            let revoked: BTreeSet<&Revoked> = rights.revoked.iter().collect();
            for right in &rights.granted {
                // PUBLIC may execute functions that do no harm. The schema is the owner's.
                if matches!(right.kind, ObjectKind::Schema | ObjectKind::Function) {
                    continue;
                }
                for role in [right.role, PUBLIC] {
                    let row = Revoked { role, kind: right.kind, object: right.object.clone() };
                    assert!(revoked.contains(&row), "{line}: {row:?}");
                }
            }
        }
    }

    #[test]
    fn a_statement_becomes_one_row_for_each_right() {
        let block = "EXECUTE format('GRANT USAGE ON SCHEMA %s TO {relay}', home);
            FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = '{schema}t'::regclass LOOP
                EXECUTE format('REVOKE ALL ON %s FROM PUBLIC, {relay}', part);
            END LOOP;";
        let after = "-- GRANT SELECT ON {schema}t TO {worker};
            GRANT INSERT (a, b), SELECT ON {schema}t TO {producer};
            GRANT EXECUTE ON FUNCTION {schema}f(), {schema}g(text, uuid[]) TO {relay};";
        let rights = read(block, after).unwrap();
        let shown = |right: &Granted| {
            let column = right.column.as_deref().unwrap_or("-");
            format!("{} {} {} {} {column}", right.role, right.kind.as_str(), right.object, right.privilege)
        };
        let granted: Vec<String> = rights.granted.iter().map(shown).collect();
        let expected = [
            "relay schema  USAGE -",
            "producer table t INSERT a",
            "producer table t INSERT b",
            "producer table t SELECT -",
            "relay function f() EXECUTE -",
            "relay function g(text, uuid[]) EXECUTE -",
        ];
        assert_eq!(granted, expected);
        let of = |role| Revoked { role, kind: ObjectKind::Partitions, object: String::from("t") };
        assert_eq!(rights.revoked, [of(PUBLIC), of("relay")]);
    }

    #[test]
    fn a_statement_of_another_form_is_refused() {
        assert!(read("", "GRANT SELECT ON {schema}t TO {relay};").is_ok());
        for after in [
            "GRANT ALL ON {schema}t TO {relay};",
            "GRANT SELECT ON t TO {relay};",
            "GRANT SELECT ON {schema} TO {relay};",
            "GRANT SELECT ON {schema}t TO relay;",
            "GRANT SELECT ON {schema}t TO {owner};",
            "GRANT SELECT ON {schema}t TO {relay} WITH GRANT OPTION;",
            "GRANT SELECT, ON {schema}t TO {relay};",
            "GRANT SELECT (a ON {schema}t TO {relay};",
            "GRANT SELECT () ON {schema}t TO {relay};",
            "GRANT SELECT (a,)) ON {schema}t TO {relay};",
            "GRANT SELECT ON ALL TABLES IN SCHEMA {schema}t TO {relay};",
            "GRANT DELETE (a) ON {schema}t TO {relay};",
            "GRANT TRUNCATE ON {schema}t TO {relay};",
            "GRANT EXECUTE ON {schema}t TO {relay};",
            "GRANT EXECUTE ON FUNCTION {schema}f TO {relay};",
            "GRANT {producer} TO {relay};",
            "REVOKE SELECT ON {schema}t FROM {relay};",
            "ALTER TABLE {schema}t OWNER TO {relay};",
            "GRANT SELECT ON {schema}t TO {relay}",
        ] {
            assert!(read("", after).is_err(), "{after}");
        }
        for line in [
            "GRANT SELECT ON {schema}t TO {relay};",
            "EXECUTE format('GRANT SELECT ON %s TO {relay}', home);",
            "EXECUTE format('REVOKE ALL ON %s FROM {relay}', part);",
            "EXECUTE 'GRANT SELECT ON t TO {relay}';",
            "ALTER ROLE {relay} SUPERUSER;",
            "IF to_regrole('{relay}') IS NULL THEN GRANT SELECT ON t TO {relay}; END IF;",
        ] {
            assert!(read(line, "").is_err(), "{line}");
        }
        assert!(Rights::read("GRANT SELECT ON {schema}t TO {relay};").is_err());
    }
}
