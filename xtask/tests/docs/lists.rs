//! Lists in documents are whole: the crates with their dependencies, the commands, and the checks
//! of the doctor. They are compared with the sources, so nothing has to be compiled.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::root;

pub(super) fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the parts of a text that stand in backticks.
pub(super) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the cells of the rows of all tables in a text. Rules and headings are rows, too.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// Returns the keys of one section of a manifest, with their values.
pub(super) fn entries<'a>(manifest: &'a str, section: &str) -> Vec<(&'a str, &'a str)> {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != section);
    lines.next();
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// The name of the crate at the root in tables.
const ROOT_CRATE: &str = "outbox-toolkit";

/// Returns all crates of the workspace by their folders, with the crates that they depend on.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    let workspace = text("Cargo.toml");
    let folder = |path: &str| String::from(if path == "." { ROOT_CRATE } else { path });
    let ours: BTreeMap<&str, String> = entries(&workspace, "[workspace.dependencies]")
        .into_iter()
        .filter_map(|(key, value)| {
            let (path, _) = value.split_once("path = \"")?.1.split_once('"')?;
            Some((key, folder(path)))
        })
        .collect();
    let members = entries(&workspace, "[workspace]").into_iter().find(|(key, _)| *key == "members");
    let members = members.expect("the members").1.split('"').skip(1).step_by(2).chain(["."]);
    members
        .map(|member| {
            let manifest = text(&format!("{member}/Cargo.toml"));
            let dependencies = entries(&manifest, "[dependencies]").into_iter();
            let names = dependencies.map(|(key, _)| key.split('.').next().unwrap_or(key));
            (folder(member), names.filter_map(|name| ours.get(name).cloned()).collect())
        })
        .collect()
}

/// Returns the crates that the last cell of a row names: in backticks, or as `all above`, followed
/// by exceptions after `but` and by others after a semicolon.
fn named(cell: &str, above: &[String]) -> BTreeSet<String> {
    let Some(rest) = cell.strip_prefix("all above") else { return quoted(cell).map(String::from).collect() };
    let (but, others) = rest.split_once(';').unwrap_or((rest, ""));
    let but: Vec<&str> = quoted(but).collect();
    let above = above.iter().filter(|name| !but.contains(&name.as_str())).cloned();
    above.chain(quoted(others).map(String::from)).collect()
}

