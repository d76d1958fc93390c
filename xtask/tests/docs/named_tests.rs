//! Every test that a document names is in the sources: each name in `docs/guarantees.md`, and
//! elsewhere each name that begins with its binary. Names are looked up in the text of the sources,
//! so nothing has to be compiled.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use super::{
    documents,
    lists::{self, entries, quoted},
    root, sources,
};

const GUARANTEES: &str = "docs/guarantees.md";

/// The end of the name of a binary that holds the unit tests of a crate.
const UNIT: &str = " (unit)";

/// The other binaries, and the folders with their cases.
const SUITES: [(&str, &[&str]); 14] = [
    ("brokers", &["tests/suites/brokers", "testkit/conformance/src"]),
    ("canary", &["tests/suites/canary"]),
    ("clients", &["xtask/src/clients"]),
    ("conformance", &["tests/suites/conformance"]),
    ("disruptive", &["tests/suites/disruptive"]),
    ("drivers", &["examples/drivers/tests/drivers"]),
    ("end_to_end", &["tests/suites/end_to_end"]),
    ("examples", &["tests/suites/examples"]),
    ("shredding", &["examples/tests"]),
    ("grpc", &["examples/tests"]),
    ("health", &["examples/tests"]),
    ("simulation", &["tests/simulation/tests"]),
    ("tls", &["tests/suites/tls"]),
    ("wallet", &["examples/tests"]),
];

/// Parts of a case's name that stand for its database.
const DATABASES: [&str; 3] = ["*", "postgres", "sqlite"];

/// Beginnings of names that lists have in common with the shared cases of all brokers.
const SHARED: [&str; 2] = ["publisher/", "subscription/"];

/// One or more tests, as a document names them.
#[derive(Debug)]
struct Named {
    line: usize,
    binary: String,
    name: String,
    /// Whether it stands with its binary.
    is_explicit: bool,
}

/// A heading, a row of a table, or a paragraph.
struct Block {
    line: usize,
    text: String,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_new, mut is_code) = (true, false);
    for (number, line) in text.lines().map(str::trim).enumerate() {
        is_code ^= line.starts_with("```");
        if is_code || line.is_empty() || line.starts_with("```") {
            is_new = true;
            continue;
        }
        let stands_alone = line.starts_with(['|', '#']);
        match blocks.last_mut().filter(|_| !is_new && !stands_alone) {
            Some(last) => last.text.extend([" ", line]),
            None => blocks.push(Block { line: number + 1, text: line.to_owned() }),
        }
        is_new = stands_alone;
    }
    blocks
}

/// Returns binary and name, if a text has both.
fn explicit(text: &str) -> Option<(&str, &str)> {
    let (binary, name) = text.split_once(": ")?;
    let is_word = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '-');
    let is_binary = binary.strip_suffix(UNIT).unwrap_or(binary).chars().all(is_word);
    (is_binary && !name.contains(' ')).then_some((binary, name))
}

/// Whether a text may be the name of a test, and not of a folder or of a binary.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-/:*…{},".contains(c);
    let has_parts = ["/", "::", "…"].iter().any(|mark| text.contains(mark)) || text.matches('_').count() > 1;
    let is_other = text == "…" || SUITES.iter().any(|(binary, _)| *binary == text);
    has_parts && !is_other && text.chars().all(is_part) && !root().join(text).exists()
}

/// Returns a name whose beginning is that of the name before it, if it begins with `…`.
fn completed(name: &str, before: &str) -> String {
    let mark = if before.contains("::") { "::" } else { "/" };
    let Some(rest) = name.strip_prefix('…') else { return name.to_owned() };
    let rest = rest.strip_prefix(mark).unwrap_or(name);
    let parts: Vec<&str> = before.split(mark).collect();
    let kept = parts.len().saturating_sub(rest.split(mark).count());
    parts[..kept].iter().copied().chain([rest]).collect::<Vec<_>>().join(mark)
}

