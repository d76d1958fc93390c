//! The one place that builds dynamic SQL.
//!
//! Values always travel as bind parameters. A part that cannot be one (the schema, a partition's
//! name and its bounds, a text in the body of a function) enters a template only through its type:
//! a [name](SqlName), a UUID, an integer, a literal with its quotes, a rendered [`Statement`]. No
//! other text can get in.

use std::fmt;

use sqlx::types::Uuid;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::identifier::{Identifier, SqlName};

/// SQL with placeholders in braces. `{schema}` stands directly before a table's or function's name
/// and becomes `"name".` or nothing. The template's author names all other placeholders.
///
/// ```
/// use migrations::{Identifier, Template};
/// let schema = Identifier::new("app")?;
/// let statement = Template::new("SELECT count(*) FROM {schema}outbox_message").schema(Some(&schema)).render();
/// assert_eq!(statement.as_str(), r#"SELECT count(*) FROM "app".outbox_message"#);
/// # Ok::<(), migrations::InvalidIdentifier>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a template is not SQL until it is rendered"]
pub struct Template {
    text: String,
    schema: String,
}

/// Rendered SQL, cheap to clone; pass `&statement` to `sqlx::query`.
#[derive(Debug, Clone)]
pub struct Statement(SqlStr);

impl Template {
    /// Makes a template. Its text is part of the program, never of its input.
    pub fn new(text: &'static str) -> Self {
        Self { text: text.to_owned(), schema: String::new() }
    }

    /// Replaces `{schema}` with the schema's name, or with nothing: then the `search_path` decides.
    pub fn schema(mut self, schema: Option<&Identifier>) -> Self {
        self.schema = schema.map(|schema| format!("{}.", schema.quoted())).unwrap_or_default();
        self
    }

    /// Replaces placeholders with other parts of the program's own text, and joins the whole into
    /// one line, so that it fits the logs and statistics of servers. A part may name other
    /// parts.
    pub fn parts(mut self, parts: &[(&'static str, &'static str)]) -> Self {
        for _ in 0..PARTS_DEPTH {
            for (name, text) in parts {
                self = self.put(name, text);
            }
        }
        let lines = self.text.lines().map(str::trim).filter(|line| !line.is_empty());
        self.text = lines.collect::<Vec<_>>().join(" ");
        self
    }

    /// Replaces `{placeholder}` with a quoted name.
    pub fn identifier(self, placeholder: &str, name: &impl SqlName) -> Self {
        self.put(placeholder, &name.quoted())
    }

    /// Replaces `{placeholder}` with a UUID literal, with its quotes.
    pub fn uuid(self, placeholder: &str, value: Uuid) -> Self {
        self.put(placeholder, &format!("'{}'", value.hyphenated()))
    }

    /// Replaces `{placeholder}` with an integer literal.
    pub fn integer(self, placeholder: &str, value: i64) -> Self {
        self.put(placeholder, &value.to_string())
    }

    /// Replaces `{placeholder}` with another part of the program's own text, unchanged.
    pub fn part(self, placeholder: &str, text: &'static str) -> Self {
        self.put(placeholder, text)
    }

    /// Replaces `{placeholder}` with rendered SQL.
    pub fn statement(self, placeholder: &str, statement: &Statement) -> Self {
        self.put(placeholder, statement.as_str())
    }

    /// Replaces `{placeholder}` with any text as a PostgreSQL literal, with its quotes. It escapes
    /// quotes, backslashes, control characters, and characters that could end the body of a
    /// function or name a placeholder.
    pub fn literal(self, placeholder: &str, value: &str) -> Self {
        self.put(placeholder, &literal(value))
    }

    /// Returns the SQL.
    #[must_use]
    pub fn render(self) -> Statement {
        let text = self.text.replace("{schema}", &self.schema);
        debug_assert!(unknown_placeholder(&text).is_none(), "{:?} in {text}", unknown_placeholder(&text));
        // The text is the program's own. Everything put into it is a validated identifier, a UUID,
        // an integer or a quoted literal. The text is shared, so that a clone for each execution
        // copies nothing.
        Statement(AssertSqlSafe(std::sync::Arc::<str>::from(text)).into_sql_str())
    }

    fn put(mut self, placeholder: &str, value: &str) -> Self {
        self.text = self.text.replace(&format!("{{{placeholder}}}"), value);
        self
    }
}

