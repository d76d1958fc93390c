//! Rules of style: words that a stranger finds by grep, comments that begin with their subject,
//! short lines, few folders at the root, one public path for each name, named parameters, no
//! circles of modules, and seams and lists of public names that do not grow.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "tidy/begins.rs"]
mod begins;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/seams.rs"]
mod seams;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders that contain no text of ours.
const SKIPPED: [&str; 3] = ["target", "corpus", "node_modules"];

/// Decisions and history keep the words of their time.
const HISTORY: [&str; 2] = ["docs/adr", "CHANGELOG.md"];

/// This file names the old words.
const ITSELF: &str = "xtask/tests/tidy.rs";

/// The longest comment, in columns.
const COMMENT_MAX: usize = 100;

/// The longest line of a document, in columns. Code, tables and addresses cannot be wrapped.
const DOCUMENT_MAX: usize = 110;

/// The maximum number of folders at the root, so that all are seen at a glance.
const FOLDERS_MAX: usize = 14;

/// Folders of the crates that are released to users and operators.
const PRODUCT: [&str; 9] =
    ["brokers/", "idempotency/", "inbox/", "message/", "migrations/", "outbox/", "relay/", "saga/", "src/"];

/// Options that no release exports: simulations set them, through a feature for tests.
const INTERNAL_OPTIONS: [&str; 1] = ["RunnerOptions"];

/// Private words of earlier days, and the words that replace them.
const WORDS: [(&str, &str); 30] = [
    ("Host", "Runtime"),
    ("LogKeeper", "CheckpointStore"),
    ("PgKeeper", "PgCheckpointStore"),
    ("SqliteKeeper", "SqliteCheckpointStore"),
    ("KeeperEnd", "CheckpointerEnd"),
    ("to_its_end", "shield"),
    ("Tempest", "FaultInjector"),
    ("tempest", "fault_injector"),
    ("Strike", "PlannedFault"),
    ("Struck", "Injected"),
    ("Grave", "NewDeadLetter"),
    ("bury", "store_dead_letter"),
    ("Trouble", "ErrorKind"),
    ("Fate", "TransactionStatus, or an outcome with a name of its own"),
    ("IdTape", "ReplayedIds"),
    ("Decree", "OperatorDecision"),
    ("Mint", "IdGenerator"),
    ("NodeMint", "NodeIdGenerator"),
    ("WakeUp", "CommitNotify"),
    ("KeyWindow", "MaxInFlightPerKey"),
    ("key_window", "max_in_flight_per_key"),
    ("Lanes", "KeyQueues"),
    ("LinkEvent", "BrokerEvent"),
    ("Tapped", "ReadTopic"),
    ("learn_days", "learn_partitions"),
    ("set_aside", "park_from_window"),
    ("judge", "classify, decide, validate or check"),
    ("judge_batch", "validate_batch"),
    ("judge_commit", "classify_commit"),
    ("NoScope", "NoTenant"),
];

/// Names from elsewhere that are spelled like old words.
const OTHERS: [&str; 1] = ["Host:"];

/// Returns the texts below the root whose names have one of these endings, with their paths from
/// the root.
fn texts(ends: &[&str]) -> Vec<(String, String)> {
    let root = Path::new("..");
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the checkout") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if ends.iter().any(|end| name.ends_with(end)) {
                let text = fs::read_to_string(&path).expect("a text");
                let path = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 10, "only {} texts end with {ends:?}", found.len());
    found.sort();
    found
}

/// Returns a line's comment, without the characters that begin it.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.trim_start_matches(['/', '!']).trim_start())
}

/// Whether a word stands in a line by itself.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part)
            && !after.starts_with(is_part)
            && !OTHERS.iter().any(|other| line[at..].starts_with(other))
    })
}

fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