/// Returns all tests that a document names. A name without a binary belongs to the binary before it
/// in its row or paragraph, or else to the last one in a paragraph of its section.
fn names(text: &str) -> Vec<Named> {
    let mut names: Vec<Named> = Vec::new();
    let mut of_section = String::new();
    for block in blocks(text) {
        if block.text.starts_with('#') {
            of_section.clear();
        }
        let mut binary = of_section.clone();
        let mut before = String::new();
        for span in quoted(&block.text) {
            let explicit = explicit(span);
            let name = match explicit {
                Some((explicit, name)) => {
                    explicit.clone_into(&mut binary);
                    name.to_owned()
                }
                None if !is_name(span) => continue,
                None => completed(span, &before),
            };
            before.clone_from(&name);
            let is_explicit = explicit.is_some();
            names.push(Named { line: block.line, binary: binary.clone(), name, is_explicit });
        }
        if !block.text.starts_with('|') {
            of_section = binary;
        }
    }
    names
}

/// Whether a text fits a pattern, in which `*` and `…` stand for any characters.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once(['*', '…']) else { return pattern == text };
    let Some(text) = text.strip_prefix(first) else { return false };
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    ends.into_iter().any(|at| fits(rest, &text[at..]))
}

/// Returns the names for which `{a,b}` stands.
fn alternatives(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let (inner, after) = rest.split_once('}').expect("a closing brace");
    inner.split(',').map(|one| format!("{before}{one}{after}")).collect()
}

/// Returns the names of the functions in a source.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    let name = |rest: &'_ str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    source.split("fn ").skip(1).map(move |rest| &rest[..name(rest)])
}

/// Returns a text up to the brace that closes the one before it.
fn braced(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    &text[..end.unwrap_or(text.len())]
}

/// Returns where the cases of a section run, as their names say it.
fn places(section: &str) -> Vec<String> {
    let words =
        section.trim().trim_start_matches("night ").split(['+', ',']).next().unwrap_or_default().trim();
    let (pairs, brokers) = (["postgres/kafka", "sqlite/kafka-mock"], ["rabbitmq", "sqs-fifo", "sqs"]);
    let on_postgres = brokers.map(|broker| format!("postgres/{broker}"));
    match words {
        "modules" | "also" => Vec::new(),
        "anywhere" => vec![String::new()],
        "on_postgres" | "on_sqlite" => vec![words.trim_start_matches("on_").to_owned()],
        "every" | "databases" => ["postgres", "sqlite"].map(String::from).into(),
        "pairs" => pairs.map(String::from).into(),
        "every_broker" => on_postgres.into_iter().chain([pairs[0].to_owned()]).collect(),
        "everywhere" => on_postgres.into_iter().chain(pairs.map(String::from)).collect(),
        _ => vec![words.replace(' ', "/").replace('_', "-")],
    }
}

/// Returns the names of the cases in a list: `night every { a, b = c, "d" = e }`.
fn listed(pattern: &str, sections: &str) -> Vec<String> {
    let sections: Vec<_> = sections.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let (sections, mut names) = (sections.join("\n"), Vec::new());
    let mut rest = &sections[..];
    while let Some((section, list)) = rest.split_once('{') {
        let list = braced(list);
        for on in places(section) {
            let cases = list.split(',').filter_map(|case| case.split('=').next());
            let cases = cases.map(|case| case.trim().trim_matches('"')).filter(|case| !case.is_empty());
            let name = |case| pattern.replace("{on}", &on).replace("{case}", case);
            names.extend(cases.map(name).map(|name| name.replace("//", "/").trim_matches('/').to_owned()));
        }
        rest = &rest[section.len() + list.len() + 2..];
    }
    names
}

/// Returns the name of a case without its database.
fn without_database(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    let last = parts.len() - 1;
    let kept = parts.iter().enumerate().filter(|(nth, part)| *nth == last || !DATABASES.contains(part));
    kept.map(|(_, part)| *part).collect::<Vec<_>>().join("/")
}

/// The sources of a suite.
#[derive(Default)]
struct Suite {
    /// The names of cases that are written as a whole, or listed in the macro `cases!`.
    cases: BTreeSet<String>,
    /// The beginnings of names of cases in these lists.
    listed: BTreeSet<String>,
    /// Functions, and parts of texts: a name of a case may be put together from them.
    words: BTreeSet<String>,
}

