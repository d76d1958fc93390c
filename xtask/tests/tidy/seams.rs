//! How much of the tree has to know a database, a broker or a setting. The numbers may only fall:
//! each says what a third database, another broker or one more setting would cost
//! (`docs/adr/0046-the-log-has-two-folders.md`).

use std::collections::BTreeSet;

use super::{PRODUCT, assert_none, has_word, texts};

/// Folders of tests, and of what only tests and demonstrations use.
const TESTS: [&str; 3] = ["tests/", "testkit/", "examples/"];

/// A setting of the engine. Its like touch as many files.
const SETTING: &str = "silent_after";

/// A number that may only fall.
struct Seam {
    what: &'static str,
    recorded: usize,
    /// Advice for when it has grown.
    advice: &'static str,
}

const METHODS: Seam = Seam {
    what: "methods that PostgreSQL implements of traits of ours, in its folders",
    recorded: 121,
    advice: "write the body once, in `tables` or `rows.rs`, and add only the text of a statement",
};

const TRAITS: Seam = Seam {
    what: "traits of ours that PostgreSQL implements, in its folders",
    recorded: 16,
    advice: "add a method to a trait of the same store",
};

const SQLITE_IN_PRODUCT: Seam = Seam {
    what: "product files outside the folders of SQLite that name it",
    recorded: 117,
    advice: "ask the trait of the database, or speak of \"the database\" in general",
};

const SQLITE_IN_TESTS: Seam = Seam {
    what: "files of tests outside the folders of SQLite that name it",
    recorded: 107,
    advice: "list the case under `every` or `databases`, or put it into a file that names it already",
};

const RABBITMQ_IN_PRODUCT: Seam = Seam {
    what: "product files outside the folders of RabbitMQ that name it",
    recorded: 45,
    advice: "ask the traits of `message`, or add what differs to the adapter's facts",
};

const RABBITMQ_IN_TESTS: Seam = Seam {
    what: "files of tests outside the folders of RabbitMQ that name it",
    recorded: 90,
    advice: "list the case under `every_broker`, or put it into a file that names it already",
};

const FILES_OF_A_SETTING: Seam = Seam {
    what: "product files that name the setting `silent_after`",
    recorded: 8,
    advice: "let the value travel in its struct of settings, and read it where it is used",
};

impl Seam {
    /// Returns what is wrong with a number, if it differs from the recorded one.
    fn fault(&self, found: usize) -> Option<String> {
        let Self { what, recorded, advice } = self;
        if found > *recorded {
            let more = found - recorded;
            return Some(format!(
                "{found} {what}, {more} more than recorded: {advice}; if that cannot be, record {found} \
                 and let the commit say why"
            ));
        }
        let fewer = recorded - found;
        (fewer > 0).then(|| format!("{found} {what}, {fewer} fewer than recorded: record {found}"))
    }
}

/// Whether a file is in a folder of this name, or has the name itself.
fn belongs_to(path: &str, name: &str) -> bool {
    path.split('/').any(|part| part.strip_suffix(".rs").unwrap_or(part) == name)
}

/// Counts the files below these folders that name something outside the folders of its own.
fn naming(files: &[(String, String)], folders: &[&str], name: &str) -> usize {
    let is_outside =
        |path: &str| folders.iter().any(|folder| path.starts_with(folder)) && !belongs_to(path, name);
    files.iter().filter(|(path, text)| is_outside(path) && text.to_lowercase().contains(name)).count()
}

/// Returns the names of the traits that a text declares.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (before, rest) = line.trim_start().split_once("trait ")?;
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        ["", "pub ", "pub(crate) ", "pub(super) "].contains(&before).then(|| &rest[..end])
    })
}

/// Returns the name of the trait that an `impl` begins with, which stands behind that word.
fn implemented(head: &str) -> Option<&str> {
    let (path, _) = head.split_once(" for ")?;
    let mut depth = 0;
    // The parameters of the `impl` itself come before the trait.
    let begin = path.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0 && c == ' '
    })?;
    path[begin + 1..].split('<').next()?.rsplit("::").next()
}

