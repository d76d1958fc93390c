//! Servers that are jars: a Java runtime, and the jars from Maven Central.

use super::{
    fault::{Doing, Fault},
    home::remove,
    install::{self, Turn},
    process::{run, which},
    settings,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The oldest Java that runs Kafka 4.
const JAVA_MAJOR_MIN: u32 = 17;
const JAVA_PACKAGE: &str = "openjdk-17-jre-headless";
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// Maven coordinates of a server and of the jars that it needs, all with pinned versions.
pub(crate) struct Bundle {
    pub(crate) version: &'static str,
    /// (group, artifact, version)
    pub(crate) artifacts: &'static [(&'static str, &'static str, &'static str)],
    /// SHA-256 of the output of `LC_ALL=C sha256sum *` in the folder of its jars.
    pub(crate) digest: &'static str,
}

/// Installs Java and the bundle's jars on first use, and returns the folder with the jars. `name`
/// is its folder among the downloads.
pub(crate) fn install(name: &str, bundle: &Bundle, phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    let folder = settings::downloads_dir()?.join(name);
    let jars = folder.join(format!("lib-{}", bundle.version));
    if jars.is_dir() && runtime_is_usable() {
        return Ok(jars);
    }
    phase("waiting for its turn to install");
    let turn = install::turn()?;
    if !runtime_is_usable() {
        install::packages(&turn, &[JAVA_PACKAGE], phase)?;
    }
    if !jars.is_dir() {
        fs::create_dir_all(&folder).doing(format_args!("cannot create {}", folder.display()))?;
        download(&turn, bundle, &jars, phase)?;
    }
    Ok(jars)
}

/// Returns `java` with a heap in megabytes and the jars as class path.
pub(crate) fn command(jars: &Path, heap_mb: u32) -> Command {
    let mut command = Command::new("java");
    command
        .arg(format!("-Xmx{heap_mb}m"))
        // One small heap on a machine shared with everything else: no parallel collector threads.
        .arg("-XX:+UseSerialGC")
        .arg("-Djava.awt.headless=true")
        .arg("-cp")
        .arg(format!("{}/*", jars.display()));
    command
}

fn runtime_is_usable() -> bool {
    let Ok(text) = run(Command::new("java").arg("-version"), "java -version") else { return false };
    major(&text).is_some_and(|major| major >= JAVA_MAJOR_MIN)
}

/// 17 from `openjdk version "17.0.15" 2025-04-15`; 1 from `java version "1.8.0"`.
fn major(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("version \"")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn download(turn: &Turn, bundle: &Bundle, jars: &Path, phase: &dyn Fn(&str)) -> Result<(), Fault> {
    if which("mvn").is_none() {
        install::packages(turn, &["maven", JAVA_PACKAGE], phase)?;
    }
    phase(&format!("downloading version {} from Maven Central", bundle.version));
    let project = jars.with_extension("pom.xml");
    fs::write(&project, pom(bundle)).doing(format_args!("cannot write {}", project.display()))?;
    // Copied elsewhere and renamed: a folder with the final name is complete.
    let aside = jars.with_extension("partial");
    remove(&aside)?;
    let copied = run(
        Command::new("mvn")
            .args(["--batch-mode", "--quiet", "--no-transfer-progress", "-Dstyle.color=never", "--file"])
            .arg(&project)
            .arg(COPY)
            .arg("-DincludeScope=runtime")
            .arg(format!("-DoutputDirectory={}", aside.display())),
        "mvn dependency:copy-dependencies",
    );
    copied.map_err(|error| {
        Fault::Unavailable(format!(
            "{error}\n  is Maven Central reachable? A mirror or proxy belongs into ~/.m2/settings.xml"
        ))
    })?;
    check(&aside, bundle)?;
    fs::rename(&aside, jars).doing(format_args!("cannot move the jars to {}", jars.display()))
}

/// Refuses jars other than those with which the versions were pinned. Maven itself compares only
/// with checksums that come from the same place.
fn check(jars: &Path, bundle: &Bundle) -> Result<(), Fault> {
    let listed = fs::read_dir(jars).doing(format_args!("cannot list {}", jars.display()))?;
    let mut names: Vec<_> = listed.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.sort_unstable();
    let digests = run(Command::new("sha256sum").args(&names).current_dir(jars), "sha256sum")?;
    let list = jars.with_extension("sha256");
    fs::write(&list, digests).doing(format_args!("cannot write {}", list.display()))?;
    let found = run(Command::new("sha256sum").arg(&list), "sha256sum")?;
    if found.starts_with(bundle.digest) {
        Ok(())
    } else {
        Err(Fault::Failed(format!(
            "the jars of version {} do not have the SHA-256 {}, but {found}\n  see where Maven takes them from, and \
             change the digest together with the version",
            bundle.version, bundle.digest
        )))
    }
}

fn pom(bundle: &Bundle) -> String {
    let dependencies: String = bundle
        .artifacts
        .iter()
        .map(|(group, artifact, version)| {
            format!(
                "    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
                 <version>{version}</version></dependency>\n"
            )
        })
        .collect();
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n  <modelVersion>4.0.0</modelVersion>\n  \
         <groupId>outbox</groupId><artifactId>service</artifactId><version>1</version><packaging>pom</packaging>\n  \
         <dependencies>\n{dependencies}  </dependencies>\n</project>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_of_java_is_read() {
        assert_eq!(major("openjdk version \"17.0.15\" 2025-04-15"), Some(17));
        assert_eq!(major("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(major("java version \"1.8.0_402\""), Some(1));
        assert_eq!(major("command not found"), None);
    }

    #[test]
    fn other_jars_are_refused() {
        let folder = std::env::temp_dir().join(format!("{}-jars.partial", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["b.jar", "a.jar"] {
            fs::write(folder.join(name), name).unwrap();
        }
        let digest = "f9666ef476abd67878901c213c9ef099bb191c84bf7c05aac201faaee747ca4a";
        let bundle = Bundle { version: "2", artifacts: &[], digest };
        let checked = check(&folder, &bundle);
        fs::write(folder.join("b.jar"), "another").unwrap();
        let changed = check(&folder, &bundle);
        remove(&folder).unwrap();
        remove(&folder.with_extension("sha256")).unwrap();
        assert!(checked.is_ok(), "{checked:?}");
        assert!(changed.unwrap_err().to_string().contains(digest));
    }

    #[test]
    fn the_pom_pins_every_artifact() {
        let bundle = Bundle { version: "2", artifacts: &[("g", "a", "2"), ("h", "b", "3")], digest: "" };
        let text = pom(&bundle);
        assert!(
            text.contains("<groupId>g</groupId><artifactId>a</artifactId><version>2</version>"),
            "{text}"
        );
        assert!(text.contains("<artifactId>b</artifactId><version>3</version>"), "{text}");
    }
}
