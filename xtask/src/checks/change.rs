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
    // Compiled into packages, or run by a test of the examples; read and run by a case of a suite.
    is_text && !["docs/quick-start.md", "docs/schema.md"].contains(&path)
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
            "docs/schema.md",
            "relay/web/src/page/assets/icon.svg",
            "src/lib.rs",
            "Cargo.lock",
            ".ci/run",
            "a.md/b",
        ] {
            assert!(!is_document(path), "{path}");
        }
    }

    /// The suites are not among the programs that a change of documents runs.
    #[test]
    fn a_document_that_a_suite_reads_is_code() {
        let root = workspace::root().unwrap();
        let listed = git::answer(&root, ["grep", "-ho", "include_str!(.*docs/[^\"]*", "--", "tests/suites"]);
        let listed = listed.unwrap();
        let mut documents = listed.lines().filter_map(|line| line.find("docs/").map(|at| &line[at..]));
        assert!(documents.clone().count() > 0);
        let mistaken = documents.find(|path| is_document(path));
        assert_eq!(mistaken, None, "it is read by a suite");
    }

    #[test]
    fn an_unknown_revision_is_named() {
        let error = is_documents_only("no-such-revision").expect_err("unknown");
        assert!(error.contains("no-such-revision"), "{error}");
    }
}