#[test]
fn names_are_those_of_the_field() {
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs", ".patch", ".md"]) {
        if path == ITSELF || HISTORY.iter().any(|history| path.starts_with(history)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            // In prose it may be an ordinary English word.
            let is_prose = path.ends_with(".md") && !line.contains('`') || comment(line).is_some();
            for (old, new) in WORDS.iter().filter(|(old, _)| !is_prose && has_word(line, old)) {
                found.push(format!("{path}:{}: {old:?} is called {new}", number + 1));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn comments_begin_with_their_subject() {
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        let mut is_begun = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = comment(line) else {
                is_begun = false;
                continue;
            };
            let word = comment.split_whitespace().next().unwrap_or_default();
            if !is_begun && ["What", "Whatever", "Whoever"].contains(&word) {
                found.push(format!("{path}:{}: begins with {word:?}: {comment}", number + 1));
            }
            is_begun = !comment.is_empty();
        }
    }
    assert_none(&found);
}

#[test]
fn comments_are_short() {
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = comment(line) else {
                is_code = false;
                continue;
            };
            is_code ^= comment.starts_with("```");
            // Code, tables and addresses cannot be wrapped.
            let is_whole =
                is_code || comment.starts_with('|') || comment.contains("](") || comment.contains("://");
            let columns = line.chars().count();
            if columns > COMMENT_MAX && !is_whole {
                found.push(format!("{path}:{}: {columns} columns, at most {COMMENT_MAX}", number + 1));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn lines_of_documents_are_short() {
    let mut found = Vec::new();
    for (path, text) in texts(&[".md"]) {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let is_link = line.contains("](") || (line.starts_with('[') && line.contains("]: http"));
            let is_whole = is_code || line.trim_start().starts_with('|') || is_link;
            let columns = line.chars().count();
            if columns > DOCUMENT_MAX && !is_whole {
                found.push(format!("{path}:{}: {columns} columns, at most {DOCUMENT_MAX}", number + 1));
            }
        }
    }
    assert_none(&found);
}

/// The root is where a stranger begins.
#[test]
fn the_root_has_few_folders_and_the_architecture_names_each() {
    let root = Path::new("..");
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let entries = fs::read_dir(root).expect("the root").map(|entry| entry.expect("an entry").path());
    let names = entries.filter(|path| path.is_dir()).filter_map(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        (!name.starts_with('.') && !SKIPPED.contains(&name.as_str())).then_some(name)
    });
    let names: Vec<_> = names.collect();
    assert!(names.len() <= FOLDERS_MAX, "{} folders, at most {FOLDERS_MAX}: {names:?}", names.len());
    let is_named =
        |name: &String| [format!("`{name}`"), format!("`{name}/")].iter().any(|t| architecture.contains(t));
    assert_none(&names.into_iter().filter(|name| !is_named(name)).collect::<Vec<_>>());
}

/// With two paths to a type, two services name it differently, and neither is found by the other's
/// name.
#[test]
fn a_public_module_is_not_re_exported_from() {
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]).iter().filter(|(path, _)| !path.starts_with("tests/")) {
        let modules = text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        for module in modules {
            if text.lines().any(|line| line.starts_with(&format!("pub use {module}::"))) {
                found.push(format!("{path}: `{module}` is public, and re-exported from"));
            }
        }
    }
    assert_none(&found);
}

/// Below a prefix, an address from the root leads out of the page, and behind the login of an
/// application a form without the page's token is refused.
#[test]
fn addresses_and_forms_of_the_page_are_made_by_its_helpers() {
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]).iter().filter(|(path, _)| path.starts_with("relay/web/src/page/")) {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if ["href=\"/", "action=\"/", "src=\"/"].iter().any(|raw| line.contains(raw)) {
                found.push(format!("{path}:{}: make the address with `to` or `with_query`", index + 1));
            }
            let is_form = line.contains("form method=\"post\"") && line.ends_with('{');
            let has_token = lines.get(index + 1).is_some_and(|next| next.contains("(form_token())"));
            // Only the page's own login has this form.
            if is_form && !has_token && !path.ends_with("login.rs") {
                found.push(format!("{path}:{}: begin the form with `(form_token())`", index + 1));
            }
        }
    }
    assert_none(&found);
}

/// Returns the parameters of functions whose type is a tuple, each with its line. Closures may have
/// some, because iterators give them pairs.
fn tuples(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (begin, _) in text.match_indices("fn ") {
        let line = text[..begin].rfind('\n').map_or(0, |end| end + 1);
        let is_name = text[begin + 3..].starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !is_name || text[line..begin].contains("//") || text[..begin].ends_with(char::is_alphanumeric) {
            continue;
        }
        let end = text[begin..].find(['{', ';']).map_or(text.len(), |end| begin + end);
        for (at, _) in text[begin..end].match_indices(": ") {
            let kind = text[begin + at + 2..end].trim_start_matches('&');
            let kind = kind.strip_prefix("mut ").unwrap_or(kind);
            let values = kind.strip_prefix('(').unwrap_or(")");
            if ![")", "dyn ", "impl "].iter().any(|other| values.starts_with(other)) {
                let from = text[..begin + at].rfind('\n').map_or(0, |end| end + 1);
                let number = text[..begin + at].matches('\n').count() + 1;
                found.push((number, text[from..].lines().next().unwrap_or_default().trim()));
            }
        }
    }
    found
}

