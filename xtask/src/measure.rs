//! The size of the tree, in numbers that a change of its structure should make smaller.
//!
//! They are counted from the text of the files in git, by the rules of rustfmt: an item of a module
//! begins in the first column, and ends with a brace there.

use crate::{git, report, workspace};
use serde_json::json;
use std::{fs, path::Path, process::ExitCode};

/// Counts lines, crates, public items, and the files and methods that one more database or broker
/// needs
///
/// Reads the files that git tracks.
#[derive(Debug, clap::Args)]
pub(crate) struct Measure {
    #[arg(long, value_enum, default_value_t, help = "Form of the result on stdout")]
    output: report::Output,
}

/// Folders by purpose. Files outside all of them are not counted.
const PARTS: [(&str, &[&str]); 4] = [
    (
        "product",
        &["brokers", "idempotency", "inbox", "message", "migrations", "outbox", "relay", "saga", "src"],
    ),
    ("proof tools", &["testkit", "examples"]),
    ("tests", &["tests"]),
    ("xtask", &["xtask"]),
];
/// A file above this many lines usually has two responsibilities.
const FILE_LINES_MAX: usize = 400;

/// Names that stand for typical changes: one more of these touches about as many files.
const TYPICAL: [(&str, &str); 3] = [
    ("a setting", "silent_after"),
    ("a class of failures", "Fault::Operator"),
    ("kinds of steps", "StepKind"),
];

/// A tracked file.
struct Source {
    path: String,
    text: String,
}

/// One line of the table.
#[derive(Debug, PartialEq)]
struct Count {
    what: String,
    count: usize,
}

pub(crate) fn run(options: &Measure) -> Result<ExitCode, String> {
    let counts = counts(&tracked(&workspace::root()?)?);
    match options.output {
        report::Output::Json => {
            report::json(&counts.iter().map(|line| (line.what.clone(), json!(line.count))).collect());
        }
        report::Output::Table => {
            let rows = counts.into_iter().map(|line| [line.what, line.count.to_string()]);
            println!("{}", report::table(["measure", "count"], rows));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads every text file of a part.
fn tracked(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in git::answer(root, ["ls-files"])?.lines() {
        if part(path).is_none() {
            continue;
        }
        // A file may have been removed without a commit, or may not be text.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    Ok(sources)
}

fn part(path: &str) -> Option<&'static str> {
    let folder = path.split('/').next()?;
    PARTS.iter().find(|(_, folders)| folders.contains(&folder)).map(|(name, _)| *name)
}

fn counts(sources: &[Source]) -> Vec<Count> {
    let mut counts = Vec::new();
    let mut add = |what: String, count: usize| counts.push(Count { what, count });
    for (name, _) in PARTS {
        let of_part = || sources.iter().filter(|file| part(&file.path) == Some(name));
        let rust = || of_part().filter(|file| file.path.ends_with(".rs"));
        add(format!("{name}: lines of Rust"), rust().map(|file| file.text.lines().count()).sum());
        add(format!("{name}: files of Rust"), rust().count());
        let long = rust().filter(|file| file.text.lines().count() > FILE_LINES_MAX).count();
        add(format!("{name}: files above {FILE_LINES_MAX} lines"), long);
        add(format!("{name}: crates"), of_part().filter(|file| file.path.ends_with("Cargo.toml")).count());
        let items = rust().flat_map(|file| file.text.lines()).filter(|line| is_public_item(line)).count();
        add(format!("{name}: public items"), items);
        for [database, other] in [["sqlite", "postgres"], ["rabbitmq", "sqs"]] {
            let named = rust().filter(|file| names_outside(file, database, other)).count();
            add(format!("{name}: files that name {database} outside its folder"), named);
        }
    }
    let product = || sources.iter().filter(|file| part(&file.path) == Some("product"));
    let methods: Vec<usize> = product().flat_map(|file| methods_of_a_database(&file.text)).collect();
    add(String::from("product: traits that a database implements"), methods.len());
    add(String::from("product: methods that a database implements"), methods.iter().sum());
    for (what, name) in TYPICAL {
        let named = product().filter(|file| file.path.ends_with(".rs") && file.text.contains(name)).count();
        add(format!("product: files that name {what} ({name})"), named);
    }
    counts
}

fn is_public_item(line: &str) -> bool {
    let items =
        ["async fn", "const", "enum", "fn", "macro", "mod", "static", "struct", "trait", "type", "union"];
    let item = line.trim_start().strip_prefix("pub ");
    item.is_some_and(|rest| items.iter().any(|item| rest.starts_with(&format!("{item} "))))
}

/// Whether a file outside the folders of an adapter and of its sibling names the adapter.
fn names_outside(file: &Source, name: &str, sibling: &str) -> bool {
    let is_own = file.path.split(['/', '.']).any(|step| step == name || step == sibling);
    !is_own && file.text.to_ascii_lowercase().contains(name)
}

/// Whether a trait is implemented here for the database, or for a part of its store.
fn is_of_postgres(line: &str) -> bool {
    let implemented = line.strip_prefix("impl").and_then(|rest| rest.strip_suffix(" {"));
    let name = implemented.and_then(|rest| rest.split_once(" for ")).map(|(_, name)| name);
    let name = name.map(|name| name.rsplit("::").next().unwrap_or(name));
    name.is_some_and(|name| name.starts_with("Postgres") || name.starts_with("Pg"))
}

/// Returns the number of methods of each trait that is implemented for PostgreSQL.
fn methods_of_a_database(text: &str) -> Vec<usize> {
    let mut traits = Vec::new();
    let mut open: Option<usize> = None;
    for line in text.lines() {
        if is_of_postgres(line) {
            open = Some(0);
        } else if line == "}" {
            traits.extend(open.take());
        } else if let Some(methods) = &mut open {
            let method = line.strip_prefix("    ").unwrap_or_default();
            *methods += usize::from(method.starts_with("fn ") || method.starts_with("async fn "));
        }
    }
    traits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_of(counts: &[Count], what: &str) -> Option<usize> {
        counts.iter().find(|line| line.what == what).map(|line| line.count)
    }

    #[test]
    fn files_methods_and_items_are_counted() {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let store = "pub struct A;\nimpl Store for Postgres {\n    fn a() {\n    }\n    async fn b();\n}\n\
                     impl log::Reader for PgReader {\n    fn e() {}\n}\nimpl A {\n    pub(crate) fn c() {}\n    pub fn d() {}\n}\n";
        let counts = counts(&[
            source("saga/src/postgres/store.rs", store),
            source("saga/src/lib.rs", "//! Sagas on SQLite: StepKind.\n"),
            source("saga/Cargo.toml", ""),
            source("tests/src/queues.rs", "use brokers::rabbitmq;\n"),
        ]);
        for (what, expected) in [
            ("product: lines of Rust", 14),
            ("product: files of Rust", 2),
            ("product: crates", 1),
            ("product: public items", 2),
            ("product: files that name sqlite outside its folder", 1),
            ("tests: files that name rabbitmq outside its folder", 1),
            ("product: traits that a database implements", 2),
            ("product: methods that a database implements", 3),
            ("product: files that name kinds of steps (StepKind)", 1),
        ] {
            assert_eq!(count_of(&counts, what), Some(expected), "{what}: {counts:?}");
        }
    }
}
