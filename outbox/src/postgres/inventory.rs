//! Every statement of producers on PostgreSQL, for the test that counts the reads of each.

use migrations::{Statement, Template};

use crate::postgres::{enqueue, transaction_ids};

/// A statement with its name in the program.
#[derive(Debug, Clone)]
pub struct Listed {
    /// `module.name`.
    pub name: String,
    /// The SQL. The `search_path` finds its tables.
    pub sql: String,
}

impl Listed {
    /// Lists statements of a module that are rendered together.
    #[must_use]
    pub fn all_of(module: &str, each: Vec<(&'static str, &Statement)>) -> Vec<Self> {
        let of = |(name, statement): (&str, &Statement)| Self {
            name: format!("{module}.{name}"),
            sql: statement.as_str().to_owned(),
        };
        each.into_iter().map(of).collect()
    }

    /// Lists a statement that is a constant of its module.
    #[must_use]
    pub fn constant(name: &str, text: &'static str) -> Self {
        Self { name: name.to_owned(), sql: Template::new(text).render().as_str().to_owned() }
    }
}

/// Statements that are constants of their modules.
const CONSTANTS: [(&str, &str); 2] =
    [("enqueue.RUNNING", enqueue::RUNNING), ("transaction_ids.TAKE", transaction_ids::TAKE)];

/// Returns every statement.
#[must_use]
pub fn statements() -> Vec<Listed> {
    let mut listed = Listed::all_of("enqueue", enqueue::Statements::new(None).each());
    listed.extend(CONSTANTS.iter().map(|(name, text)| Listed::constant(name, text)));
    listed
}