fn literal(value: &str) -> String {
    let must_escape = |c: char| c.is_control() || matches!(c, '\'' | '\\' | '$' | '{' | '}');
    if !value.contains(must_escape) {
        return format!("'{value}'");
    }
    let escaped = |c: char| match c {
        c if must_escape(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("E'{}'", value.chars().map(escaped).collect::<String>())
}

/// How deep parts may be nested.
const PARTS_DEPTH: usize = 4;

/// Returns a name in braces that was not replaced.
fn unknown_placeholder(text: &str) -> Option<&str> {
    let is_name = |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).find(is_name)
}

impl Statement {
    /// Returns the SQL as text, for printing.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl SqlSafeStr for &Statement {
    fn into_sql_str(self) -> SqlStr {
        self.0.clone()
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Makes `Statements`, a structure of [`Statement`]s that are rendered once for a schema.
///
/// `parts` are texts that several statements share. A statement names them in braces, and can set
/// further names to its own texts:
///
/// ```text
/// migrations::statements! {
///     parts { alive = "epoch = {epoch} AND holder IS NOT NULL"; }
///     release(epoch = "$2") = "UPDATE {schema}outbox_relay SET holder = NULL WHERE relay = $1 AND {alive}";
/// }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! statements {
    (
        parts { $($part:ident = $text:expr;)* }
        $($(#[$doc:meta])* $name:ident $(($($own:ident = $value:expr),* $(,)?))? = $sql:expr;)*
    ) => {
        /// The rendered SQL.
        #[derive(Debug, Clone)]
        pub struct Statements {
            $($(#[$doc])* pub(super) $name: $crate::Statement,)*
        }

        impl Statements {
            pub(crate) fn new(schema: Option<&$crate::Identifier>) -> Self {
                let shared: &[(&'static str, &'static str)] = &[$((stringify!($part), $text)),*];
                let render = |own: &[(&'static str, &'static str)], sql| {
                    let parts: Vec<_> = own.iter().chain(shared).copied().collect();
                    $crate::Template::new(sql).parts(&parts).schema(schema).render()
                };
                Self {
                    $($name: render(&[$($((stringify!($own), $value)),*)?], $sql),)*
                }
            }

            /// Returns every statement with its name.
            #[allow(dead_code, reason = "for tests that check every statement")]
            pub(crate) fn each(&self) -> Vec<(&'static str, &$crate::Statement)> {
                vec![$((stringify!($name), &self.$name)),*]
            }
        }
    };
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)*) => {
        $crate::statements! { parts {} $($(#[$doc])* $name = $sql;)* }
    };
}

/// A condition on PostgreSQL that is true, and makes the current transaction wait for the disk even
/// if the server's settings do not. A macro, because `concat!` takes only literals.
#[macro_export]
macro_rules! waits_for_the_disk {
    () => {
        "(current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'local', true) = 'local')"
    };
}

/// Makes `Shared`, a structure of the [`Statement`]s that every database has, from their names, and
/// the macro `shared_of!`, which takes them from the `Statements` of one database.
///
/// ```text
/// migrations::shared_statements! { $ find insert }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! shared_statements {
    ($dollar:tt $($name:ident)*) => {
        /// The SQL that every database has, rendered for one of them and a schema.
        #[derive(Debug)]
        pub struct Shared {
            $(pub(crate) $name: $crate::Statement,)*
        }

        /// Takes the statements that all databases have from those of one.
        macro_rules! shared_of {
            ($dollar statements:expr) => {
                Shared { $($name: $dollar statements.$name.clone(),)* }
            };
        }
        pub(crate) use shared_of;
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_schema_the_name_stands_alone() {
        assert_eq!(Template::new("TABLE {schema}t").schema(None).render().as_str(), "TABLE t");
        assert_eq!(Template::new("TABLE {schema}t").render().as_str(), "TABLE t");
    }

    #[test]
    fn parts_are_put_in_with_the_parts_that_they_name() {
        let parts = [("from", "{schema}t WHERE {alive}"), ("alive", "holder = {holder}"), ("holder", "$1")];
        let statement = Template::new("\n    SELECT 1\n    FROM {from} AND x = '{}'").parts(&parts).render();
        assert_eq!(statement.as_str(), "SELECT 1 FROM t WHERE holder = $1 AND x = '{}'");
        assert_eq!(unknown_placeholder("SELECT {own} FROM '{}' {Big}"), Some("own"));
        assert_eq!(unknown_placeholder(statement.as_str()), None);
    }

    #[test]
    fn no_text_leaves_its_literal() {
        let put = |value| Template::new("SELECT {a}, {b}").literal("a", value).part("b", "1").render();
        assert_eq!(put("text/plain; q=1").as_str(), "SELECT 'text/plain; q=1', 1");
        assert_eq!(put("it's").as_str(), r"SELECT E'it\u0027s', 1");
        assert_eq!(put(r"\").as_str(), r"SELECT E'\u005c', 1");
        assert_eq!(
            put("$x$\n{b}{schema}").as_str(),
            r"SELECT E'\u0024x\u0024\u000a\u007bb\u007d\u007bschema\u007d', 1"
        );
        let inner = Template::new("lower({x})").literal("x", "A").render();
        let outer = Template::new("SELECT {inner}").statement("inner", &inner).render();
        assert_eq!(outer.as_str(), "SELECT lower('A')");
    }

    #[test]
    fn placeholders_take_their_typed_values() {
        let name = Identifier::new("order").unwrap();
        let statement = Template::new("CREATE TABLE {part} VALUES FROM ({from}) {n}")
            .identifier("part", &name)
            .uuid("from", Uuid::nil())
            .integer("n", -3)
            .render();
        let expected = "CREATE TABLE \"order\" VALUES FROM ('00000000-0000-0000-0000-000000000000') -3";
        assert_eq!(statement.as_str(), expected);
    }
}
