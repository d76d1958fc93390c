//! Every statement of producers on PostgreSQL, for the test that counts the reads of each.

use std::path::Path;
use std::{fs, io};

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

/// Returns the statements in the modules of a folder that are not in `listed`, as `module.name`:
/// constants by their names, and `module.*` where none of a module's `statements!` is listed. A
/// module may be a file or a folder of files. The modules `except` are left out.
///
/// # Errors
/// A folder or a file that cannot be read.
pub fn unlisted(folder: &Path, except: &[&str], listed: &[Listed]) -> io::Result<Vec<String>> {
    let is_listed = |name: &str| listed.iter().any(|listed| listed.name == name);
    let is_rendered = |name: &str| name.starts_with(|first: char| first.is_ascii_lowercase());
    let has_rendered = |module: &str| {
        let mut names = listed.iter().filter_map(|listed| listed.name.split_once('.'));
        names.any(|(of, name)| of == module && is_rendered(name))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if except.contains(&module.as_str()) {
            continue;
        }
        for source in sources(&path)? {
            let names = statements_in(&source).into_iter().map(|name| format!("{module}.{name}"));
            found.extend(names.filter(|name| !is_listed(name)));
            if source.contains("\nmigrations::statements! {") && !has_rendered(&module) {
                found.push(format!("{module}.*"));
            }
        }
    }
    Ok(found)
}

/// Returns the text of a source file, or of each in a folder.
fn sources(path: &Path) -> io::Result<Vec<String>> {
    if !path.is_dir() {
        return Ok(vec![fs::read_to_string(path)?]);
    }
    fs::read_dir(path)?.map(|entry| fs::read_to_string(entry?.path())).collect()
}

/// Returns the names of the constants in a source file that are statements.
fn statements_in(source: &str) -> Vec<&str> {
    let constants = source.lines().filter_map(|line| {
        let declared = match line.strip_prefix("pub(") {
            Some(visible) => visible.split_once(") ")?.1,
            None => line,
        };
        declared.strip_prefix("const ")?.split_once(": &str = \"")
    });
    // SQL begins with a capital letter, here or on the next line; other texts do not.
    let is_statement = |text: &str| text.is_empty() || text.starts_with(char::is_uppercase);
    constants.filter(|(_, text)| is_statement(text)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement that is missing in the list would never be measured.
    #[test]
    fn every_statement_is_listed() {
        let folder = Path::new("src/postgres");
        assert_eq!(unlisted(folder, &["inventory"], &statements()).unwrap(), Vec::<String>::new());
        let mut found = unlisted(folder, &["inventory"], &[]).unwrap();
        found.sort_unstable();
        assert_eq!(found, ["enqueue.*", "enqueue.RUNNING", "transaction_ids.TAKE"]);
    }
}