#[test]
fn the_architecture_lists_every_crate_with_its_dependencies() {
    let architecture = text("ARCHITECTURE.md");
    let (_, section) = architecture.split_once("\n## Crates").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("the next section");
    let (published, others) = section.split_once("\nNever published").expect("the second table");
    let others: Vec<&str> = rows(others).flat_map(|row| quoted(row[0]).collect::<Vec<_>>()).collect();
    let crates = crates();
    let mut above = Vec::new();
    let mut wrong = Vec::new();
    for row in rows(published) {
        let Some(name) = quoted(row[0]).next() else { continue };
        let listed = named(row.last().expect("a cell"), &above);
        let needed = crates.get(name).unwrap_or_else(|| panic!("{name} is not a crate of the workspace"));
        let missing: Vec<_> = needed.difference(&listed).collect();
        let excess: Vec<_> = listed.difference(needed).collect();
        let hidden: Vec<_> = others.iter().filter(|other| needed.contains(**other)).collect();
        if !(missing.is_empty() && excess.is_empty() && hidden.is_empty()) {
            wrong.push(format!(
                "{name}: lacks {missing:?}, has {excess:?} in excess, needs unpublished {hidden:?}"
            ));
        }
        above.push(String::from(name));
    }
    let is_missing = |name: &&String| !above.contains(name) && !others.contains(&name.as_str());
    wrong.extend(crates.keys().filter(is_missing).map(|name| format!("{name} is not listed")));
    assert!(above.len() >= 20, "only {above:?}");
    assert!(wrong.is_empty(), "the tables of ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

/// The folder of the command line.
const COMMAND_LINE: &str = "relay/src/cli";

/// Returns a name in the form of commands: `DemoConsumer` is `demo-consumer`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Returns the commands of an enum of clap and those below them, without hidden ones.
fn commands(source: &str, name: &str) -> Vec<String> {
    let (_, body) = source.split_once(&format!("enum {name} {{")).unwrap_or_else(|| panic!("enum {name}"));
    let mut found = Vec::new();
    let mut attributes = String::new();
    for line in body.lines().take_while(|line| *line != "}") {
        let Some(line) = line.strip_prefix("    ") else { continue };
        if line.starts_with("#[") {
            attributes += line;
        }
        if !line.starts_with(|c: char| c.is_ascii_uppercase()) {
            continue;
        }
        let attributes = std::mem::take(&mut attributes);
        let variant = line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        assert!(
            !attributes.contains("name ="),
            "{variant}: a name of its own, which this test does not read"
        );
        if attributes.contains("hide = true") {
            continue;
        }
        let command = kebab(variant);
        if !attributes.contains("subcommand") {
            found.push(command);
            continue;
        }
        let path = line.split_once('(').and_then(|(_, rest)| rest.split_once(')')).expect("its type").0;
        let (module, below) = path.split_once("::").expect("a type of a module");
        let file = [format!("{COMMAND_LINE}/{module}.rs"), format!("{COMMAND_LINE}/{module}/mod.rs")]
            .into_iter()
            .find(|file| root().join(file).exists());
        let below = commands(&text(&file.expect("the module")), below);
        found.extend(below.into_iter().map(|below| format!("{command} {below}")));
    }
    found
}

#[test]
fn the_configuration_page_lists_every_command() {
    let page = text("docs/configuration.md");
    let section = page.split_once("\n## Commands").expect("the section").1;
    let listed: Vec<&str> = rows(section).flat_map(|row| quoted(row[0]).collect::<Vec<_>>()).collect();
    let is_listed = |command: &String| {
        listed
            .iter()
            .any(|text| text.strip_prefix(command.as_str()).is_some_and(|rest| !rest.starts_with('-')))
    };
    let commands = commands(&text(&format!("{COMMAND_LINE}/mod.rs")), "Command");
    assert!(commands.len() >= 40, "only {commands:?}");
    let missing: Vec<_> = commands.iter().filter(|command| !is_listed(command)).collect();
    assert!(missing.is_empty(), "docs/configuration.md does not list {missing:?}");
}

/// Returns the names of the checks in a file of Rust: the first argument of each `Finding`, itself
/// or as the constant or variable that holds it.
fn checks(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices("Finding::") {
        let Some((_, arguments)) = source[at..].split_once('(') else { continue };
        let first = arguments.trim_start().split([',', ')']).next().unwrap_or_default();
        let value = match first.strip_prefix('"') {
            Some(literal) => literal.trim_end_matches('"'),
            None => {
                let before = &source[..at];
                let assigned = [format!("const {first}: &str = \""), format!("let {first} = \"")];
                let tuple = format!("let ({first}, subject) = (\"");
                let starts = assigned.iter().chain([&tuple]);
                let last =
                    starts.filter_map(|start| Some((before.rfind(start.as_str())?, start.len()))).max();
                let (start, len) = last.unwrap_or_else(|| panic!("the value of {first:?}"));
                before[start + len..].split('"').next().unwrap_or_default()
            }
        };
        found.insert(String::from(value));
    }
    found
}

#[test]
fn the_doctors_page_explains_every_check() {
    let page = text("docs/operations/doctor.md");
    let mut names = BTreeSet::new();
    for folder in ["relay/operate/src/doctor", "relay/adopt/src/takeover"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder of the checkout") {
            let path = entry.expect("an entry").path();
            if path.is_file() && !path.ends_with("report.rs") {
                names.extend(checks(&fs::read_to_string(&path).expect("a text")));
            }
        }
    }
    assert!(names.len() >= 40, "only {names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/operations/doctor.md does not explain {missing:?}");
}
