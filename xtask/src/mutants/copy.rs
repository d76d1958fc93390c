//! The copy of the checkout in which the code is broken.

use super::patch::Patch;
use crate::{
    git,
    services::{DIR_VARIABLE, services_dir},
    workspace,
};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A copy of the files of the checkout that git knows. It has a build folder of its own: artifacts
/// of broken code must never be mistaken for good artifacts.
pub(super) struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Makes the copy, or updates it. Unchanged files stay as they are, so that little is rebuilt.
    pub(super) fn new() -> Result<Self, String> {
        let root = workspace::root()?;
        let build = workspace::target()?;
        let copy = Self { tree: build.join("mutants/tree"), target: build.join("mutants/target") };
        copy.seed(&build.join("debug"))?;
        let listed = git::answer(&root, ["ls-files", "--cached", "--others", "--exclude-standard", "-z"])?;
        let files: Vec<&str> = listed.split('\0').filter(|name| root.join(name).is_file()).collect();
        for name in &files {
            copy.take(&root, name)?;
        }
        copy.drop_others(&copy.tree, &files)?;
        Ok(copy)
    }

    /// Checks that a patch still applies.
    pub(super) fn applies(&self, patch: &Patch) -> Result<(), String> {
        self.patch(patch, &["apply", "--check"])
            .map_err(|problem| format!("tests/mutations/{}.patch does not apply: {problem}", patch.name))
    }

    /// Breaks the code.
    pub(super) fn apply(&self, patch: &Patch) -> Result<(), String> {
        self.patch(patch, &["apply"])
    }

    /// Removes the patch again.
    pub(super) fn revert(&self, patch: &Patch) -> Result<(), String> {
        self.patch(patch, &["apply", "--reverse"])
    }

    /// Returns cargo in the copy.
    pub(super) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Build the copy's own packages, not those of the cargo that runs this.
        command.env_remove("CARGO_MANIFEST_DIR").env("CARGO_TARGET_DIR", &self.target);
        // A breakage changes a few lines, but CI, which builds everything once, has this switched
        // off.
        command.env("CARGO_INCREMENTAL", "1");
        // Debug information is not used here, and every program is linked again for each breakage.
        command.env("CARGO_PROFILE_DEV_DEBUG", "false");
        // The copy shares the downloads of the services.
        if let Ok(folder) = services_dir() {
            command.env(DIR_VARIABLE, folder);
        }
        command.args(arguments).current_dir(&self.tree);
        command
    }

    /// Returns a program that was built in the copy.
    pub(super) fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.target.join("debug").join(name));
        command.args(arguments).current_dir(&self.tree);
        command
    }

    fn patch(&self, patch: &Patch, verb: &[&str]) -> Result<(), String> {
        let path = patch.path()?;
        let arguments: Vec<&OsStr> = verb.iter().map(OsStr::new).chain([path.as_os_str()]).collect();
        // Runs outside any repository: otherwise git would skip files that the repository around
        // the copy ignores.
        let ceiling = self.tree.parent().unwrap_or(&self.tree);
        git::run(
            Command::new("git")
                .args(arguments)
                .current_dir(&self.tree)
                .env("GIT_CEILING_DIRECTORIES", ceiling),
        )
        .map(drop)
    }

    /// Reuses the artifacts of the checkout. Cargo and rustc replace artifacts, so hard links to
    /// them are safe. Fingerprints are written in place: with links, a build of broken code would
    /// pass for one of the checkout. Our own crates are rebuilt: their sources are copied later,
    /// and so are newer.
    fn seed(&self, from: &Path) -> Result<(), String> {
        let to = self.target.join("debug");
        if to.exists() || !from.exists() {
            return Ok(());
        }
        let failed = |error| format!("cannot bring {} to {}: {error}", from.display(), to.display());
        let parts: [(&str, Put); 3] = [
            (".fingerprint", |from, to| fs::copy(from, to).map(drop)),
            ("build", |from, to| fs::hard_link(from, to)),
            ("deps", |from, to| fs::hard_link(from, to)),
        ];
        for (part, put) in parts {
            bring(&from.join(part), &to.join(part), put).map_err(failed)?;
        }
        Ok(())
    }

    fn take(&self, root: &Path, name: &str) -> Result<(), String> {
        let (from, to) = (root.join(name), self.tree.join(name));
        let failed = |error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let content = fs::read(&from).map_err(failed)?;
        if fs::read(&to).is_ok_and(|old| old == content) {
            return Ok(());
        }
        fs::copy(&from, &to).map(drop).map_err(failed)
    }

    /// Removes files that the checkout no longer has.
    fn drop_others(&self, folder: &Path, files: &[&str]) -> Result<(), String> {
        let failed = |error| format!("cannot clean {}: {error}", folder.display());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                self.drop_others(&path, files)?;
            } else if let Ok(name) = path.strip_prefix(&self.tree)
                && !files.iter().any(|file| Path::new(file) == name)
            {
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// A function that puts a file in another place.
type Put = fn(&Path, &Path) -> std::io::Result<()>;

/// Puts the files of a folder in another one. Files that disappear meanwhile are skipped.
fn bring(from: &Path, to: &Path, put: Put) -> std::io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let brought = if from.is_dir() { bring(&from, &to, put) } else { put(&from, &to) };
        match brought {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
