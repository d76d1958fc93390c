//! How many names a crate shows at its root: those that its `lib.rs` re-exports or declares, its
//! public modules among them. Whoever reads the crate meets all of them, and each is a promise. The
//! numbers may only fall. What is hidden from the documentation does not count.

use super::{PRODUCT, assert_none, texts};

/// The names of each crate, by its folder; `src` is the toolkit itself.
const RECORDED: [(&str, usize); 17] = [
    ("brokers", 14),
    ("brokers/oauthbearer", 3),
    ("idempotency", 32),
    ("inbox", 90),
    ("message", 104),
    ("migrations", 24),
    ("migrations/statements", 44),
    ("outbox", 37),
    ("outbox/log", 49),
    ("relay", 3),
    ("relay/adopt", 19),
    ("relay/engine", 20),
    ("relay/operate", 46),
    ("relay/web", 15),
    ("saga", 51),
    ("src", 38),
    ("testkit", 14),
];

/// The root of the crate below `testkit` that services use.
const TESTKIT: &str = "testkit/src/lib.rs";

/// Counts the names in an item that begins with `pub`. `pub use a::{B, c::{D, E as F}};` has three.
fn names_in(item: &str) -> usize {
    let Some((_, list)) = item.split_once('{').filter(|_| item.starts_with("pub use ")) else { return 1 };
    let names = list.trim_end_matches(';').split([',', '{', '}']).map(str::trim);
    names.filter(|name| !name.is_empty() && !name.ends_with("::")).count()
}

/// Counts the names that the root of a crate shows.
fn shown(text: &str) -> usize {
    let mut count = 0;
    let mut is_hidden = false;
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    while let Some(line) = lines.next() {
        if line.starts_with("pub ") {
            let mut item = line.to_owned();
            while item.starts_with("pub use ") && !item.ends_with(';') {
                let Some(more) = lines.next() else { break };
                item.push_str(more);
            }
            count += if is_hidden { 0 } else { names_in(&item) };
            is_hidden = false;
        } else if line == "#[doc(hidden)]" {
            is_hidden = true;
        } else if line.ends_with([';', '}']) {
            is_hidden = false;
        }
    }
    count
}

/// Returns what is wrong with a crate's number of names, if it differs from the recorded one.
fn fault(folder: &str, found: usize) -> Option<String> {
    let Some((_, recorded)) = RECORDED.iter().find(|(name, _)| *name == folder) else {
        return Some(format!("{folder}: record its {found} names"));
    };
    if found > *recorded {
        let more = found - recorded;
        return Some(format!(
            "{folder} shows {found} names at its root, {more} more than recorded: make them `pub(crate)`, or \
             put them into a public module; if services need them at the root, record {found} and let the \
             commit say why"
        ));
    }
    (found < *recorded).then(|| format!("{folder} shows {found} names, fewer than recorded: record {found}"))
}

#[test]
fn crates_show_no_more_names() {
    let mut faults = Vec::new();
    let mut folders = Vec::new();
    for (path, text) in texts(&["lib.rs"]) {
        let is_product = path == TESTKIT || PRODUCT.iter().any(|folder| path.starts_with(folder));
        let Some(folder) = path.strip_suffix("/lib.rs").filter(|_| is_product) else { continue };
        let folder = folder.strip_suffix("/src").unwrap_or(folder);
        faults.extend(fault(folder, shown(&text)));
        folders.push(folder.to_owned());
    }
    let is_gone = |name: &str| !folders.iter().any(|folder| folder == name);
    let gone = RECORDED.iter().filter(|(name, _)| is_gone(name));
    faults.extend(gone.map(|(name, _)| format!("{name}: no such crate, but its names are recorded")));
    assert_none(&faults);
}

#[test]
fn names_are_counted_in_a_text() {
    let text = "//! pub use not::This;\nmod order;\npub mod prelude;\n#[doc(hidden)]\n#[cfg(a)]\npub mod inner;\n\
                pub use order::Order; // and no other\n\
                pub use order::{\n    Line, // pub use x;\n    price::{Price, Sum as Total},\n};\n\
                #[doc(hidden)]\npub use order::{A, B};\n#[doc(hidden)]\nmod own;\npub(crate) use order::C;\n\
                pub fn open() {\n    pub struct Inner;\n}\npub use {::inbox, ::outbox};";
    // The module, the order, the three of the list, the function, and two crates.
    assert_eq!(shown(text), 1 + 1 + 3 + 1 + 2);
    assert_eq!(fault("relay", 3), None);
    assert!(fault("relay", 5).is_some_and(|fault| fault.contains("5 names at its root, 2 more")));
    assert!(fault("relay", 2).is_some_and(|fault| fault.contains("record 2")));
    assert_eq!(fault("shop", 4).as_deref(), Some("shop: record its 4 names"));
}
