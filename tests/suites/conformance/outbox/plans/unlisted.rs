//! Every statement of the outbox on PostgreSQL is in the list that the plans are measured by.

use std::path::{Path, PathBuf};
use std::{fs, io};

use outbox_log::postgres::inventory::{self, Listed};

tests::cases! { "outbox/plans/{case}":
    anywhere { every_statement_of_the_sources_is_listed }
}

/// The folders, and their modules without statements of their own. `store` and `lock_holder` have
/// queries of the catalogs, `fragments` and `row` parts of statements that are listed whole.
const FOLDERS: [(&str, &[&str]); 2] = [
    ("../outbox/src/postgres", &["inventory"]),
    ("../outbox/log/src/postgres", &["inventory", "store", "lock_holder", "fragments", "row"]),
];

/// Goal: a statement that is missing in the list, and so would never be measured, is found. Oracle:
/// the text of the sources; without the list, the statements of producers are missing.
async fn every_statement_of_the_sources_is_listed() {
    let listed = inventory::statements();
    for (folder, except) in FOLDERS {
        assert_eq!(unlisted(folder, except, &listed).unwrap(), Vec::<String>::new(), "{folder}");
    }
    let (folder, except) = FOLDERS[0];
    let missing = unlisted(folder, except, &[]).unwrap();
    assert_eq!(missing, ["enqueue.*", "enqueue.RUNNING", "transaction_ids.TAKE"]);
}

/// Returns the statements in the modules of a folder that are not in `listed`, as `module.name`,
/// sorted: constants by their names, and `module.*` where none of a module's `statements!` is
/// listed. A module may be a file or a folder of files. The modules `except` are left out.
fn unlisted(folder: &str, except: &[&str], listed: &[Listed]) -> io::Result<Vec<String>> {
    let is_listed = |name: &str| listed.iter().any(|listed| listed.name == name);
    let has_rendered = |module: &str| {
        let mut names = listed.iter().filter_map(|listed| listed.name.split_once('.'));
        names.any(|(of, name)| of == module && name.starts_with(|first: char| first.is_ascii_lowercase()))
    };
    let mut found = Vec::new();
    for path in entries(Path::new(folder))? {
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if except.contains(&module.as_str()) {
            continue;
        }
        for file in if path.is_dir() { entries(&path)? } else { vec![path] } {
            let source = fs::read_to_string(file)?;
            let names = statements_in(&source).into_iter().map(|name| format!("{module}.{name}"));
            found.extend(names.filter(|name| !is_listed(name)));
            if source.contains("\nmigrations::statements! {") && !has_rendered(&module) {
                found.push(format!("{module}.*"));
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
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