impl Suite {
    fn read(folders: &[&str]) -> Self {
        let text: String = folders.iter().map(|folder| sources(&root().join(folder))).collect();
        let mut suite = Self::default();
        suite.words.extend(functions(&text).map(str::to_owned));
        for literal in text.lines().flat_map(|line| line.split('"').skip(1).step_by(2)) {
            suite.words.extend(literal.split('/').map(str::to_owned));
            if literal.contains('/') && !literal.contains(['{', ' ']) {
                suite.cases.insert(without_database(literal));
            }
        }
        for (at, mark) in text.match_indices("cases! {") {
            let block = braced(&text[at + mark.len()..]);
            let Some((pattern, sections)) =
                block.trim_start().strip_prefix('"').and_then(|it| it.split_once("\":"))
            else {
                continue;
            };
            let prefix = pattern.split('{').next().unwrap_or_default();
            if !prefix.is_empty() && !SHARED.contains(&prefix) {
                suite.listed.insert(prefix.to_owned());
            }
            for name in listed(pattern, sections) {
                suite.cases.insert(without_database(&name));
                suite.cases.insert(name);
            }
        }
        suite
    }

    fn has(&self, name: &str) -> bool {
        let whole = name;
        let name = without_database(name);
        let below = format!("{name}/*");
        let is_one = |case: &String| fits(whole, case) || fits(&name, case) || fits(&below, case);
        let is_case = self.cases.iter().any(is_one);
        let is_listed = self.listed.iter().any(|prefix| name.starts_with(prefix.as_str()));
        let is_word = |part: &str| self.words.iter().any(|word| fits(part, word));
        is_case || (!is_listed && name.split('/').all(is_word))
    }
}

/// A module of a crate.
struct Module {
    text: String,
    /// The folder of its file, to which an attribute `path` is relative.
    at: PathBuf,
    /// The folder of the modules below it.
    below: PathBuf,
}

impl Module {
    fn of_crate(folder: &str) -> Option<Self> {
        let at = root().join(folder).join("src");
        let text = ["lib.rs", "main.rs"].iter().find_map(|name| fs::read_to_string(at.join(name)).ok())?;
        Some(Self { text, below: at.clone(), at })
    }

    /// Returns the module of this name, which has a file or stands in this one.
    fn child(&self, name: &str) -> Option<Self> {
        let below = self.below.join(name);
        let declared = self.text.split_once(&format!("\"]\nmod {name};"));
        let named = declared.and_then(|(before, _)| before.rsplit_once("#[path = \""));
        let named = named.map(|(_, path)| self.at.join(path));
        let files = [self.below.join(format!("{name}.rs")), below.join("mod.rs")];
        for file in named.iter().chain(&files) {
            if let Ok(text) = fs::read_to_string(file) {
                return Some(Self { text, at: file.parent()?.to_path_buf(), below });
            }
        }
        let text = self.text.split_once(&format!("mod {name} {{"))?.1.to_owned();
        Some(Self { text, at: self.at.clone(), below })
    }

    fn has_tests(&self) -> bool {
        let is_test = |text: &str| ["test]", "test("].iter().any(|end| text.contains(end));
        is_test(&self.text) || (self.below.is_dir() && is_test(&sources(&self.below)))
    }

    /// Returns its text without the modules that stand in it, which come last.
    fn own_text(&self) -> &str {
        let begin = self.text.match_indices("\nmod ").map(|(at, _)| at).find(|at| {
            let line = self.text[at + 1..].lines().next().unwrap_or_default();
            line.ends_with('{')
        });
        &self.text[..begin.unwrap_or(self.text.len())]
    }

    fn has(&self, name: &str) -> bool {
        if let Some((module, rest)) = name.split_once("::") {
            return self.child(module).is_some_and(|module| module.has(rest));
        }
        functions(self.own_text()).any(|function| fits(name, function))
            || self.child(name).is_some_and(|module| module.has_tests())
    }
}

