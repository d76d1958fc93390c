//! The extent of a change.

use crate::{git, workspace};

/// Whether only documents differ between a revision and the working tree.
///
/// # Errors
/// The message of git, for example about an unknown revision.
pub(super) fn is_documents_only(since: &str) -> Result<bool, String> {
    let root = workspace::root()?;
    let known = git::answer(&root, ["rev-parse", "--verify", "--quiet", &format!("{since}^{{commit}}")]);
    if known.is_err() {
        return Err(format!("--since {since}: git knows no such revision"));
    }
    let changed = git::answer(&root, ["diff", "--name-only", "--no-renames", since])?;
    let untracked = git::answer(&root, ["ls-files", "--others", "--exclude-standard"])?;
    let mut files = changed.lines().chain(untracked.lines()).peekable();
    Ok(files.peek().is_some() && files.all(is_document))
}

/// Whether a file is read by people only. Alert rules and dashboards are read by programs.
fn is_document(path: &str) -> bool {
    let is_in_docs = path.starts_with("docs/") && [".csv", ".svg"].iter().any(|end| path.ends_with(end));
    let is_text = path.ends_with(".md") || is_in_docs || ["LICENSE", "book.toml"].contains(&path);
    // Compiled into packages, or run by a test of the examples.
    is_text && path != "docs/quick-start.md"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_no_documents() {
        for path in
            ["README.md", "docs/guarantees.md", "docs/images/a.svg", "docs/reliability-runs.csv", "LICENSE"]
        {
            assert!(is_document(path), "{path}");
        }
        for path in [
            "docs/operations/alerts.yml",
            "docs/quick-start.md",
            "relay/web/src/page/assets/icon.svg",
            "src/lib.rs",
            "Cargo.lock",
            ".ci/run",
            "a.md/b",
        ] {
            assert!(!is_document(path), "{path}");
        }
    }

    #[test]
    fn an_unknown_revision_is_named() {
        let error = is_documents_only("no-such-revision").expect_err("unknown");
        assert!(error.contains("no-such-revision"), "{error}");
    }
}
