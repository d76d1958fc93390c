//! One breakage: a patch with a header of two lines.
//!
//! ```text
//! Breaks: G5 exactly once: a delivery is settled before its effect is committed
//! Found by: simulation
//! ```

use super::finder::Finder;
use crate::workspace;
use std::{fs, path::PathBuf};

/// A patch below `tests/mutations/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Patch {
    /// The file's name without its extension.
    pub(super) name: String,
    /// The promise that no longer holds, and what happens instead.
    pub(super) breaks: String,
    /// The program that finds it.
    pub(super) finder: Finder,
    /// The folder of the first crate that the patch changes.
    pub(super) place: String,
}

impl Patch {
    /// Returns the path of the patch.
    pub(super) fn path(&self) -> Result<PathBuf, String> {
        Ok(folder()?.join(format!("{}.patch", self.name)))
    }

    fn read(name: &str, text: &str) -> Result<Self, String> {
        let is_header = |line: &&str| !line.starts_with("diff --git") && !line.starts_with("--- ");
        let field = |field: &str| {
            let mut header = text.lines().take_while(is_header);
            let line = header.find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
            line.map(|value| value.trim().to_owned()).ok_or_else(|| {
                format!("tests/mutations/{name}.patch has no line \"{field}: …\" above the patch")
            })
        };
        let finder = Finder::read(&field("Found by")?)
            .map_err(|problem| format!("tests/mutations/{name}.patch: {problem}"))?;
        let place = text.lines().find_map(|line| line.strip_prefix("+++ b/")?.split('/').next());
        let place = place.ok_or_else(|| format!("tests/mutations/{name}.patch changes nothing"))?.to_owned();
        Ok(Self { name: name.to_owned(), breaks: field("Breaks")?, finder, place })
    }
}

fn folder() -> Result<PathBuf, String> {
    Ok(workspace::root()?.join("tests/mutations"))
}

/// Reads every patch, in the order of the names.
pub(super) fn all() -> Result<Vec<Patch>, String> {
    let folder = folder()?;
    let failed = |error| format!("cannot read {}: {error}", folder.display());
    let mut patches = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "patch") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).map_err(failed)?;
            patches.push(Patch::read(&name, &text)?);
        }
    }
    patches.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(patches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git;

    #[test]
    fn the_header_says_what_is_broken_and_what_finds_it() {
        let text = "Breaks: G5: no guard\nFound by: simulation\n\n--- a/x\n+++ b/x\nFound by: luck\n";
        let patch = Patch::read("01-guard", text).expect("read");
        assert_eq!((patch.breaks.as_str(), patch.finder.word()), ("G5: no guard", "simulation"));
        assert_eq!(patch.place, "x");
        let error = Patch::read("01-guard", "Breaks: G5\ndiff --git a/x b/x\nFound by: luck\n").unwrap_err();
        assert!(error.contains("01-guard") && error.contains("Found by"), "{error}");
    }

    /// A test that stands in another package is not run, and finds nothing.
    #[test]
    fn each_unit_test_stands_in_the_package_that_is_named() {
        let root = workspace::root().expect("a workspace");
        let tracked = git::answer(&root, ["ls-files", "*.rs", "*Cargo.toml"]).expect("tracked files");
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let manifests: Vec<&str> =
            tracked.lines().filter_map(|path| path.strip_suffix("/Cargo.toml")).collect();
        let package_of = |path: &str| {
            let inside =
                |folder: &&&str| path.strip_prefix(**folder).is_some_and(|rest| rest.starts_with('/'));
            manifests.iter().filter(inside).max_by_key(|folder| folder.len()).copied()
        };
        for patch in all().expect("patches") {
            let Some((package, test)) = patch.finder.unit_test() else { continue };
            let name = format!("name = \"{package}\"");
            let folder =
                manifests.iter().find(|folder| read(&format!("{folder}/Cargo.toml")).contains(&name));
            let folder = folder.unwrap_or_else(|| panic!("{}: no package {package}", patch.name));
            // A module, or a part of the name of a test.
            let last = test.rsplit("::").next().unwrap_or(test);
            let is_there = |path: &&str| {
                let is_module = path.ends_with(&format!("/{last}.rs")) || path.contains(&format!("/{last}/"));
                package_of(path) == Some(*folder) && (is_module || read(path).contains(last))
            };
            let found = tracked.lines().filter(|path| path.ends_with(".rs")).find(is_there);
            assert!(found.is_some(), "{}: no unit test {test} in {folder}", patch.name);
        }
    }
}