/// All tests of the checkout.
struct Tests {
    suites: BTreeMap<&'static str, Suite>,
    /// The folders of the crates by their names.
    crates: BTreeMap<String, String>,
}

impl Tests {
    fn read() -> Self {
        let workspace = lists::text("Cargo.toml");
        let members = entries(&workspace, "[workspace]").into_iter().find(|(key, _)| *key == "members");
        let members = members.expect("the members").1.split('"').skip(1).step_by(2);
        let by_folder = members.map(|path| (path.rsplit('/').next().unwrap_or(path), path));
        let by_name = entries(&workspace, "[workspace.dependencies]").into_iter();
        let by_name = by_name
            .filter_map(|(key, value)| Some((key, value.split_once("path = \"")?.1.split_once('"')?.0)));
        let crates = by_folder.chain(by_name).map(|(name, path)| (name.to_owned(), path.to_owned()));
        let suites = SUITES.iter().map(|(name, folders)| (*name, Suite::read(folders)));
        Self { suites: suites.collect(), crates: crates.collect() }
    }

    fn knows(&self, binary: &str) -> bool {
        binary.ends_with(UNIT) || self.suites.contains_key(binary)
    }

    /// Returns the reason why there is no such test.
    fn missing(&self, named: &Named) -> Option<&'static str> {
        let names = alternatives(&named.name);
        let Some(name) = named.binary.strip_suffix(UNIT) else {
            let Some(suite) = self.suites.get(named.binary.as_str()) else { return Some("no such binary") };
            let has_all = names.iter().all(|name| suite.has(name));
            return (!has_all).then_some("no such case");
        };
        let Some(module) = self.crates.get(name).and_then(|folder| Module::of_crate(folder)) else {
            return Some("no such crate");
        };
        let has_all = names.iter().all(|name| module.has(name));
        (!has_all).then_some("no such test in this crate")
    }
}

#[test]
fn every_named_test_exists() {
    let tests = Tests::read();
    let mut count = 0;
    let mut wrong = Vec::new();
    for path in documents(&root()).keys().filter_map(|path| path.to_str()) {
        let is_checked =
            |named: &Named| path == GUARANTEES || (named.is_explicit && tests.knows(&named.binary));
        for named in names(&lists::text(path)).into_iter().filter(is_checked) {
            count += 1;
            if let Some(why) = tests.missing(&named) {
                let Named { line, binary, name, .. } = named;
                wrong.push(format!("{path}:{line}: {binary}: {name}: {why}"));
            }
        }
    }
    assert!(count >= 500, "only {count}");
    assert!(wrong.is_empty(), "{} names of tests that lead nowhere:\n{}", wrong.len(), wrong.join("\n"));
}

/// A rule that takes any name would pass, too.
#[test]
fn a_name_that_leads_nowhere_is_found() {
    let tests = Tests::read();
    let wrong = |text: &str| names(text).iter().filter(|named| tests.missing(named).is_some()).count();
    for text in [
        "`conformance: outbox/log/*/a_rollback_leaves_everything`",
        "`conformance: outbox/logs/*/rows_of_plain_sql_are_read`",
        "`conformance: inbox/guard/*/rows_of_plain_sql_are_read`",
        "`conformance: outbox/log/*/rows_of_plain_sql_are_read`, `…/no_such_case`",
        "Cases of `conformance: keys/*`.\n\n| a | `keys/lease/*/no_such_case` |",
        "`end_to_end: a_relay_that_is_killed_again_and_again_loses_everything`",
        "`tls: verifying/{postgres,oracle}/*`",
        "`relay (unit): engine::machine::stalls`",
        "`engine (unit): machine::tests::nothing_is_lost_and_order_holds_…`",
        "`brokers (unit): kafka::ledger::only_the_contiguous_prefix_is_committed`",
        "`motor (unit): machine::stalls`",
        "`conformanse: inbox/guard`",
        "| `conformance: outbox/log/*/rows_of_plain_sql_are_read` |\n| `outbox/log/*/rows_of_plain_sql_are_read` |",
    ] {
        assert_eq!(wrong(text), 1, "{text}");
    }
}
