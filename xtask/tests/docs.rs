//! The documents agree with each other and with the sources: links lead somewhere, every page is
//! listed where readers look for it, and lists are whole.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "docs/lists.rs"]
mod lists;
#[path = "docs/named_tests.rs"]
mod named_tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

/// Folders that contain no document of ours.
const SKIPPED: [&str; 3] = ["target", "corpus", "node_modules"];

/// Returns the documents below a folder, by their paths relative to it.
fn documents(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the checkout") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".md") {
                let text = fs::read_to_string(&path).expect("a text");
                found.insert(path.strip_prefix(root).expect("below the root").to_path_buf(), prose(&text));
            }
        }
    }
    found
}

/// Returns a text without its blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// Returns the paragraphs of the Rust code in a document, line by line without indentation.
fn rust_paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_rust = false;
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("```") {
            Some(language) => is_rust = !is_rust && language.starts_with("rust"),
            None if is_rust && !line.is_empty() => {
                paragraphs.last_mut().expect("never empty").extend([line, "\n"]);
                continue;
            }
            None => {}
        }
        paragraphs.push(String::new());
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Returns all Rust files below a folder as one text, without indentation and without the prefix of
/// documentation.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("a folder of the checkout") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for line in fs::read_to_string(&path).expect("a text").lines().map(str::trim) {
                text.extend([
                    line.strip_prefix("/// ").filter(|_| line.ends_with(';')).unwrap_or(line),
                    "\n",
                ]);
            }
        }
    }
    text
}

/// The page with the program that a newcomer begins with.
const QUICK_START: &str = "docs/quick-start.md";

/// A page whose code needs a feature of a library that nothing here is built with.
const NOT_COMPILED: &str = "docs/operations/metrics.md";

/// The code that a reader copies is code that the tests run or compile.
#[test]
fn code_in_the_documentation_stands_in_examples() {
    let root = root();
    let known = ["examples/src", "examples/tests", "examples/drivers/src", "src"]
        .map(|folder| sources(&root.join(folder)))
        .concat();
    let mut paragraphs = 0;
    for page in pages(&root) {
        let text = fs::read_to_string(root.join(&page)).expect("a text");
        assert!(page == NOT_COMPILED || !text.contains("```rust,"), "{page}: code that is not compiled");
        if page == NOT_COMPILED {
            continue;
        }
        for paragraph in rust_paragraphs(&text) {
            assert!(known.contains(&paragraph), "{page}: in no example:\n{paragraph}");
            paragraphs += 1;
        }
    }
    assert!(paragraphs >= 30, "only {paragraphs}");
}

/// Returns the pages that show code to users.
fn pages(root: &Path) -> Vec<String> {
    let mut pages = vec![String::from("README.md")];
    for folder in ["docs", "docs/operations"] {
        for entry in fs::read_dir(root.join(folder)).expect("a folder of the checkout") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            if name.ends_with(".md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    pages
}

/// The program of the page is the whole example, so that a copy of it compiles.
#[test]
fn the_quick_start_shows_the_whole_program() {
    let root = root();
    let page = fs::read_to_string(root.join(QUICK_START)).expect("a text");
    let program = fs::read_to_string(root.join("examples/src/bin/quick_start.rs")).expect("a text");
    let program = &program[program.find("\nuse ").expect("its first import") + 1..];
    assert!(page.contains(&format!("```rust\n{program}```\n")), "not the text of the example");
}

/// The address at which readers of the site see files of the checkout: the site has only its pages.
const SHOWN: &str = "https://github.com/outbox-toolkit/outbox-toolkit/blob/main/";

/// Returns the targets of all links that lead to a file of the checkout.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://") || target.starts_with(SHOWN)).collect()
}

/// Returns the anchors of a document's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns a path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

/// Returns the place that a link leads to: a path from the root, and an anchor, which may be empty.
fn destination<'a>(document: &Path, link: &'a str) -> (PathBuf, &'a str) {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    if let Some(path) = path.strip_prefix(SHOWN) {
        return (PathBuf::from(path), anchor);
    }
    let folder = document.parent().unwrap_or(Path::new(""));
    (if path.is_empty() { document.to_path_buf() } else { plain(&folder.join(path)) }, anchor)
}

fn root() -> PathBuf {
    PathBuf::from("..")
}

#[test]
fn every_link_leads_somewhere() {
    let root = root();
    let documents = documents(&root);
    let mut dead = Vec::new();
    for (document, text) in &documents {
        for link in links(text) {
            let (path, anchor) = destination(document, link);
            let leads = root.join(&path).exists()
                && (anchor.is_empty() || documents.get(&path).is_some_and(|it| anchors(it).contains(anchor)));
            if !leads {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}

/// `mdbook build` reads only the folder `docs`.
#[test]
fn no_page_of_the_site_leads_beside_it() {
    let mut beside = Vec::new();
    for (document, text) in documents(&root()).iter().filter(|(document, _)| document.starts_with("docs")) {
        let relative = links(text).into_iter().filter(|link| !link.starts_with(SHOWN));
        let leads_out = |link: &&str| !destination(document, link).0.starts_with("docs");
        beside.extend(relative.filter(leads_out).map(|link| format!("{}: {link}", document.display())));
    }
    assert!(beside.is_empty(), "the site has no such page, begin with {SHOWN}:\n{}", beside.join("\n"));
}

/// Asserts that a document links every page of `docs/` that is wanted.
fn assert_lists(list: &str, is_wanted: impl Fn(&Path) -> bool) {
    let documents = documents(&root());
    let listed: Vec<PathBuf> =
        links(&documents[Path::new(list)]).iter().map(|link| destination(Path::new(list), link).0).collect();
    let pages = documents.keys().filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md"));
    let missing: Vec<_> = pages.filter(|page| is_wanted(page) && !listed.contains(page)).collect();
    assert!(missing.is_empty(), "{list} does not list {missing:?}");
}

#[test]
fn the_summary_lists_every_page() {
    assert_lists("docs/SUMMARY.md", |_| true);
}

/// The README of `docs/` has a line on each page; that of the repository leads to it.
#[test]
fn the_readme_lists_every_page_but_single_decisions() {
    let list = "docs/README.md";
    assert_lists(list, |page| !page.starts_with("docs/adr") && page != Path::new(list));
}