/// A caller has to know the order of a pair's values, and a reader of the call sees no name.
#[test]
fn functions_take_no_tuples() {
    for taken in [
        "    fn info(&self, (system, timeline): &(String, i64)) -> Gauge {",
        "async fn decide(\n    (id, holder): (&KeyId, Option<Uuid>),\n    decision: Decision,\n) {",
        "fn page(&mut self, after: (Uuid, &str)) -> Result<(), Error>;",
    ] {
        assert_eq!(tuples(taken).len(), 1, "{taken}");
    }
    for fine in [
        "fn rows() -> Vec<(String, u64)> {\n    let row = |(name, count): (&str, u64)| (name.to_owned(), count);",
        "fn done(nothing: ()) {\n    let (name, at): (String, i64) = row;",
        "fn chain(error: &(dyn Error + 'static)) -> String {",
        "// a fn takes at: (String, u64)",
    ] {
        assert!(tuples(fine).is_empty(), "{fine}");
    }
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        if !PRODUCT.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        found.extend(tuples(&text).iter().map(|(number, line)| format!("{path}:{number}: {line}")));
    }
    assert_none(&found);
}

/// Returns the rows of `message::setters!` in a text.
fn setter_rows(text: &str) -> Vec<&str> {
    let blocks = text.split("\n    message::setters! {\n").skip(1);
    let rows = blocks.flat_map(|block| block.split("\n    }\n").next().unwrap_or_default().lines());
    rows.map(str::trim_start).collect()
}

/// Returns the faults of the public options in a text, each with the line of its struct. A field
/// without a setter cannot be set by another crate once the struct is `#[non_exhaustive]`.
fn closed_options(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) else {
            continue;
        };
        if !["Options", "Policy"].iter().any(|end| name.ends_with(end)) || INTERNAL_OPTIONS.contains(&name) {
            continue;
        }
        let attributes = lines[..at].iter().rev().take_while(|above| above.starts_with('#'));
        if !attributes.into_iter().any(|above| *above == "#[non_exhaustive]") {
            found.push((at + 1, format!("{name} is not #[non_exhaustive]")));
        }
        let fields = lines[at..].iter().take_while(|inside| **inside != "}");
        for field in fields.filter_map(|inside| inside.strip_prefix("    pub ")?.split(':').next()) {
            let is_row = |start: &&str| {
                start.starts_with(&format!("{field}: ")) || start.starts_with(&format!("{field} as "))
            };
            if !text.contains(&format!("        self.{field} = ")) && !setter_rows(text).iter().any(is_row) {
                found.push((at + 1, format!("{name} has no setter {field}")));
            }
        }
    }
    found
}

/// A new option breaks no service that sets others.
#[test]
fn options_can_grow() {
    let whole = "#[non_exhaustive]\npub struct LogOptions {\n    pub schema: String,\n}\n\
                 impl LogOptions {\n    pub fn schema(mut self, schema: String) -> Self {\n\
                 \x20       self.schema = schema;";
    assert_eq!(closed_options(whole), []);
    assert_eq!(closed_options(&whole.replace("#[non_exhaustive]", "#[derive(Debug)]")).len(), 1);
    assert_eq!(closed_options(&whole.replace("self.schema = schema;", "self")).len(), 1);
    let rows = whole.split("    pub fn").next().unwrap_or_default().to_owned()
        + "    message::setters! {\n        schema: String,\n    }\n";
    assert_eq!(closed_options(&rows), []);
    assert_eq!(closed_options(&rows.replace("        schema: String,", "        scheme: String,")).len(), 1);
    let mut found = Vec::new();
    for (path, text) in texts(&[".rs"]) {
        if PRODUCT.iter().any(|folder| path.starts_with(folder)) {
            let faults = closed_options(&text);
            found.extend(faults.iter().map(|(number, fault)| format!("{path}:{number}: {fault}")));
        }
    }
    assert_none(&found);
}