/// Returns the trait of each method that a text implements of these traits, but for tests.
fn methods<'t>(text: &'t str, traits: &BTreeSet<&str>) -> Vec<&'t str> {
    let mut found = Vec::new();
    let mut open = None;
    for line in text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")) {
        let is_method = ["    fn ", "    async fn "].iter().any(|begin| line.starts_with(begin));
        match (line.strip_prefix("impl"), open) {
            (Some(head), _) => open = implemented(head).filter(|name| traits.contains(name)),
            (None, Some(name)) if is_method => found.push(name),
            (None, _) if line.starts_with('}') => open = None,
            (None, _) => {}
        }
    }
    found
}

#[test]
fn seams_do_not_grow() {
    let files = texts(&[".rs"]);
    let is_product = |path: &str| PRODUCT.iter().any(|folder| path.starts_with(folder));
    let product: Vec<_> = files.iter().filter(|(path, _)| is_product(path)).collect();
    let traits: BTreeSet<&str> = product.iter().flat_map(|(_, text)| declared(text)).collect();
    let of_postgres = product.iter().filter(|(path, _)| belongs_to(path, "postgres"));
    let found: Vec<&str> = of_postgres.flat_map(|(_, text)| methods(text, &traits)).collect();
    let of_setting = product.iter().filter(|(_, text)| text.lines().any(|line| has_word(line, SETTING)));
    let faults = [
        METHODS.fault(found.len()),
        TRAITS.fault(found.iter().collect::<BTreeSet<_>>().len()),
        SQLITE_IN_PRODUCT.fault(naming(&files, &PRODUCT, "sqlite")),
        SQLITE_IN_TESTS.fault(naming(&files, &TESTS, "sqlite")),
        RABBITMQ_IN_PRODUCT.fault(naming(&files, &PRODUCT, "rabbitmq")),
        RABBITMQ_IN_TESTS.fault(naming(&files, &TESTS, "rabbitmq")),
        FILES_OF_A_SETTING.fault(of_setting.count()),
    ];
    assert_none(&faults.into_iter().flatten().collect::<Vec<_>>());
}

#[test]
fn a_number_that_differs_is_told_with_what_to_do() {
    let seam = Seam { what: "files", recorded: 3, advice: "use the seam" };
    assert_eq!(seam.fault(3), None);
    let grown = seam.fault(5).expect("it has grown");
    assert!(grown.starts_with("5 files, 2 more than recorded: use the seam; "), "{grown}");
    assert_eq!(seam.fault(2).as_deref(), Some("2 files, 1 fewer than recorded: record 2"));
}

#[test]
fn methods_and_names_are_counted_in_a_text() {
    let text = "pub(crate) trait Store<T>: Send {\n    fn own(&self);\n}\n/// A trait of others.\n\
                impl crate::Store<u8> for Postgres {\n    const A: u8 = 0;\n    fn one() {\n        fn inner() {}\n    }\n\
                \x20   async fn two() {}\n}\nimpl Postgres {\n    fn own() {}\n}\n\
                impl<T: From<u8>> Store<T> for Log<T> {\n    fn three() {}\n}\n\
                impl fmt::Display for Log {\n    fn fmt() {}\n}\n\
                #[cfg(test)]\nmod tests {}\nimpl Store<u8> for Fake {\n    fn four() {}\n}";
    let traits: BTreeSet<&str> = declared(text).collect();
    assert_eq!(traits, BTreeSet::from(["Store"]));
    assert_eq!(methods(text, &traits), ["Store"; 3]);
    let files = [
        ("saga/src/sqlite/store.rs", "Sqlite"),
        ("saga/src/sqlite.rs", "Sqlite"),
        ("saga/src/tables.rs", "of SQLite"),
        ("saga/src/lib.rs", "of a database"),
        ("tests/src/lib.rs", "sqlite"),
    ]
    .map(|(path, text)| (path.to_owned(), text.to_owned()));
    assert_eq!(naming(&files, &["saga/"], "sqlite"), 1);
    assert_eq!(naming(&files, &TESTS, "sqlite"), 1);
}
